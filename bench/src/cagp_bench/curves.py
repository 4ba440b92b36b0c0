"""Quantities during training, each with its label at its end."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from cagp.plots import INK, LINE_COLORS, apart, label_beside, seconds_axis


class Curve(NamedTuple):
    """The values of a quantity during training."""

    label: str
    seconds: Sequence[float]
    values: Sequence[float]


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
        label_beside(ax, curve.label, end, (1.04, place), color, 11)
    ax.set_xlabel("training time (s)", fontsize=12, color=INK)
    ax.set_ylabel(ylabel, fontsize=12, color=INK)
    ax.tick_params(labelsize=11, colors=INK)
    seconds_axis(ax)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax
