"""Nearest rows: how hyperparameters are learned from them, local scales, and the memory that they take."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

from cagp.actions import BlockActions
from cagp.engine import COMPILED
from cagp.methods import CaGPLocal, MultiTarget
from cagp.methods.cagp_local import SCALE_ROWS, Objective, ScaleChoice
from cagp.prior import GP
from cagp.quantities import seconds_of
from cagp.recipes.table import DEFAULT_NEIGHBORS
from cagp.recipes.task import Learned, Task

LOCAL_RESERVE, FEW_SCALE_ROWS = 0.25, 250
"""The share of ``max_time`` that training with nearest rows leaves for the local scale and the posterior, and the rows
by which the time for a local scale is estimated."""


MANY_NEIGHBOURS = 256
"""Beyond this many, a training step takes more than about half a second on one core, and a fit minutes."""

STEP_ROWS, OPERATIONS = 1024, 2e10
"""Rows of a training step; operations of a core in a second, measured for matrices of some hundred rows."""


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


def local_methods(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: float | str | None = None,
    shared: BlockActions | None = None,
) -> list[CaGPLocal]:
    """CaGP-Local for each target; with ``shared`` actions, the hybrid. A scale of "auto" is still to be chosen."""
    scale = None if local_scale is None or isinstance(local_scale, str) else float(local_scale)
    return [
        CaGPLocal(
            prior,
            neighbours.in_training,
            num_neighbours_predict=neighbours.in_predictions,
            shared=shared,
            local_scale=scale,
            objective=neighbours.objective,
            seed=task.seed,
            max_bytes=task.max_bytes,
        )
        for prior in priors
    ]


def scaled_methods(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: float | str | None,
    shared: BlockActions | None = None,
    num_rows: int = SCALE_ROWS,
) -> tuple[list[CaGPLocal], list[str]]:
    """``local_methods``, with the scale that suits each target where it is "auto"; and what was chosen, in words.

    Args:
        num_rows: validation rows that choose a scale, at most.
    """
    methods, notes = local_methods(task, priors, neighbours, local_scale), []
    if local_scale == "auto":
        methods, notes = with_local_scales(methods, task, num_rows)
    if shared is not None:  # which are of all rows, and so take no part in the choice
        methods = [local_methods(task, [m.prior], neighbours, m.local_scale, shared)[0] for m in methods]
    return methods, notes


def learn(task: Task, neighbours: Neighbours) -> Learned:
    """Hyperparameters from nearest rows; a part of ``max_time`` is left for what follows."""
    priors = task.priors()
    reserve = 0.0 if task.max_time is None else LOCAL_RESERVE * seconds_of(task.max_time)
    result = task.run(MultiTarget(local_methods(task, priors, neighbours)), "local", reserve=reserve)
    return Learned(priors, result)


# ---- local scales ----


def with_local_scales(
    methods: list[CaGPLocal], task: Task, num_rows: int = SCALE_ROWS
) -> tuple[list[CaGPLocal], list[str]]:
    """The methods with the local scale that suits each target, and what was found, in words.

    Where predictions see all rows, nothing is local. Validation rows are predicted from all others, or by the rule of
    the task from earlier rows or other groups.

    Args:
        num_rows: validation rows, at most; fewer where the time is short.
    """
    scaled, notes = [], []
    parts = None if task.rule.kind == "random" else task.hold_out(num_rows)
    for j, method in enumerate(methods):
        if method.num_neighbours_predict >= task.num_rows:
            scaled.append(method)
            continue
        learning, held_out = (task, None) if parts is None else (parts.train, parts.held_out.column(j))
        choose = partial(method.choose_local_scale, learning.column(j), held_out=held_out)
        if task.max_time is not None:
            num_rows = _rows_in_time(task, choose, len(methods) - j, num_rows)
            if num_rows == 0:
                scaled.append(method)
                notes.append("One scale everywhere: no time was left to choose a local one.")
                continue
        scale, nll, without, num_used = _of_first(task, choose, num_rows)
        scaled.append(method.with_local_scale(scale))
        validated = f"negative log density of {num_used:,} rows, each predicted from others: {without:.3f}"
        if scale is None:
            notes.append(f"One scale everywhere ({validated}; no local scale gains enough).")
        else:
            notes.append(
                "Local scale: error bars follow the neighbours of each test point, and the learned scale counts as "
                f"much as {scale:g} of them ({validated}, with it {nll:.3f})."
            )
    return scaled, notes


def _of_first(task: Task, choose: Callable[..., ScaleChoice], num_rows: int) -> ScaleChoice:
    """The choice by some rows; that of process 0, for all processes."""
    if task.ranks.size == 1:
        return choose(num_rows=num_rows)
    return ScaleChoice(**task.ranks.from_first(lambda: choose(num_rows=num_rows)._asdict()))


def _rows_in_time(task: Task, choose: Callable[..., ScaleChoice], num_left: int, num_rows: int) -> int:
    """The number of rows, at most ``num_rows``, whose local scales half of the time that is left allows to compare."""
    few = min(FEW_SCALE_ROWS, num_rows)
    times = [time.perf_counter()]
    for _ in range(2):  # the first builds the index, which is kept
        _of_first(task, choose, few)
        times.append(time.perf_counter())
    first, pace = times[1] - times[0], (times[2] - times[1]) / few
    allowed = task.ranks.broadcast((task.time_left() - first) / 2 / num_left / pace)
    return min(num_rows, int(allowed)) if allowed >= few else 0


# ---- memory, for rows that stay on disk ----

INTEGER = 8
TREE_COLUMN, TREE_ROW = 5, 8
"""Bytes of the compiled tree, for each number in the rows and for each row: a float32 copy, boxes, numbers of rows."""

INDEX_COLUMN, INDEX_ROW = 20, 48
"""The same for the other neighbour indices, SciPy's and that of faiss, while they are built."""

STEP = 2**28 + 2**27
"""What a training step or a tile of predictions takes besides, and the neighbours that are kept from step to step."""


def planned_bytes(num_rows: int, num_inputs: int, num_targets: int, ordered: bool) -> dict[str, int]:
    """Upper bounds, by purpose; the ordered objective needs the order of the rows in the tree, or further indices."""
    if COMPILED.available and find_spec("faiss") is None:  # a tree, or a scan, which takes less
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
    return {**planned, "the indices of the ordered objective": of_order * num_targets} if ordered else planned
