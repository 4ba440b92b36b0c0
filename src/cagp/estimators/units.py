"""The user's units, and rows in them: tables in, standard units inside, answers of the user's shape and type out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp.data.encoding import Encoder, encode_target
from cagp.data.splits import RowRule
from cagp.data.transforms import TRANSFORMS, ColumnMoments, Standardizer, Transform
from cagp.posteriors import Posterior
from cagp.progress import Progress
from cagp.ranks import Ranks

PREDICT_ROWS = 16_384
"""Rows that are predicted at a time: the memory for them does not grow with the table."""

NO_NOISE = (
    'sample_noise is in squared units of y, and the target is fitted on a log scale. Use target="identity"; or fit '
    "log(y) yourself with sample_noise / y**2, which is right where the noise is small beside y."
)


def own_noise(likelihood: str) -> ValueError:
    """The error for known noise variances beside a likelihood that is not Gaussian."""
    return ValueError(
        f"sample_noise is given, but the likelihood is {likelihood!r}, whose noise is its own; leave it out."
    )


Rows = slice | np.ndarray
"""Some rows of a table: consecutive ones, or any."""


class EncodedTable(NamedTuple):
    """A table whose columns are numbers already: a regressor takes it where it takes a table, and encodes nothing."""

    encoder: Encoder
    matrix: np.ndarray  # Encoder.codes

    def take(self, rows: Rows) -> "EncodedTable":
        """Some of its rows."""
        return self._replace(matrix=self.matrix[rows])


class Points(NamedTuple):
    """Test points as numbers, and where answers to them belong.

    A row with a level that fit has not seen is predicted once with each known level in its place. The answer to it is
    that to a level drawn from the known ones: the average, with a variance that includes how much they differ.
    """

    inputs: np.ndarray  # (m, c), as Encoder.codes gives them
    rows: np.ndarray  # (m,), the row of the table that each of them stands for; ascending
    num_rows: int  # n, of the table
    device: torch.device | None  # answers are tensors on this device; None for arrays
    known: np.ndarray  # (n, 1), the logarithm of the exposure of each row of the table, or zero
    noise: np.ndarray | None = None  # (m, q), known variances in squared units of the targets
    verbose: bool = False  # whether to show progress

    @property
    def has_stand_ins(self) -> bool:
        """Whether a row is predicted several times."""
        return len(self.inputs) > self.num_rows

    def average(self, values: np.ndarray) -> np.ndarray:
        """The mean over the stand-ins of each row, along the first axis: (m, ...) to (n, ...)."""
        if not self.has_stand_ins:
            return values
        counts = np.bincount(self.rows).reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(values, np.flatnonzero(np.diff(self.rows, prepend=-1)), axis=0) / counts

    def spread(self, means: np.ndarray) -> np.ndarray:
        """The variance of a new level's mean about their average, (m, q) to (n, q): s² (1 + 1/k) for k stand-ins."""
        if not self.has_stand_ins:
            return np.zeros_like(means)
        counts = np.bincount(self.rows)[:, None]
        squares = self.average((means - self.average(means)[self.rows]) ** 2) * counts
        return squares / np.maximum(counts - 1, 1) * (1 + 1 / counts)

    def joint(self, covariance: np.ndarray, means: np.ndarray) -> np.ndarray:
        """The covariance of the rows, (m, m) to (n, n): levels that fit has not seen differ from row to row."""
        variance = self.average(np.diagonal(covariance)) + self.spread(means[:, None])[:, 0]
        averaged = self.average(self.average(covariance).T).T
        np.fill_diagonal(averaged, variance)
        return averaged

    def choose(self, draws: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws for the rows, (m, q, s) to (n, q, s): of each row and draw, that of a stand-in chosen at random."""
        if not self.has_stand_ins:
            return draws
        counts, num_draws = np.bincount(self.rows), draws.shape[2]
        first = np.cumsum(counts) - counts
        chosen = first[:, None] + (random.random((self.num_rows, num_draws)) * counts[:, None]).astype(np.int64)
        return draws[chosen[:, None, :], np.arange(draws.shape[1])[None, :, None], np.arange(num_draws)]


# ---- rows to learn from ----


class TrainingRows(NamedTuple):
    """Rows in memory; targets and noise on the scale of the fit, see ``Units.transforms``."""

    inputs: np.ndarray  # (n, c), as Encoder.codes gives them
    targets: np.ndarray  # (n, q); NaN where a row has some targets but not all
    noise: np.ndarray | None  # (n, q), known variances
    num_missing: int  # rows without any target, which were left out
    places: np.ndarray  # (n,), of the rows in the user's table
    rule: RowRule = RowRule()  # how rows are held out to compare models
    known: np.ndarray | None = None  # (n,), a known part of the latent function: the logarithm of exposures
    scratch = None  # no folder: the rows are in memory

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.inputs)

    def standard(self, units: "Units") -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise in standard units, float64."""
        scale = units.scaler.target_std
        # Divided twice: the square of a tiny unit would be zero.
        noise = None if self.noise is None else torch.from_numpy(self.noise) / scale / scale
        return units.scaled(self.inputs), units.scaler.targets(torch.from_numpy(self.targets)), noise

    def take(self, kept: np.ndarray) -> "TrainingRows":
        """Some of the rows, by number."""
        noise, known = (None if values is None else values[kept] for values in (self.noise, self.known))
        places, rule = self.places[kept], self.rule.take(kept)
        return TrainingRows(self.inputs[kept], self.targets[kept], noise, self.num_missing, places, rule, known)

    def of_target(self, j: int) -> "TrainingRows":
        """The rows that have the j-th target, and this target alone."""
        rows, column = self.take(np.flatnonzero(~np.isnan(self.targets[:, j]))), slice(j, j + 1)
        noise, num_missing = None if rows.noise is None else rows.noise[:, column], self.num_rows - rows.num_rows
        return rows._replace(targets=rows.targets[:, column], noise=noise, num_missing=self.num_missing + num_missing)


class MappedRows(NamedTuple):
    """Rows in files, in standard units."""

    X: Tensor  # (n, p)
    y: Tensor  # (n, q)
    row_noise: Tensor | None  # (n, q)
    scratch: Path  # the folder of the files
    num_missing: int  # rows without any target, which were left out
    rule = RowRule()  # rows are held out at random: times and groups would have to be in memory
    known = None

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.X)

    @property
    def inputs(self) -> np.ndarray:
        """No columns: trees need the table in memory."""
        return np.empty((len(self.X), 0))

    def standard(self, units: "Units") -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise in standard units."""
        return self.X, self.y, self.row_noise


AnyRows = TrainingRows | MappedRows


# ---- units ----


@dataclass(frozen=True)
class Units:
    """How a regressor's user writes inputs and targets."""

    encoder: Encoder
    scaler: Standardizer
    target_names: tuple[str, ...]
    target_is_matrix: bool  # answers have an axis for the targets
    target_dtype: np.dtype  # of answers
    transforms: tuple[Transform, ...]  # of each target: the scale on which it is fitted

    @classmethod
    def learn(
        cls, X: Any, y: Any, sample_noise: Any, categories: Sequence[Any] = (), exposure: Any = None
    ) -> tuple["Units", TrainingRows]:
        """The units of a table, and its rows: encoded once, without those that have no target.

        Every target is taken as it is. Counts have a column of exposures.
        """
        target = encode_target(y)
        empty, values = target.empty, target.values.reshape(len(target.empty), -1)
        encoder, inputs = X if isinstance(X, EncodedTable) else Encoder.fit_codes(X, categories, ~empty)
        inputs = np.ascontiguousarray(inputs)
        if exposure is not None and not isinstance(X, EncodedTable):
            encoder = encoder.with_exposure(exposure, inputs)
        if len(values) != len(inputs):
            words = "Found input variables with inconsistent numbers of samples"
            raise ValueError(f"{words}: X has {len(inputs):,} rows, y has {len(values):,}.")
        noise = known_variances(sample_noise, values.shape)
        kept = np.flatnonzero(~empty)
        if len(kept) < len(inputs):
            inputs, values, noise = inputs[kept], values[kept], None if noise is None else noise[kept]
        if len(inputs) < 2:
            raise ValueError(f"Found n_samples={len(inputs)} with a target, while a minimum of 2 is required to learn.")
        for name, number in zip(target.names, (~np.isnan(values)).sum(0), strict=True):
            if number < 2:
                raise ValueError(f"target {name!r} has {number} value, expected at least 2 to learn from.")
        units = cls.plain(encoder, _scaler(encoder.expand(inputs), values), target.names, y)
        return units, TrainingRows(inputs, values, noise, len(empty) - len(kept), kept)

    @classmethod
    def plain(cls, encoder: Encoder, scaler: Standardizer, names: tuple[str, ...], y: Any) -> "Units":
        """The units with every target as it is; answers are float32 where all targets of the user are."""
        dtypes = list(y.dtypes) if hasattr(y, "dtypes") and np.iterable(y.dtypes) else [getattr(y, "dtype", None)]
        is_single = all(str(dtype).removeprefix("torch.").lower() == "float32" for dtype in dtypes)
        dtype, identity = np.dtype(np.float32 if is_single else np.float64), TRANSFORMS["identity"]
        return cls(encoder, scaler, names, is_matrix(y), dtype, (identity,) * len(names))

    def scaled_by(self, rows: TrainingRows) -> "Units":
        """The same units with means and standard deviations of these rows."""
        return replace(self, scaler=_scaler(self.encoder.expand(rows.inputs), rows.targets))

    def of_target(self, j: int) -> "Units":
        """The units of the j-th target alone."""
        one = slice(j, j + 1)
        scaler = self.scaler._replace(target_mean=self.scaler.target_mean[one], target_std=self.scaler.target_std[one])
        return replace(self, scaler=scaler, target_names=self.target_names[one], transforms=self.transforms[one])

    def check_same(self, rows: AnyRows, ranks: Ranks) -> None:
        """Raise ValueError on all processes unless each was given the same table."""
        held_out = rows.rule.values
        numbers = {
            "the number of rows": float(rows.num_rows),
            "the number of inputs": float(len(self.encoder.names_out)),
            "the mean of the inputs, without signs": float(self.scaler.input_mean.abs().sum()),
            "the spread of the inputs": float(self.scaler.input_std.sum()),
            "the mean of the targets, without signs": float(self.scaler.target_mean.abs().sum()),
            "the spread of the targets": float(self.scaler.target_std.sum()),
            "the times or groups": 0.0 if held_out is None else float(np.arange(1, rows.num_rows + 1) @ held_out),
        }
        ranks.check_same(numbers, "give every process the whole table")

    def missing_words(self, rows: AnyRows) -> list[str]:
        """How many rows have no target, in one sentence; none where there are none."""
        which = "target is missing" if self.num_targets == 1 else "targets are all missing"
        total = rows.num_rows + rows.num_missing
        return [f"Left out {rows.num_missing:,} of {total:,} rows, whose {which}."] if rows.num_missing else []

    @property
    def num_targets(self) -> int:
        """q."""
        return len(self.target_names)

    @property
    def has_log(self) -> bool:
        """Whether a target is fitted on a log scale."""
        return any(transform.name == "log" for transform in self.transforms)

    # ---- into standard units ----

    def tiles(self, points: Points, posterior: Posterior) -> Iterator[tuple[Rows, Tensor]]:
        """The points a part at a time, in standard units; all of them where there are few.

        Parts come in the order in which they cost the posterior least.
        """
        num_rows = len(points.inputs)
        many = num_rows > PREDICT_ROWS
        order = posterior.order(self.standard(points.inputs, posterior)) if many else None
        with Progress("predict", points.verbose and many, num_rows) as progress:
            for start in range(0, num_rows, PREDICT_ROWS):
                part = slice(start, min(start + PREDICT_ROWS, num_rows))
                rows = part if order is None else order[part].cpu().numpy()
                yield rows, self.standard(points.inputs[rows], posterior)
                progress.advance(part.stop - start)

    def standard(self, inputs: np.ndarray, posterior: Posterior) -> Tensor:
        """Codes as inputs in standard units, in the dtype and on the device of the posterior."""
        like = posterior.X
        # Squares must stay finite. At this distance from all rows, no kernel tells places apart.
        farthest = torch.finfo(like.dtype).max ** 0.4
        return self.scaled(inputs).clamp(-farthest, farthest).to(like)

    def scaled(self, inputs: np.ndarray) -> Tensor:
        """Codes as inputs in standard units, in float64."""
        return self.scaler.inputs(torch.from_numpy(self.encoder.expand(inputs)))

    def observed(self, points: Points, y: Any) -> np.ndarray:
        """Targets to compare with, (n, q), none missing, in the user's units."""
        target = encode_target(y)
        values = target.values.reshape(len(target.empty), -1)
        n, q = points.num_rows, self.num_targets
        if values.shape != (n, q):
            raise ValueError(f"y has shape {np.shape(y)}, expected {n} rows and {q} target(s).")
        if target.missing.any():
            raise ValueError(f"y has {int(target.missing.sum())} missing values; remove these rows from X and y.")
        return values

    # ---- and back ----

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Means, quantiles or draws in standard units, (n, q, ...), in the units of the scales of the fit."""
        mean, std = (part.numpy().reshape(-1, *[1] * (values.ndim - 2)) for part in self.scaler[2:])
        return values * std + mean

    def rescale(self, values: np.ndarray, power: int = 1) -> np.ndarray:
        """The same of deviations, or with ``power=2`` of variances; targets are along the last axis."""
        return values * self.scaler.target_std.numpy() ** power

    def forward(self, values: np.ndarray) -> np.ndarray:
        """Targets, (n, q), on the scales of the fit."""
        return np.stack([t.forward(values[:, j]) for j, t in enumerate(self.transforms)], 1)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Values on the scales of the fit, (n, q, ...), in the units of the targets."""
        return np.stack([t.inverse(values[:, j]) for j, t in enumerate(self.transforms)], 1)

    def answer(
        self, values: np.ndarray, points: Points, axis: int = 1, squared: bool = False, counts: bool = False
    ) -> Any:
        """Numbers in the user's units as the user expects them: without an axis of targets where there was none.

        Answers have the dtype of the targets of fit. Squares leave the range of float32 too easily and stay float64.
        Counts are integers.
        """
        values = values if self.target_is_matrix else np.squeeze(values, axis)
        if counts:
            values = values.astype(np.int64)
        elif not squared:
            with np.errstate(over="ignore"):  # a value beyond the range of float32 is infinite
                values = values.astype(self.target_dtype, copy=False)
        if points.device is not None:
            return torch.from_numpy(np.ascontiguousarray(values)).to(points.device)
        return values


def _scaler(inputs: np.ndarray, values: np.ndarray) -> Standardizer:
    """Means and standard deviations of inputs and targets, each of the rows in which it is not missing."""
    return Standardizer.from_moments(*(ColumnMoments.of(torch.from_numpy(part)) for part in (inputs, values)))


def known_variances(sample_noise: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Known variances as (n, q); one column serves all targets."""
    if sample_noise is None:
        return None
    values = np.asarray(sample_noise.cpu() if isinstance(sample_noise, Tensor) else sample_noise, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[0] != shape[0] or values.shape[1] not in (1, shape[1]):
        raise ValueError(
            f"sample_noise has shape {np.shape(sample_noise)}, expected one variance for each of the {shape[0]} rows"
            + (f", or {shape[1]} columns of them." if shape[1] > 1 else ".")
        )
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        raise ValueError(
            f"sample_noise has {int(bad.sum())} values that are negative, NaN or infinite (first in row "
            f"{int(np.argwhere(bad)[0, 0])}); expected variances: square standard deviations first."
        )
    return np.broadcast_to(values, shape).copy()


def is_matrix(y: Any) -> bool:
    """Whether targets have an axis of their own."""
    return (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 2
