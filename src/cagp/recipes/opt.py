"""CaGP-Opt."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from cagp import limits
from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.checks import check_neighbours
from cagp.recipes.options import N_ACTIONS, N_NEIGHBORS

if TYPE_CHECKING:
    import torch

    from cagp import diagnostics, linalg, methods, noise_tuning, notices, prior, starting, training
    from cagp.recipes import far_apart, steps
    from cagp.recipes import task as tasks
else:
    torch, methods, noise_tuning = map(lazy_module, ("torch", "cagp.methods", "cagp.noise_tuning"))
    starting, steps, tasks = map(lazy_module, ("cagp.starting", "cagp.recipes.steps", "cagp.recipes.task"))
    far_apart, diagnostics = map(lazy_module, ("cagp.recipes.far_apart", "cagp.diagnostics"))
    linalg, notices = map(lazy_module, ("cagp.linalg", "cagp.notices"))

EVALUATE_EVERY, PATIENCE = 20, 4
"""Steps between judgements by held-out rows, and judgements without a gain that end the fit."""

START_SHARE, FINAL_JUDGEMENTS = 0.3, 6
"""With a time limit: the share of the time for the starting values, and the judgements that fit in after training."""


@final
@dataclass(frozen=True)
class Opt(Recipe):
    """Learned actions, shared by all test points."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()

    name: ClassVar[str] = "opt"
    words: ClassVar[str] = "CaGP-Opt, a computation-aware Gaussian process with learned actions"
    summary: ClassVar[str] = "learned actions (CaGP-Opt)"
    fast_dtype: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True

    def method(self, task: "tasks.Task", prior: "prior.GP") -> "methods.Method":
        """Actions and hyperparameters, learned together."""
        batches = steps.Minibatches.of(task)
        return methods.CaGPOpt.from_data(
            prior,
            task.data,
            steps.number_of_actions(self.n_actions, task, batches.batch_size),
            max_bytes=task.max_bytes,
            batch_size=batches.batch_size,
            seed=task.seed,
            support_size=batches.support_size,
            generator=torch.Generator().manual_seed(task.seed),
        )

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """With many rows: from the hyperparameters of a short fit of CaGP-Local, judged by held-out rows."""
        if task.num_rows <= limits.EXACT_ROWS:
            return train_opt(task, task.priors(), self.n_actions)
        parts, notes = steps.hold_out(task), []
        priors, most_steps = parts.train.priors(), None
        if not task.from_data:
            notes = far_apart.choose_start(parts.train.in_double(), priors)
        elif task.kernel.decays(task.X.shape[1]) is False:
            result, notes = far_apart.learn_far_apart(parts.train, priors)
            most_steps = 1 if result.interrupted else None
        else:
            check_neighbours(self.n_neighbors, task.num_rows)
            neighbours = steps.Neighbours.of(self.n_neighbors)
            method = methods.MultiTarget(steps.local_methods(parts.train, priors, neighbours))
            reserve = 0.0 if task.max_time is None else (1 - START_SHARE) * task.time_left()
            local = parts.train.in_double().run(method, "start", most_steps=starting.LOCAL_STEPS, reserve=reserve)
            most_steps = 1 if local.interrupted else None
            notes = [started_at(local)]
        fitted = train_opt(parts.train, priors, self.n_actions, task.from_data, parts.held_out, most_steps=most_steps)
        assert fitted.held is not None
        return fitted._replace(held=parts.rows[fitted.held], notes=[*notes, *fitted.notes])


def started_at(local: "training.FitResult") -> str:
    """Where the hyperparameters come from, in words."""
    return f"Hyperparameters start at those that CaGP-Local learned in {len(local.steps):,} steps."


def depth_of(method: "methods.CaGPOpt", task: "tasks.Task") -> list[str]:
    """Whether shared actions fit the first target at hyperparameters that CaGP-Local learned; a sentence if not."""
    data = task.column(0)
    with notices.collected(linalg.JitterWarning):
        try:
            posterior = method.posterior(data)
        except linalg.NotPositiveDefiniteError:  # training starts with more noise
            return []
    advice = diagnostics.action_fit(posterior, data.X, data.row_noise, seed=task.seed).advice
    return [] if advice is None else [advice]


def train_opt(
    task: "tasks.Task",
    priors: "list[prior.GP]",
    n_actions: int | str,
    learned: bool = False,
    held_out: "tasks.Task | None" = None,
    **changes: Any,
) -> "tasks.Fitted":
    """Train actions and hyperparameters together.

    Args:
        learned: the hyperparameters are those of CaGP-Local, neither a guess nor those of CaGP-Opt.
        held_out: rows that choose the step and the noise.
        changes: limits and settings of the fit.
    """
    batches = steps.Minibatches.of(task)
    first = methods.CaGPOpt.from_data(
        priors[0],
        task.data,
        steps.number_of_actions(n_actions, task, batches.batch_size),
        max_bytes=task.max_bytes,
        reblock_at=() if learned else None,
        batch_size=batches.batch_size,
        seed=task.seed,
        support_size=batches.support_size,
        generator=torch.Generator().manual_seed(task.seed),
    )
    shared = {"max_bytes": first.max_bytes, "reblock_at": first.reblock_at}
    shared |= {"batch_size": first.batch_size, "seed": first.seed}
    others = [methods.CaGPOpt(p, first.actions, first.loss, **shared) for p in priors[1:]]
    method, notes = methods.MultiTarget([first, *others]), []
    cost = 0.0  # of a judgement, in seconds
    if held_out is not None and task.max_time is not None:
        start = time.perf_counter()
        steps.held_out_nll(method, task, held_out)
        cost = task.ranks.broadcast(time.perf_counter() - start)
        if task.time_left() < FINAL_JUDGEMENTS * cost:
            notes.append("No time was left to judge steps by held-out rows.")
            held_out, changes["reserve"] = None, cost
        else:
            changes["reserve"] = FINAL_JUDGEMENTS * cost
    if learned and task.time_left() > FINAL_JUDGEMENTS * cost:
        notes += depth_of(first, task)
        rows = method.rows(0, task.num_rows).drawn
        noise_tuning.raise_noise(method, task.data, rows=rows, until=task.deadline)
        task.ranks.share(method)
    if held_out is not None:
        changes |= {"evaluate": lambda: {"nll": steps.held_out_nll(method, task, held_out)}, "monitor": "nll"}
        changes |= {"evaluate_every": EVALUATE_EVERY, "patience": PATIENCE}
    result = task.run(method, "opt", **changes)
    if held_out is not None:
        factors = [steps.calibrate(part, task, held_out, j) for j, part in enumerate(method.parts)]
        task.ranks.share(method)
        notes += [
            f"{held_out.num_rows:,} rows were held out to choose the step and the noise, which is "
            f"{' and '.join(f'{factor:.2g}' for factor in factors)} times that of the loss; predictions use the "
            f"other {task.num_rows:,}."
        ]
    return tasks.Fitted(
        "opt", method.condition(task.data), result, notes, first.support(task.num_rows).detach().clone()
    )
