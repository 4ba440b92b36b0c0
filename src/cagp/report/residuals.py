"""The section on what is left in the errors: residuals against the predictions and the columns that matter most."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from scipy.stats import t as student

from cagp import plots
from cagp.plots import Vector, shortened
from cagp.report.columns import InputColumn
from cagp.report.html import number, side_by_side, text
from cagp.report.rows import sample
from cagp.report.svg import Drawing
from cagp.report.targets import Target

NUM_INPUTS = 5
MAX_BINS, ROWS_PER_BIN = 16, 40
DOTS = 300
CHANCE = 0.05
"""The probability that chance alone flags anything among all bins of a section, or all groups of one."""


class BinnedResiduals(NamedTuple):
    """Mean residuals of bins of rows, along one quantity."""

    name: str
    x: Vector  # NaN where missing
    bins: list[NDArray[np.intp]]
    mean: Vector
    t: Vector  # mean / standard error
    column: InputColumn | None  # None for the predictions


def equal_bins(values: Vector, most: int, fewest_rows: int = 2) -> list[NDArray[np.intp]]:
    """Rows in up to ``most`` bins with about as many rows each; equal values share a bin, missing ones have none."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) == 0:
        return []
    inner = np.unique(np.quantile(values[known], np.linspace(0, 1, most + 1)[1:-1], method="inverted_cdf"))
    codes = np.searchsorted(inner, values[known], side="left")
    found = [known[codes == k] for k in range(len(inner) + 1)]
    return [rows for rows in found if len(rows) >= fewest_rows]


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


def residual_figures(
    draw: Drawing, target: Target, columns: Sequence[InputColumn], num_inputs: int = NUM_INPUTS
) -> list[str]:
    """Residuals against the predictions and against the first of these columns, and what stands out."""
    residual = target.y - target.mean
    panels = [binned("prediction", target.mean, residual)]
    ordered = [column for column in columns if column.is_ordered]
    panels += [binned(column.label, column.values, residual, column) for column in ordered[:num_inputs]]
    panels = [panel for panel in panels if len(panel.bins) > 1]
    if not panels:
        return ["<p>There are too few test rows to see a pattern in their errors.</p>"]
    flagged = beyond_chance(panels)
    dots = sample(len(residual), DOTS)

    def one(ax: Axes, panel: BinnedResiduals, off: NDArray[np.bool_]) -> None:
        # The bins have their means from all rows; of the rows themselves only some are drawn.
        plots.residuals(ax, panel.x, residual, panel.bins, panel.name, off.tolist(), dots)
        if panel.column is not None and panel.column.kind == "date":
            plots.date_axis(ax)

    drawn = [
        draw(
            partial(one, panel=panel, off=off),
            f"Residuals of {target.name} against {panel.name}, and their means in {len(panel.bins)} bins.",
            "",
            2.4,
        )
        for panel, off in zip(panels, flagged, strict=True)
    ]
    return [
        "<p>Actual minus predicted values: above the line, the prediction was too low. The large dots are means over "
        "bins with about as many rows each, with 95 % intervals; small dots are some of the rows. If the model has "
        "found what the inputs say, all means are zero up to chance.</p>",
        f"<p>{_words(panels, flagged, target)}</p>",
        side_by_side(*drawn),
    ]


def _words(panels: Sequence[BinnedResiduals], flagged: Sequence[NDArray[np.bool_]], target: Target) -> str:
    num_bins, num_off = sum(len(panel.bins) for panel in panels), sum(int(off.sum()) for off in flagged)
    if num_off == 0:
        return f"No mean of the {num_bins} bins differs from zero by more than chance explains, for independent rows."
    worst = max(
        ((panel, k) for panel, off in zip(panels, flagged, strict=True) for k in np.flatnonzero(off)),
        key=lambda found: abs(found[0].mean[found[1]]),
    )
    panel, k = worst
    rows, mean = panel.bins[k], float(panel.mean[k])
    ends = _ends(panel, rows)
    size = abs(mean) / target.scores.rmse
    few = "In 1 bin" if num_off == 1 else f"In {num_off} bins"
    small = " So these deviations are small, if real." if size < 0.1 else ""
    return (
        f"{few} of {num_bins} the mean (red) differs from zero by more than chance explains, for independent rows. "
        f"It is farthest off where {_what(panel)} lies between {ends[0]} and {ends[1]}: there, actual values are "
        f"{number(abs(mean), 3)} {'higher' if mean > 0 else 'lower'} than predicted on average, {number(size, 2)} "
        f"times the RMSE.{small}"
    )


def _what(panel: BinnedResiduals) -> str:
    return "the prediction" if panel.column is None else text(shortened(panel.name, 40))


def _ends(panel: BinnedResiduals, rows: NDArray[np.intp]) -> tuple[str, str]:
    first, last = rows[panel.x[rows].argmin()], rows[panel.x[rows].argmax()]
    if panel.column is not None:
        return panel.column.shown(int(first)), panel.column.shown(int(last))
    return number(float(panel.x[first]), 3), number(float(panel.x[last]), 3)
