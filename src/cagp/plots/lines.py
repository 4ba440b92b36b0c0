"""Quantities as training goes on, with a label at the end of each line."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from cagp.action_search import Trial
from cagp.plots.style import INK, LINE_COLORS


class Curve(NamedTuple):
    """A quantity as training goes on."""

    label: str
    seconds: Sequence[float]
    values: Sequence[float]


def curves(ax: Axes, lines: Sequence[Curve], ylabel: str, colors: Sequence[str] | None = None) -> Axes:
    """Each curve against the seconds of training (logarithmic), with its label at its end.

    The axis holds what the curves end at, and of their beginnings as much again: those are often far off.
    """
    colors = LINE_COLORS if colors is None else colors
    for number, line in enumerate(lines):
        ax.plot(line.seconds, line.values, color=colors[number % len(colors)], linewidth=2)
    lowest, highest = min(min(line.values) for line in lines), max(line.values[-1] for line in lines)
    height = 2 * (highest - lowest) or 1.0
    ax.set_ylim(lowest - 0.06 * height, lowest + 1.06 * height)
    ax.set_xscale("log")
    ends = _apart([(line.values[-1] - ax.get_ylim()[0]) / np.ptp(ax.get_ylim()) for line in lines], gap=0.06)
    for number, (line, end) in enumerate(zip(lines, ends, strict=True)):
        color = colors[number % len(colors)]
        ax.plot(line.seconds[-1], line.values[-1], marker="o", color=color, markersize=5)
        ax.annotate(
            line.label,
            (line.seconds[-1], line.values[-1]),
            (1.04, end),
            textcoords="axes fraction",
            va="center",
            color=color,
            fontsize=11,
            fontweight="bold",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "alpha": 0.35, "linewidth": 0.8, "shrinkB": 4},
        )
    ax.set_xlabel("training time (s)", fontsize=12, color=INK)
    ax.set_ylabel(ylabel, fontsize=12, color=INK)
    ax.tick_params(labelsize=11, colors=INK)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return ax


def quality_against_time(ax: Axes, trials: Sequence[Trial]) -> Axes:
    """Validation NLL, the best so far, against seconds: one line per number of actions, at its best learning rate."""
    fitted = [trial for trial in trials if trial.error is None]
    if not fitted:
        raise ValueError("no trial succeeded: there is nothing to draw.")
    best = {t.num_actions: t for t in sorted(fitted, key=lambda t: (t.num_actions, -t.nll))}  # the last of each stays
    shades = matplotlib.colormaps["viridis"](np.linspace(0.85, 0.05, len(best)))
    lines = [
        Curve(f"{i:,} actions", [seconds for seconds, _ in t.curve], list(accumulate((v for _, v in t.curve), min)))
        for i, t in best.items()
    ]
    return curves(ax, lines, "validation NLL (nats per row)", [to_hex(shade) for shade in shades])


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """The places moved by as little as it takes for neighbours to be ``gap`` apart, in their order."""
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
