"""What all figures share: colours, axes, labels that may come from users, and PNG files."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, FixedLocator, MaxNLocator
from numpy.typing import NDArray

from cagp.files import replacing

Vector = NDArray[np.float64]

LINE_COLORS = ("#1f6feb", "#d1495b", "#2f8f5b", "#8a5fbf", "#b7791f", "#3a3f44")
BLUE, RED, GREEN, PURPLE, AMBER = LINE_COLORS[:5]
INK = "#22272b"
MUTED = "#8b949e"
DASHES = (0, (4, 3))
SMALL = 9
"""The font size, in points, of figures about 320 points wide."""


def styled(ax: Axes, xlabel: str = "", ylabel: str = "", grid: bool = True) -> Axes:
    """The axes with our fonts and colours, few ticks and a faint grid; labels are literal text, ``$`` included."""
    ax.set_xlabel(xlabel, fontsize=SMALL, color=INK, parse_math=False)
    ax.set_ylabel(ylabel, fontsize=SMALL, color=INK, parse_math=False)
    ax.tick_params(labelsize=SMALL - 0.5, colors=INK, length=3)
    ax.tick_params(which="minor", labelsize=SMALL - 0.5, colors=INK)
    for axis in (ax.xaxis, ax.yaxis):
        chosen = isinstance(axis.get_major_locator(), MaxNLocator | FixedLocator)
        if axis.get_scale() == "linear" and (isinstance(axis.get_major_locator(), AutoLocator) or not chosen):
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


def named_bars(ax: Axes, names: Sequence[str], xlabel: str = "") -> Vector:
    """Places of horizontal bars, the first at the top, and their names at the left."""
    places = np.arange(len(names))[::-1].astype(float)
    ax.set_yticks(places)
    ax.set_yticklabels([shortened(str(name), 22) for name in names], parse_math=False)
    ax.set_ylim(-0.6, len(names) - 0.4)
    styled(ax, xlabel).grid(visible=False, axis="y")
    return places


def named_columns(ax: Axes, names: Sequence[str], length: int, crowded: bool) -> Vector:
    """Places beside each other, and their names below, at an angle if they are ``crowded``."""
    places = np.arange(len(names)).astype(float)
    ax.set_xticks(places)
    ax.set_xticklabels(
        [shortened(str(name), length) for name in names],
        parse_math=False,
        rotation=32 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor" if crowded else "default",
    )
    ax.set_xlim(-0.6, len(names) - 0.4)
    return places


def color_bar(ax: Axes, drawn: Any, label: str) -> None:
    """The colours of an image or of points on the axes, at their right."""
    bar = ax.figure.colorbar(drawn, ax=ax, aspect=28, pad=0.03)
    bar.set_label(label, fontsize=SMALL, color=INK, parse_math=False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=INK, length=3)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)


def level_line(ax: Axes, y: float = 0.0) -> None:
    """A dashed horizontal line to compare with."""
    ax.axhline(y, color=INK, linewidth=0.9, linestyle=DASHES)


def equality_line(ax: Axes, low: float = 0.0, high: float = 1.0) -> None:
    """The dashed line on which two quantities are the same."""
    ax.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle=DASHES)


def legend(ax: Axes, loc: Any = "best", **options: Any) -> None:
    """The legend of the axes, without a frame."""
    ax.legend(loc=loc, fontsize=SMALL - 1, frameon=False, labelcolor=INK, handlelength=1.5, **options)


def segments(x: Vector, low: Vector, high: Vector) -> tuple[Vector, Vector]:
    """Vertical segments at ``x`` as one line with gaps, which takes a tenth of the space in vector formats."""
    gap = np.full(len(x), np.nan)
    return np.stack([x, x, gap], 1).ravel(), np.stack([low, high, gap], 1).ravel()


def shortened(name: str, length: int = 28) -> str:
    """A name on one line, without control characters; if it is longer than ``length``, without its middle."""
    printable = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in name)
    if len(printable) <= length:
        return printable
    head = (length - 1) * 2 // 3
    return f"{printable[:head]}…{printable[head + 1 - length :]}"


def write_figure(figure: Figure, path: Path, dpi: float = 150) -> None:
    """Write the figure in the format that the ending of the name stands for, whole or not at all."""
    ending = path.suffix.removeprefix(".").lower() or "png"
    with replacing(path) as file:
        figure.savefig(file, dpi=dpi, format=ending)
