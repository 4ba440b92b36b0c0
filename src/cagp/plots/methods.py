"""Methods beside each other: a point for each."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from cagp.plots.lines import _apart
from cagp.plots.style import LINE_COLORS, SMALL, shortened, styled


class Point(NamedTuple):
    """A method: what it costs and what it achieves."""

    label: str
    seconds: float  # of its fit
    value: float  # a metric; lower is better


def methods_against_time(ax: Axes, points: Sequence[Point], ylabel: str) -> Axes:
    """The metric of each method over the seconds of its fit (logarithmic), with its name; best is down and left."""
    if not points:
        raise ValueError("there are no methods to draw.")
    lowest, highest = min(point.value for point in points), max(point.value for point in points)
    height = (highest - lowest) or 1.0
    ax.set_xscale("log")
    ax.set_ylim(lowest - 0.1 * height, highest + 0.1 * height)
    fastest, slowest = min(point.seconds for point in points), max(point.seconds for point in points)
    ax.set_xlim(fastest / 1.6, slowest * 1.6)
    places = _apart([(point.value - ax.get_ylim()[0]) / (1.2 * height) for point in points], gap=0.06)
    for number, (point, place) in enumerate(zip(points, places, strict=True)):
        color = LINE_COLORS[number % len(LINE_COLORS)]
        ax.plot(point.seconds, point.value, "o", color=color, markersize=7)
        ax.annotate(
            shortened(point.label),
            (point.seconds, point.value),
            (1.03, place),
            textcoords="axes fraction",
            va="center",
            color=color,
            fontsize=SMALL + 1,
            fontweight="bold",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.35, "linewidth": 0.8, "shrinkB": 4},
            parse_math=False,
        )
    styled(ax, "time of the fit (s)", ylabel)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return ax
