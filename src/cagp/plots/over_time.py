"""Methods against training time, each with its label beside the axes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from sklearn.isotonic import isotonic_regression

from cagp.plots.style import LINE_COLORS, SMALL, shortened, styled


class Point(NamedTuple):
    """What a method costs and what it achieves."""

    label: str
    seconds: float  # of its fit
    value: float  # a metric; lower is better


def methods_against_time(ax: Axes, points: Sequence[Point], ylabel: str) -> Axes:
    """The metric of each method against the seconds of its fit (logarithmic); the best are at the bottom left."""
    if not points:
        raise ValueError("there are no methods to draw.")
    lowest, highest = min(point.value for point in points), max(point.value for point in points)
    height = (highest - lowest) or 1.0
    ax.set_xscale("log")
    ax.set_ylim(lowest - 0.1 * height, highest + 0.1 * height)
    fastest, slowest = min(point.seconds for point in points), max(point.seconds for point in points)
    ax.set_xlim(fastest / 1.6, slowest * 1.6)
    places = apart([(point.value - ax.get_ylim()[0]) / (1.2 * height) for point in points], gap=0.06)
    for number, (point, place) in enumerate(zip(points, places, strict=True)):
        color = LINE_COLORS[number % len(LINE_COLORS)]
        ax.plot(point.seconds, point.value, "o", color=color, markersize=7)
        label_beside(ax, shortened(point.label), (point.seconds, point.value), (1.03, place), color, SMALL + 1)
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
    ax.annotate(
        text,
        point,
        place,
        textcoords="axes fraction",
        va="center",
        color=color,
        fontsize=fontsize,
        fontweight="bold",
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.35, "linewidth": 0.8, "shrinkB": 4},
        parse_math=False,
    )


def seconds_axis(ax: Axes) -> None:
    """Ticks of a logarithmic axis of seconds."""
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
