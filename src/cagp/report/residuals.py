"""Residuals in bins along the predictions and the columns that matter most, and which bins stand out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from cagp.plots import Vector
from cagp.report.columns import InputColumn
from cagp.report.groups import CHANCE, equal_bins
from cagp.report.page import number
from cagp.report.targets import Target

NUM_INPUTS = 5
MAX_BINS, ROWS_PER_BIN = 16, 40


class BinnedResiduals(NamedTuple):
    """Mean residuals of bins of rows, along one quantity."""

    name: str
    x: Vector  # NaN where missing
    bins: list[NDArray[np.intp]]
    mean: Vector
    t: Vector  # mean / standard error
    column: InputColumn | None  # None for the predictions

    def ends(self, k: int) -> tuple[str, str]:
        """The smallest and the largest value of a bin, in words."""
        rows = self.bins[k]
        ends = rows[self.x[rows].argmin()], rows[self.x[rows].argmax()]
        first, last = (number(float(self.x[e]), 3) if self.column is None else self.column.shown(int(e)) for e in ends)
        return first, last


class Residuals(NamedTuple):
    """All panels of a section, and in each the bins whose mean differs from zero by more than chance explains."""

    panels: list[BinnedResiduals]
    flagged: list[NDArray[np.bool_]]

    @property
    def num_bins(self) -> int:
        """In all panels."""
        return sum(len(panel.bins) for panel in self.panels)

    @property
    def num_flagged(self) -> int:
        """In all panels."""
        return sum(int(off.sum()) for off in self.flagged)

    @property
    def farthest(self) -> tuple[BinnedResiduals, int]:
        """The flagged bin whose mean is farthest from zero."""
        pairs = zip(self.panels, self.flagged, strict=True)
        every = [(panel, int(k)) for panel, off in pairs for k in np.flatnonzero(off)]
        return max(every, key=lambda pair: abs(pair[0].mean[pair[1]]))


def residuals_of(target: Target, columns: Sequence[InputColumn], num_inputs: int = NUM_INPUTS) -> Residuals:
    """Residuals against the predictions and against the first of these columns that are ordered."""
    panels = [binned("prediction", target.mean, target.error)]
    ordered = [column for column in columns if column.is_ordered]
    panels += [binned(column.label, column.values, target.error, column) for column in ordered[:num_inputs]]
    panels = [panel for panel in panels if len(panel.bins) > 1]
    return Residuals(panels, beyond_chance(panels))


def binned(name: str, x: Vector, residual: Vector, column: InputColumn | None = None) -> BinnedResiduals:
    """The mean residuals along ``x``."""
    bins = equal_bins(x, int(np.clip(len(x) // ROWS_PER_BIN, 2, MAX_BINS)), fewest_rows=5)
    mean = np.array([residual[rows].mean() for rows in bins])
    error = np.array([residual[rows].std(ddof=1) / np.sqrt(len(rows)) for rows in bins])
    return BinnedResiduals(name, x, bins, mean, mean / np.where(error > 0, error, np.inf), column)


def beyond_chance(panels: Sequence[BinnedResiduals]) -> list[NDArray[np.bool_]]:
    """Which means differ from zero by more than chance explains, by t tests corrected for the number of all bins."""
    num_bins = sum(len(panel.bins) for panel in panels)
    limits = [np.array([student.isf(CHANCE / 2 / num_bins, len(rows) - 1) for rows in panel.bins]) for panel in panels]
    return [np.abs(panel.t) > limit for panel, limit in zip(panels, limits, strict=True)]
