"""A table in pieces: units learned from all of them, and the rows in a file; and a table in regions."""

import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp.column_kinds import NUMBER, WORDS
from cagp.data.column_values import MixedKindsError, quantile_stride
from cagp.data.encoding import Encoder, EncoderScan, encode_target
from cagp.data.tables import Chunks
from cagp.data.transforms import ColumnMoments, Standardizer
from cagp.dataset import Data, check_room, mapped_tensor
from cagp.estimators.target_kinds import Fit, Prepared, check_log, choose_transforms
from cagp.estimators.units import MappedRows, TrainingRows, Units, known_variances
from cagp.memory import current_memory
from cagp.posteriors.base import DTYPES
from cagp.quantities import seconds_of, size
from cagp.ranks import Ranks
from cagp.recipes import local
from cagp.recipes.table import Recipe
from cagp.recipes.target_scale import MOST_ROWS
from cagp.recipes.task import Fitted, Task
from cagp.shards import RegionPosterior, Regions, Shard, exchange_rows, halo_width, sample_of_parts
from cagp.storage import fingerprint, write_atomically

FAILURES: tuple[type[Exception], ...] = (ValueError, OSError)
"""What reading a part of a table can raise: then all processes raise it."""

REGION, EXCHANGED = 1.5, 5
"""Of a fit in regions: rows of a region and its halo, as a multiple of an even share of the table, and how many copies
of them an exchange between processes holds; heuristics."""

PROCESSES = "processes.json"
"""Beside the checkpoints of a fit in regions: how many processes it has."""


def learn_chunks(fit: Fit, recipe: Recipe, chunks: Chunks, *, in_parts: bool = False) -> Prepared:
    """The units of a table that comes in pieces, and its rows in a file. It reads the table three times.

    The encoder is that of the whole table in memory, and so are means and standard deviations up to round-off.

    Args:
        in_parts: the chunks of each process are a part of the table: units are those of all parts together, and the
            rows those of the part.
    """
    options, ranks = fit.options, fit.ranks
    remedy = "needs the whole table in memory: pass X and y as arrays or frames, or use"
    if not recipe.takes_chunks:
        raise ValueError(f'method "{recipe.name}" {remedy} "local" or "auto", which learn from a table in pieces.')
    if options.mean == "trees":
        raise ValueError(f'mean="trees" {remedy} mean="zero".')
    scan = ranks.together(lambda: _scanned(chunks, options.categories), FAILURES)
    scan = _agreed_scan(scan, ranks) if in_parts else scan
    moments = ranks.together(lambda: _moments(chunks, scan, options.target, fit.seed), FAILURES)
    moments = _agreed_moments(moments, ranks) if in_parts else moments
    scaler = Standardizer.from_moments(moments.inputs, moments.targets)
    units = Units.plain(scan.encoder.with_quantiles(moments.spaced), scaler, scan.target_names, scan.first_targets)
    # The scale of each target is chosen with a sample of the rows.
    transforms, scales = choose_transforms(fit, recipe, units, moments.sample(scan.has_noise))
    logs = torch.tensor([transform.name == "log" for transform in transforms])
    if logs.any():
        pairs = zip(moments.targets, moments.logs, strict=True)
        targets = ColumnMoments(*(torch.where(logs, log, plain) for plain, log in pairs))
        units = replace(units, transforms=transforms, scaler=Standardizer.from_moments(moments.inputs, targets))
    dtype = DTYPES["float32" if options.dtype == "auto" else options.dtype]
    row_bytes = dtype.itemsize * (len(units.encoder.names_out) + units.num_targets * (2 if scan.has_noise else 1))
    held, limit = _plan(recipe, scan.num_rows, units, row_bytes, in_parts), fit.memory
    peak, parts = sum(held.values()), ", ".join(f"{size(count)} for {what}" for what, count in held.items())
    plan = (
        f"Planned peak: {size(peak)} of memory, of {size(limit)} that max_memory allows ({parts}); besides, "
        f"{size(scan.num_rows * row_bytes)} of rows on disk, which the system keeps in memory as far as there is room."
    )
    if options.verbose and ranks.is_first:
        print(plan, file=sys.stderr)

    def check_plan() -> None:
        if peak > limit:
            raise MemoryError(
                f"this fit needs {size(peak)} of memory ({parts}), and max_memory is {size(limit)}. Raise max_memory, "
                "leave out columns, or fit to a part of the rows."
            )

    ranks.together(check_plan, (MemoryError,))
    rows = ranks.together(lambda: _written(chunks, scan, units, dtype, row_bytes, options.checkpoint_dir), FAILURES)
    read = f"{scan.num_rows + scan.num_missing:,} rows"
    in_pieces = f"Read {chunks.words} in pieces: {read}, which stay on disk."
    notes = [f"Process {ranks.rank} read {chunks.words}: {read}." if in_parts else in_pieces]
    notes += [*units.missing_words(rows), *scan.encoder.missing_in_words(moments.missing, scan.num_rows)]
    if options.mean == "auto":
        notes.append("The prior mean is zero: trees would need the table in memory, and were not tried.")
    notes += ["Rows that are copies of others were not looked for: that would need the table in memory.", plan]
    return Prepared(units, rows, recipe, rows.num_rows, [*notes, *scales])


# ---- first pass: what the columns hold ----


class _Scan(NamedTuple):
    """What the columns of a table hold."""

    encoder: Encoder
    text: tuple[str, ...]  # columns to read as text
    target_names: tuple[str, ...]
    first_targets: Any  # of the first piece, as the user has them
    has_noise: bool
    num_rows: int  # with a target
    num_missing: int


def _scanned(chunks: Chunks, categories: Sequence[Any]) -> _Scan:
    """What the columns hold; where a CSV file has text among the numbers of a column, all of it is read as text."""
    text: tuple[str, ...] = () if chunks.has_types else tuple(map(str, categories))
    while True:
        try:
            return _scan(chunks, categories, text)
        except MixedKindsError as error:
            if chunks.has_types or error.name in text:
                raise
            text = (*text, error.name)


def _scan(chunks: Chunks, categories: Sequence[Any], text: tuple[str, ...]) -> _Scan:
    columns, num_rows, num_missing, first = EncoderScan(categories), 0, 0, None
    for chunk in chunks.read(text):
        target = encode_target(chunk.targets, rows_from=chunk.rows_from)
        first = (target.names, chunk.targets, chunk.noise is not None) if first is None else first
        if (target.names, chunk.noise is not None) != first[::2]:
            raise ValueError(
                f"the rows from {chunk.rows_from} on have the targets {', '.join(target.names)}"
                f"{'' if chunk.noise is None else ' and noise'}; the first rows have others."
            )
        partly = target.missing & ~target.empty
        if partly.any():
            row = chunk.rows_from + int(partly.argmax())
            raise ValueError(
                f"row {row} has some targets but not all. Of a table in pieces, each target is fitted alone then: name "
                "one target at a time."
            )
        columns.add(chunk.inputs, ~target.empty, chunk.rows_from)
        num_rows, num_missing = num_rows + int((~target.empty).sum()), num_missing + int(target.empty.sum())
    if first is None:
        raise ValueError(f"{chunks.words} has no rows.")
    if num_rows < 2:
        raise ValueError(f"Found n_samples={num_rows} with a target, while a minimum of 2 is required to learn.")
    return _Scan(columns.encoder(), text, *first, num_rows, num_missing)


def _agreed_scan(scan: _Scan, ranks: Ranks) -> _Scan:
    """The scan with the columns and targets of process 0, if all parts have them; gaps in one part count for all."""
    columns = {column.name: column for column in scan.encoder.columns}
    first = ranks.from_first(
        lambda: {
            "names": list(columns),
            "targets": list(scan.target_names),
            "frame": scan.encoder.names_in is not None,
        }
    )
    names, targets = first["names"], first["targets"]

    def check() -> None:
        for column in (column for column in columns.values() if column.kind != NUMBER):
            raise ValueError(
                f"column {column.name!r} holds {WORDS[column.kind]}; with shards=True every input is a number, "
                "since no process sees all rows. Encode the column, or drop it."
            )
        if sorted(columns) != sorted(names) or list(scan.target_names) != targets:
            raise ValueError(
                f"a part of the table has the columns {', '.join([*columns, *scan.target_names])}, and a second "
                f"part {', '.join([*names, *targets])}; expected the same columns in all parts."
            )
        if len(targets) > 1:
            raise ValueError(f"the targets are {', '.join(targets)}; with shards=True a model has one: fit each alone.")

    ranks.together(check, FAILURES)
    missing = ranks.any(*(columns[name].missing for name in names))
    agreed = [columns[name]._replace(missing=gaps) for name, gaps in zip(names, missing, strict=True)]
    return scan._replace(encoder=Encoder(agreed, first["frame"]))


# ---- second pass: means and deviations ----


def _rows(chunks: Chunks, scan: _Scan) -> Iterator[tuple[int, TrainingRows]]:
    """The rows of each piece that have a target, and the number of the first of them among all that have one."""
    first = 0
    for chunk in chunks.read(scan.text):
        target = encode_target(chunk.targets, rows_from=chunk.rows_from)
        values, kept = target.values.reshape(len(target.empty), -1), ~target.empty
        noise, inputs = known_variances(chunk.noise, values.shape), chunk.inputs
        if not kept.all():
            inputs, values, noise = inputs[kept], values[kept], None if noise is None else noise[kept]
        first += len(values)
        if first > scan.num_rows:
            break
        if len(values):
            codes, places = scan.encoder.codes(inputs, chunk.rows_from), chunk.rows_from + np.flatnonzero(kept)
            yield first - len(values), TrainingRows(codes, values, noise, 0, places)
    if first != scan.num_rows:
        raise ValueError(f"{chunks.words} changed while it was read: {scan.num_rows:,} rows had a target before.")


class _Moments(NamedTuple):
    """Statistics of the rows that have a target, and some of these rows."""

    inputs: ColumnMoments
    targets: ColumnMoments
    logs: ColumnMoments  # of the logarithms of positive targets
    missing: np.ndarray  # values of each column
    spaced: np.ndarray  # the codes of rows that are evenly spaced
    drawn: np.ndarray  # rows that are drawn at random: their codes and targets

    def sample(self, has_noise: bool) -> TrainingRows:
        """The rows that are drawn at random; their targets are positive only where those of all rows are."""
        least = self.targets.least.numpy()
        codes, values = (part.copy() for part in np.split(self.drawn, [-len(least)], axis=1))
        values[0] = np.where(least <= 0, least, values[0])
        noise = np.zeros_like(values) if has_noise else None
        return TrainingRows(codes, values, noise, 0, np.arange(len(values)))


def _moments(chunks: Chunks, scan: _Scan, target: str, seed: int) -> _Moments:
    drawn = np.sort(np.random.default_rng(seed).choice(scan.num_rows, min(MOST_ROWS, scan.num_rows), replace=False))
    total: list[ColumnMoments] | None = None
    missing, sample, spaced = np.zeros(scan.encoder.num_columns, dtype=np.int64), [], []
    stride = quantile_stride(scan.num_rows)
    for first, rows in _rows(chunks, scan):
        if target == "log":
            check_log(scan.target_names, rows)
        logs = np.log(rows.targets, where=rows.targets > 0, out=np.full_like(rows.targets, np.nan))
        parts = (scan.encoder.expand(rows.inputs), rows.targets, logs)
        piece = [ColumnMoments.of(torch.from_numpy(np.ascontiguousarray(part))) for part in parts]
        total = piece if total is None else [one.joined(other) for one, other in zip(total, piece, strict=True)]
        missing += np.isnan(rows.inputs).sum(0)
        spaced.append(rows.inputs[-first % stride :: stride])
        own = drawn[slice(*np.searchsorted(drawn, (first, first + rows.num_rows)))] - first
        sample.append(np.hstack([rows.inputs[own], rows.targets[own]]))
    assert total is not None
    inputs, targets, logs = total
    return _Moments(inputs, targets, logs, missing, np.concatenate(spaced), np.concatenate(sample))


def _agreed_moments(part: _Moments, ranks: Ranks) -> _Moments:
    """Statistics and samples of the rows of all processes, from those of each; on all processes."""

    def joined(moments: ColumnMoments) -> ColumnMoments:
        parts = ranks.exchange([torch.stack(list(moments))] * ranks.size)
        return reduce(ColumnMoments.joined, (ColumnMoments(*part.clone().unbind()) for part in parts))

    return _Moments(
        *map(joined, part[:3]),
        missing=gathered(part.missing[None], ranks).sum(0).astype(np.int64),
        spaced=gathered(part.spaced[:: ranks.size], ranks),
        drawn=gathered(part.drawn, ranks),
    )


def gathered(values: np.ndarray, ranks: Ranks) -> np.ndarray:
    """The rows of all processes, in the order of these; on all processes."""
    part = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    return torch.cat(ranks.exchange([part] * ranks.size)).numpy()


# ---- third pass: the rows ----


def _plan(recipe: Recipe, num_rows: int, units: Units, row_bytes: int, in_parts: bool) -> dict[str, int]:
    """What the fit will hold in memory at its peak, in bytes, by purpose."""
    num_rows = round(REGION * num_rows) if in_parts else num_rows
    needed = recipe.planned_bytes(num_rows, len(units.encoder.names_out), units.num_targets)
    exchange = {"the exchange of rows": EXCHANGED * num_rows * row_bytes} if in_parts else {}
    return {"the program": current_memory(), **needed, **exchange}


def _written(
    chunks: Chunks, scan: _Scan, units: Units, dtype: torch.dtype, row_bytes: int, checkpoint_dir: str | Path | None
) -> MappedRows:
    """All rows in standard units, in files without names: beside the checkpoints, or with temporary files."""
    folder = Path(tempfile.gettempdir() if checkpoint_dir is None else checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    n, p, q = scan.num_rows, len(units.encoder.names_out), units.num_targets
    check_room(folder, n * row_bytes)
    X = mapped_tensor(folder, (n, p), dtype)
    y = mapped_tensor(folder, (q, n), dtype).mT  # each target in one piece
    noise = mapped_tensor(folder, (q, n), dtype).mT if scan.has_noise else None
    for first, rows in _rows(chunks, scan):
        place = slice(first, first + rows.num_rows)
        X[place], y[place], known = rows._replace(targets=units.forward(rows.targets)).standard(units)
        if noise is not None and known is not None:
            noise[place] = known
    return MappedRows(X, y, noise, folder, scan.num_missing)


# ---- regions: each process learns from its part of the table, and answers a region of the inputs ----


def learn_regions(fit: Fit, recipe: Recipe, chunks: Chunks) -> Prepared:
    """The units of a table of which this process reads a part, a sample of its rows, and CaGP-Local in regions."""
    ranks = fit.ranks
    prepared = learn_chunks(fit, recipe, chunks, in_parts=True)
    units, rows = prepared.units, prepared.rows
    assert isinstance(rows, MappedRows)
    num_rows = int(ranks.from_all(rows.num_rows).sum())
    notes = [*prepared.notes, f"All {ranks.size:,} processes together have {num_rows:,} rows."]
    local.check_neighbours(recipe.n_neighbors, num_rows)
    part = Data(rows.X, rows.y, rows.row_noise, True).column(0)
    sample = sample_of_parts(torch.cat([part.X, part.y[:, None]], 1), ranks)
    # Starting values come from rows of all regions.
    few = MappedRows(sample[:, :-1].contiguous(), sample[:, -1:].contiguous(), None, rows.scratch, rows.num_missing)

    def train(recipe: Recipe, task: Task) -> Fitted:
        checkpoints = fit.options.checkpoint_dir
        folder = None if checkpoints is None else _folder(Path(checkpoints), recipe, task, units, num_rows)
        return _train(recipe, replace(task, folder=folder), part, num_rows)

    return Prepared(units, few, replace(recipe, trainer=train), num_rows, notes)


def _train(recipe: Recipe, task: Task, part: Data, num_rows: int) -> Fitted:
    """Learn hyperparameters together from a sample of all rows and the part of this process; condition on a region."""
    ranks, neighbours = task.ranks, local.Neighbours.of(recipe.n_neighbors, recipe.objective)
    if task.kernel.decays(part.X.shape[1]) is False:
        words = "the kernel does not decay with distance, and no process has rows that are far apart; with shards=True"
        raise ValueError(f"{words} use one that does, e.g. matern32.")
    priors = task.priors()
    (method,) = local.local_methods(task, priors, neighbours)
    shard = _shard(ranks, num_rows, method.num_neighbours_predict, None, *part)[0]
    # As many steps as all rows of the table ask for.
    steps = max(1.0, num_rows / method.batch_size)
    most_steps = None if task.max_epochs is None else math.ceil(task.max_epochs * steps)
    reserve = 0.0 if task.max_time is None else local.LOCAL_RESERVE * seconds_of(task.max_time)
    in_region = replace(task, data=Data(*shard[:3], True), max_epochs=None)
    result = in_region.run(method.with_own_rows(shard.own), "local", most_steps, reserve)
    # Neighbours are those of the learned lengthscales: regions are cut again, in these units.
    own: Any = (None if values is None else values[: shard.own.num_rows] for values in shard[:3])
    lengthscales = priors[0].kernel.lengthscales(part.X.shape[1])
    shard, width, regions = _shard(ranks, num_rows, method.num_neighbours_predict, lengthscales, *own)
    noise = None if shard.row_noise is None else shard.row_noise[:, None]
    held = replace(task, data=Data(shard.X, shard.y[:, None], noise, trusted=True))
    few = ranks.any(method.num_neighbours_predict >= held.num_rows)[0]
    scale = None if few and recipe.local_scale == "auto" else recipe.local_scale
    # A scale of "auto" is the one that suits the rows of process 0, for all.
    (method,), words = local.scaled_methods(held, priors, neighbours, scale)
    notes = [_words(shard, width, ranks), *words]
    posterior = method.posterior(held.data.column(0), shares_rows=True)
    options = (posterior.X, method.local_scale, lambda _: posterior, task.max_bytes)
    return Fitted("local", [RegionPosterior(posterior.prior, regions, ranks, *options)], result, notes, None)


def _shard(
    ranks: Ranks, num_rows: int, num_neighbours: int, unit: Tensor | None, X: Tensor, *rest: Any
) -> tuple[Shard, float, Regions]:
    """The shard of this process, the width of its halo, and all regions; ``rest`` are targets and noise."""
    regions, width = Regions.of_parts(X, ranks, unit), 0.0
    if ranks.size > 1:
        width = ranks.broadcast(halo_width(sample_of_parts(X, ranks), num_rows, num_neighbours, regions.unit))
    return exchange_rows(regions, width, ranks, X, *rest), width, regions


def _folder(checkpoints: Path, recipe: Recipe, task: Task, units: Units, num_rows: int) -> Path:
    """The folder of this fit; ValueError on all processes if it was begun by another number of processes."""
    # Other numbers of processes add up in another order: digits that this changes do not count.
    scaler = [[f"{value:.6g}" for value in part.tolist()] for part in units.scaler]
    kernel = [type(part).__name__ for part in task.kernel.modules()]
    plain = [recipe.name, recipe.values, kernel, task.seed, task.max_epochs, num_rows, units.encoder.names_out, scaler]
    folder = checkpoints / f"regions-{fingerprint(plain)[:12]}"
    task.ranks.from_first(lambda: _checked_number(folder / PROCESSES, task.ranks.size))
    return folder


def _words(shard: Shard, width: float, ranks: Ranks) -> str:
    own, near = ranks.from_all(shard.own.num_rows, len(shard.X) - shard.own.num_rows).T
    if ranks.size == 1:
        return f"One region, of {int(own.sum()):,} rows: a single process was started."
    return (
        f"{ranks.size:,} regions, one for each process, of {int(own.min()):,} to {int(own.max()):,} rows, and up to "
        f"{int(near.max()):,} rows within {width:.2g} lengthscales of a region as neighbours."
    )


def _checked_number(path: Path, size: int) -> dict[str, int]:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"processes": size}).encode())
    try:
        before = int(json.loads(path.read_text(encoding="utf-8"))["processes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; delete its folder to start from scratch.") from error
    if before != size:
        raise ValueError(
            f"{path.parent} is of a fit in {before} regions, and {size} processes were started; start {before} to "
            "resume, or delete the folder to start from scratch."
        )
    return {"processes": size}
