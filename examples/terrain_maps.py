"""What demo.py draws: maps of elevations and of their error bars."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, LinearSegmentedColormap, LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray
from PIL import Image

from cagp.plots import INK, STD_COLORS

Map = NDArray[np.float64]
"""Values on a square grid, rows from south to north."""

ELEVATION_COLORS = LinearSegmentedColormap.from_list(
    "elevation",
    [
        (0.00, "#2f5d50"),
        (0.12, "#5d8a66"),
        (0.28, "#a9b97c"),
        (0.45, "#ddc98f"),
        (0.60, "#b98b5f"),
        (0.76, "#8a6552"),
        (0.88, "#b3a9a3"),
        (1.00, "#ffffff"),
    ],
)
EXAGGERATION = 2.0  # of heights, for shading


class Forecast(NamedTuple):
    """What a model with a number of actions predicts, in metres, and how well it does on test rows."""

    num_actions: int
    mean: Map
    std: Map
    rmse: float
    coverage: float


def relief(ax: Axes, elevation: Map, width: float, norm: Normalize) -> Axes:
    """Shaded relief of elevations in metres on a map ``width`` km wide; equal slopes are equally bright."""
    light = LightSource(azdeg=315, altdeg=42)
    north, east = np.gradient(EXAGGERATION * elevation, 1000 * width / (len(elevation) - 1))
    to_east, to_north, up = light.direction
    brightness = (up - to_east * east - to_north * north) / np.sqrt(1 + east**2 + north**2)
    shaded = light.blend_soft_light(ELEVATION_COLORS(norm(elevation))[..., :3], brightness.clip(0, 1)[..., None])
    ax.imshow(shaded, origin="lower", extent=(0, width, 0, width))
    return _bare(ax)


def spread(ax: Axes, std: Map, width: float, norm: Normalize) -> Axes:
    """Standard deviations on a map ``width`` km wide."""
    ax.imshow(std, STD_COLORS, norm, origin="lower", extent=(0, width, 0, width))
    return _bare(ax)


def scale_bar(ax: Axes, length: float) -> Axes:
    """A bar ``length`` km long in the lower left corner."""
    left, bottom = 0.05 * ax.get_xlim()[1], 0.05 * ax.get_ylim()[1]
    ax.plot([left, left + length], [bottom, bottom], color="white", linewidth=2.5, solid_capstyle="butt")
    middle = (left + length / 2, bottom)
    ax.annotate(f"{length:g} km", middle, (0, 5), textcoords="offset points", ha="center", color="white", fontsize=12)
    return ax


def summit(ax: Axes, east: float, north: float, name: str) -> Axes:
    """A triangle with a name beside it, at a place in km."""
    ax.plot(east, north, marker="^", color=INK, markersize=9, markeredgecolor="white")
    halo = [withStroke(linewidth=2.5, foreground=INK)]
    offset = (10, -4)
    ax.annotate(name, (east, north), offset, textcoords="offset points", color="white", fontsize=12, path_effects=halo)
    return ax


def poster(truth: Map, forecasts: Sequence[Forecast], width: float, title: str, subtitle: str) -> Figure:
    """The truth and the last forecast, above a row of all forecasts.

    All maps of elevations share one scale, and so do those of standard deviations, except for the top right one: its
    own scale shows where the last forecast is least certain. The first axes are those of the truth.
    """
    last = forecasts[-1]
    elevations = Normalize(truth.min(), truth.max())
    errors = LogNorm(
        min(forecast.std.min() for forecast in forecasts), max(forecast.std.max() for forecast in forecasts)
    )
    last_errors = Normalize(last.std.min(), last.std.max())

    figure = Figure(figsize=(16, 11.3), dpi=150, layout="constrained")
    header, top, bottom = figure.subfigures(3, 1, squeeze=False, height_ratios=[0.3, 2.2, 1.25])[:, 0]
    header.text(0.002, 0.72, title, fontsize=26, fontweight="bold", color=INK, va="center")
    header.text(0.002, 0.25, subtitle, fontsize=14.5, color=INK, va="center")

    left, middle, right = top.subplots(1, 3, gridspec_kw={"wspace": 0.03})
    _titled(relief(left, truth, width, elevations), "Terrain")
    _titled(relief(middle, last.mean, width, elevations), f"Prediction with {last.num_actions} actions")
    _titled(spread(right, last.std, width, last_errors), "Its standard deviation", "own scale")
    scale_bar(left, 5)
    _color_bar(top, [left, middle], ScalarMappable(elevations, ELEVATION_COLORS), "elevation (m)", shrink=0.5)
    _color_bar(top, [right], ScalarMappable(last_errors, STD_COLORS), "standard deviation (m)", shrink=1)

    gaps = ([1, 1, 0.04] * len(forecasts))[:-1]
    columns = bottom.add_gridspec(1, len(gaps), width_ratios=gaps, wspace=0.02)
    row: list[Axes] = []
    for number, forecast in enumerate(forecasts):
        mean, std = (bottom.add_subplot(columns[3 * number + side]) for side in (0, 1))
        relief(mean, forecast.mean, width, elevations)
        spread(std, forecast.std, width, errors)
        _titled(mean, f"{forecast.num_actions} actions", f"RMSE {forecast.rmse:.0f} m")
        _titled(std, "", f"coverage {100 * forecast.coverage:.1f} %")
        row += [mean, std]
    _color_bar(bottom, row, ScalarMappable(errors, STD_COLORS), "standard deviation (m)", shrink=0.33)
    return figure


def _color_bar(figure: SubFigure, axes: list[Axes], colors: ScalarMappable, label: str, shrink: float) -> None:
    bar = figure.colorbar(colors, ax=axes, location="bottom", aspect=40, shrink=shrink, pad=0.03)
    bar.set_label(label, fontsize=12, color=INK)
    bar.ax.tick_params(labelsize=11, colors=INK)
    bar.ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    bar.ax.xaxis.set_minor_locator(NullLocator())
    bar.ax.xaxis.set_major_formatter(ScalarFormatter())
    bar.outline.set_visible(False)


def _titled(ax: Axes, title: str, note: str = "") -> Axes:
    ax.set_title(title, loc="left", fontsize=14, fontweight="bold", color=INK)
    ax.set_title(note, loc="right", fontsize=13, color=INK)
    return ax


def _bare(ax: Axes) -> Axes:
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    return ax


def save(figure: Figure, path: Path, dpi: float = 150) -> None:
    """Write the figure as a dithered PNG of 256 colours: half the size of true colours, with hardly a difference."""
    buffer = BytesIO()
    figure.savefig(buffer, dpi=dpi, bbox_inches="tight", pad_inches=0.3)
    image = Image.open(buffer).convert("RGB")
    thumbnail = image.resize((image.width // 3, image.height // 3), Image.Resampling.NEAREST)
    palette = thumbnail.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=4)
    image.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, "PNG", optimize=True)
