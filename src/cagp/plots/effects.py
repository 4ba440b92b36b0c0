"""What a model has learned: which inputs matter, and what they do to the prediction."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline

from cagp.plots.quality import Z95
from cagp.plots.style import BLUE, INK, RED, SMALL, Vector, legend, segments, shortened, styled

VALUE_COLORS = LinearSegmentedColormap.from_list("value", matplotlib.colormaps["viridis"](np.linspace(0.05, 1, 256)))


def relevance(ax: Axes, names: Sequence[str], lengthscales: Vector, top: int = 20) -> Axes:
    """1 / lengthscale of the ``top`` inputs with the shortest lengthscales, in standard deviations of each input."""
    values = 1 / np.asarray(lengthscales, float)
    order = np.argsort(-values, kind="stable")[:top]
    places = np.arange(len(order))[::-1]
    ax.barh(places, values[order], 0.7, color=BLUE, linewidth=0)
    ax.set_yticks(places)
    ax.set_yticklabels([shortened(str(names[index]), 22) for index in order], parse_math=False)
    ax.set_ylim(-0.6, len(order) - 0.4)
    styled(ax, "relevance (1 / lengthscale)").grid(visible=False, axis="y")
    return ax


def importance(
    ax: Axes, names: Sequence[str], increase: Vector, standard_error: Vector, xlabel: str = "", top: int = 20
) -> Axes:
    """The increase of an error without each column, for the first ``top`` columns, with ± 1.96 standard errors."""
    values, half = np.asarray(increase, float)[:top], Z95 * np.asarray(standard_error, float)[:top]
    places = np.arange(len(values))[::-1].astype(float)
    ax.barh(places, values, 0.66, color=BLUE, alpha=0.75, linewidth=0)
    ax.plot(*segments(places, values - half, values + half)[::-1], color=INK, linewidth=1.4)
    ax.axvline(0, color=INK, linewidth=0.8)
    ax.set_yticks(places)
    ax.set_yticklabels([shortened(str(name), 22) for name in names[:top]], parse_math=False)
    ax.set_ylim(-0.6, len(values) - 0.4)
    styled(ax, xlabel).grid(visible=False, axis="y")
    return ax


def effect(ax: Axes, x: Vector, mean: Vector, std: Vector, rows: Vector | None = None, xlabel: str = "") -> Axes:
    """A mean as a function of an input, with its 95 % band, ± 1.96 ``std``; ``rows`` are marked at the bottom."""
    x, mean, half = np.asarray(x, float), np.asarray(mean, float), Z95 * np.asarray(std, float)
    ax.fill_between(x, mean - half, mean + half, color=BLUE, alpha=0.22, linewidth=0)
    ax.plot(x, mean, color=BLUE, linewidth=2)
    ax.set_xlim(x.min(), x.max())
    if rows is not None:
        bottom = np.zeros(len(rows))
        marks = segments(np.asarray(rows, float), bottom, bottom + 0.035)
        ax.plot(*marks, color=INK, alpha=0.45, linewidth=0.6, transform=ax.get_xaxis_transform())
    return styled(ax, shortened(xlabel, 36))


def category_effect(ax: Axes, names: Sequence[str], mean: Vector, std: Vector, xlabel: str = "") -> Axes:
    """A mean for each category of an input with its 95 % interval, ± 1.96 ``std``."""
    places = np.arange(len(names))
    error = Z95 * np.asarray(std, float)
    ax.errorbar(places, mean, error, fmt="o", color=BLUE, markersize=5, elinewidth=1.6, capsize=3)
    crowded = len(names) > 3
    ax.set_xticks(places)
    ax.set_xticklabels(
        [shortened(str(name), 14) for name in names],
        parse_math=False,
        rotation=35 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor" if crowded else "default",
    )
    ax.set_xlim(-0.6, len(names) - 0.4)
    styled(ax, shortened(xlabel, 36)).grid(visible=False, axis="x")
    return ax


def fit_in_one_input(
    ax: Axes, x: Vector, mean: Vector, latent_std: Vector, std: Vector, points: tuple[Vector, Vector], xlabel: str = ""
) -> Axes:
    """The mean, the 95 % band of the function, the wider band of new observations, and observed points."""
    x, mean, std = np.asarray(x, float), np.asarray(mean, float), np.asarray(std, float)
    size = 3.2 if len(points[0]) <= 300 else 2.0
    ax.plot(*points, "o", color=RED, markersize=size, markeredgewidth=0, alpha=0.55, label="test rows", rasterized=True)
    for sign, label in ((1, "95 % of observations"), (-1, None)):
        ax.plot(x, mean + sign * Z95 * std, color=BLUE, linewidth=0.9, linestyle=(0, (4, 2)), label=label)
    effect(ax, x, mean, latent_std, xlabel=xlabel)
    legend(ax)
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
    image = ax.imshow(
        fine.clip(values.min(), values.max()),
        colors,
        origin="lower",
        extent=extent,
        aspect="auto",
        interpolation="none",
    )
    if points is not None:
        ax.plot(*points, "o", color="white", markersize=1.4, markeredgewidth=0, alpha=0.35, rasterized=True)
        ax.set(xlim=extent[:2], ylim=extent[2:])
    bar = ax.figure.colorbar(image, ax=ax, aspect=28, pad=0.03)
    bar.set_label(label, fontsize=SMALL, color=INK, parse_math=False)
    bar.ax.tick_params(labelsize=SMALL - 0.5, colors=INK, length=3)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)
    return styled(ax, shortened(names[0], 36), shortened(names[1], 36), grid=False)
