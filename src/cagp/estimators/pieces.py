"""A table in pieces: units learned from all of them, and the rows in standard units in a file."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from cagp.column_kinds import NUMBER, WORDS
from cagp.data.column_values import MixedKindsError, quantile_stride
from cagp.data.encoding import Encoder, EncoderScan, encode_target_rows
from cagp.data.tables import Chunks
from cagp.data.transforms import TRANSFORMS, ColumnMoments, Standardizer
from cagp.dataset import check_room, mapped_tensor
from cagp.estimators.rows import Fit, MappedRows, Prepared, TrainingRows, missing_words
from cagp.estimators.target_kinds import choose_transforms
from cagp.estimators.units import Units, is_matrix, known_variances, target_dtype
from cagp.memory import current_memory
from cagp.posteriors.base import DTYPES
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import Recipe
from cagp.recipes.target_scale import MOST_ROWS

Value = TypeVar("Value")

FAILURES: tuple[type[Exception], ...] = (ValueError, OSError)
"""What reading a part of a table can raise: then all processes raise it."""

REGION, EXCHANGED = 1.5, 5
"""Of a fit in regions: rows of a region and its halo, as a multiple of an even share of the table, and how many copies
of them an exchange between processes holds; heuristics."""


def learn_chunks(fit: Fit, recipe: Recipe, chunks: Chunks, *, in_parts: bool = False) -> Prepared:
    """The units of a table that comes in pieces, and its rows in a file. It reads the table three times.

    The encoder is that of the whole table in memory, and so are means and standard deviations up to round-off.

    Args:
        in_parts: the chunks of each process are a part of the table: units are those of all parts together, and the
            rows those of the part.
    """
    options, ranks = fit.options, fit.ranks
    _check_recipe(recipe, options.mean)

    def together(read: Callable[[], Value], failures: tuple[type[Exception], ...] = FAILURES) -> Value:
        return ranks.together(read, failures) if in_parts else read()

    scan = together(lambda: _scanned(chunks, options.categories))
    scan = _agreed_scan(scan, ranks) if in_parts else scan
    moments = together(lambda: _moments(chunks, scan, options.target, fit.seed))
    moments = _agreed_moments(moments, ranks) if in_parts else moments
    units = Units(
        scan.encoder.with_quantiles(moments.spaced),
        Standardizer.from_moments(moments.inputs, moments.targets),
        scan.target_names,
        scan.target_is_matrix,
        scan.target_dtype,
        (TRANSFORMS["identity"],) * len(scan.target_names),
    )
    # The scale of each target is chosen with a sample of the rows.
    chosen, _, scales = choose_transforms(fit, recipe, units, moments.sample(scan.has_noise))
    transforms = chosen.transforms
    if any(transform.name == "log" for transform in transforms):
        pairs = zip(moments.targets, moments.logs, strict=True)
        logs = torch.tensor([transform.name == "log" for transform in transforms])
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

    together(check_plan, (MemoryError,))
    rows = together(lambda: _written(chunks, scan, units, dtype, row_bytes, options.checkpoint_dir))
    read = f"Read {chunks.words} in pieces: {scan.num_rows + scan.num_missing:,} rows, which stay on disk."
    if in_parts:
        read = f"Process {ranks.rank} read {chunks.words}: {scan.num_rows + scan.num_missing:,} rows."
    notes = [read, *missing_words(scan.num_missing, scan.num_rows, units.num_targets)]
    notes += scan.encoder.missing_in_words(moments.missing, scan.num_rows)
    if options.mean == "auto":
        notes.append("The prior mean is zero: trees would need the table in memory, and were not tried.")
    notes += ["Rows that are copies of others were not looked for: that would need the table in memory.", plan]
    return Prepared(units, rows, recipe, rows.num_rows, notes, scales)


def _check_recipe(recipe: Recipe, mean: str) -> None:
    """Raise ValueError for what needs the table in memory."""
    remedy = "needs the whole table in memory: pass X and y as arrays or frames, or use"
    if not recipe.takes_chunks:
        raise ValueError(f'method "{recipe.name}" {remedy} "local" or "auto", which learn from a table in pieces.')
    if mean == "trees":
        raise ValueError(f'mean="trees" {remedy} mean="zero".')


# ---- first pass: what the columns hold ----


class _Scan(NamedTuple):
    """What the columns of a table hold."""

    encoder: Encoder
    text: tuple[str, ...]  # columns to read as text
    target_names: tuple[str, ...]
    target_is_matrix: bool
    target_dtype: np.dtype
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
    columns, num_rows, num_missing, first, y = EncoderScan(categories), 0, 0, None, None
    for chunk in chunks.read(text):
        target = encode_target_rows(chunk.targets, rows_from=chunk.rows_from)
        about = target.names, chunk.noise is not None
        if first is None:
            first, y = about, chunk.targets
        if about != first:
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
    names, has_noise = first
    return _Scan(columns.encoder(), text, names, is_matrix(y), target_dtype(y), has_noise, num_rows, num_missing)


def _agreed_scan(scan: _Scan, ranks: Ranks) -> _Scan:
    """The scan with the columns and targets of process 0, if all parts of the table have them; on all processes.

    Values that are missing in one part count as missing in all.
    """
    columns = {column.name: column for column in scan.encoder.columns}
    first = ranks.from_first(
        lambda: {
            "names": list(columns),
            "targets": list(scan.target_names),
            "matrix": scan.target_is_matrix,
            "dtype": scan.target_dtype.name,
            "frame": scan.encoder.names_in is not None,
        }
    )
    names, targets = first["names"], first["targets"]

    def check() -> None:
        other = [column for column in columns.values() if column.kind != NUMBER]
        if other:
            raise ValueError(
                f"column {other[0].name!r} holds {WORDS[other[0].kind]}; with shards=True every input is a number, "
                "since no process sees all rows. Encode the column, or drop it."
            )
        if sorted(columns) != sorted(names) or list(scan.target_names) != targets:
            raise ValueError(
                f"a part of the table has the columns {', '.join([*columns, *scan.target_names])}, and a second "
                f"part {', '.join([*names, *targets])}; expected the same columns in all parts."
            )
        if len(targets) > 1:
            words = ", ".join(targets)
            raise ValueError(f"the targets are {words}; with shards=True a model has one: fit each alone.")

    ranks.together(check, FAILURES)
    missing = ranks.any(*(columns[name].missing for name in names))
    agreed = [columns[name]._replace(missing=gaps) for name, gaps in zip(names, missing, strict=True)]
    dtype, encoder = np.dtype(first["dtype"]), Encoder(agreed, first["frame"])
    return scan._replace(encoder=encoder, target_is_matrix=first["matrix"], target_dtype=dtype)


# ---- second pass: means and deviations ----


class _Rows(NamedTuple):
    """Rows of a piece that have a target."""

    codes: np.ndarray
    targets: np.ndarray  # (n, q)
    noise: np.ndarray | None  # (n, q)
    first: int  # the number of the first one, among those with a target
    rows_from: int  # the number of the first row of the piece


def _rows(chunks: Chunks, scan: _Scan) -> Iterator[_Rows]:
    first = 0
    for chunk in chunks.read(scan.text):
        target = encode_target_rows(chunk.targets, rows_from=chunk.rows_from)
        values, kept = target.values.reshape(len(target.empty), -1), ~target.empty
        noise, inputs = None if chunk.noise is None else known_variances(chunk.noise, values.shape), chunk.inputs
        if not kept.all():
            inputs, values, noise = inputs[kept], values[kept], None if noise is None else noise[kept]
        first += len(values)
        if first > scan.num_rows:
            break
        if len(values):
            codes = scan.encoder.codes(inputs, chunk.rows_from)
            yield _Rows(codes, values, noise, first - len(values), chunk.rows_from)
    if first != scan.num_rows:
        raise ValueError(
            f"{chunks.words} changed while it was read: it had {scan.num_rows:,} rows with a target before."
        )


class _Moments(NamedTuple):
    """Statistics of the rows that have a target, and some of these rows."""

    inputs: ColumnMoments
    targets: ColumnMoments
    logs: ColumnMoments  # of the logarithms of positive targets
    missing: np.ndarray  # values of each column
    spaced: np.ndarray  # the codes of rows that are evenly spaced
    sample_codes: np.ndarray  # of rows that are drawn at random
    sample_targets: np.ndarray

    def sample(self, has_noise: bool) -> TrainingRows:
        """The rows that are drawn at random; their targets are positive only where those of all rows are."""
        values, least = self.sample_targets.copy(), self.targets.least.numpy()
        values[0] = np.where(least <= 0, least, values[0])
        noise = np.zeros_like(values) if has_noise else None
        return TrainingRows(self.sample_codes, values, noise, 0, np.arange(len(values)))


def _moments(chunks: Chunks, scan: _Scan, target: str, seed: int) -> _Moments:
    drawn = np.sort(np.random.default_rng(seed).choice(scan.num_rows, min(MOST_ROWS, scan.num_rows), replace=False))
    total: list[ColumnMoments] | None = None
    missing, sample, spaced = np.zeros(scan.encoder.num_columns, dtype=np.int64), [], []
    stride = quantile_stride(scan.num_rows)
    for rows in _rows(chunks, scan):
        if target == "log" and rows.noise is None and (rows.targets <= 0).any():
            row, j = np.argwhere(rows.targets <= 0)[0]
            raise ValueError(
                f'target is "log", but {scan.target_names[j]} has values that are not positive '
                f"({rows.targets[row, j]:g} among the rows from {rows.rows_from} on). Leave these rows out, or use "
                'target="identity".'
            )
        logs = np.log(rows.targets, where=rows.targets > 0, out=np.full_like(rows.targets, np.nan))
        parts = (scan.encoder.expand(rows.codes), rows.targets, logs)
        piece = [ColumnMoments.of(torch.from_numpy(np.ascontiguousarray(part))) for part in parts]
        total = piece if total is None else [one.joined(other) for one, other in zip(total, piece, strict=True)]
        missing += np.isnan(rows.codes).sum(0)
        spaced.append(rows.codes[-rows.first % stride :: stride])
        own = drawn[np.searchsorted(drawn, rows.first) : np.searchsorted(drawn, rows.first + len(rows.targets))]
        sample.append((rows.codes[own - rows.first], rows.targets[own - rows.first]))
    assert total is not None
    codes, values = (np.concatenate(part) for part in zip(*sample, strict=True))
    inputs, targets, logs = total
    return _Moments(inputs, targets, logs, missing, np.concatenate(spaced), codes, values)


def _agreed_moments(part: _Moments, ranks: Ranks) -> _Moments:
    """Statistics and samples of the rows of all processes, from those of each; on all processes."""
    if ranks.size == 1:
        return part
    return _Moments(
        *(_joined(moments, ranks) for moments in part[:3]),
        missing=gathered(part.missing[None], ranks).sum(0).astype(np.int64),
        spaced=gathered(part.spaced[:: ranks.size], ranks),
        sample_codes=gathered(part.sample_codes, ranks),
        sample_targets=gathered(part.sample_targets, ranks),
    )


def _joined(moments: ColumnMoments, ranks: Ranks) -> ColumnMoments:
    parts = ranks.exchange([torch.stack(list(moments))] * ranks.size)
    return reduce(ColumnMoments.joined, (ColumnMoments(*part.clone().unbind()) for part in parts))


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
    for rows in _rows(chunks, scan):
        place = slice(rows.first, rows.first + len(rows.targets))
        in_memory = TrainingRows(rows.codes, units.forward(rows.targets), rows.noise, 0, np.empty(0))
        X[place], y[place], known = in_memory.standard(units)
        if noise is not None:
            assert known is not None
            noise[place] = known
    return MappedRows(X, y, noise, folder, scan.num_missing)
