"""CaGP-Opt: learned actions, shared by all test points."""

import copy
import time
from contextlib import suppress
from typing import Any

import torch

from cagp import limits, metrics
from cagp.diagnostics import action_fit
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.methods import CaGPOpt, Method, MultiTarget
from cagp.notices import collected
from cagp.prior import GP
from cagp.quantities import seconds_of
from cagp.recipes import local
from cagp.recipes.exact import start_of_periods
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task
from cagp.starting import LOCAL_STEPS, calibrate_noise, raise_noise
from cagp.training import FitResult

EVALUATE_EVERY, PATIENCE = 20, 4
"""Steps between validations, and validations without a gain that end the fit."""

START_SHARE, FINAL_VALIDATIONS = 0.3, 6
"""With a time limit: the share of the time for the starting values, and the validations that fit in after training."""

BATCH_SIZE, MINIBATCH_ROWS = 1024, 10_000
FULL_STEP, FULL_STEPS = 5e-9, 10
"""Minibatches of ``BATCH_SIZE`` rows are used beyond ``local.SUPPORT_ROWS`` rows, and beyond ``MINIBATCH_ROWS`` where
``max_time`` allows fewer than ``FULL_STEPS`` steps with all rows, each of about ``FULL_STEP`` n² seconds.
Heuristics; docs/benchmarks.md has the evidence."""


def method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """Actions and hyperparameters, learned together."""
    return _methods(recipe.n_actions, task, [prior]).parts[0]


def _methods(n_actions: int | str, task: Task, priors: list[GP], **changes: Any) -> MultiTarget:
    """CaGP-Opt for each target; all share the actions."""
    n, batch_size = task.num_rows, None
    full_steps = seconds_of(task.max_time) / (FULL_STEP * n**2)  # that ``max_time`` allows
    if n > local.SUPPORT_ROWS or (n > MINIBATCH_ROWS and full_steps < FULL_STEPS):
        batch_size, changes["support_size"] = BATCH_SIZE, local.SUPPORT_SIZE
    changes |= {"max_bytes": task.max_bytes, "batch_size": batch_size, "seed": task.seed}
    changes["generator"] = torch.Generator().manual_seed(task.seed)
    num_actions = local.number_of_actions(n_actions, task, batch_size)
    return sharing_actions(CaGPOpt.from_data(priors[0], task.data, num_actions, **changes), priors)


def sharing_actions(first: CaGPOpt, priors: list[GP]) -> MultiTarget:
    """CaGP-Opt for each prior, all with the actions and settings of the first."""
    options = {"max_bytes": first.max_bytes, "reblock_at": first.reblock_at}
    options |= {"batch_size": first.batch_size, "seed": first.seed}
    return MultiTarget([first, *(CaGPOpt(prior, first.actions, first.loss, **options) for prior in priors[1:])])


def train(recipe: Recipe, task: Task) -> Fitted:
    """With many rows: from the hyperparameters of a short fit of CaGP-Local, validated on held-out rows."""
    if task.num_rows <= limits.EXACT_ROWS:
        return train_opt(task, task.priors(), recipe.n_actions)
    (rows, train, held_out), result = task.hold_out(), None
    if not task.from_data:
        priors, notes = start_of_periods(train.in_double(), train.priors())
    elif task.decays is False:
        priors, result, notes = local.learn_far(train)
    else:
        local.check_neighbours(recipe.n_neighbors, task.num_rows)
        priors = train.priors()
        several = MultiTarget(local.local_methods(train, priors, local.Neighbours.of(recipe.n_neighbors)))
        result = train.in_double().run(several, "start", most_steps=LOCAL_STEPS, reserve=train.reserve(1 - START_SHARE))
        notes = [started_at(result)]
    most_steps = 1 if result is not None and result.interrupted else None
    fitted = train_opt(train, priors, recipe.n_actions, task.from_data, held_out, most_steps=most_steps)
    assert fitted.held is not None
    return fitted._replace(held=rows[fitted.held], notes=[*notes, *fitted.notes])


def started_at(result: FitResult) -> str:
    """Where the hyperparameters come from, in words."""
    return f"Hyperparameters start at those that CaGP-Local learned in {len(result.steps):,} steps."


def train_opt(
    task: Task,
    start: list[GP],  # stay as they are
    n_actions: int | str,
    learned: bool = False,  # the priors, by CaGP-Local: they are neither a guess nor those of CaGP-Opt
    held_out: Task | None = None,  # rows that choose the step and the noise
    **changes: Any,  # limits and settings of the fit
) -> Fitted:
    """Train actions and hyperparameters together."""
    several = _methods(n_actions, task, copy.deepcopy(start), **({"reblock_at": ()} if learned else {}))
    first = several.parts[0]
    assert isinstance(first, CaGPOpt)
    notes, cost = [], 0.0  # of a validation, in seconds
    if held_out is not None and task.max_time is not None:
        began = time.perf_counter()
        held_out_nll(several, task, held_out)
        cost = task.ranks.broadcast(time.perf_counter() - began)
        changes["reserve"] = FINAL_VALIDATIONS * cost
        if task.time_left() < FINAL_VALIDATIONS * cost:
            notes.append("No time was left to validate steps on held-out rows.")
            held_out, changes["reserve"] = None, cost
    if learned and task.time_left() > FINAL_VALIDATIONS * cost:
        data, posterior = task.data.column(0), None
        with collected(JitterWarning), suppress(NotPositiveDefiniteError):  # training starts with more noise
            posterior = first.posterior(data)
        advice = None if posterior is None else action_fit(posterior, data, data.row_noise, seed=task.seed).advice
        notes += [] if advice is None else [advice]
        raise_noise(several, task.data, rows=several.rows(0, task.num_rows).drawn, until=task.deadline)
        task.ranks.share(several)
    if held_out is not None:
        changes |= {"evaluate": lambda: {"nll": held_out_nll(several, task, held_out)}, "monitor": "nll"}
        changes |= {"evaluate_every": EVALUATE_EVERY, "patience": PATIENCE}
    result = task.run(several, "opt", **changes)
    if held_out is not None:
        factors = []
        for j, part in enumerate(several.parts):
            rows, held, before = task.data.column(j), held_out.data.column(j), part.hyperparameters()["noise.noise"]
            calibrate_noise(part, rows.X, rows.y, held.X, held.y, rows.row_noise, held.row_noise, until=task.deadline)
            factors.append(f"{part.hyperparameters()['noise.noise'] / before:.2g}")
        task.ranks.share(several)
        notes.append(
            f"{held_out.num_rows:,} rows were held out to choose the step and the noise, which is "
            f"{' and '.join(factors)} times that of the loss; predictions use the other {task.num_rows:,}."
        )
    held = first.support(task.num_rows).detach().clone()
    return Fitted("opt", several.condition(task.data), result, notes, held)


@torch.no_grad()
def held_out_nll(several: MultiTarget, train: Task, held_out: Task) -> float:
    """Negative log density of the held-out targets, the mean over all targets."""
    total = 0.0
    for j, posterior in enumerate(several.condition(train.data)):
        held = held_out.data.column(j)
        prediction = posterior.predict(held, noise=True, row_noise=held.row_noise)
        total += float(metrics.row_nll(held.y, *prediction).mean())
    return total / len(several.parts)
