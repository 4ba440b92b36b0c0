"""How good predicted probabilities of classes are on test rows."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator
from numpy.typing import NDArray
from scipy.stats import binom

from cagp.class_metrics import Reliability
from cagp.plots.quality import DENSITY_COLORS
from cagp.plots.style import (
    BLUE,
    INK,
    LINE_COLORS,
    MUTED,
    SMALL,
    Vector,
    equality_line,
    legend,
    segments,
    shortened,
    styled,
)

MOST_NAMED = 30
"""Classes whose names stand at the axes of a confusion matrix."""


def reliability_diagram(ax: Axes, curve: Reliability) -> Axes:
    """Observed against predicted frequency, by bins; on the diagonal, the probabilities are right.

    If they are right and the rows independent, each point lies in its grey bar with probability 95 %.
    """
    low, high = (binom.ppf(tail, curve.count, curve.predicted) / curve.count for tail in (0.025, 0.975))
    equality_line(ax)
    ax.plot(*segments(curve.predicted, low, high), color=MUTED, alpha=0.45, linewidth=5, label="expected by chance")
    size = 12 + 60 * curve.count / curve.count.max()
    ax.plot(curve.predicted, curve.observed, color=BLUE, linewidth=1.4)
    ax.scatter(curve.predicted, curve.observed, s=size, color=BLUE, linewidth=0, label="observed")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    legend(ax, "upper left")
    return styled(ax, "predicted probability", "share of rows of the class")


def confusion(ax: Axes, counts: NDArray[np.int64], names: Sequence[str]) -> Axes:
    """Rows by their class and the class that was predicted, as shares of each class; few have their numbers."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(shares, cmap=DENSITY_COLORS, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    styled(ax, "predicted class", "class", grid=False)
    if len(names) <= MOST_NAMED:
        short = [shortened(name, 10) for name in names]
        small = SMALL - 1 if len(names) <= 12 else SMALL - 3
        for axis, setter in ((ax.xaxis, ax.set_xticklabels), (ax.yaxis, ax.set_yticklabels)):
            axis.set_major_locator(FixedLocator(list(range(len(names)))))
            setter(short, parse_math=False, fontsize=small)
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
        equality_line(ax)
    for color, (name, x, y) in zip(LINE_COLORS, curves, strict=False):
        ax.plot(x, y, color=color, linewidth=1.8, label=shortened(name, 18))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    if len(curves) > 1:
        legend(ax, "lower right" if diagonal else "lower left")
    return styled(ax, xlabel, ylabel)
