"""How good predictions and their error bars are on test rows, and how training went."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb
from scipy.stats import binom, norm

from cagp import metrics
from cagp.plots.style import (
    AMBER,
    BLUE,
    DASHES,
    INK,
    MUTED,
    RED,
    SMALL,
    Vector,
    equality_line,
    legend,
    level_line,
    segments,
    styled,
)

Z95 = float(norm.ppf(0.975))
DENSITY_COLORS = LinearSegmentedColormap.from_list("density", [(*to_rgb(BLUE), 0.12), (*to_rgb(BLUE), 1.0)])
"""From nearly transparent to blue, so that it reads on any background."""


SIMULTANEOUS_Z = 2.812
"""The 95 % quantile of max |B(p)| / √(p (1 - p)) over p = 0.05, 0.10, ..., 0.95, where B is a Brownian bridge.

√n (coverage - p) tends to B(p) if the predictions are right and the rows independent.
"""


def coverage_band(levels: Vector | float, num_rows: int) -> tuple[Vector, Vector]:
    """Ranges of the observed coverage of central intervals that hold at 19 levels together with probability 95 %.

    This is for predictions that are right and rows that are independent.
    """
    tail = float(norm.sf(SIMULTANEOUS_Z))
    low, high = (binom.ppf(share, num_rows, levels) / num_rows for share in (tail, 1 - tail))
    return np.asarray(low), np.asarray(high)


def learning_curve(ax: Axes, seconds: Vector, losses: Vector, ylabel: str = "loss") -> Axes:
    """The loss after each step against the seconds of training.

    The vertical axis fits all steps but the first twentieth, which are often far off. If the loss fluctuates, as with
    minibatches, its running median is drawn over it.
    """
    seconds, losses = np.asarray(seconds, float), np.asarray(losses, float)
    usable = np.isfinite(losses)
    seconds, losses = seconds[usable], losses[usable]
    if len(losses) == 0:
        raise ValueError("no step has a finite loss: there is nothing to draw.")
    noisy = len(losses) >= 40 and float(np.mean(np.diff(losses) > 0)) > 0.2
    ax.plot(
        seconds, losses, color=BLUE, linewidth=0.8 if noisy else 1.8, alpha=0.35 if noisy else 1.0, label="each step"
    )
    if noisy:
        width = max(5, len(losses) // 20) | 1
        medians = np.median(np.lib.stride_tricks.sliding_window_view(losses, width), axis=1)
        ax.plot(
            seconds[width // 2 : -(width // 2)], medians, color=BLUE, linewidth=1.8, label=f"median of {width} steps"
        )
        legend(ax)
    if len(losses) == 1:
        ax.plot(seconds, losses, color=BLUE, marker="o", markersize=5)
    later = losses[len(losses) // 20 :]
    height = float(np.ptp(later)) or 1.0
    ax.set_ylim(later.min() - 0.06 * height, later.max() + 0.06 * height)
    return styled(ax, "training time (s)", ylabel)


def predicted_against_actual(
    ax: Axes, y: Vector, mean: Vector, std: Vector, name: str = "", interval: tuple[Vector, Vector] | None = None
) -> Axes:
    """Actual against predicted values: right predictions lie on the diagonal, 95 % of the rows inside the intervals.

    Up to 300 rows are drawn one by one, each with its 95 % interval. More rows are drawn as a density, and the
    intervals as a band: the root mean square of their distances from similar predictions.

    Args:
        interval: lower and upper ends of the 95 % intervals; None for 1.96 standard deviations to either side.
    """
    y, mean, std = (np.asarray(values, float) for values in (y, mean, std))
    lower, upper = (mean - Z95 * std, mean + Z95 * std) if interval is None else map(np.asarray, interval)
    low, high = min(y.min(), mean.min()), max(y.max(), mean.max())
    margin = 0.04 * (high - low) or 0.5
    limits = (low - margin, high + margin)
    equality_line(ax, *limits)
    if len(y) <= 300:
        bars = segments(mean, lower, upper)
        ax.plot(*bars, color=BLUE, alpha=0.3, linewidth=1, label="95 % interval")
        inside = (lower <= y) & (y <= upper)
        ax.plot(mean[inside], y[inside], "o", color=BLUE, markersize=2.8, markeredgewidth=0, label="inside")
        ax.plot(mean[~inside], y[~inside], "o", color=RED, markersize=3.4, markeredgewidth=0, label="outside")
    else:
        shades = LogNorm(1, 10)
        cells = ax.hexbin(mean, y, gridsize=36, extent=(*limits, *limits), mincnt=1, cmap=DENSITY_COLORS, norm=shades)
        cells.set(linewidth=0, edgecolor="none")
        shades.vmax = max(float(np.asarray(cells.get_array()).max()), 2.0)
        order = np.array_split(np.argsort(mean, kind="stable"), 20)
        centre = np.array([mean[rows].mean() for rows in order])
        for sign, end, label in ((1, upper, "95 % intervals"), (-1, lower, None)):
            reach = [np.linalg.norm((end - mean)[rows] / len(rows) ** 0.5) for rows in order]
            ax.plot(centre, centre + sign * np.array(reach), color=AMBER, linewidth=1.2, label=label)
    ax.set(xlim=limits, ylim=limits)
    legend(ax, "upper left")
    of = f" {name}" if name else ""
    return styled(ax, f"predicted{of}", f"actual{of}")


def rootogram(ax: Axes, start: Vector, width: int, observed: Vector, expected: Vector, name: str = "count") -> Axes:
    """A hanging rootogram: bars of √observed hang from √expected; right distributions end at zero, up to chance.

    The dashed lines at ±1 hold 95 % of the differences, since √n of a Poisson number has a deviation of about a half.

    Args:
        start: the smallest count of each bin, whose width is ``width``.
        observed: rows in each bin.
        expected: the sum of their predicted probabilities.
    """
    centre, top, height = start + (width - 1) / 2, np.sqrt(expected), np.sqrt(observed)
    ax.bar(centre, height, 0.85 * width, top - height, color=BLUE, alpha=0.45, label="observed")
    ax.plot(centre, top, color=AMBER, linewidth=1.5, marker="o", markersize=2.5, label="expected")
    ax.axhline(0, color=INK, linewidth=0.9)
    for end in (-1, 1):
        ax.axhline(end, color=MUTED, linewidth=0.9, linestyle=DASHES)
    legend(ax, "upper right")
    return styled(ax, name, "√ rows")


def calibration_curve(ax: Axes, y: Vector, mean: Vector, std: Vector) -> Axes:
    """Observed against nominal coverage of central intervals; on the diagonal, the error bars are right.

    If the predictions are right and the rows independent, the observed coverage of all 19 levels lies in the grey band
    with probability 95 %.
    """
    curve = metrics.calibration(*metrics.scaled(y, mean, std)[:3])
    levels, observed, num_rows = curve.levels, curve.coverage, len(y)
    fine = np.linspace(0, 1, 101)
    lower, upper = coverage_band(fine, num_rows)
    ax.fill_between(fine, lower, upper, color=MUTED, alpha=0.25, linewidth=0, label="expected by chance")
    equality_line(ax)
    ax.plot([0, *levels, 1], [0, *observed, 1], color=BLUE, linewidth=2, label="observed")
    note = f"mean coverage error {100 * curve.error:.1f} %\ncloser to 0 is better"
    ax.text(0.97, 0.05, note, transform=ax.transAxes, ha="right", va="bottom", fontsize=SMALL - 1, color=INK)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    legend(ax, "upper left")
    return styled(ax, "nominal coverage", "observed coverage")


def pit_histogram(ax: Axes, y: Vector, mean: Vector, std: Vector, num_bins: int | None = None) -> Axes:
    """Histogram of Φ((y - μ) / σ) relative to a uniform distribution; it is flat if the predictions are right.

    If the predictions are right and the rows independent, each bar ends in the grey band with probability 95 %. A U
    shape means that the error bars are too narrow, a hill that they are too wide, a slope that the means are biased.

    Args:
        num_bins: by default a tenth of the number of rows, but at least 5 and at most 20.
    """
    num_rows = len(y)
    bins = int(np.clip(num_rows // 10, 5, 20)) if num_bins is None else num_bins
    counts, edges = np.histogram(metrics.pit(*metrics.scaled(y, mean, std)[:3]).numpy(), bins=bins, range=(0, 1))
    lower, upper = binom.ppf([0.025, 0.975], num_rows, 1 / bins) * bins / num_rows
    ax.bar(edges[:-1], counts * bins / num_rows, 1 / bins, align="edge", color=BLUE, alpha=0.75, linewidth=0)
    ax.axhspan(lower, upper, color=MUTED, alpha=0.35, linewidth=0, label="expected by chance")
    level_line(ax, 1.0)
    ax.set(xlim=(0, 1), ylim=(0, 1.3 * max(counts.max() * bins / num_rows, upper)))
    legend(ax, "upper center")
    return styled(ax, "probability the model gave to a lower value", "rows, relative to uniform")
