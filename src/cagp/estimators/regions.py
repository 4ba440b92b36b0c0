"""A regressor in regions: every process learns from its part of a table, and answers a region of the inputs."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cagp.data.chunks import Chunks, open_chunks
from cagp.estimators.mapped_rows import MappedRows, learn_chunks
from cagp.estimators.several_targets import TrainedTargets
from cagp.estimators.tasks import new_task
from cagp.estimators.units import Units
from cagp.posteriors import LocalPosterior
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.recipes import steps
from cagp.recipes.checks import check_neighbours
from cagp.recipes.local import Local
from cagp.recipes.task import Fitted, Task
from cagp.shards import LocalShard, RegionPosterior, Regions, Shard, exchange_rows, halo_width, sample_of_parts
from cagp.storage import fingerprint, write_atomically
from cagp.training import FitResult, fit

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

PROCESSES = "processes.json"
"""Beside the checkpoints of a fit in regions: how many processes it has."""


class LearnedRegions(NamedTuple):
    """What a fit in regions leaves behind."""

    units: Units
    trained: TrainedTargets
    num_rows: int  # of all processes
    notes: list[str]
    scales: list[str]  # what the fit report says about the scale of the target


def learn_regions(
    model: "GPRegressor", recipe: Local, X: Any, y: Any, sample_noise: Any, seed: int, began: float, ranks: Ranks
) -> LearnedRegions:
    """Units of the whole table, and CaGP-Local in regions; on all processes.

    Args:
        X: a table in pieces, of which each process reads its part; or, with ``y``, the part that it is given.
    """
    chunks = X.part(ranks.rank, ranks.size) if isinstance(X, Chunks) else open_chunks([_piece(X, y, sample_noise)])
    noise = sample_noise if isinstance(X, Chunks) else None
    units, rows, notes, scales = learn_chunks(model, recipe, chunks, noise, seed, ranks, in_parts=True)
    num_rows = int(ranks.add_up(torch.tensor([float(rows.num_rows)], dtype=torch.float64))[0])
    notes = [*notes, f"All {ranks.size:,} processes together have {num_rows:,} rows."]
    check_neighbours(recipe.n_neighbors, num_rows)
    part = _Part(rows.X, rows.y[:, 0].contiguous(), None if rows.row_noise is None else rows.row_noise[:, 0])
    fitted = _trained(model, recipe, units, rows, part, num_rows, seed, began, ranks)
    words = [*fitted.notes, str(fitted.result)]
    trained = TrainedTargets([fitted], fitted.posteriors, [None], [num_rows], words, None)
    return LearnedRegions(units, trained, num_rows, notes, scales)


def _piece(X: Any, y: Any, sample_noise: Any) -> tuple[Any, ...]:
    return (X, y) if sample_noise is None else (X, y, sample_noise)


class _Part(NamedTuple):
    """Rows of a process, in standard units."""

    X: Tensor
    y: Tensor
    row_noise: Tensor | None


def _trained(
    model: "GPRegressor",
    recipe: Local,
    units: Units,
    rows: MappedRows,
    part: _Part,
    num_rows: int,
    seed: int,
    began: float,
    ranks: Ranks,
) -> Fitted:
    neighbours = steps.Neighbours.of(recipe.n_neighbors, recipe.objective)
    sample = sample_of_parts(torch.cat([part.X, part.y[:, None]], 1), ranks)
    # Starting values come from rows of all regions.
    few = MappedRows(sample[:, :-1].contiguous(), sample[:, -1:].contiguous(), None, rows.scratch, 0)
    task = new_task(model, recipe, units, few, began=began, seed=seed, ranks=ranks, with_folder=False)
    if task.kernel.decays(part.X.shape[1]) is False:
        raise ValueError(
            "the kernel does not decay with distance, and no process has rows that are far apart; with shards=True "
            "use one that does, e.g. matern32."
        )
    task = replace(task, folder=_folder(model, recipe, units, task, num_rows, ranks))
    priors = task.priors()
    (method,) = steps.local_methods(task, priors, neighbours)
    shard, width = _shard(part, None, num_rows, method.num_neighbours_predict, ranks)[:2]
    result = _fit(task, LocalShard(method, shard, ranks.rank), shard, method.batch_size, num_rows)
    # Neighbours are those of the learned lengthscales: regions are cut again, in these units.
    own = _Part(*(None if values is None else values[: shard.num_own] for values in shard[:3]))  # pyright: ignore[reportArgumentType]
    shard, width, regions = _shard(
        own, priors[0].kernel.lengthscales(part.X.shape[1]), num_rows, method.num_neighbours_predict, ranks
    )
    noise = None if shard.row_noise is None else shard.row_noise[:, None]
    held = replace(task, X=shard.X, y=shard.y[:, None], row_noise=noise)
    (method,) = steps.local_methods(held, priors, neighbours, recipe.local_scale)
    notes = [_words(shard, width, ranks)]
    if recipe.local_scale == "auto":
        (method,), found = _with_local_scale(method, held, ranks)
        notes += found
    posterior = method.condition(shard.X, shard.y, shard.row_noise, shares_rows=True)
    options = (posterior.X, method.local_scale, _always(posterior), task.max_bytes)
    return Fitted("local", [RegionPosterior(posterior.prior, regions, ranks, *options)], result, notes, None)


def _always(posterior: LocalPosterior) -> Callable[[int], LocalPosterior]:
    return lambda _: posterior


def _shard(
    part: _Part, lengthscale: Tensor | None, num_rows: int, num_neighbours: int, ranks: Ranks
) -> tuple[Shard, float, Regions]:
    """The shard of this process, the width of its halo, and all regions."""
    regions = Regions.of_parts(part.X, ranks, lengthscale)
    width = 0.0
    if ranks.size > 1:
        width = ranks.broadcast(halo_width(sample_of_parts(part.X, ranks), num_rows, num_neighbours, regions.unit))
    return exchange_rows(regions, width, ranks, *part), width, regions


def _fit(task: Task, method: LocalShard, shard: Shard, batch_size: int, num_rows: int) -> FitResult:
    """Train as ``Task.run`` does, with as many steps as all rows of the table ask for."""
    changes = {}
    if task.max_epochs is not None:
        changes["num_steps"] = math.ceil(task.max_epochs * max(1.0, num_rows / batch_size))
    reserve = 0.0 if task.max_time is None else steps.LOCAL_RESERVE * seconds_of(task.max_time)
    return fit(
        method,
        shard.X,
        shard.y,
        shard.row_noise,
        deadline=task.deadline - reserve,
        progress=task.verbose,
        checkpoint_dir=None if task.folder is None else task.folder / "local",
        input_names=task.names,
        ranks=task.ranks,
        **changes,
    )


def _with_local_scale(method: Any, held: Task, ranks: Ranks) -> tuple[list[Any], list[str]]:
    """The local scale that suits the rows of process 0, for all; none where a region has few rows."""
    few = ranks.any(method.num_neighbours_predict >= held.num_rows)[0]
    return ([method], []) if few else steps.with_local_scales([method], held)


def _words(shard: Shard, width: float, ranks: Ranks) -> str:
    counts = torch.zeros(2, ranks.size, dtype=torch.float64)
    counts[:, ranks.rank] = torch.tensor([float(shard.num_own), float(len(shard.X) - shard.num_own)])
    own, near = ranks.add_up(counts)
    if ranks.size == 1:
        return f"One region, of {int(own.sum()):,} rows: a single process was started."
    return (
        f"{ranks.size:,} regions, one for each process, of {int(own.min()):,} to {int(own.max()):,} rows, and up to "
        f"{int(near.max()):,} rows within {width:.2g} lengthscales of a region as neighbours."
    )


# ---- checkpoints ----


def _folder(model: "GPRegressor", recipe: Local, units: Units, task: Task, num_rows: int, ranks: Ranks) -> Path | None:
    """The folder of this fit; ValueError on all processes if it was begun by another number of processes."""
    if model.checkpoint_dir is None:
        return None
    # Other numbers of processes add up in another order: digits that this changes do not count.
    scaler = [[f"{value:.6g}" for value in part.tolist()] for part in units.scaler]
    kernel = [type(part).__name__ for part in task.kernel.modules()]
    plain = [recipe.name, vars(recipe), kernel, task.seed, task.max_epochs, num_rows, units.encoder.names_out, scaler]
    folder = Path(model.checkpoint_dir) / f"regions-{fingerprint(plain)[:12]}"
    ranks.from_first(lambda: {"checked": _check_number(folder, ranks.size)})
    return folder


def _check_number(folder: Path, size: int) -> bool:
    path = folder / PROCESSES
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"processes": size}).encode())
        return True
    try:
        before = int(json.loads(path.read_text(encoding="utf-8"))["processes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete its folder to start from scratch.") from error
    if before != size:
        raise ValueError(
            f"{folder} is of a fit in {before} regions, and {size} processes were started; start {before} to resume, "
            "or delete the folder to start from scratch."
        )
    return True
