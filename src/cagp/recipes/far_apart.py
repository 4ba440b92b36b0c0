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
from cagp.kernels import Cosine, Kernel, Periodic, repeating_parts
from cagp.local_inference import SharedActions
from cagp.methods import CholeskyGP, MultiTarget
from cagp.methods.cholesky import MATRICES, memory_needed
from cagp.neighbours import NeighbourIndex
from cagp.periodogram import peaks
from cagp.prior import GP
from cagp.projection import project
from cagp.recipes import steps
from cagp.recipes.steps import Neighbours
from cagp.recipes.task import Fitted, Task
from cagp.training import FitResult

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

NEARBY_FROM = 4
"""With this many times the rows of the sample, nearest rows of the whole table refine the parts that decay."""

MOST_EXACT = 8000
"""Up to this many rows, predictions at given hyperparameters use all of them: one factorisation takes seconds."""

PROBES = 500
"""Rows at which sets of actions are compared."""

NEAREST_ALONE = (
    "Predictions use nearest rows alone, which know little of a season or a trend: for forecasts beyond the data, "
    'choose method "hybrid", "exact" or "auto".'
)
"""What the fit report of "local" says."""


# ---- recipes ----


def train_far_apart(
    task: Task,
    n_actions: int | str = "auto",
    neighbours: Neighbours | None = None,
    local_scale: float | str | None = None,
) -> Fitted:
    """Hyperparameters from rows near and far; predictions from all rows, or from shared actions and nearest rows."""
    n, priors, neighbours = task.num_rows, task.priors(), neighbours or Neighbours()
    reason = "the kernel links rows at any distance"
    if n <= MOST_EXACT and memory_needed(n) <= task.memory:
        result, notes = learn_far_apart(task, priors)
        choice = f"Chose exact inference: {reason}, and {n:,} rows are few enough (at most {MOST_EXACT:,})."
        posteriors = _exact(task, priors).condition(task.data)
        return Fitted("exact", posteriors, result, notes, task.every_row(), choice)
    result, notes = learn_far_apart(task, priors, neighbours)
    num_shared = steps.number_of_actions(n_actions, task)
    fitted = condition_near_and_far(task, priors, neighbours, local_scale, num_shared, result)
    choice = f"Chose hybrid: {reason}, so that nearest rows alone are not enough."
    return fitted._replace(notes=[*notes, *fitted.notes], choice=choice)


def learn_far_apart(task: Task, priors: list[GP], neighbours: Neighbours | None = None) -> tuple[FitResult, list[str]]:
    """Learn the hyperparameters of the priors from rows near and far: how it ended, and what was done, in words.

    Args:
        neighbours: with many rows, the parts of the kernel that decay are then refined by the nearest rows of each
            row of the whole table; None for never.

    Time O(m³) a step for a sample of m rows, at most ``limits.EXACT_ROWS``.
    """
    most = max(2, min(limits.EXACT_ROWS, math.isqrt(task.memory // (8 * MATRICES))))
    whole = task.num_rows <= most
    sample = (task if whole else task.rows(near_and_far(task.X, most, task.seed))).in_double()
    endless = priors[0].kernel.endless_parameters(task.X.shape[1])
    decaying = {id(p) for p in priors[0].kernel.parameters()} - {id(p) for p in endless}
    refine = neighbours is not None and bool(decaying) and task.num_rows >= NEARBY_FROM * sample.num_rows
    notes = choose_start(sample, priors)
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
    if refine and neighbours is not None and not result.interrupted:
        local = MultiTarget(steps.local_methods(task, priors, neighbours))
        result = task.run(local, "near", max_time=task.time_left(), fixed=endless)
        notes.append("Nearest rows of the whole table then refined the noise and the parts of the kernel that decay.")
    return result, notes


def condition_near_and_far(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: float | str | None,
    num_shared: int,
    result: FitResult,
) -> Fitted:
    """The hybrid at these hyperparameters, with the shared actions that explain more of this kernel."""
    shared, words = shared_actions(priors[0], task, num_shared)
    notes = [f"All test points share {shared.num_actions:,} actions: {words}."]
    methods = steps.local_methods(task, priors, neighbours, local_scale, shared)
    if local_scale == "auto":
        methods, found = steps.with_local_scales(methods, task)
        notes += found
    return Fitted("hybrid", MultiTarget(methods).condition(task.data), result, notes, task.every_row())


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


# ---- starting values ----


def choose_start(task: Task, priors: list[GP]) -> list[str]:
    """Leave the priors at the starting values with the best likelihood after a few steps; in words, if several differ.

    The likelihood has a maximum at nearly every period that occurs often: the strongest periods of the targets are
    tried beside the one that the kernel comes with.
    """
    method = _exact(task, priors)
    starts = period_starts(priors[0].kernel, task.X, task.y)
    if len(starts) < 2:
        return []
    few = _few(task)
    given, best, best_value = copy.deepcopy(method.state_dict()), None, math.inf
    limit = task.time_left() / (4 * len(starts))
    for j, start in enumerate(starts):
        method.load_state_dict(given)
        for part, period in start:
            part.period = period
        result = few.run(method, f"start-{j}", most_steps=START_STEPS, **EXACT_SETTINGS, max_time=limit)
        # By a margin: what has a period also has twice that period.
        if best is None or result.best_value < best_value - steps.MARGIN:
            best, best_value = copy.deepcopy(method.state_dict()), result.best_value
        if result.interrupted:
            break
    method.load_state_dict(given if best is None else best)
    if best is not None:
        _try_half_periods(few, method, [part for start in starts for part, _ in start], best_value, limit)
    return [f"Compared {len(starts)} starting values of periods by the exact likelihood of {few.num_rows:,} rows."]


def _try_half_periods(
    few: Task, method: MultiTarget, parts: "list[Periodic | Cosine]", best_value: float, limit: float
) -> None:
    """Halve periods as long as the likelihood stays: what repeats after a time also repeats after twice that time."""
    for part in {id(part): part for part in parts}.values():
        while True:
            before = copy.deepcopy(method.state_dict())
            with torch.no_grad():
                part.period = part.period.detach() / 2
            name = f"half-{float(part.period.detach().min()):.6g}"
            result = few.run(method, name, most_steps=START_STEPS, **EXACT_SETTINGS, max_time=limit)
            if result.interrupted or result.best_value > best_value + steps.MARGIN:
                method.load_state_dict(before)
                break
            best_value = min(best_value, result.best_value)


def _few(task: Task) -> Task:
    """The task with at most ``START_ROWS`` rows, drawn at random."""
    chosen = torch.randperm(task.num_rows, generator=torch.Generator().manual_seed(task.seed))[:START_ROWS]
    return task.rows(chosen.sort().values.to(task.X.device))


Start = list[tuple[Periodic | Cosine, Tensor]]
"""Periods for some parts of a kernel; the other parts stay as they are."""


def period_starts(kernel: Kernel, X: Tensor, y: Tensor) -> list[Start]:
    """The kernel as it is, and with other periods for one of its parts."""
    starts: list[Start] = [[]]
    for part, columns in repeating_parts(kernel, X.shape[1]):
        if not part.get_parameter("raw_period").requires_grad:
            continue
        now = part.period.detach().cpu()
        found = [(peak, j) for j, column in enumerate(columns) for peak in peaks(X[:, column], y, PEAKS)]
        found = sorted(found, key=lambda item: -item[0].share)[:PEAKS]
        tried: list[tuple[int, float]] = [(j, float(value)) for j, value in enumerate(now)]
        periods = [(j, peak.period) for peak, j in found]
        periods += [
            (j, period)
            for (j, first), (k, other) in combinations(periods, 2)
            if j == k
            for period in _both(first, other)
        ]
        for j, period in periods:
            value = period * float(part.unit[j])
            if all(j != other or abs(value / known - 1) > SAME_PERIOD for other, known in tried):
                tried.append((j, value))
                starts.append([(part, now.index_fill(0, torch.tensor([j]), value))])
    return starts[:MOST_STARTS]


def _both(first: float, other: float) -> list[float]:
    """The period of a season that has waves of these two: the difference of two of its frequencies is one as well."""
    difference = abs(1 / first - 1 / other)
    return [1 / difference] if difference > LEAST_SHARE / min(first, other) else []


# ---- actions that do not mind ----


@torch.no_grad()
def shared_actions(prior: GP, task: Task, num_actions: int) -> tuple[BlockActions, str]:
    """Means of nearby rows or single rows, whichever leaves less of the prior variance unexplained; and in words.

    The mean over a block as long as a period says nothing about the season; a single row does.
    """
    X, y, row_noise = task.column(0)
    probes = torch.randperm(len(X), generator=torch.Generator().manual_seed(task.seed))[:PROBES].to(X.device)
    candidates = {"equal weights on nearby rows": min(steps.SUPPORT_SIZE, len(X)), "a row in each of as many places": 1}
    explained = {}
    for words, support_size in candidates.items():
        actions = BlockActions.from_data(
            X,
            num_actions,
            lengthscale=prior.kernel.lengthscales(X.shape[1]),
            support_size=support_size,
            generator=torch.Generator().manual_seed(task.seed),
        )
        seen = SharedActions(
            prior, project(prior, actions, X, y, row_noise, task.max_bytes), actions.support, task.max_bytes
        )
        explained[words] = float(seen.at_points(X[probes]).square().sum(1).mean()), actions
    words = max(explained, key=lambda name: explained[name][0])
    return explained[words][1], words
