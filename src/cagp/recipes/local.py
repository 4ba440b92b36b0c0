"""Nearest rows, alone ("local") or beside actions that all test points share ("hybrid"), and what they take."""

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from cagp import limits
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.engine import COMPILED
from cagp.local_inference import SharedActions
from cagp.methods import CaGPLocal, Method, MultiTarget
from cagp.methods.cagp_local import SCALE_ROWS, Objective, ScaleChoice
from cagp.methods.compared import MATRICES
from cagp.neighbours import NeighbourIndex
from cagp.prior import GP
from cagp.projection import project
from cagp.quantities import seconds_of
from cagp.recipes.exact import LIKELIHOOD_SETTINGS, START_ROWS, plain_methods, start_of_periods
from cagp.recipes.table import DEFAULT_NEIGHBORS, Recipe
from cagp.recipes.task import Fitted, Learned, Task

LOCAL_RESERVE, FEW_SCALE_ROWS = 0.25, 250
"""The share of ``max_time`` that training with nearest rows leaves for the local scale and the posterior, and the rows
by which the time for a local scale is estimated."""

MANY_NEIGHBOURS = 256
"""Beyond this many, a training step takes more than about half a second on one core, and a fit minutes."""

STEP_ROWS, OPERATIONS = 1024, 2e10
"""Rows of a training step; operations of a core in a second, measured for matrices of some hundred rows."""

LIKELIHOOD_FACTOR = 4
"""With a likelihood that is not Gaussian, predictions take this many times the neighbours of training. A label says
less than a number: more of them are worth their time; docs/benchmarks.md has the evidence."""

NEAREST_ALONE = (
    "Predictions use nearest rows alone, which know little of a season or a trend: for forecasts beyond the data, "
    'choose method "hybrid", "exact" or "auto".'
)
UNKNOWN_DECAY = (
    "The kernel does not say whether it goes to zero with distance, and was trained on nearest rows. If it does not, "
    'choose method "hybrid" or "exact", or define its method ``decay``.'
)
"""What the fit report says where nearest rows may not be enough."""


LocalScale = float | str | None
"""As the user gives it: "auto", none, or what the learned scale counts as, in neighbours."""


class Neighbours(NamedTuple):
    """How nearest rows are used."""

    in_training: int = DEFAULT_NEIGHBORS
    in_predictions: int | None = None  # None: twice as many as in training
    objective: Objective = "loo"

    @classmethod
    def of(cls, n_neighbors: int | str, objective: str = "auto") -> "Neighbours":
        """What a user asks for; "auto" is the default."""
        count = DEFAULT_NEIGHBORS if isinstance(n_neighbors, str) else int(n_neighbors)
        return cls(count, None, "ordered" if objective == "ordered" else "loo")


def check_neighbours(n_neighbors: int | str, num_rows: int) -> None:
    """Raise ValueError for more neighbours than rows, and warn of what many neighbours cost.

    Up to the default number, tables with fewer rows are an exception: then all other rows are neighbours.
    """
    if isinstance(n_neighbors, str):  # "auto"
        return
    if num_rows <= n_neighbors and n_neighbors > DEFAULT_NEIGHBORS:
        raise ValueError(
            f"n_neighbors is {n_neighbors:,}, expected fewer than the {num_rows:,} training rows. Take "
            f'{DEFAULT_NEIGHBORS} to 128 neighbours, or method="exact", which uses all rows.'
        )
    if n_neighbors > MANY_NEIGHBOURS:
        seconds = STEP_ROWS * n_neighbors**3 / 3 / OPERATIONS
        # Not by cagp.notices: the fit report comes when the time is spent.
        warnings.warn(
            f"n_neighbors is {n_neighbors:,}: the time of a fit grows with its cube. A training step factorises "
            f"{STEP_ROWS:,} matrices of that size: roughly {max(seconds, 1):,.0f} s on one core, times 300 steps. "
            f"{DEFAULT_NEIGHBORS} to 128 neighbours are mostly enough.",
            UserWarning,
            stacklevel=2,
        )


def train(recipe: Recipe, task: Task) -> Fitted:
    """Minibatches of rows, each predicted from its neighbours; rows at any distance too if the kernel links them.

    The shared actions of the hybrid play no part in training.
    """
    check_neighbours(recipe.n_neighbors, task.num_rows)
    neighbours, is_hybrid = Neighbours.of(recipe.n_neighbors, recipe.objective), recipe.name == "hybrid"
    if task.decays is False:
        learned = learn_far(task, neighbours)
    else:
        priors = task.priors()
        reserve = 0.0 if task.max_time is None else LOCAL_RESERVE * seconds_of(task.max_time)
        result = task.run(MultiTarget(local_methods(task, priors, neighbours)), "local", reserve=reserve)
        learned = Learned(priors, result)
    if not is_hybrid and task.decays is not True:
        about = UNKNOWN_DECAY if task.decays is None else NEAREST_ALONE
        learned = learned._replace(notes=[*learned.notes, about])
    return condition(recipe, task, learned, neighbours, is_hybrid)


def condition(recipe: Recipe, task: Task, learned: Learned, neighbours: Neighbours, is_hybrid: bool) -> Fitted:
    """CaGP-Local at learned hyperparameters, or the hybrid."""
    shared, notes, prior = None, learned.notes, learned.priors[0]
    if is_hybrid:
        num_actions, kind = number_of_actions(recipe.n_actions, task), " of equal weights on nearby rows"
        if task.decays is False:
            shared, words = far_actions(task, prior, num_actions)
            kind = f": {words}"
        else:
            shared = constant_actions(task, prior, num_actions)
        notes = [*notes, f"All test points share {shared.num_actions:,} actions{kind}."]
    methods, about_scales = scaled_methods(task, learned.priors, neighbours, recipe.local_scale, shared)
    # The rows of a task never change: posteriors hold them, and no copies.
    posteriors = [method.condition(task.data.column(j), shares_rows=True) for j, method in enumerate(methods)]
    name = "hybrid" if is_hybrid else "local"
    return Fitted(name, posteriors, learned.result, [*notes, *about_scales], slice(None))


def method(recipe: Recipe, task: Task, prior: GP, shared: BlockActions | None = None) -> Method:
    """CaGP-Local as it learns from sites: ordered, since its sum is then the log density of all sites."""
    count = Neighbours.of(recipe.n_neighbors).in_training
    neighbours = Neighbours(count, LIKELIHOOD_FACTOR * count, "ordered")
    return local_methods(task, [prior], neighbours, shared=shared)[0]


def predicting_method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """The same, for the hybrid with shared actions."""
    is_hybrid = recipe.name == "hybrid"
    shared = constant_actions(task, prior, number_of_actions(recipe.n_actions, task)) if is_hybrid else None
    return method(recipe, task, prior, shared)


def local_methods(
    task: Task, priors: list[GP], neighbours: Neighbours, scale: LocalScale = None, shared: BlockActions | None = None
) -> list[CaGPLocal]:
    """CaGP-Local for each target; with ``shared`` actions, the hybrid. A scale of "auto" is still to be chosen."""
    options: dict[str, Any] = {"num_neighbours_predict": neighbours.in_predictions, "objective": neighbours.objective}
    options |= {"shared": shared, "seed": task.seed, "max_bytes": task.max_bytes}
    if scale is not None and scale != "auto":
        options["local_scale"] = float(scale)
    return [CaGPLocal(prior, neighbours.in_training, **options) for prior in priors]


# ---- local scales ----


def scaled_methods(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: LocalScale,
    shared: BlockActions | None = None,
    num_rows: int = SCALE_ROWS,
) -> tuple[list[CaGPLocal], list[str]]:
    """``local_methods``; where the scale is "auto", with the one that suits each target, and what was found, in words.

    Where predictions see all rows, nothing is local. At most ``num_rows`` validation rows, fewer where the time is
    short, are predicted from all others, or by the rule of the task from earlier rows or other groups.
    """
    methods, notes = local_methods(task, priors, neighbours, local_scale), []
    is_open = local_scale == "auto" and methods[0].num_neighbours_predict < task.num_rows
    parts = task.hold_out(num_rows) if is_open and task.rule.kind != "random" else None
    for j, method in enumerate(methods) if is_open else ():
        learning, held_out = (task, None) if parts is None else (parts.train, parts.held_out.data.column(j))
        choose = partial(_chosen_scale, task, method, learning.data.column(j), held_out)
        count = num_rows if task.max_time is None else _rows_in_time(task, choose, len(methods) - j, num_rows)
        if count == 0:
            notes.append("One scale everywhere: no time was left to choose a local one.")
            continue
        scale, nll, without, num_used = choose(count)
        methods[j] = method.with_local_scale(scale)
        validated = f"negative log density of {num_used:,} rows, each predicted from others: {without:.3f}"
        if scale is None:
            notes.append(f"One scale everywhere ({validated}; no local scale gains enough).")
        else:
            notes.append(
                "Local scale: error bars follow the neighbours of each test point, and the learned scale counts as "
                f"much as {scale:g} of them ({validated}, with it {nll:.3f})."
            )
    if shared is not None:  # which are of all rows, and so take no part in the choice
        methods = [local_methods(task, [m.prior], neighbours, m.local_scale, shared)[0] for m in methods]
    return methods, notes


def _chosen_scale(task: Task, method: CaGPLocal, data: Data, held_out: Data | None, num_rows: int) -> ScaleChoice:
    """The choice by some rows; that of process 0, for all processes."""
    choose = partial(method.choose_local_scale, data, held_out=held_out, num_rows=num_rows)
    return ScaleChoice(**task.ranks.from_first(lambda: choose()._asdict()))


def _rows_in_time(task: Task, choose: Callable[[int], ScaleChoice], num_left: int, num_rows: int) -> int:
    """The number of rows, at most ``num_rows``, whose local scales half of the time that is left allows to compare."""
    few = min(FEW_SCALE_ROWS, num_rows)
    times = [time.perf_counter()]
    for _ in range(2):  # the first builds the index, which is kept
        choose(few)
        times.append(time.perf_counter())
    first, pace = times[1] - times[0], (times[2] - times[1]) / few
    allowed = task.ranks.broadcast((task.time_left() - first) / 2 / num_left / pace)
    return min(num_rows, int(allowed)) if allowed >= few else 0


# ---- shared actions ----

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
"""What "auto" is: an action for as many rows, at most so many."""

SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""Beyond this many rows, shared actions weigh at most this many rows of each block: their cost is then linear in n."""

PROBES = 500
"""Rows at which sets of actions are compared."""


def action_bytes(num_rows: int, num_actions: int) -> int:
    """The bytes that a training step of CaGP-Opt holds at its peak: 64 n i. The hybrid keeps an eighth of it."""
    return 64 * num_rows * num_actions


def number_of_actions(n_actions: int | str, task: Task, most_rows: int | None = None) -> int:
    """The number of actions that a user asks for; "auto" as memory allows where a step holds at most ``most_rows``."""
    if not isinstance(n_actions, str):
        return min(int(n_actions), task.num_rows)
    held = task.num_rows if most_rows is None else min(most_rows, task.num_rows)
    num_actions = max(1, min(MOST_ACTIONS, task.num_rows // ROWS_PER_ACTION))
    while num_actions > 1 and action_bytes(held, num_actions) > task.memory:
        num_actions //= 2
    return num_actions


def constant_actions(task: Task, prior: GP, num_actions: int, most_support: int | None = None) -> BlockActions:
    """Equal weights on blocks of nearby rows, on at most ``most_support`` of each; None for what suits the table."""
    if most_support is None and task.num_rows > SUPPORT_ROWS:
        most_support = SUPPORT_SIZE
    return BlockActions.from_data(
        task.data,
        num_actions,
        lengthscale=prior.kernel.lengthscales(task.X.shape[1]),
        support_size=most_support,
        generator=torch.Generator().manual_seed(task.seed),
    )


@torch.no_grad()
def far_actions(task: Task, prior: GP, num_actions: int) -> tuple[BlockActions, str]:
    """Means of nearby rows or single rows, whichever leaves less of the prior variance unexplained; and in words.

    The mean over a block as long as a period says nothing about the season; a single row does.
    """
    data, probes, tried = task.data.column(0), task.X[task.random_rows(PROBES)], {}
    supports = {"equal weights on nearby rows": min(SUPPORT_SIZE, task.num_rows), "a row in each of as many places": 1}
    for words, most_support in supports.items():
        actions = constant_actions(task, prior, num_actions, most_support)
        projection = project(prior, actions, *data.tensors, task.max_bytes)
        seen = SharedActions.of(prior, projection, actions.support, task.max_bytes)
        tried[words] = float(seen.at_points(probes).square().sum(1).mean()), actions
    words = max(tried, key=lambda name: tried[name][0])
    return tried[words][1], words


# ---- kernels that link rows at any distance ----

GROUP = 8
"""Rows near each other that the sample takes together."""

NEARBY_FROM = 4
"""With this many times the rows of the sample, nearest rows of the whole table refine the parts that decay."""

FAR_STEPS = 100


def learn_far(task: Task, neighbours: Neighbours | None = None) -> Learned:
    """Hyperparameters from rows near and far, for a kernel that links rows at any distance.

    The nearest rows of a row say next to nothing about a season or a trend. The exact likelihood of a sample of the
    rows does: half of it is drawn from the whole table, and half are groups of rows near each other. With many rows,
    the parts of the kernel that decay are then refined by the nearest ``neighbours`` of each row of the whole table.

    Time O(m³) a step for a sample of m rows, at most ``limits.EXACT_ROWS``.
    """
    most = max(2, min(limits.EXACT_ROWS, math.isqrt(task.memory // (8 * MATRICES))))
    whole = task.num_rows <= most
    sample = (task if whole else task.rows(near_and_far(task.X, most, task.seed))).in_double()
    priors, notes = start_of_periods(sample, task.priors())
    endless = priors[0].kernel.endless_parameters(task.X.shape[1])
    some_decay = len({id(p) for p in priors[0].kernel.parameters()} - {id(p) for p in endless}) > 0
    refine = neighbours is not None and some_decay and task.num_rows >= NEARBY_FROM * sample.num_rows
    several, settings = plain_methods(task, priors), {"most_steps": FAR_STEPS, **LIKELIHOOD_SETTINGS}
    if sample.num_rows > 2 * START_ROWS:  # most of the way with few rows
        sample.drawn(START_ROWS).run(several, "few", **settings, max_time=task.time_left() / 4)
    result = sample.run(several, "far", **settings, max_time=task.time_left() / (2 if refine else 1))
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


def near_and_far(X: Tensor, num_rows: int, seed: int) -> Int[Tensor, " m"]:
    """``num_rows`` different rows in ascending order: groups of near ones, and others from the whole table."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed)).to(X.device)
    group = min(GROUP, len(X))
    centres = order[: max(1, num_rows // (2 * group))]
    grouped = NeighbourIndex(X).nearest(X[centres], group).flatten()
    rows = torch.cat([centres, grouped, order])
    # The first place of each row: rows of groups come before those from anywhere.
    distinct, place = rows.unique(return_inverse=True)
    places = torch.arange(len(rows), device=X.device)
    first = torch.full_like(distinct, len(rows)).scatter_reduce(0, place, places, "amin")
    return distinct[first.argsort()[:num_rows]].sort().values


# ---- memory, for rows that stay on disk ----

INTEGER = 8
TREE_COLUMN, TREE_ROW = 5, 8
"""Bytes of the compiled tree, for each number in the rows and for each row: a float32 copy, boxes, numbers of rows."""

INDEX_COLUMN, INDEX_ROW = 20, 48
"""The same for the other neighbour indices, SciPy's and that of faiss, while they are built."""

STEP = 2**28 + 2**27
"""What a training step or a tile of predictions takes besides, and the neighbours that are kept from step to step."""


def planned_bytes(recipe: Recipe, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int]:
    """Upper bounds, by purpose; the ordered objective needs the order of the rows in the tree, or further indices."""
    if COMPILED.instruction_set and find_spec("faiss") is None:  # a tree, or a scan, which takes less
        index = num_rows * (TREE_COLUMN * num_inputs + TREE_ROW)
        of_order = num_rows * (4 * num_inputs + 2 * INTEGER)  # a scan sorts a copy of the rows
    else:
        index = num_rows * (INDEX_COLUMN * num_inputs + INDEX_ROW)
        of_order = 2 * index  # indices of 1/2, 1/4, ... of the rows
    planned = {
        "the index of the rows": index * num_targets,
        "the order of the rows": INTEGER * num_rows,
        "a training step or a tile of predictions": STEP,
    }
    if recipe.objective == "ordered":
        planned["the indices of the ordered objective"] = of_order * num_targets
    return planned
