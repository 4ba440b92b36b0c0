"""The rows to learn from: in memory or in files, with one interface; and what a table source makes of a table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from cagp.data.splits import RowRule
from cagp.memory import default_memory_limit
from cagp.quantities import bytes_of
from cagp.ranks import Ranks
from cagp.recipes import Recipe

if TYPE_CHECKING:
    from cagp.estimators.base import GPEstimator
    from cagp.estimators.fitted_model import FittedModel
    from cagp.estimators.target_kinds import TargetKind
    from cagp.estimators.units import Units


class TrainingRows(NamedTuple):
    """Rows in memory; targets and noise on the scale of the fit, see ``Units.transforms``."""

    inputs: np.ndarray  # (n, c), as Encoder.codes gives them
    targets: np.ndarray  # (n, q); NaN where a row has some targets but not all
    noise: np.ndarray | None  # (n, q), known variances
    num_missing: int  # rows without any target, which were left out
    places: np.ndarray  # (n,), of the rows in the user's table
    rule: RowRule = RowRule()  # how rows are held out to compare models
    known: np.ndarray | None = None  # (n,), a known part of the latent function: the logarithm of exposures

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.inputs)

    @property
    def num_targets(self) -> int:
        """q."""
        return self.targets.shape[1]

    @property
    def scratch(self) -> None:
        """No folder: the rows are in memory."""
        return None

    @property
    def partly_missing(self) -> bool:
        """Whether rows have some targets but not all."""
        return bool(np.isnan(self.targets).any())

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


@final
@dataclass(frozen=True)
class MappedRows:
    """Rows in files, in standard units."""

    X: Tensor  # (n, p)
    y: Tensor  # (n, q)
    row_noise: Tensor | None  # (n, q)
    scratch: Path  # the folder of the files
    num_missing: int  # rows without any target, which were left out
    partly_missing = False  # a row has all targets, or none
    rule = RowRule()  # rows are held out at random: times and groups would have to be in memory
    known = None

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.X)

    @property
    def num_targets(self) -> int:
        """q."""
        return self.y.shape[1]

    @property
    def inputs(self) -> np.ndarray:
        """No columns: trees need the table in memory."""
        return np.empty((len(self.X), 0))

    def standard(self, units: "Units") -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise in standard units."""
        return self.X, self.y, self.row_noise

    def of_target(self, j: int) -> "MappedRows":
        """The same rows with the j-th target alone."""
        noise = None if self.row_noise is None else self.row_noise[:, j : j + 1]
        return MappedRows(self.X, self.y[:, j : j + 1], noise, self.scratch, self.num_missing)


Rows = TrainingRows | MappedRows


@final
@dataclass(frozen=True)
class Fit:
    """What all steps of a fit have in common."""

    options: "GPEstimator"  # whose parameters say what to do; checked
    kind: "TargetKind"
    seed: int  # of everything random
    ranks: Ranks  # the processes that train together
    began: float  # on the clock ``time.perf_counter()``; ``max_time`` counts from there

    @property
    def last(self) -> "FittedModel | None":
        """The fit at whose hyperparameters this one starts."""
        return getattr(self.options, "fitted_", None) if self.options.warm_start else None

    @property
    def memory(self) -> int:
        """Bytes that it may take."""
        asked = self.options.max_memory
        return default_memory_limit() if asked is None else bytes_of(asked)


class Prepared(NamedTuple):
    """What a table source makes of a table: all that training needs, and what the fit report says about it."""

    units: "Units"
    rows: Rows
    recipe: Recipe
    num_rows: int  # of all processes together
    notes: list[str] = []
    scales: list[str] = []  # about the scales of the targets
    warning: str | None = None  # issued after the fit


def missing_words(num_missing: int, num_rows: int, num_targets: int) -> list[str]:
    """How many rows have no target, in one sentence; none where there are none."""
    which = "target is missing" if num_targets == 1 else "targets are all missing"
    return [f"Left out {num_missing:,} of {num_rows + num_missing:,} rows, whose {which}."] if num_missing else []
