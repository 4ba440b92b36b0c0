"""Where predictions are wrong: errors against inputs, in groups of rows, and on a map."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from cagp.plots.quality import Z95
from cagp.plots.style import (
    BLUE,
    MUTED,
    RED,
    Vector,
    color_bar,
    date_axis,
    level_line,
    named_columns,
    segments,
    shortened,
    styled,
)

ERROR_COLORS = LinearSegmentedColormap.from_list("error", ["#1f6feb", "#7fa9e8", "#b9bec4", "#e58d98", "#d1495b"])
"""Blue below zero, grey at it, red above: it reads on light and dark pages."""


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
        bins: the rows in each bin.
        dots: the rows that are drawn one by one; by default all.
        dates: whether ``x`` are days since 1970.
    """
    x, residual = np.asarray(x, float), np.asarray(residual, float)
    shown = slice(None) if dots is None else dots
    ax.plot(x[shown], residual[shown], "o", color=MUTED, markersize=1.7, markeredgewidth=0, alpha=0.35, rasterized=True)
    level_line(ax)
    centre = np.array([x[rows].mean() for rows in bins])
    mean = np.array([residual[rows].mean() for rows in bins])
    half = Z95 * np.array([residual[rows].std(ddof=1) / len(rows) ** 0.5 for rows in bins])
    off = np.zeros(len(bins), bool) if flagged is None else np.asarray(flagged, bool)
    for color, chosen in ((BLUE, ~off), (RED, off)):
        if chosen.any():
            at = centre[chosen], mean[chosen]
            ax.plot(*segments(at[0], at[1] - half[chosen], at[1] + half[chosen]), color=color, linewidth=1.5)
            ax.plot(*at, "o", color=color, markersize=4.2, markeredgewidth=0)
    largest = max([float(np.quantile(np.abs(residual), 0.95)), *(np.abs(mean) + half)]) or 1.0
    ax.set_ylim(-1.06 * largest, 1.06 * largest)
    styled(ax, shortened(xlabel, 36), "actual − predicted")
    return date_axis(ax) if dates else ax


def coverage_by_group(
    ax: Axes, names: Sequence[str], coverage: Vector, low: Vector, high: Vector, level: float, xlabel: str = ""
) -> Axes:
    """The share of actual values inside the intervals for each group of rows, beside the range that chance explains."""
    coverage, low, high = (100 * np.asarray(part, float) for part in (coverage, low, high))
    crowded = max(len(name) for name in names) * len(names) > 44
    places = named_columns(ax, names, 18, crowded)
    off = (coverage < low - 1e-9) | (coverage > high + 1e-9)
    ax.bar(places, high - low, 0.7, low, color=MUTED, alpha=0.35, linewidth=0)
    level_line(ax, 100 * level)
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
    ax: Axes,
    longitude: Vector,
    latitude: Vector,
    values: Vector,
    label: str,
    colors: Colormap,
    limits: tuple[float, float],
) -> Axes:
    """Values of rows at their places, a degree of longitude as wide as it is in the middle of the map.

    Up to 600 rows are drawn one by one; of more, the mean in each hexagon.
    """
    longitude, latitude = np.asarray(longitude, float), np.asarray(latitude, float)
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
    color_bar(ax, drawn, label)
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    return styled(ax, "longitude", "latitude", grid=False)
