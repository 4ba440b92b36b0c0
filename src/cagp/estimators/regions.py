"""A table in regions: every process learns from its part of a table, and answers a region of the inputs."""

import json
import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cagp.data.tables import Chunks
from cagp.dataset import Data
from cagp.estimators.pieces import learn_chunks
from cagp.estimators.rows import Fit, MappedRows, Prepared
from cagp.estimators.units import Units
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.recipes import Recipe, nearest
from cagp.recipes.task import Fitted, Task
from cagp.shards import RegionPosterior, Regions, Shard, exchange_rows, halo_width, sample_of_parts
from cagp.storage import fingerprint, write_atomically

PROCESSES = "processes.json"
"""Beside the checkpoints of a fit in regions: how many processes it has."""


def learn_regions(fit: Fit, recipe: Recipe, chunks: Chunks) -> Prepared:
    """The units of the whole table, a sample of its rows, and CaGP-Local in regions; on all processes.

    Args:
        chunks: the part of the table that this process reads.
    """
    ranks = fit.ranks
    units, rows, _, _, notes, scales, _ = learn_chunks(fit, recipe, chunks, in_parts=True)
    assert isinstance(rows, MappedRows)
    num_rows = int(ranks.add_up(torch.tensor([float(rows.num_rows)], dtype=torch.float64))[0])
    notes = [*notes, f"All {ranks.size:,} processes together have {num_rows:,} rows."]
    nearest.check_neighbours(recipe.n_neighbors, num_rows)
    part = Data(rows.X, rows.y[:, 0].contiguous(), None if rows.row_noise is None else rows.row_noise[:, 0], True)
    sample = sample_of_parts(torch.cat([part.X, part.y[:, None]], 1), ranks)
    # Starting values come from rows of all regions.
    few = MappedRows(sample[:, :-1].contiguous(), sample[:, -1:].contiguous(), None, rows.scratch, rows.num_missing)

    def train(recipe: Recipe, task: Task) -> Fitted:
        checkpoints = fit.options.checkpoint_dir
        folder = None if checkpoints is None else _folder(Path(checkpoints), recipe, task, units, num_rows)
        return _train(recipe, replace(task, folder=folder), part, num_rows)

    return Prepared(units, few, replace(recipe, trainer=train), num_rows, notes, scales)


def _train(recipe: Recipe, task: Task, part: Data, num_rows: int) -> Fitted:
    """Learn hyperparameters together, and condition on the rows of a region.

    Args:
        task: with a sample of the rows of all regions.
        part: rows of this process, in standard units.
        num_rows: of all processes.
    """
    ranks, neighbours = task.ranks, nearest.Neighbours.of(recipe.n_neighbors, recipe.objective)
    if task.kernel.decays(part.X.shape[1]) is False:
        raise ValueError(
            "the kernel does not decay with distance, and no process has rows that are far apart; with shards=True "
            "use one that does, e.g. matern32."
        )
    priors = task.priors()
    (method,) = nearest.local_methods(task, priors, neighbours)
    shard = _shard(part, num_rows, None, method.num_neighbours_predict, ranks)[0]
    # As many steps as all rows of the table ask for.
    epochs, steps = task.max_epochs, max(1.0, num_rows / method.batch_size)
    reserve = 0.0 if task.max_time is None else nearest.LOCAL_RESERVE * seconds_of(task.max_time)
    in_region = replace(task, data=Data(shard.X, shard.y, shard.row_noise, True), max_epochs=None)
    most_steps = None if epochs is None else math.ceil(epochs * steps)
    result = in_region.run(method.with_own_rows(shard.own), "local", most_steps, reserve)
    # Neighbours are those of the learned lengthscales: regions are cut again, in these units.
    count = shard.own.num_rows
    own = Data(shard.X[:count], shard.y[:count], None if shard.row_noise is None else shard.row_noise[:count], True)
    lengthscales = priors[0].kernel.lengthscales(part.X.shape[1])
    shard, width, regions = _shard(own, num_rows, lengthscales, method.num_neighbours_predict, ranks)
    noise = None if shard.row_noise is None else shard.row_noise[:, None]
    held = replace(task, data=Data(shard.X, shard.y[:, None], noise, trusted=True))
    (method,) = nearest.local_methods(held, priors, neighbours, recipe.local_scale)
    notes = [_words(shard, width, ranks)]
    few = ranks.any(method.num_neighbours_predict >= held.num_rows)[0]
    if recipe.local_scale == "auto" and not few:  # the scale that suits the rows of process 0, for all
        (method,), words = nearest.with_local_scales([method], held)
        notes += words
    posterior = method.posterior(held.column(0), shares_rows=True)
    options = (posterior.X, method.local_scale, lambda _: posterior, task.max_bytes)
    return Fitted("local", [RegionPosterior(posterior.prior, regions, ranks, *options)], result, notes, None)


def _shard(
    part: Data, num_rows: int, lengthscale: Tensor | None, num_neighbours: int, ranks: Ranks
) -> tuple[Shard, float, Regions]:
    """The shard of this process, the width of its halo, and all regions."""
    regions, width = Regions.of_parts(part.X, ranks, lengthscale), 0.0
    if ranks.size > 1:
        sample = sample_of_parts(part.X, ranks)
        width = ranks.broadcast(halo_width(sample, num_rows, num_neighbours, regions.unit))
    return exchange_rows(regions, width, ranks, *part), width, regions


def _folder(checkpoints: Path, recipe: Recipe, task: Task, units: Units, num_rows: int) -> Path:
    """The folder of this fit; ValueError on all processes if it was begun by another number of processes."""
    # Other numbers of processes add up in another order: digits that this changes do not count.
    scaler = [[f"{value:.6g}" for value in part.tolist()] for part in units.scaler]
    kernel = [type(part).__name__ for part in task.kernel.modules()]
    plain = [recipe.name, recipe.values, kernel, task.seed, task.max_epochs, num_rows, units.encoder.names_out, scaler]
    folder = checkpoints / f"regions-{fingerprint(plain)[:12]}"
    task.ranks.from_first(lambda: {"checked": _check_number(folder, task.ranks.size)})
    return folder


def _words(shard: Shard, width: float, ranks: Ranks) -> str:
    counts = torch.zeros(2, ranks.size, dtype=torch.float64)
    counts[:, ranks.rank] = torch.tensor([float(shard.own.num_rows), float(len(shard.X) - shard.own.num_rows)])
    own, near = ranks.add_up(counts)
    if ranks.size == 1:
        return f"One region, of {int(own.sum()):,} rows: a single process was started."
    return (
        f"{ranks.size:,} regions, one for each process, of {int(own.min()):,} to {int(own.max()):,} rows, and up to "
        f"{int(near.max()):,} rows within {width:.2g} lengthscales of a region as neighbours."
    )


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
