"""Kernels that link rows at any distance: their hyperparameters are learned from rows near and far.

The nearest rows of a row say next to nothing about a season or a trend. The exact likelihood of a sample of the rows
does: half of it is drawn from the whole table, and half are groups of rows near each other.
"""

import copy
import math
from itertools import combinations

import torch
from jaxtyping import Int
from torch import Tensor

from cagp import limits
from cagp.actions import BlockActions
from cagp.comparison import MARGINS
from cagp.kernels import Kernel, repeating_parts
from cagp.local_inference import SharedActions
from cagp.methods import CholeskyGP, MultiTarget
from cagp.methods.exact import MATRICES
from cagp.neighbours import NeighbourIndex
from cagp.periodogram import LEAST_CYCLES, MOST_CYCLES, peaks
from cagp.prior import GP
from cagp.projection import project
from cagp.recipes.actions import SUPPORT_SIZE, constant_actions
from cagp.recipes.nearest import Neighbours, local_methods
from cagp.recipes.task import Learned, Task

EXACT_SETTINGS = {"optimizer": "lbfgs", "min_improvement": 1e-4, "window": 5}
"""A smooth loss of few parameters whose evaluations are expensive."""

MOST_STEPS = 100

GROUP = 8
"""Rows near each other that the sample takes together."""

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

NEARBY_FROM = 4
"""With this many times the rows of the sample, nearest rows of the whole table refine the parts that decay."""

PROBES = 500
"""Rows at which sets of actions are compared."""


def learn(task: Task, neighbours: Neighbours | None = None) -> Learned:
    """Hyperparameters from rows near and far.

    Args:
        neighbours: with many rows, the parts of the kernel that decay are then refined by the nearest rows of each
            row of the whole table; None for never.

    Time O(m³) a step for a sample of m rows, at most ``limits.EXACT_ROWS``.
    """
    most = max(2, min(limits.EXACT_ROWS, math.isqrt(task.memory // (8 * MATRICES))))
    whole = task.num_rows <= most
    sample = (task if whole else task.rows(near_and_far(task.X, most, task.seed))).in_double()
    priors, notes = start_of_periods(sample, task.priors())
    endless = priors[0].kernel.endless_parameters(task.X.shape[1])
    some_decay = len({id(p) for p in priors[0].kernel.parameters()} - {id(p) for p in endless}) > 0
    refine = neighbours is not None and some_decay and task.num_rows >= NEARBY_FROM * sample.num_rows
    if sample.num_rows > 2 * START_ROWS:  # most of the way with few rows
        _few(sample).run(
            _exact(task, priors), "few", most_steps=MOST_STEPS, **EXACT_SETTINGS, max_time=task.time_left() / 4
        )
    limit = task.time_left() / (2 if refine else 1)
    result = sample.run(_exact(task, priors), "far", most_steps=MOST_STEPS, **EXACT_SETTINGS, max_time=limit)
    rows = f"all {task.num_rows:,} rows" if whole else f"{most:,} of the {task.num_rows:,} rows, near and far"
    notes.append(
        f"The kernel links rows at any distance: hyperparameters were learned by the exact likelihood of {rows}."
    )
    if not refine or neighbours is None or result.interrupted:
        return Learned(priors, result, notes)
    several = MultiTarget(local_methods(task, priors, neighbours))
    result = task.run(several, "near", max_time=task.time_left(), fixed=endless)
    notes.append("Nearest rows of the whole table then refined the noise and the parts of the kernel that decay.")
    return Learned(priors, result, notes)


def _exact(task: Task, priors: list[GP]) -> MultiTarget:
    return MultiTarget([CholeskyGP(prior, task.max_bytes) for prior in priors])


# ---- the sample ----


def near_and_far(X: Tensor, num_rows: int, seed: int) -> Int[Tensor, " m"]:
    """``num_rows`` different rows in ascending order: groups of near ones, and others from the whole table."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).to(X.device)
    group = min(GROUP, len(X))
    centres = order[: max(1, num_rows // (2 * group))]
    grouped = NeighbourIndex(X).nearest(X[centres], group).flatten()
    rows = torch.cat([centres, grouped, order])
    # The first place of each row: rows of groups come before those from anywhere.
    distinct, place = rows.unique(return_inverse=True)
    first = torch.full_like(distinct, len(rows)).scatter_reduce(
        0, place, torch.arange(len(rows), device=X.device), "amin"
    )
    return distinct[first.argsort()[:num_rows]].sort().values


def _few(task: Task) -> Task:
    """The task with at most ``START_ROWS`` rows, drawn at random."""
    return task.rows(task.random_rows(START_ROWS).sort().values)


# ---- periods to start from ----


def start_of_periods(task: Task, priors: list[GP]) -> tuple[list[GP], list[str]]:
    """Copies of the priors with the periods of best likelihood after a few steps; in words, if several were compared.

    The likelihood has a maximum at nearly every period that occurs often: the strongest periods of the targets are
    tried beside the one that the kernel comes with.
    """
    starts = period_starts(priors[0].kernel, task.X, task.y)
    if len(starts) < 2:
        return copy.deepcopy(priors), []
    few, limit = _few(task), task.time_left() / (4 * len(starts))
    best, best_value = priors, math.inf

    def trained(tried: list[GP], name: str) -> tuple[float, bool]:
        """The loss of priors after some steps, and whether they were interrupted."""
        several = _exact(task, tried)
        result = few.run(several, name, most_steps=START_STEPS, **EXACT_SETTINGS, max_time=limit)
        return result.best_value, result.interrupted

    for j, start in enumerate(starts):
        tried = copy.deepcopy(priors)
        for part, period in start:
            _period_parts(tried, task)[part].period = period
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
            halved = _period_parts(tried, task)[part]
            before = halved.period.detach().clone()
            halved.period = before / 2
            value, interrupted = trained(tried, f"half-{part}-{halving}")
            is_shorter = bool((halved.period.detach() <= STILL_SHORTER * before).all())
            if interrupted or not is_shorter or not value <= best_value + MARGINS["period"].least:
                break
            best, best_value = tried, min(best_value, value)
    compared = f"Compared {len(starts)} starting values of periods by the exact likelihood of {few.num_rows:,} rows."
    return best, [compared]


def _period_parts(priors: list[GP], task: Task) -> list:
    return [part for part, _ in repeating_parts(priors[0].kernel, task.X.shape[1])]


Start = list[tuple[int, Tensor]]
"""Periods for some parts of a kernel, by their place among ``repeating_parts``; the other parts stay as they are."""


def period_starts(kernel: Kernel, X: Tensor, y: Tensor) -> list[Start]:
    """The kernel as it is, and with other periods for one of its parts."""
    starts: list[Start] = [[]]
    for place, (part, columns) in enumerate(repeating_parts(kernel, X.shape[1])):
        if not part.get_parameter("raw_period").requires_grad:
            continue
        now = part.period.detach().cpu()
        seen = [(peak, j) for j, column in enumerate(columns) for peak in peaks(X[:, column], y, PEAKS)]
        seen = sorted(seen, key=lambda item: -item[0].share)[:PEAKS]
        tried: list[tuple[int, float]] = [(j, float(value)) for j, value in enumerate(now)]
        periods = [(j, peak.period) for peak, j in seen]
        periods += [
            (j, period)
            for (j, first), (k, other) in combinations(periods, 2)
            if j == k
            for period in _both(first, other)
        ]
        for j, period in periods:
            value = period * float(part.unit[j])
            if all(j != other or abs(value / before - 1) > SAME_PERIOD for other, before in tried):
                tried.append((j, value))
                starts.append([(place, now.index_fill(0, torch.tensor([j]), value))])
    return starts[:MOST_STARTS]


def _both(first: float, other: float) -> list[float]:
    """The period of a season that has waves of these two: the difference of two of its frequencies is one as well."""
    difference = abs(1 / first - 1 / other)
    return [1 / difference] if difference > LEAST_SHARE / min(first, other) else []


# ---- shared actions ----


@torch.no_grad()
def shared_actions(task: Task, prior: GP, num_actions: int) -> tuple[BlockActions, str]:
    """Means of nearby rows or single rows, whichever leaves less of the prior variance unexplained; and in words.

    The mean over a block as long as a period says nothing about the season; a single row does.
    """
    data, probes, tried = task.column(0), task.X[task.random_rows(PROBES)], {}
    supports = {"equal weights on nearby rows": min(SUPPORT_SIZE, task.num_rows), "a row in each of as many places": 1}
    for words, most_support in supports.items():
        actions = constant_actions(prior.kernel, data, num_actions, task.seed, most_support)
        projection = project(prior, actions, *data.tensors, task.max_bytes)
        seen = SharedActions.of(prior, projection, actions.support, task.max_bytes)
        tried[words] = float(seen.at_points(probes).square().sum(1).mean()), actions
    words = max(tried, key=lambda name: tried[name][0])
    return tried[words][1], words
