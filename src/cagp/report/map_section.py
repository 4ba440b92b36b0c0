"""The section with maps, where two columns are longitude and latitude."""

import re
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from scipy.spatial import KDTree
from scipy.stats import rankdata

from cagp import plots
from cagp.plots import Vector, shortened
from cagp.report.columns import InputColumn
from cagp.report.html import side_by_side
from cagp.report.rows import SEED
from cagp.report.svg import Drawing
from cagp.report.targets import Target

LONGITUDE, LATITUDE = {"lon", "long", "longitude", "lng"}, {"lat", "latitude"}
PERMUTATIONS = 200
FEWEST_ROWS = 30  # for a sentence on neighbours


class Places(NamedTuple):
    """The two columns that say where rows are."""

    longitude: InputColumn
    latitude: InputColumn


def places_of(columns: Sequence[InputColumn]) -> Places | None:
    """The first pair of columns that are longitude and latitude by name ("lon", "start_lat", ...) and ranges."""
    named = {}
    for column in columns:
        words = [word.lower() for word in re.split(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])", column.name) if word]
        for kind in (LONGITUDE, LATITUDE):
            matching = [word for word in words if word in kind]
            if matching and column.kind == "number":
                rest = tuple(word for word in words if word not in kind)
                named.setdefault((rest, kind is LONGITUDE), column)
    for (rest, is_longitude), column in named.items():
        other = named.get((rest, False))
        if not is_longitude or other is None or other is column:
            continue
        if _within(column.values, -180.0, 360.0) and _within(other.values, -90.0, 90.0):
            return Places(column, other)
    return None


def map_figures(draw: Drawing, target: Target, places: Places, errors_alone: bool = False) -> list[str]:
    """Maps of the errors, and of the predictions and the error bars unless ``errors_alone``."""
    known = np.isfinite(places.longitude.values) & np.isfinite(places.latitude.values)
    at = places.longitude.values[known], places.latitude.values[known]
    error = (target.y - target.mean)[known]
    name = shortened(target.name, 20)
    reach = float(np.quantile(np.abs(error), 0.95)) or 1.0
    ends = [tuple(float(q) for q in np.quantile(part[known], [0.02, 0.98])) for part in (target.mean, target.std)]
    figures = [
        ("Mean errors, actual minus predicted", error, f"error of {name}", plots.ERROR_COLORS, (-reach, reach)),
        ("Predictions", target.mean[known], name, plots.VALUE_COLORS, ends[0]),
        ("Standard deviations", target.std[known], f"std of {name}", plots.STD_COLORS, ends[1]),
    ]

    def one(ax: Axes, values: Vector, label: str, colors: Colormap, limits: tuple[float, float]) -> None:
        plots.map_of_rows(ax, *at, values, label, colors, limits)

    shape = plots.degree_shape(at[1]) * np.ptp(at[1]) / max(float(np.ptp(at[0])), 1e-9)
    height = float(np.clip(0.6 + 2.6 * shape, 1.7, 3.6))  # inches, for a map about 2.6 wide
    errors, *others = (
        draw(
            partial(one, values=values, label=label, colors=colors, limits=limits),
            f"Map of {what.lower()} of {target.name}.",
            what,
            height,
        )
        for what, values, label, colors, limits in figures[: 1 if errors_alone else None]
    )
    words = (
        "<p>The test rows where they are; of many rows, means over hexagons. Red: the predictions were too low; blue: "
        "too high. Colours end at the 95 % quantile of the absolute errors, and at the 2 % and 98 % quantiles of the "
        f"other values.</p>{_neighbours_agree(at, error)}"
    )
    return [side_by_side(errors, f"<div>{words}</div>", *others)]


def _neighbours_agree(at: tuple[Vector, Vector], error: Vector) -> str:
    """Whether errors of neighbouring rows are alike, in a sentence."""
    found = neighbour_correlation(*at, error)
    if found is None:
        return ""
    correlation, limit = found
    if correlation <= limit:
        return (
            f"<p>Errors of a row and of the nearest test row are not alike (rank correlation {_signed(correlation)}; "
            f"chance explains up to {limit:.2f}).</p>"
        )
    return (
        f"<p>Errors of a row and of the nearest test row are alike: their rank correlation is {_signed(correlation)}, "
        f"and chance explains up to {limit:.2f}. The model misses something that neighbouring rows share.</p>"
    )


def neighbour_correlation(longitude: Vector, latitude: Vector, error: Vector) -> tuple[float, float] | None:
    """Rank correlation of errors with those of the nearest other row, and what chance explains 19 times in 20.

    None if there are too few rows, or if they do not differ. The chance is that of errors dealt out at random.
    """
    if len(error) < FEWEST_ROWS or np.ptp(error) == 0:
        return None
    lon, lat = np.radians(longitude), np.radians(latitude)
    sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    near = np.asarray(KDTree(sphere).query(sphere, k=2)[1])
    own = np.arange(len(error))
    nearest = np.where(near[:, 0] == own, near[:, 1], near[:, 0])
    ranks = rankdata(error)
    ranks = (ranks - ranks.mean()) / ranks.std()
    rng = np.random.default_rng(SEED)
    by_chance = []
    for _ in range(PERMUTATIONS):
        dealt = rng.permutation(ranks)
        by_chance.append(float((dealt * dealt[nearest]).mean()))
    return float((ranks * ranks[nearest]).mean()), float(np.quantile(by_chance, 0.95))


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _within(values: Vector, low: float, high: float) -> bool:
    known = values[np.isfinite(values)]
    return bool(len(known) and known.min() >= low and known.max() <= high)
