"""Training rows that stay on disk: units learned from a table in pieces, and its rows in standard units in a file."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from cagp.data.chunks import ChunkOfRows, Chunks
from cagp.data.column_values import MixedKindsError, quantile_stride
from cagp.data.encoding import Encoder, EncoderScan
from cagp.data.row_rules import RowRule
from cagp.data.scaling import ColumnMoments, Standardizer
from cagp.data.targets import encode_target_rows
from cagp.data.transforms import TRANSFORMS, Transform
from cagp.estimators.agreement import FAILURES, agreed_moments, agreed_scan
from cagp.estimators.target_choice import MOST_ROWS, NO_NOISE, choose_transforms
from cagp.estimators.tasks import DTYPES
from cagp.estimators.units import TrainingRows, Units, is_float32, is_matrix, known_variances
from cagp.mapped import check_room, mapped_tensor
from cagp.memory import current_memory, default_memory_limit
from cagp.quantities import bytes_of, size
from cagp.ranks import Ranks
from cagp.recipes import Recipe

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor


REGION, EXCHANGED = 1.5, 5
"""Of a fit in regions: rows of a region and its halo, as a multiple of an even share of the table, and how many copies
of them an exchange between processes holds; heuristics."""


@final
@dataclass(frozen=True)
class MappedRows:
    """The rows to learn from, in standard units, in files; what ``TrainingRows`` is in memory."""

    X: Tensor  # (n, p)
    y: Tensor  # (n, q)
    row_noise: Tensor | None  # (n, q)
    scratch: Path  # the folder of the files
    num_missing: int  # rows left out, for want of any target

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.X)

    @property
    def num_targets(self) -> int:
        """q."""
        return self.y.shape[1]

    @property
    def rule(self) -> RowRule:
        """Rows are held out at random: times and groups would have to be in memory."""
        return RowRule()

    @property
    def inputs(self) -> np.ndarray:
        """No columns: trees need the table in memory."""
        return np.empty((len(self.X), 0))

    def standard(self, units: Units) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise in standard units."""
        return self.X, self.y, self.row_noise


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


class LearnedChunks(NamedTuple):
    """What the pieces of a table say about it."""

    units: Units
    rows: MappedRows
    notes: list[str]
    scales: list[str]  # what the fit report says about the scales of the targets


def learn_chunks(
    model: "GPRegressor",
    recipe: Recipe,
    chunks: Chunks,
    sample_noise: Any,
    seed: int,
    ranks: Ranks,
    *,
    in_parts: bool = False,
) -> LearnedChunks:
    """The units of a table that comes in pieces, and its rows in a file. It reads the table three times.

    The encoder is that of the whole table in memory, and so are means and standard deviations up to round-off.

    Args:
        in_parts: the chunks of each process are a part of the table: units are those of all parts together, and the
            rows those of the part.
    """
    _check(model, recipe, sample_noise)
    if in_parts:
        scan = ranks.together(lambda: _scanned(chunks, model.categories), FAILURES)
        scan = agreed_scan(scan, ranks)
        agreed = scan
        found = ranks.together(lambda: _moments(chunks, agreed, model.target, seed), FAILURES)
        found = agreed_moments(found, ranks)
    else:
        scan = _scanned(chunks, model.categories)
        found = _moments(chunks, scan, model.target, seed)
    units = Units(
        scan.encoder.with_quantiles(found.spaced),
        Standardizer.from_moments(found.inputs, found.targets),
        scan.target_names,
        scan.target_is_matrix,
        scan.target_dtype,
        (TRANSFORMS["identity"],) * len(scan.target_names),
    )
    transforms, scales = _transforms(model, recipe, units, found, seed, ranks)
    if any(transform.name == "log" for transform in transforms):
        pairs = zip(found.targets, found.logs, strict=True)
        logs = torch.tensor([transform.name == "log" for transform in transforms])
        targets = ColumnMoments(*(torch.where(logs, log, plain) for plain, log in pairs))
        units = replace(units, transforms=transforms, scaler=Standardizer.from_moments(found.inputs, targets))
    dtype = DTYPES["float32" if model.dtype == "auto" else model.dtype]
    plan = _plan(model, recipe, scan, len(units.encoder.names_out), dtype, in_parts)
    if model.verbose and ranks.is_first:
        print(plan.words(), file=sys.stderr)

    def written() -> MappedRows:
        return _written(chunks, scan, units, dtype, _scratch(model), plan.on_disk)

    if in_parts:
        ranks.together(plan.check, (MemoryError,))
        rows = ranks.together(written, FAILURES)
    else:
        plan.check()
        rows = written()
    notes = _notes(model, scan, chunks, found)
    if in_parts:
        notes[0] = f"Process {ranks.rank} read {chunks.words}: {scan.num_rows + scan.num_missing:,} rows."
    return LearnedChunks(units, rows, [*notes, plan.words()], scales)


def _check(model: "GPRegressor", recipe: Recipe, sample_noise: Any) -> None:
    """Raise ValueError for what needs the table in memory."""
    if recipe.planned_bytes(1, 1, 1) is None:
        raise ValueError(
            f'method "{recipe.name}" needs the whole table in memory: pass X and y as arrays or frames, or use "local" '
            'or "auto", which learn from a table in pieces.'
        )
    if model.mean == "trees":
        raise ValueError(
            'mean="trees" needs the whole table in memory: pass X and y as arrays or frames, or use mean="zero".'
        )
    if sample_noise is not None:
        raise ValueError(
            "sample_noise is given beside a table in pieces; give it with the pieces: open_chunks(..., noise=COLUMN), "
            "or (X, y, noise)."
        )


def _notes(model: "GPRegressor", scan: "Scan", chunks: Chunks, found: "Moments") -> list[str]:
    notes = [f"Read {chunks.words} in pieces: {scan.num_rows + scan.num_missing:,} rows, which stay on disk."]
    if scan.num_missing:
        which = "target is missing" if len(scan.target_names) == 1 else "targets are all missing"
        notes.append(f"Left out {scan.num_missing:,} of {scan.num_rows + scan.num_missing:,} rows, whose {which}.")
    if found.missing.any():
        notes.append(scan.encoder.missing_in_words(found.missing, scan.num_rows))
    if model.mean == "auto":
        notes.append("The prior mean is zero: trees would need the table in memory, and were not tried.")
    notes.append("Rows that are copies of others were not looked for: that would need the table in memory.")
    return notes


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
    counts = np.zeros(0, dtype=np.int64)
    for chunk in chunks.read(text):
        target = encode_target_rows(chunk.targets, rows_from=chunk.rows_from)
        if first is None:
            first = chunk, target.names
            counts = np.zeros(len(target.names), dtype=np.int64)
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
        counts += (~np.isnan(target.values.reshape(len(target.empty), -1))).sum(0)
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
    sample: TrainingRows


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
        found = [ColumnMoments.of(torch.from_numpy(np.ascontiguousarray(part))) for part in parts]
        total = found if total is None else [one.joined(other) for one, other in zip(total, found, strict=True)]
        missing += np.isnan(rows.codes).sum(0)
        spaced.append(rows.codes[-rows.first % stride :: stride])
        own = drawn[np.searchsorted(drawn, rows.first) : np.searchsorted(drawn, rows.first + len(rows.targets))]
        sample.append((own, rows.codes[own - rows.first], rows.targets[own - rows.first]))
    assert total is not None
    places, codes, values = (np.concatenate(part) for part in zip(*sample, strict=True))
    # The sample is positive only where all rows are.
    values[0] = np.where(total[1].least.numpy() <= 0, total[1].least.numpy(), values[0])
    noise = np.zeros_like(values) if scan.has_noise else None
    inputs, targets, logs = total
    sampled = TrainingRows(codes, values, noise, 0, places)
    return Moments(inputs, targets, logs, missing, np.concatenate(spaced), sampled)


def _transforms(
    model: "GPRegressor", recipe: Recipe, units: Units, found: Moments, seed: int, ranks: Ranks
) -> tuple[tuple[Transform, ...], list[str]]:
    """The scale of each target, chosen with a sample of the rows, and what was found in words."""
    chosen = choose_transforms(model, recipe, units, found.sample, seed, ranks)
    return chosen.units.transforms, chosen.notes


# ---- the plan ----


def _plan(
    model: "GPRegressor", recipe: Recipe, scan: Scan, num_inputs: int, dtype: torch.dtype, in_parts: bool
) -> MemoryPlan:
    num_targets = len(scan.target_names)
    num_rows = round(REGION * scan.num_rows) if in_parts else scan.num_rows
    needed = recipe.planned_bytes(num_rows, num_inputs, num_targets)
    assert needed is not None
    limit = default_memory_limit() if model.max_memory is None else bytes_of(model.max_memory)
    width = num_inputs + num_targets * (2 if scan.has_noise else 1)
    held = {"the program": current_memory(), **needed}
    if in_parts:
        held["the exchange of rows"] = EXCHANGED * num_rows * width * dtype.itemsize
    return MemoryPlan(held, scan.num_rows * width * dtype.itemsize, limit)


def _scratch(model: "GPRegressor") -> Path:
    """The folder for rows: that of the checkpoints, or the one for temporary files."""
    folder = Path(tempfile.gettempdir() if model.checkpoint_dir is None else model.checkpoint_dir)
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
