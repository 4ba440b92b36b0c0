"""The choice of a method for a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp import limits
from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.exact import Exact
from cagp.recipes.opt import started_at, train_opt
from cagp.recipes.options import LOCAL_SCALE, N_ACTIONS, N_NEIGHBORS

if TYPE_CHECKING:
    from cagp.methods import cholesky
    from cagp.recipes import steps
    from cagp.recipes import task as tasks
else:
    cholesky, steps = map(lazy_module, ("cagp.methods.cholesky", "cagp.recipes.steps"))

REFINING_STEPS = 50
"""Steps of CaGP-Opt after the hyperparameters were found and it was chosen."""


@final
@dataclass(frozen=True)
class Auto(Recipe):
    """The method that suits the table."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()

    name: ClassVar[str] = "auto"
    words: ClassVar[str] = "the method that predicts held-out training rows best"
    summary: ClassVar[str] = (
        f"exact up to {limits.EXACT_ROWS:,} rows; beyond, the method that predicts held-out training rows best"
    )

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Exact for few rows; else local, compared on held-out rows with what shared actions would add."""
        n = task.num_rows
        if n <= limits.EXACT_ROWS and cholesky.memory_needed(n) <= task.memory:
            reason = f"Chose exact inference: {n:,} rows are few enough (at most {limits.EXACT_ROWS:,})."
            return Exact().train(task)._replace(choice=reason)
        _, train, held_out = steps.hold_out(task)
        priors = train.priors(task.low_noise_floor)
        result = steps.train_local(train, self.n_neighbors, priors)
        num_actions = steps.number_of_actions(self.n_actions, task)
        reason = None
        if result.interrupted:
            reason = "Chose local: the fit was interrupted before other methods could be compared."
        elif limits.action_bytes(n, num_actions) > task.memory:
            reason = f"Chose local: the memory limit does not allow {num_actions:,} shared actions."
        if reason is not None:
            fitted = steps.condition_local(task, priors, self.n_neighbors, self.local_scale, None, result)
            return fitted._replace(choice=reason)
        num_shared = steps.number_of_actions(self.n_actions, train)
        shared = steps.constant_actions(priors[0].kernel, train.X, num_shared, task.seed)
        methods = steps.local_methods(train, priors, self.n_neighbors, self.local_scale)
        if self.local_scale == "auto":
            methods, _ = steps.with_local_scales(methods, train)
        choice = steps.choose(methods, shared, train, held_out)
        reason = f"Chose {choice.method}: {choice.reason}."
        if choice.method == "opt":
            within = {"most_steps": REFINING_STEPS, "max_time": task.time_left()}
            fitted = train_opt(task, priors, self.n_actions, learned=True, **within)
            return fitted._replace(notes=[started_at(result)], choice=reason)
        num_shared = num_actions if choice.method == "hybrid" else None
        fitted = steps.condition_local(task, priors, self.n_neighbors, self.local_scale, num_shared, result)
        learned = f"Hyperparameters were learned without the held-out rows; predictions use all {n:,} rows."
        return fitted._replace(notes=[learned, *fitted.notes], choice=reason)
