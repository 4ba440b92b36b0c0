"""The exact Gaussian process."""

import time
from contextlib import suppress

from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import MAP, CholeskyGP, LogNormal, Method, MultiTarget
from cagp.methods.exact import memory_needed
from cagp.prior import GP
from cagp.quantities import bytes_of
from cagp.recipes.long_range import start_of_periods
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task

PRIOR_SCALE = 1.5
"""Of the logarithm of the outputscale, about zero. On a trend, lengthscale and outputscale could both grow without end:
the likelihood hardly changes, and digits of the predictions are lost. For outputscales from 1/20 to 20, the prior costs
two nats at most, for all rows together."""

NEAR_GAIN = 0.002
"""Nats per row: less than half of what decides between two models. Heuristic; docs/benchmarks.md has the evidence."""


def method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """Exact inference."""
    return CholeskyGP(prior, task.max_bytes)


def train(recipe: Recipe, task: Task) -> Fitted:
    """L-BFGS on -log p(y): a smooth loss of few parameters whose evaluations are expensive."""
    return train_exact(task)


def exact_methods(task: Task, priors: list[GP]) -> MultiTarget:
    """Exact inference, with a wide prior on the outputscale of a kernel that is given by its name."""
    methods = [CholeskyGP(prior, task.max_bytes) for prior in priors]
    if not task.kernels or not hasattr(priors[0].kernel, "outputscale"):
        return MultiTarget(methods)
    return MultiTarget([MAP(each, None, outputscale=LogNormal(0.0, PRIOR_SCALE)) for each in methods])


def train_exact(task: Task, is_near: bool = False, share: float = 1.0) -> Fitted:
    """Exact inference after L-BFGS on -log p(y).

    Args:
        is_near: the hyperparameters are near the best ones already: training ends with the first step that gains less
            than ``NEAR_GAIN``.
        share: of the time that is left, which training and posterior may take.
    """
    n, limit = task.num_rows, task.max_memory
    if limit is not None and memory_needed(n) > bytes_of(limit):
        raise MemoryError(
            f"exact inference on {n:,} rows needs about {memory_needed(n) / 1e6:,.0f} MB, max_memory is "
            f'{limit}; allow more, use fewer rows, or choose method="local".'
        )
    priors, notes = start_of_periods(task.in_double(), task.priors())
    several = exact_methods(task, priors)
    # Steps of quasi-Newton type have length one, and their loss only falls: three steps tell that it has ended.
    stop = {"num_steps": 100, "min_improvement": 1e-4, "window": 3, "min_gain": NEAR_GAIN if is_near else None}
    reserve = 0.0 if task.max_time is None else (1 - share) * task.time_left() + _seconds_to_condition(task, several)
    result = task.run(several, "exact", optimizer="lbfgs", schedule="constant", reserve=reserve, **stop)
    return Fitted("exact", several.condition(task.data), result, notes, task.every_row())


def _seconds_to_condition(task: Task, several: MultiTarget) -> float:
    """What the posterior of all rows will take, by that of half of them: eight times as long."""
    began, half = time.perf_counter(), task.rows(task.every_row()[::2])
    with suppress(NotPositiveDefiniteError):  # training starts with more noise
        several.condition(half.data)
    return task.ranks.broadcast(8 * (time.perf_counter() - began))
