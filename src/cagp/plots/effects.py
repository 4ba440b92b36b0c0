"""What a model has learned: which inputs matter, and what they do to the prediction."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline

from cagp.plots.quality import Z95
from cagp.plots.style import (
    BLUE,
    INK,
    RED,
    Vector,
    color_bar,
    date_axis,
    legend,
    level_line,
    named_bars,
    named_columns,
    segments,
    shortened,
    styled,
)

VALUE_COLORS = LinearSegmentedColormap.from_list("value", matplotlib.colormaps["viridis"](np.linspace(0.05, 1, 256)))
STD_COLORS = LinearSegmentedColormap.from_list("std", matplotlib.colormaps["magma"](np.linspace(0.12, 1, 256)))


def relevance(ax: Axes, names: Sequence[str], lengthscales: Vector, top: int = 20) -> Axes:
    """1 / lengthscale of the ``top`` inputs with the shortest lengthscales, in standard deviations of each input."""
    values = 1 / np.asarray(lengthscales, float)
    order = np.argsort(-values, kind="stable")[:top]
    places = named_bars(ax, [names[int(index)] for index in order], "relevance (1 / lengthscale)")
    ax.barh(places, values[order], 0.7, color=BLUE, linewidth=0)
    return ax


def importance(
    ax: Axes, names: Sequence[str], increase: Vector, standard_error: Vector, xlabel: str = "", top: int = 20
) -> Axes:
    """The increase of an error without each column, for the first ``top`` columns, with ± 1.96 standard errors."""
    values, half = np.asarray(increase, float)[:top], Z95 * np.asarray(standard_error, float)[:top]
    places = named_bars(ax, names[:top], xlabel)
    ax.barh(places, values, 0.66, color=BLUE, alpha=0.75, linewidth=0)
    ax.plot(*segments(places, values - half, values + half)[::-1], color=INK, linewidth=1.4)
    ax.axvline(0, color=INK, linewidth=0.8)
    return ax


def effect(
    ax: Axes,
    x: Vector,
    mean: Vector,
    std: Vector,
    rows: Vector | None = None,
    xlabel: str = "",
    ylabel: str = "",
    limits: tuple[float, float] | None = None,
    dates: bool = False,
) -> Axes:
    """A mean as a function of an input, with its 95 % band, ± 1.96 ``std``; ``rows`` are marked at the bottom.

    Args:
        limits: of a change to compare with others, which gets a line at zero.
        dates: whether ``x`` are days since 1970.
    """
    x, mean, half = np.asarray(x, float), np.asarray(mean, float), Z95 * np.asarray(std, float)
    ax.fill_between(x, mean - half, mean + half, color=BLUE, alpha=0.22, linewidth=0)
    ax.plot(x, mean, color=BLUE, linewidth=2)
    ax.set_xlim(x.min(), x.max())
    if rows is not None:
        bottom = np.zeros(len(rows))
        marks = segments(np.asarray(rows, float), bottom, bottom + 0.035)
        ax.plot(*marks, color=INK, alpha=0.45, linewidth=0.6, transform=ax.get_xaxis_transform())
    styled(ax, shortened(xlabel, 36), ylabel)
    return _comparable(date_axis(ax) if dates else ax, limits)


def category_effect(
    ax: Axes,
    names: Sequence[str],
    mean: Vector,
    std: Vector,
    xlabel: str = "",
    ylabel: str = "",
    limits: tuple[float, float] | None = None,
) -> Axes:
    """A mean for each category of an input with its 95 % interval, ± 1.96 ``std``; ``limits`` as for ``effect``."""
    places, error = named_columns(ax, names, 14, crowded=len(names) > 3), Z95 * np.asarray(std, float)
    ax.errorbar(places, mean, error, fmt="o", color=BLUE, markersize=5, elinewidth=1.6, capsize=3)
    styled(ax, shortened(xlabel, 36), ylabel).grid(visible=False, axis="x")
    return _comparable(ax, limits)


def _comparable(ax: Axes, limits: tuple[float, float] | None) -> Axes:
    if limits is not None:
        level_line(ax)
        ax.set_ylim(limits)
    return ax


def fit_in_one_input(
    ax: Axes,
    x: Vector,
    mean: Vector,
    latent_std: Vector,
    std: Vector,
    points: tuple[Vector, Vector],
    xlabel: str = "",
    ylabel: str = "",
    dates: bool = False,
) -> Axes:
    """The mean, the 95 % band of the function, the wider band of new observations, and observed points."""
    x, mean, std = np.asarray(x, float), np.asarray(mean, float), np.asarray(std, float)
    size = 3.2 if len(points[0]) <= 300 else 2.0
    ax.plot(*points, "o", color=RED, markersize=size, markeredgewidth=0, alpha=0.55, label="test rows", rasterized=True)
    for sign, label in ((1, "95 % of observations"), (-1, None)):
        ax.plot(x, mean + sign * Z95 * std, color=BLUE, linewidth=0.9, linestyle=(0, (4, 2)), label=label)
    effect(ax, x, mean, latent_std, xlabel=xlabel, ylabel=ylabel, dates=dates)
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
    color_bar(ax, image, label)
    return styled(ax, shortened(names[0], 36), shortened(names[1], 36), grid=False)
