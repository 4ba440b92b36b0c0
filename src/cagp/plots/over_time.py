"""Quantities and methods against training time, each with its label beside the axes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from cagp.plots.style import INK, LINE_COLORS, SMALL, shortened, styled


class Curve(NamedTuple):
    """The values of a quantity during training."""

    label: str
    seconds: Sequence[float]
    values: Sequence[float]


class Point(NamedTuple):
    """What a method costs and what it achieves."""

    label: str
    seconds: float  # of its fit
    value: float  # a metric; lower is better


def curves(ax: Axes, data: Sequence[Curve], ylabel: str, colors: Sequence[str] | None = None) -> Axes:
    """Each curve against the seconds of training (logarithmic), with its label at its end.

    The vertical axis shows the range in which the curves end, and above it as much again of their beginnings, which are
    often far off.
    """
    colors = LINE_COLORS if colors is None else colors
    for number, curve in enumerate(data):
        ax.plot(curve.seconds, curve.values, color=colors[number % len(colors)], linewidth=2)
    lowest, highest = min(min(curve.values) for curve in data), max(curve.values[-1] for curve in data)
    height = 2 * (highest - lowest) or 1.0
    ax.set_ylim(lowest - 0.06 * height, lowest + 1.06 * height)
    ax.set_xscale("log")
    places = apart([(curve.values[-1] - ax.get_ylim()[0]) / np.ptp(ax.get_ylim()) for curve in data], gap=0.06)
    for number, (curve, place) in enumerate(zip(data, places, strict=True)):
        color, end = colors[number % len(colors)], (curve.seconds[-1], curve.values[-1])
        ax.plot(*end, marker="o", color=color, markersize=5)
        _label(ax, curve.label, end, (1.04, place), color, 11)
    ax.set_xlabel("training time (s)", fontsize=12, color=INK)
    ax.set_ylabel(ylabel, fontsize=12, color=INK)
    ax.tick_params(labelsize=11, colors=INK)
    _seconds_axis(ax)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


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
        _label(ax, shortened(point.label), (point.seconds, point.value), (1.03, place), color, SMALL + 1)
    styled(ax, "time of the fit (s)", ylabel)
    _seconds_axis(ax)
    return ax


def apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved as little as possible so that neighbours are at least ``gap`` apart, in their order."""
    order = np.argsort(places, kind="stable")
    # Subtracting the gaps turns "at least gap apart" into "not decreasing"; pools of equal values do the rest.
    pools: list[list[float]] = []
    for rank, index in enumerate(order):
        pools.append([places[index] - rank * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    moved = [float(np.mean(pool)) for pool in pools for _ in pool]
    result = [0.0] * len(places)
    for rank, index in enumerate(order):
        result[index] = moved[rank] + rank * gap
    return result


def _label(
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


def _seconds_axis(ax: Axes) -> None:
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
