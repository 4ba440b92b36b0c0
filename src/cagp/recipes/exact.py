"""The exact Gaussian process, and the periods that a search by its likelihood starts from."""

import copy
import math
import time
from contextlib import suppress
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from cagp.comparison import MARGINS
from cagp.kernels import Kernel, repeating_parts
from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import MAP, CholeskyGP, LogNormal, Method, MultiTarget
from cagp.methods.compared import memory_needed
from cagp.periodogram import LEAST_CYCLES, MOST_CYCLES, peaks
from cagp.prior import GP
from cagp.quantities import bytes_of
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task

PRIOR_SCALE = 1.5
"""Of the logarithm of the outputscale, about zero. On a trend, lengthscale and outputscale could both grow without end:
the likelihood hardly changes, and digits of the predictions are lost. For outputscales from 1/20 to 20, the prior costs
two nats at most, for all rows together."""

NEAR_GAIN = 0.002
"""Nats per row: less than half of what decides between two models. Heuristic; docs/benchmarks.md has the evidence."""


def method(recipe: Recipe, task: Task, prior: GP) -> Method:
    return CholeskyGP(prior, task.max_bytes)


def exact_methods(task: Task, priors: list[GP]) -> MultiTarget:
    """Exact inference, with a wide prior on the outputscale of a kernel that is given by its name."""
    several = plain_methods(task, priors)
    if not task.kernels or not hasattr(priors[0].kernel, "outputscale"):
        return several
    return MultiTarget([MAP(each, None, outputscale=LogNormal(0.0, PRIOR_SCALE)) for each in several.parts])


def plain_methods(task: Task, priors: list[GP]) -> MultiTarget:
    return MultiTarget([CholeskyGP(prior, task.max_bytes) for prior in priors])


def train(recipe: Recipe, task: Task, is_near: bool = False, share: float = 1.0) -> Fitted:
    """L-BFGS on -log p(y): a smooth loss of few parameters whose evaluations are expensive.

    If the hyperparameters are near the best ones already, training ends with the first step that gains less than
    ``NEAR_GAIN``. Training and posterior may take a ``share`` of the time that is left.
    """
    n, limit = task.num_rows, task.max_memory
    if limit is not None and memory_needed(n) > bytes_of(limit):
        raise MemoryError(
            f"exact inference on {n:,} rows needs about {memory_needed(n) / 1e6:,.0f} MB, max_memory is "
            f'{limit}; allow more, use fewer rows, or choose method="local".'
        )
    priors, notes = start_of_periods(task.in_double(), task.priors())
    several, reserve = exact_methods(task, priors), 0.0
    if task.max_time is not None:
        reserve = (1 - share) * task.time_left() + _seconds_to_condition(task, several)
    # Steps of quasi-Newton type have length one, and their loss only falls: three steps tell that it has ended.
    stop = {"num_steps": 100, "min_improvement": 1e-4, "window": 3, "min_gain": NEAR_GAIN if is_near else None}
    result = task.run(several, "exact", optimizer="lbfgs", schedule="constant", reserve=reserve, **stop)
    return Fitted("exact", several.condition(task.data), result, notes, slice(None))


def _seconds_to_condition(task: Task, several: MultiTarget) -> float:
    """What the posterior of all rows will take, by that of half of them: eight times as long."""
    began, half = time.perf_counter(), task.data.take(torch.arange(0, task.num_rows, 2, device=task.X.device))
    with suppress(NotPositiveDefiniteError):  # training starts with more noise
        several.condition(half)
    return task.ranks.broadcast(8 * (time.perf_counter() - began))


# ---- periods to start from ----

LIKELIHOOD_SETTINGS = {"optimizer": "lbfgs", "min_improvement": 1e-4, "window": 5}
"""For the likelihood of some rows."""

START_ROWS, START_STEPS, MOST_STARTS, PEAKS = 300, 10, 8, 3
"""Rows and steps with which starting values are compared, their number, and the periods tried for a part."""

LEAST_SHARE = 0.25
"""Two waves belong to one season if the difference of their frequencies is at least this share of the larger one."""

SAME_PERIOD = 0.02
"""Periods that differ by less than this share are one start."""

MOST_HALVINGS = int(math.log2(MOST_CYCLES / LEAST_CYCLES))
"""Half periods that are tried one after the other: then the shortest period that is looked for is reached."""

STILL_SHORTER = 0.75
"""A halved period that training brings back to more than this share of the period before is not tried further."""


def start_of_periods(task: Task, priors: list[GP]) -> tuple[list[GP], list[str]]:
    """Copies of the priors with the periods of best likelihood after a few steps; in words, if several were compared.

    The likelihood has a maximum at nearly every period that occurs often: the strongest periods of the targets are
    tried beside the one that the kernel comes with.
    """
    starts = period_starts(priors[0].kernel, task.X, task.y)
    if len(starts) < 2:
        return copy.deepcopy(priors), []
    few, limit = task.drawn(START_ROWS), task.time_left() / (4 * len(starts))
    best, best_value = priors, math.inf

    def repeating(tried: list[GP], place: int) -> Any:
        return repeating_parts(tried[0].kernel, range(task.X.shape[1]))[place][0]

    def trained(tried: list[GP], name: str) -> tuple[float, bool]:
        """The loss of priors after some steps, and whether they were interrupted."""
        settings = {"most_steps": START_STEPS, **LIKELIHOOD_SETTINGS, "max_time": limit}
        result = few.run(plain_methods(task, tried), name, **settings)
        return result.best_value, result.interrupted

    for j, start in enumerate(starts):
        tried = copy.deepcopy(priors)
        for part, period in start:
            repeating(tried, part).period = period
        value, interrupted = trained(tried, f"start-{j}")
        # By a margin: what has a period also has twice that period.
        if j == 0 or value < best_value - MARGINS["period"].least:
            best, best_value = tried, value
        if interrupted:
            break
    # What repeats after a time also repeats after twice that time: halve periods as long as the likelihood stays.
    for part in sorted({part for start in starts for part, _ in start}):
        for halving in range(MOST_HALVINGS):
            tried = copy.deepcopy(best)
            halved = repeating(tried, part)
            before = halved.period.detach().clone()
            halved.period = before / 2
            value, interrupted = trained(tried, f"half-{part}-{halving}")
            is_shorter = bool((halved.period.detach() <= STILL_SHORTER * before).all())
            if interrupted or not is_shorter or not value <= best_value + MARGINS["period"].least:
                break
            best, best_value = tried, min(best_value, value)
    compared = f"Compared {len(starts)} starting values of periods by the exact likelihood of {few.num_rows:,} rows."
    return best, [compared]


Start = list[tuple[int, Tensor]]
"""Periods for some parts of a kernel, by their place among ``repeating_parts``; the other parts stay as they are."""


def period_starts(kernel: Kernel, X: Tensor, y: Tensor) -> list[Start]:
    """The kernel as it is, and with other periods for one of its parts."""
    starts: list[Start] = [[]]
    for place, (part, columns) in enumerate(repeating_parts(kernel, list(range(X.shape[1])))):
        if not part.get_parameter("raw_period").requires_grad:
            continue
        now = part.period.detach().cpu()
        seen = [(peak, j) for j, column in enumerate(columns) for peak in peaks(X[:, column], y, PEAKS)]
        seen = sorted(seen, key=lambda item: -item[0].share)[:PEAKS]
        tried: list[tuple[int, float]] = [(j, float(value)) for j, value in enumerate(now)]
        periods = [(j, peak.period) for peak, j in seen]
        # The season that has two waves: the difference of two of its frequencies is one as well.
        pairs = [(j, 1 / first, 1 / other) for (j, first), (k, other) in combinations(periods, 2) if j == k]
        periods += [(j, 1 / abs(f - g)) for j, f, g in pairs if abs(f - g) > LEAST_SHARE * max(f, g)]
        for j, period in periods:
            value = period * float(part.unit[j])
            if all(j != other or abs(value / before - 1) > SAME_PERIOD for other, before in tried):
                tried.append((j, value))
                starts.append([(place, now.index_fill(0, torch.tensor([j]), value))])
    return starts[:MOST_STARTS]
