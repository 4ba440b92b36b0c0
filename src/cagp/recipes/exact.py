"""The exact Gaussian process."""

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.quantities import bytes_of
from cagp.recipes.base import Recipe

if TYPE_CHECKING:
    from cagp import kernels, linalg, methods
    from cagp.methods import cholesky
    from cagp.prior import GP
    from cagp.recipes import far_apart
    from cagp.recipes import task as tasks
else:
    kernels, linalg = map(lazy_module, ("cagp.kernels", "cagp.linalg"))
    methods, cholesky = map(lazy_module, ("cagp.methods", "cagp.methods.cholesky"))
    far_apart, tasks = map(lazy_module, ("cagp.recipes.far_apart", "cagp.recipes.task"))

PRIOR_SCALE = 1.5
"""Of the logarithm of the outputscale, about zero. On a trend, lengthscale and outputscale could both grow without end:
the likelihood hardly changes, and digits of the predictions are lost. For outputscales from 1/20 to 20, the prior costs
two nats at most, for all rows together."""

NEAR_GAIN = 0.002
"""Nats per row: less than half of what decides between two models. Heuristic; docs/benchmarks.md has the evidence."""


@final
@dataclass(frozen=True)
class Exact(Recipe):
    """All rows, by Cholesky factorisation."""

    name: ClassVar[str] = "exact"
    words: ClassVar[str] = "an exact Gaussian process (Cholesky factorisation)"
    summary: ClassVar[str] = "all rows, by Cholesky factorisation: a few thousand rows"
    takes_likelihoods: ClassVar[bool] = True

    def method(self, task: "tasks.Task", prior: "GP") -> "methods.Method":
        """Exact inference."""
        return methods.CholeskyGP(prior, task.max_bytes)

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """L-BFGS on -log p(y): a smooth loss of few parameters whose evaluations are expensive."""
        return train_exact(task)


def exact_method(task: "tasks.Task", prior: "GP") -> "methods.Method":
    """Exact inference, with a wide prior on the outputscale of a kernel that is given by its name."""
    method = methods.CholeskyGP(prior, task.max_bytes)
    is_named = bool(task.kernels) and hasattr(prior.kernel, "outputscale")
    return methods.MAP(method, None, outputscale=methods.LogNormal(0.0, PRIOR_SCALE)) if is_named else method


def _seconds_to_condition(task: "tasks.Task", method: "methods.MultiTarget") -> float:
    """What the posterior of all rows will take, by that of half of them: eight times as long."""
    began, half = time.perf_counter(), task.rows(task.every_row()[::2])
    with suppress(linalg.NotPositiveDefiniteError):  # training starts with more noise
        method.condition(half.data)
    return task.ranks.broadcast(8 * (time.perf_counter() - began))


def train_exact(task: "tasks.Task", is_near: bool = False, share: float = 1.0) -> "tasks.Fitted":
    """Exact inference after L-BFGS on -log p(y).

    Args:
        share: of the time that is left, which training and posterior may take.
        is_near: the hyperparameters are near the best ones already: training ends with the first step that gains less
            than ``NEAR_GAIN``.
    """
    n, limit = task.num_rows, task.max_memory
    if limit is not None and cholesky.memory_needed(n) > bytes_of(limit):
        raise MemoryError(
            f"exact inference on {n:,} rows needs about {cholesky.memory_needed(n) / 1e6:,.0f} MB, max_memory is "
            f'{limit}; allow more, use fewer rows, or choose method="local".'
        )
    priors = task.priors()
    notes = far_apart.choose_start(task.in_double(), priors)
    method = methods.MultiTarget([exact_method(task, prior) for prior in priors])
    # Steps of quasi-Newton type have length one, and their loss only falls: three steps tell that it has ended.
    stop = {"num_steps": 100, "min_improvement": 1e-4, "window": 3, "min_gain": NEAR_GAIN if is_near else None}
    reserve = 0.0 if task.max_time is None else (1 - share) * task.time_left() + _seconds_to_condition(task, method)
    result = task.run(method, "exact", optimizer="lbfgs", schedule="constant", reserve=reserve, **stop)
    return tasks.Fitted(Exact.name, method.condition(task.data), result, notes, task.every_row())
