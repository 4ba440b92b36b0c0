"""Figures: Axes in, Axes out.

Arrays are numpy's. Nothing here touches matplotlib's global state.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, Normalize, to_rgb
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline
from scipy.stats import binom, norm
from sklearn.isotonic import isotonic_regression

from cagp import metrics
from cagp.class_metrics import Reliability
from cagp.files import replacing

Vector = NDArray[np.float64]
Limits = tuple[float, float]
"""The two ends of an axis or of colours."""

Z95 = float(norm.ppf(0.975))

LINE_COLORS = ("#1f6feb", "#d1495b", "#2f8f5b", "#8a5fbf", "#b7791f", "#3a3f44")
BLUE, RED, GREEN, PURPLE, AMBER = LINE_COLORS[:5]
INK = "#22272b"
MUTED = "#8b949e"
DASHES = (0, (4, 3))
SMALL = 9
"""The font size, in points, of figures about 320 points wide."""

DENSITY_COLORS = LinearSegmentedColormap.from_list("density", [(*to_rgb(BLUE), 0.12), (*to_rgb(BLUE), 1.0)])
"""From nearly transparent to blue, so that it reads on any background."""
ERROR_COLORS = LinearSegmentedColormap.from_list("error", [BLUE, "#7fa9e8", "#b9bec4", "#e58d98", RED])
"""Blue below zero, grey at it, red above: it reads on light and dark pages."""
VALUE_COLORS = LinearSegmentedColormap.from_list("value", matplotlib.colormaps["viridis"](np.linspace(0.05, 1, 256)))
STD_COLORS = LinearSegmentedColormap.from_list("std", matplotlib.colormaps["magma"](np.linspace(0.12, 1, 256)))

# ---- what all figures share ----


def styled(ax: Axes, xlabel: str = "", ylabel: str = "", grid: bool = True) -> Axes:
    """The axes with our fonts and colours, few ticks and a faint grid; labels are literal text, ``$`` included."""
    ax.set_xlabel(xlabel, fontsize=SMALL, color=INK, parse_math=False)
    ax.set_ylabel(ylabel, fontsize=SMALL, color=INK, parse_math=False)
    ax.tick_params(labelsize=SMALL - 0.5, colors=INK, length=3)
    ax.tick_params(which="minor", labelsize=SMALL - 0.5, colors=INK)
    for axis in (ax.xaxis, ax.yaxis):
        if axis.get_scale() == "linear" and type(axis.get_major_locator()) not in (MaxNLocator, FixedLocator):
            axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.get_offset_text().set(fontsize=SMALL - 1, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(INK)
    ax.set_axisbelow(True)
    if grid:
        ax.grid(color=MUTED, alpha=0.25, linewidth=0.6)
    return ax


def date_axis(ax: Axes) -> Axes:
    """The axes with dates below, from x in days since 1970."""
    # From 2 to 6 ticks: with a smaller range, matplotlib has no interval for e.g. 3 days, and warns.
    locator = AutoDateLocator(minticks=2, maxticks=6)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return ax


def shortened(name: str, length: int = 28) -> str:
    """A name on one line, without control characters; if it is longer than ``length``, without its middle."""
    printable = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
    if len(printable) <= length:
        return printable
    head = (length - 1) * 2 // 3
    return f"{printable[:head]}…{printable[head + 1 - length :]}"


def percent(share: float) -> str:
    """A share in percent. Small ones are not rounded to 0.0 %, which is for exactly zero."""
    value = 100 * share
    if value == 0 or value >= 0.1:
        return f"{value:.1f} %"
    return f"{value:.3f} %" if value >= 0.001 else "< 0.001 %"


def write_figure(figure: Figure, path: Path, dpi: float = 150) -> None:
    """Write the figure in the format that the ending of the name stands for, whole or not at all."""
    ending = path.suffix.removeprefix(".").lower() or "png"
    with replacing(path) as file:
        figure.savefig(file, dpi=dpi, format=ending)


def _named_bars(ax: Axes, names: Sequence[str], values: Vector, xlabel: str, height: float, **style: Any) -> Vector:
    """The places of horizontal bars, which are drawn with their names at the left, the first at the top."""
    places = np.arange(len(names))[::-1].astype(float)
    ax.barh(places, values, height, linewidth=0, **style)
    ax.set_yticks(places, [shortened(name, 22) for name in names], parse_math=False)
    ax.set_ylim(-0.6, len(names) - 0.4)
    styled(ax, xlabel).grid(visible=False, axis="y")
    return places


def _named_columns(ax: Axes, names: Sequence[str], length: int, crowded: bool) -> Vector:
    """Places beside each other, with their names below, at an angle if they are ``crowded``."""
    places = np.arange(len(names)).astype(float)
    turned = {"rotation": 32, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(places, [shortened(name, length) for name in names], parse_math=False, **turned)
    ax.set_xlim(-0.6, len(names) - 0.4)
    return places


def _color_bar(ax: Axes, drawn: Any, label: str) -> None:
    bar = ax.figure.colorbar(drawn, ax=ax, aspect=28, pad=0.03)
    bar.set_label(label, fontsize=SMALL, color=INK, parse_math=False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=INK, length=3)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)


def _level_line(ax: Axes, y: float = 0.0) -> None:
    ax.axhline(y, color=INK, linewidth=0.9, linestyle=DASHES)


def _equality_line(ax: Axes, low: float = 0.0, high: float = 1.0) -> None:
    ax.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=DASHES)


def _legend(ax: Axes, loc: Any = "best", **options: Any) -> None:
    ax.legend(loc=loc, fontsize=SMALL - 1, frameon=False, labelcolor=INK, handlelength=1.5, **options)


def _segments(x: Vector, low: Vector, high: Vector) -> tuple[Vector, Vector]:
    """Vertical segments at ``x`` as one line with gaps, which takes a tenth of the space in vector formats."""
    gap = np.full(len(x), np.nan)
    return np.stack([x, x, gap], 1).ravel(), np.stack([low, high, gap], 1).ravel()


# ---- predictions and their error bars on test rows ----

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


def predicted_against_actual(
    ax: Axes, y: Vector, mean: Vector, std: Vector, name: str = "", interval: tuple[Vector, Vector] | None = None
) -> Axes:
    """Actual against predicted values: right predictions lie on the diagonal, 95 % of the rows inside the intervals.

    Up to 300 rows are drawn one by one, each with its 95 % interval. More rows are drawn as a density, and the
    intervals as a band: the root mean square of their distances from similar predictions.

    Args:
        interval: lower and upper ends of the 95 % intervals; None for 1.96 standard deviations to either side.
    """
    lower, upper = (mean - Z95 * std, mean + Z95 * std) if interval is None else interval
    low, high = min(y.min(), mean.min()), max(y.max(), mean.max())
    margin = 0.04 * (high - low) or 0.5
    limits = (low - margin, high + margin)
    _equality_line(ax, *limits)
    if len(y) <= 300:
        ax.plot(*_segments(mean, lower, upper), color=BLUE, alpha=0.3, linewidth=1, label="95 % interval")
        inside = (lower <= y) & (y <= upper)
        ax.plot(mean[inside], y[inside], "o", color=BLUE, markersize=2.8, markeredgewidth=0, label="inside")
        ax.plot(mean[~inside], y[~inside], "o", color=RED, markersize=3.4, markeredgewidth=0, label="outside")
    else:
        shades = LogNorm(1, 10)
        cells = ax.hexbin(mean, y, gridsize=36, extent=(*limits, *limits), mincnt=1, cmap=DENSITY_COLORS, norm=shades)
        cells.set(linewidth=0, edgecolor="none")
        shades.vmax = max(float(np.asarray(cells.get_array()).max()), 2.0)
        similar = np.array_split(np.argsort(mean, kind="stable"), 20)
        centre = np.array([mean[rows].mean() for rows in similar])
        for sign, end, label in ((1, upper, "95 % intervals"), (-1, lower, None)):
            reach = [np.linalg.norm((end - mean)[rows] / len(rows) ** 0.5) for rows in similar]
            ax.plot(centre, centre + sign * np.array(reach), color=AMBER, linewidth=1.2, label=label)
    ax.set(xlim=limits, ylim=limits)
    _legend(ax, "upper left")
    return styled(ax, f"predicted {name}".rstrip(), f"actual {name}".rstrip())


def calibration_curve(ax: Axes, y: Vector, mean: Vector, std: Vector) -> Axes:
    """Observed against nominal coverage of central intervals; on the diagonal, the error bars are right.

    If the predictions are right and the rows independent, the observed coverage of all 19 levels lies in the grey band
    with probability 95 %.
    """
    curve, fine = metrics.calibration(*metrics.scaled(y, mean, std)[:3]), np.linspace(0, 1, 101)
    low, high = coverage_band(fine, len(y))
    ax.fill_between(fine, low, high, color=MUTED, alpha=0.25, linewidth=0, label="expected by chance")
    _equality_line(ax)
    ax.plot([0, *curve.levels, 1], [0, *curve.coverage, 1], color=BLUE, linewidth=2, label="observed")
    note = f"mean coverage error {100 * curve.error:.1f} %\ncloser to 0 is better"
    ax.text(0.97, 0.05, note, transform=ax.transAxes, ha="right", va="bottom", fontsize=SMALL - 1, color=INK)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    _legend(ax, "upper left")
    return styled(ax, "nominal coverage", "observed coverage")


def pit_histogram(ax: Axes, y: Vector, mean: Vector, std: Vector, num_bins: int | None = None) -> Axes:
    """Histogram of Φ((y - μ) / σ) relative to a uniform distribution; it is flat if the predictions are right.

    If the predictions are right and the rows independent, each bar ends in the grey band with probability 95 %. A U
    shape means that the error bars are too narrow, a hill that they are too wide, a slope that the means are biased.

    Args:
        num_bins: by default a tenth of the number of rows, but at least 5 and at most 20.
    """
    num_rows, bins = len(y), num_bins or int(np.clip(len(y) // 10, 5, 20))
    counts, edges = np.histogram(metrics.pit(*metrics.scaled(y, mean, std)[:3]).numpy(), bins=bins, range=(0, 1))
    heights = counts * bins / num_rows
    low, high = binom.ppf([0.025, 0.975], num_rows, 1 / bins) * bins / num_rows
    ax.bar(edges[:-1], heights, 1 / bins, align="edge", color=BLUE, alpha=0.75, linewidth=0)
    ax.axhspan(low, high, color=MUTED, alpha=0.35, linewidth=0, label="expected by chance")
    _level_line(ax, 1.0)
    ax.set(xlim=(0, 1), ylim=(0, 1.3 * max(heights.max(), high)))
    _legend(ax, "upper center")
    return styled(ax, "probability the model gave to a lower value", "rows, relative to uniform")


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
    _legend(ax, "upper right")
    return styled(ax, name, "√ rows")


def residuals(
    ax: Axes,
    x: Vector,
    residual: Vector,
    bins: Sequence[NDArray[np.intp]],
    xlabel: str = "",
    flagged: Sequence[bool] | None = None,
    dots: NDArray[np.intp] | None = None,
    dates: bool = False,
) -> Axes:
    """Residuals against ``x``, and their means over bins of rows with 95 % intervals, red where ``flagged``.

    The vertical axis shows the residuals but for the largest twentieth.

    Args:
        dots: the rows that are drawn one by one; by default all.
        dates: whether ``x`` are days since 1970.
    """
    shown = slice(None) if dots is None else dots
    ax.plot(x[shown], residual[shown], "o", color=MUTED, markersize=1.7, markeredgewidth=0, alpha=0.35, rasterized=True)
    _level_line(ax)
    centre, mean = (np.array([values[rows].mean() for rows in bins]) for values in (x, residual))
    half = Z95 * np.array([residual[rows].std(ddof=1) / len(rows) ** 0.5 for rows in bins])
    off = np.zeros(len(bins), bool) if flagged is None else np.asarray(flagged)
    for color, chosen in ((BLUE, ~off), (RED, off)):
        if chosen.any():
            intervals = _segments(centre[chosen], (mean - half)[chosen], (mean + half)[chosen])
            ax.plot(*intervals, color=color, linewidth=1.5)
            ax.plot(centre[chosen], mean[chosen], "o", color=color, markersize=4.2, markeredgewidth=0)
    largest = max([float(np.quantile(np.abs(residual), 0.95)), *(np.abs(mean) + half)]) or 1.0
    ax.set_ylim(-1.06 * largest, 1.06 * largest)
    styled(ax, shortened(xlabel, 36), "actual − predicted")
    return date_axis(ax) if dates else ax


def coverage_by_group(
    ax: Axes, names: Sequence[str], coverage: Vector, low: Vector, high: Vector, level: float, xlabel: str = ""
) -> Axes:
    """The share of actual values inside the intervals for each group of rows, beside the range that chance explains."""
    coverage, low, high = 100 * coverage, 100 * low, 100 * high
    places = _named_columns(ax, names, 18, crowded=max(map(len, names)) * len(names) > 44)
    off = (coverage < low - 1e-9) | (coverage > high + 1e-9)
    ax.bar(places, high - low, 0.7, low, color=MUTED, alpha=0.35, linewidth=0)
    _level_line(ax, 100 * level)
    for color, chosen in ((BLUE, ~off), (RED, off)):
        ax.plot(places[chosen], coverage[chosen], "o", color=color, markersize=5.5, markeredgewidth=0)
    room = 100 - min(coverage.min(), low.min())
    ax.set_ylim(max(0.0, 100 - 1.12 * room), 100 + 0.04 * room)
    styled(ax, shortened(xlabel, 44), "coverage (%)").grid(visible=False, axis="x")
    return ax


def degree_shape(latitude: Vector) -> float:
    """The height of a degree of latitude in degrees of longitude, in the middle of these latitudes: 1 / cos φ."""
    middle = np.radians((np.min(latitude) + np.max(latitude)) / 2)
    return 1 / max(float(np.cos(middle)), 0.05)


def map_of_rows(
    ax: Axes, longitude: Vector, latitude: Vector, values: Vector, label: str, colors: Colormap, limits: Limits
) -> Axes:
    """Values of rows at their places, a degree of longitude as wide as it is in the middle of the map.

    Up to 600 rows are drawn one by one; of more, the mean in each hexagon.
    """
    norm, shape = Normalize(*limits), degree_shape(latitude)
    if len(values) <= 600:
        drawn: Any = ax.scatter(longitude, latitude, 9, values, cmap=colors, norm=norm, linewidths=0)
    else:
        # About ten rows in a hexagon, if rows are everywhere; smooth edges would double the size of the image.
        wide, high = max(float(np.ptp(longitude)), 1e-9), max(shape * float(np.ptp(latitude)), 1e-9)
        cells = float(np.clip(len(values) / 10, 60, 700))
        across = int(np.clip(np.sqrt(cells * wide / high / 1.15), 5, 60))
        up = int(np.clip(across * high / wide / np.sqrt(3), 3, 40))
        drawn = ax.hexbin(longitude, latitude, values, gridsize=(across, up), cmap=colors, norm=norm, linewidths=0.2)
        drawn.set_antialiased(False)
    drawn.set_rasterized(True)
    ax.set_aspect(shape)
    _color_bar(ax, drawn, label)
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    return styled(ax, "longitude", "latitude", grid=False)


# ---- predicted probabilities of classes ----

MOST_NAMED = 30
"""Classes whose names stand at the axes of a confusion matrix."""


def reliability_diagram(ax: Axes, curve: Reliability) -> Axes:
    """Observed against predicted frequency, by bins; on the diagonal, the probabilities are right.

    If they are right and the rows independent, each point lies in its grey bar with probability 95 %.
    """
    low, high = (binom.ppf(tail, curve.count, curve.predicted) / curve.count for tail in (0.025, 0.975))
    _equality_line(ax)
    ax.plot(*_segments(curve.predicted, low, high), color=MUTED, alpha=0.45, linewidth=5, label="expected by chance")
    ax.plot(curve.predicted, curve.observed, color=BLUE, linewidth=1.4)
    size = 12 + 60 * curve.count / curve.count.max()
    ax.scatter(curve.predicted, curve.observed, s=size, color=BLUE, linewidth=0, label="observed")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend(ax, "upper left")
    return styled(ax, "predicted probability", "share of rows of the class")


def confusion(ax: Axes, counts: NDArray[np.int64], names: Sequence[str]) -> Axes:
    """Rows by their class and the class that was predicted, as shares of each class; few have their numbers."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(shares, cmap=DENSITY_COLORS, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    styled(ax, "predicted class", "class", grid=False)
    if len(names) <= MOST_NAMED:
        short, size = [shortened(name, 10) for name in names], SMALL - 1 if len(names) <= 12 else SMALL - 3
        for set_ticks in (ax.set_xticks, ax.set_yticks):
            set_ticks(range(len(names)), short, parse_math=False, fontsize=size)
        if max(map(len, short)) > 3:
            ax.tick_params(axis="x", rotation=90)
    if len(names) <= 8:
        for i, j in np.ndindex(*counts.shape):
            color = "white" if shares[i, j] > 0.6 else INK
            ax.text(j, i, f"{counts[i, j]:,}", ha="center", va="center", fontsize=SMALL - 1, color=color)
    return ax


def trade_off(
    ax: Axes, curves: Sequence[tuple[str, Vector, Vector]], xlabel: str, ylabel: str, diagonal: bool = False
) -> Axes:
    """Curves of one share against another, e.g. the ROC; up to six, each with its name."""
    if diagonal:
        _equality_line(ax)
    for color, (name, x, y) in zip(LINE_COLORS, curves, strict=False):
        ax.plot(x, y, color=color, linewidth=1.8, label=shortened(name, 18))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    if len(curves) > 1:
        _legend(ax, "lower right" if diagonal else "lower left")
    return styled(ax, xlabel, ylabel)


# ---- what a model has learned ----


def relevance(ax: Axes, names: Sequence[str], lengthscales: Vector, top: int = 20) -> Axes:
    """1 / lengthscale of the ``top`` inputs with the shortest lengthscales, in standard deviations of each input."""
    order = np.argsort(lengthscales, kind="stable")[:top]
    shown = [names[int(index)] for index in order]
    _named_bars(ax, shown, 1 / lengthscales[order], "relevance (1 / lengthscale)", 0.7, color=BLUE)
    return ax


def importance(
    ax: Axes, names: Sequence[str], increase: Vector, standard_error: Vector, xlabel: str = "", top: int = 20
) -> Axes:
    """The increase of an error without each column, for the first ``top`` columns, with ± 1.96 standard errors."""
    values, half = increase[:top], Z95 * standard_error[:top]
    places = _named_bars(ax, names[:top], values, xlabel, 0.66, color=BLUE, alpha=0.75)
    ax.plot(*_segments(places, values - half, values + half)[::-1], color=INK, linewidth=1.4)
    ax.axvline(0, color=INK, linewidth=0.8)
    return ax


def effect(
    ax: Axes,
    x: Vector,
    mean: Vector,
    std: Vector,
    rows: Vector | None = None,
    xlabel: str = "",
    ylabel: str = "",
    limits: Limits | None = None,
    dates: bool = False,
) -> Axes:
    """A mean as a function of an input, with its 95 % band, ± 1.96 ``std``; ``rows`` are marked at the bottom.

    Args:
        limits: of a change to compare with others, which gets a line at zero.
        dates: whether ``x`` are days since 1970.
    """
    ax.fill_between(x, mean - Z95 * std, mean + Z95 * std, color=BLUE, alpha=0.22, linewidth=0)
    ax.plot(x, mean, color=BLUE, linewidth=2)
    ax.set_xlim(x.min(), x.max())
    if rows is not None:
        marks = _segments(rows, np.zeros(len(rows)), np.full(len(rows), 0.035))
        ax.plot(*marks, color=INK, alpha=0.45, linewidth=0.6, transform=ax.get_xaxis_transform())
    styled(ax, shortened(xlabel, 36), ylabel)
    return _comparable(date_axis(ax) if dates else ax, limits)


def category_effect(
    ax: Axes,
    names: Sequence[str],
    mean: Vector,
    std: Vector,
    xlabel: str = "",
    ylabel: str = "",
    limits: Limits | None = None,
) -> Axes:
    """A mean for each category of an input with its 95 % interval, ± 1.96 ``std``; ``limits`` as for ``effect``."""
    places = _named_columns(ax, names, 14, crowded=len(names) > 3)
    ax.errorbar(places, mean, Z95 * std, fmt="o", color=BLUE, markersize=5, elinewidth=1.6, capsize=3)
    styled(ax, shortened(xlabel, 36), ylabel).grid(visible=False, axis="x")
    return _comparable(ax, limits)


def _comparable(ax: Axes, limits: Limits | None) -> Axes:
    if limits is not None:
        _level_line(ax)
        ax.set_ylim(limits)
    return ax


def fit_in_one_input(
    ax: Axes,
    x: Vector,
    mean: Vector,
    latent_std: Vector,
    std: Vector,
    points: tuple[Vector, Vector],
    xlabel: str = "",
    ylabel: str = "",
    dates: bool = False,
) -> Axes:
    """The mean, the 95 % band of the function, the wider band of new observations, and observed points."""
    size = 3.2 if len(points[0]) <= 300 else 2.0
    ax.plot(*points, "o", color=RED, markersize=size, markeredgewidth=0, alpha=0.55, label="test rows", rasterized=True)
    for sign, label in ((1, "95 % of observations"), (-1, None)):
        ax.plot(x, mean + sign * Z95 * std, color=BLUE, linewidth=0.9, linestyle=(0, (4, 2)), label=label)
    effect(ax, x, mean, latent_std, xlabel=xlabel, ylabel=ylabel, dates=dates)
    _legend(ax)
    return ax


def surface(
    ax: Axes,
    x: Vector,
    y: Vector,
    values: NDArray[np.float64],
    label: str,
    colors: Colormap = VALUE_COLORS,
    points: tuple[Vector, Vector] | None = None,
    names: tuple[str, str] = ("", ""),
) -> Axes:
    """A map of values (len(y), len(x)) on an even grid, with a colour bar; cubic splines between the nodes."""
    fine = RectBivariateSpline(y, x, values)(np.linspace(y[0], y[-1], 180), np.linspace(x[0], x[-1], 180))
    extent = (float(x[0]), float(x[-1]), float(y[0]), float(y[-1]))
    # With "none", vector formats keep the pixels of the image.
    options: dict[str, Any] = {"origin": "lower", "extent": extent, "aspect": "auto", "interpolation": "none"}
    image = ax.imshow(fine.clip(values.min(), values.max()), colors, **options)
    if points is not None:
        ax.plot(*points, "o", color="white", markersize=1.4, markeredgewidth=0, alpha=0.35, rasterized=True)
        ax.set(xlim=extent[:2], ylim=extent[2:])
    _color_bar(ax, image, label)
    return styled(ax, shortened(names[0], 36), shortened(names[1], 36), grid=False)


class Part(NamedTuple):
    """A part of the predictive variance."""

    name: str
    variance: Vector  # of each row
    color: str


def variance_parts(noise: Vector, latent: Vector, computational: Vector | None) -> list[Part]:
    """The parts in the order in which they are stacked; pass None for a computational part that is unknown."""
    if computational is None:
        return [Part("noise", noise, MUTED), Part("data and computation", latent, BLUE)]
    return [Part("noise", noise, MUTED), Part("data", latent, BLUE), Part("computation", computational, AMBER)]


def variance_shares(ax: Axes, parts: Sequence[Part]) -> Axes:
    """The share of each part in the total variance of all rows, as bars."""
    sums = np.array([part.variance.clip(0).sum() for part in parts])
    shares = 100 * sums / sums.sum()
    names, _, colors = zip(*parts, strict=True)
    places = _named_bars(ax, names, shares, "share of the predictive variance (%)", 0.62, color=colors)
    for place, share in zip(places, shares, strict=True):
        ax.text(share + 1.5, place, percent(share / 100), va="center", fontsize=SMALL, color=INK)
    ax.set_xlim(0, 119)
    ax.set_xticks([0, 25, 50, 75, 100])
    return ax


def variance_by_certainty(ax: Axes, parts: Sequence[Part], num_groups: int = 10) -> Axes:
    """The mean share of each part, for groups of rows ordered from the most to the least certain."""
    total = np.sum([part.variance.clip(0) for part in parts], axis=0)
    groups = np.array_split(np.argsort(total, kind="stable"), min(num_groups, len(total)))
    bottom = np.zeros(len(groups))
    for part in parts:
        share = np.array([100 * (part.variance[rows].clip(0) / total[rows]).mean() for rows in groups])
        ax.bar(np.arange(len(groups)), share, 0.86, bottom, color=part.color, linewidth=0, label=part.name)
        bottom += share
    ax.set_xticks([0, len(groups) - 1] if len(groups) > 1 else [0], ["most certain", "least"][: len(groups)])
    ax.set_yticks([0, 25, 50, 75, 100])
    ax.set(ylim=(0, 118), xlim=(-0.6, len(groups) - 0.4))
    _legend(ax, "upper center", ncols=len(parts), columnspacing=1.2, borderaxespad=0.1)
    styled(ax, f"rows in {len(groups)} groups by total variance", "share of the variance (%)").grid(False, axis="x")
    return ax


# ---- time ----


def learning_curve(ax: Axes, seconds: Vector, losses: Vector, ylabel: str = "loss") -> Axes:
    """The loss after each step against the seconds of training.

    The vertical axis fits all steps but the first twentieth, which are often far off. If the loss fluctuates, as with
    minibatches, its running median is drawn over it.
    """
    usable = np.isfinite(losses)
    seconds, losses = seconds[usable], losses[usable]
    if len(losses) == 0:
        raise ValueError("no step has a finite loss: there is nothing to draw.")
    noisy = len(losses) >= 40 and float(np.mean(np.diff(losses) > 0)) > 0.2
    faint: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.35} if noisy else {"linewidth": 1.8}
    marker = "o" if len(losses) == 1 else ""
    ax.plot(seconds, losses, color=BLUE, label="each step", marker=marker, markersize=5, **faint)
    if noisy:
        width = max(5, len(losses) // 20) | 1
        medians = np.median(np.lib.stride_tricks.sliding_window_view(losses, width), axis=1)
        middle = seconds[width // 2 : -(width // 2)]
        ax.plot(middle, medians, color=BLUE, linewidth=1.8, label=f"median of {width} steps")
        _legend(ax)
    later = losses[len(losses) // 20 :]
    height = float(np.ptp(later)) or 1.0
    ax.set_ylim(later.min() - 0.06 * height, later.max() + 0.06 * height)
    return styled(ax, "training time (s)", ylabel)


class Point(NamedTuple):
    """What a method costs and what it achieves."""

    label: str
    seconds: float  # of its fit
    value: float  # a metric; lower is better


def methods_against_time(ax: Axes, points: Sequence[Point], ylabel: str) -> Axes:
    """The metric of each method against the seconds of its fit (logarithmic); the best are at the bottom left."""
    if not points:
        raise ValueError("there are no methods to draw.")
    _, seconds, values = zip(*points, strict=True)
    height = (max(values) - min(values)) or 1.0
    ax.set_xscale("log")
    ax.set(xlim=(min(seconds) / 1.6, max(seconds) * 1.6), ylim=(min(values) - 0.1 * height, max(values) + 0.1 * height))
    places = apart([(value - ax.get_ylim()[0]) / (1.2 * height) for value in values], gap=0.06)
    for number, (point, place) in enumerate(zip(points, places, strict=True)):
        color = LINE_COLORS[number % len(LINE_COLORS)]
        ax.plot(point.seconds, point.value, "o", color=color, markersize=7)
        label_beside(ax, shortened(point.label), point[1:], (1.03, place), color, SMALL + 1)
    styled(ax, "time of the fit (s)", ylabel)
    seconds_axis(ax)
    return ax


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved as little as possible so that neighbours are at least ``gap`` apart, in their order."""
    order, gaps = np.argsort(places, kind="stable"), gap * np.arange(len(places))
    moved = np.empty(len(places))
    # Subtracting the gaps turns "at least gap apart" into "not decreasing".
    moved[order] = isotonic_regression(np.asarray(places, float)[order] - gaps) + gaps
    return moved.tolist()


def label_beside(
    ax: Axes, text: str, point: tuple[float, float], place: tuple[float, float], color: str, fontsize: int
) -> None:
    """A name beside the axes, with a faint line to its point."""
    line: dict[str, Any] = {"arrowstyle": "-", "color": color, "alpha": 0.35, "linewidth": 0.8, "shrinkB": 4}
    font: dict[str, Any] = {"color": color, "fontsize": fontsize, "fontweight": "bold", "parse_math": False}
    where: dict[str, Any] = {"textcoords": "axes fraction", "annotation_clip": False, "va": "center"}
    ax.annotate(text, point, place, arrowprops=line, **where, **font)


def seconds_axis(ax: Axes) -> None:
    """Ticks of a logarithmic axis of seconds."""
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
