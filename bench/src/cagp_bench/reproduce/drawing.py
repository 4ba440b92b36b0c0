"""What figures share: a colour for each method, panels, and predictive distributions in one dimension."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cagp import plots

COLORS = {
    "CholeskyGP": plots.MUTED,
    "SGPR": plots.PURPLE,
    "SVGP": plots.RED,
    "CGGP": plots.AMBER,
    "CaGP-CG": plots.BLUE,
    "CaGP-Opt": plots.GREEN,
    "CaGP-Opt (ours)": "#14532d",
    "CaGP-Local": "#0e9aa7",
    "random": plots.INK,
    "elbo": plots.GREEN,
    "projected": plots.RED,
}
TITLE = 11


def panels(num_rows: int, num_columns: int, width: float = 3.2, height: float = 2.5) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes, each of this size in inches."""
    figure = Figure(figsize=(width * num_columns, height * num_rows), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def titled(ax: Axes, text: str, color: str = plots.INK) -> None:
    """A title above the axes, at its left end."""
    ax.set_title(text, loc="left", fontsize=TITLE, fontweight="bold", color=color, parse_math=False)


def predictive(ax: Axes, record: dict[str, Any], color: str) -> None:
    """Mean, 95 % of the function (dark) and 95 % of new targets (light) of a record on its grid."""
    x, mean, variance = (np.array(record[name]) for name in ("grid", "mean", "variance"))
    with_noise, function = (1.96 * np.sqrt(v) for v in (variance + record["noise"], variance))
    ax.fill_between(x, mean - with_noise, mean + with_noise, color=color, alpha=0.2, linewidth=0)
    ax.fill_between(x, mean - function, mean + function, color=color, alpha=0.45, linewidth=0)
    ax.plot(x, mean, color=color, linewidth=1.6)


def generating(ax: Axes, record: dict[str, Any]) -> None:
    """The predictive with the data-generating hyperparameters, as grey lines, and the rows as points."""
    x, mean = np.array(record["grid"]), np.array(record["true_mean"])
    half = 1.96 * np.sqrt(np.array(record["true_variance"]) + record["true_noise"])
    for line, style in ((mean, "-"), (mean - half, "--"), (mean + half, "--")):
        ax.plot(x, line, color=plots.MUTED, linewidth=1.0, linestyle=style)
    ax.plot(record["x"], record["y"], ".", color=plots.INK, markersize=3.5, alpha=0.7)


def shared_legend(figure: Figure, labels: Sequence[tuple[str, str]], num_columns: int = 8) -> None:
    """A legend below all panels: a line of each colour, with its name."""
    lines = [Line2D([], [], color=color, linewidth=2) for _, color in labels]
    names = [name for name, _ in labels]
    figure.legend(lines, names, loc="outside lower center", ncols=num_columns, frameon=False, fontsize=plots.SMALL)
