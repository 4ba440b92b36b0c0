"""A table in pieces: units learned from all of them, and the rows in standard units in a file."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch

from cagp.data.chunks import ChunkOfRows, Chunks
from cagp.data.column_values import MixedKindsError, quantile_stride
from cagp.data.encoding import Encoder, EncoderScan
from cagp.data.scaling import ColumnMoments, Standardizer
from cagp.data.targets import encode_target_rows
from cagp.data.transforms import TRANSFORMS
from cagp.estimators.agreement import FAILURES, agreed_moments, agreed_scan
from cagp.estimators.options import DTYPES, FitOptions
from cagp.estimators.rows import MappedRows, Prepared, TrainingRows, missing_words
from cagp.estimators.target_choice import NO_NOISE, choose_transforms
from cagp.estimators.units import Units, is_float32, is_matrix, known_variances
from cagp.mapped import check_room, mapped_tensor
from cagp.memory import current_memory
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import Recipe
from cagp.recipes.target_scale import MOST_ROWS

Value = TypeVar("Value")


REGION, EXCHANGED = 1.5, 5
"""Of a fit in regions: rows of a region and its halo, as a multiple of an even share of the table, and how many copies
of them an exchange between processes holds; heuristics."""


@final
@dataclass(frozen=True)
class MemoryPlan:
    """What a fit will hold at its peak, and what it may hold."""

    held: dict[str, int]  # bytes in memory, by purpose
    on_disk: int  # bytes of rows, which the system keeps in memory as far as there is room
    limit: int

    @property
    def peak(self) -> int:
        """Bytes in memory at most."""
        return sum(self.held.values())

    @property
    def _parts(self) -> str:
        return ", ".join(f"{size(count)} for {what}" for what, count in self.held.items())

    def words(self) -> str:
        """The plan in one sentence."""
        return (
            f"Planned peak: {size(self.peak)} of memory, of {size(self.limit)} that max_memory allows ({self._parts}); "
            f"besides, {size(self.on_disk)} of rows on disk, which the system keeps in memory as far as there is room."
        )

    def check(self) -> None:
        """Raise MemoryError if the plan exceeds the limit."""
        if self.peak > self.limit:
            raise MemoryError(
                f"this fit needs {size(self.peak)} of memory ({self._parts}), and max_memory is {size(self.limit)}. "
                "Raise max_memory, leave out columns, or fit to a part of the rows."
            )


def learn_chunks(
    options: FitOptions, recipe: Recipe, chunks: Chunks, seed: int, ranks: Ranks, *, in_parts: bool = False
) -> Prepared:
    """The units of a table that comes in pieces, and its rows in a file. It reads the table three times.

    The encoder is that of the whole table in memory, and so are means and standard deviations up to round-off.

    Args:
        in_parts: the chunks of each process are a part of the table: units are those of all parts together, and the
            rows those of the part.
    """
    _check(recipe, options.mean)

    def together(read: Callable[[], Value], failures: tuple[type[Exception], ...] = FAILURES) -> Value:
        return ranks.together(read, failures) if in_parts else read()

    scan = together(lambda: _scanned(chunks, options.categories))
    scan = agreed_scan(scan, ranks) if in_parts else scan
    moments = together(lambda: _moments(chunks, scan, options.target, seed))
    moments = agreed_moments(moments, ranks) if in_parts else moments
    units = Units(
        scan.encoder.with_quantiles(moments.spaced),
        Standardizer.from_moments(moments.inputs, moments.targets),
        scan.target_names,
        scan.target_is_matrix,
        scan.target_dtype,
        (TRANSFORMS["identity"],) * len(scan.target_names),
    )
    # The scale of each target is chosen with a sample of the rows.
    chosen = choose_transforms(options, recipe, units, moments.sample(scan.has_noise), seed, ranks)
    transforms = chosen.units.transforms
    if any(transform.name == "log" for transform in transforms):
        pairs = zip(moments.targets, moments.logs, strict=True)
        logs = torch.tensor([transform.name == "log" for transform in transforms])
        targets = ColumnMoments(*(torch.where(logs, log, plain) for plain, log in pairs))
        units = replace(units, transforms=transforms, scaler=Standardizer.from_moments(moments.inputs, targets))
    dtype = DTYPES["float32" if options.dtype == "auto" else options.dtype]
    plan = _plan(options.memory, recipe, scan, len(units.encoder.names_out), dtype, in_parts)
    if options.verbose and ranks.is_first:
        print(plan.words(), file=sys.stderr)
    together(plan.check, (MemoryError,))
    rows = together(lambda: _written(chunks, scan, units, dtype, _scratch(options.checkpoint_dir), plan.on_disk))
    read = f"Read {chunks.words} in pieces: {scan.num_rows + scan.num_missing:,} rows, which stay on disk."
    if in_parts:
        read = f"Process {ranks.rank} read {chunks.words}: {scan.num_rows + scan.num_missing:,} rows."
    notes = [read, *_notes(options.mean, scan, moments), plan.words()]
    return Prepared(units, rows, recipe, rows.num_rows, notes, chosen.notes)


def _check(recipe: Recipe, mean: str) -> None:
    """Raise ValueError for what needs the table in memory."""
    if not recipe.takes_chunks:
        raise ValueError(
            f'method "{recipe.name}" needs the whole table in memory: pass X and y as arrays or frames, or use "local" '
            'or "auto", which learn from a table in pieces.'
        )
    if mean == "trees":
        raise ValueError(
            'mean="trees" needs the whole table in memory: pass X and y as arrays or frames, or use mean="zero".'
        )


def _notes(mean: str, scan: "Scan", moments: "Moments") -> list[str]:
    notes = missing_words(scan.num_missing, scan.num_rows, len(scan.target_names))
    notes += scan.encoder.missing_in_words(moments.missing, scan.num_rows)
    if mean == "auto":
        notes.append("The prior mean is zero: trees would need the table in memory, and were not tried.")
    return [*notes, "Rows that are copies of others were not looked for: that would need the table in memory."]


# ---- first pass: what the columns hold ----


class Scan(NamedTuple):
    """What the columns of a table hold."""

    encoder: Encoder
    text: tuple[str, ...]  # columns to read as text
    target_names: tuple[str, ...]
    target_is_matrix: bool
    target_dtype: np.dtype
    has_noise: bool
    num_rows: int  # with a target
    num_missing: int


def _scanned(chunks: Chunks, categories: Sequence[Any]) -> Scan:
    """What the columns hold; where a CSV file has text among the numbers of a column, all of it is read as text."""
    text: tuple[str, ...] = () if chunks.has_types else tuple(map(str, categories))
    while True:
        try:
            return _scan(chunks, categories, text)
        except MixedKindsError as error:
            if chunks.has_types or error.name in text:
                raise
            text = (*text, error.name)


def _scan(chunks: Chunks, categories: Sequence[Any], text: tuple[str, ...]) -> Scan:
    columns, num_rows, num_missing, first = EncoderScan(categories), 0, 0, None
    for chunk in chunks.read(text):
        target = encode_target_rows(chunk.targets, rows_from=chunk.rows_from)
        if first is None:
            first = chunk, target.names
        if target.names != first[1] or (chunk.noise is None) != (first[0].noise is None):
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
    y, dtype = first[0].targets, np.dtype(np.float32 if is_float32(first[0].targets) else np.float64)
    has_noise = first[0].noise is not None
    return Scan(columns.encoder(), text, first[1], is_matrix(y), dtype, has_noise, num_rows, num_missing)


# ---- second pass: means and deviations ----


class _Rows(NamedTuple):
    """Rows of a piece that have a target."""

    codes: np.ndarray
    targets: np.ndarray  # (n, q)
    noise: np.ndarray | None  # (n, q)
    first: int  # the number of the first one, among those with a target
    rows_from: int  # the number of the first row of the piece


def _rows(chunks: Chunks, scan: Scan) -> Iterator[_Rows]:
    first = 0
    for chunk in chunks.read(scan.text):
        rows = _encoded(chunk, scan.encoder, first)
        first += len(rows.targets)
        if first > scan.num_rows:
            break
        if len(rows.targets):
            yield rows
    if first != scan.num_rows:
        raise ValueError(
            f"{chunks.words} changed while it was read: it had {scan.num_rows:,} rows with a target before."
        )


def _encoded(chunk: ChunkOfRows, encoder: Encoder, first: int) -> _Rows:
    target = encode_target_rows(chunk.targets, rows_from=chunk.rows_from)
    values, kept = target.values.reshape(len(target.empty), -1), ~target.empty
    noise = None if chunk.noise is None else known_variances(chunk.noise, values.shape)
    inputs = chunk.inputs
    if not kept.all():
        inputs = inputs[kept]
        values, noise = values[kept], None if noise is None else noise[kept]
    codes = encoder.codes(inputs, chunk.rows_from) if kept.any() else np.empty((0, 0))
    return _Rows(codes, values, noise, first, chunk.rows_from)


class Moments(NamedTuple):
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


def _moments(chunks: Chunks, scan: Scan, target: str, seed: int) -> Moments:
    drawn = np.sort(np.random.default_rng(seed).choice(scan.num_rows, min(MOST_ROWS, scan.num_rows), replace=False))
    total: list[ColumnMoments] | None = None
    missing, sample, spaced = np.zeros(scan.encoder.num_columns, dtype=np.int64), [], []
    stride = quantile_stride(scan.num_rows)
    for rows in _rows(chunks, scan):
        if target == "log" and rows.noise is not None:
            raise ValueError(NO_NOISE)
        if target == "log" and (rows.targets <= 0).any():
            j, row = next((j, int(wrong.argmax())) for j, wrong in enumerate((rows.targets <= 0).T) if wrong.any())
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
    return Moments(inputs, targets, logs, missing, np.concatenate(spaced), codes, values)


# ---- the plan ----


def _plan(limit: int, recipe: Recipe, scan: Scan, num_inputs: int, dtype: torch.dtype, in_parts: bool) -> MemoryPlan:
    num_targets = len(scan.target_names)
    num_rows = round(REGION * scan.num_rows) if in_parts else scan.num_rows
    needed = recipe.planned_bytes(num_rows, num_inputs, num_targets)
    width = num_inputs + num_targets * (2 if scan.has_noise else 1)
    held = {"the program": current_memory(), **needed}
    if in_parts:
        held["the exchange of rows"] = EXCHANGED * num_rows * width * dtype.itemsize
    return MemoryPlan(held, scan.num_rows * width * dtype.itemsize, limit)


def _scratch(checkpoint_dir: str | Path | None) -> Path:
    """The folder for rows: that of the checkpoints, or the one for temporary files."""
    folder = Path(tempfile.gettempdir() if checkpoint_dir is None else checkpoint_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# ---- third pass: the rows ----


def _written(chunks: Chunks, scan: Scan, units: Units, dtype: torch.dtype, folder: Path, num_bytes: int) -> MappedRows:
    """All rows in standard units, in files without names."""
    check_room(folder, num_bytes)
    n, p, q = scan.num_rows, len(units.encoder.names_out), len(scan.target_names)
    X = mapped_tensor(folder, (n, p), dtype)
    y = mapped_tensor(folder, (q, n), dtype).mT  # each target in one piece
    noise = mapped_tensor(folder, (q, n), dtype).mT if scan.has_noise else None
    for rows in _rows(chunks, scan):
        place = slice(rows.first, rows.first + len(rows.targets))
        values = np.stack([t.forward(rows.targets[:, j]) for j, t in enumerate(units.transforms)], 1)
        in_memory = TrainingRows(rows.codes, values, rows.noise, 0, np.empty(0))
        X[place], y[place], known = in_memory.standard(units)
        if noise is not None:
            assert known is not None
            noise[place] = known
    return MappedRows(X, y, noise, folder, scan.num_missing)
