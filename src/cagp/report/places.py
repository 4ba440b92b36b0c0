"""Maps, where two columns are longitude and latitude, and whether errors of neighbours are alike."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import Colormap
from scipy.spatial import KDTree
from scipy.stats import rankdata

from cagp import plots
from cagp.plots import Vector, shortened
from cagp.report.columns import InputColumn
from cagp.report.subject import SEED
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


class RowMaps(NamedTuple):
    """The test rows on a map."""

    at: tuple[Vector, Vector]  # longitude and latitude of rows with both
    maps: list[tuple[str, str, Vector, Colormap, tuple[float, float]]]  # title, label, values, colours and their limits
    height: float  # of a figure, in inches
    neighbours: tuple[float, float] | None  # see ``neighbour_correlation``


def maps_of(target: Target, places: Places, errors_alone: bool = False) -> RowMaps:
    """Maps of the errors, and of the predictions and the error bars unless ``errors_alone``."""
    shown = np.isfinite(places.longitude.values) & np.isfinite(places.latitude.values)
    at = places.longitude.values[shown], places.latitude.values[shown]
    error, mean, std = (part[shown] for part in (target.error, target.mean, target.std))
    name, largest = shortened(target.name, 20), float(np.quantile(np.abs(error), 0.95)) or 1.0
    ends = [tuple(float(q) for q in np.quantile(part, [0.02, 0.98])) for part in (mean, std)]
    maps = [
        ("Mean errors, actual minus predicted", f"error of {name}", error, plots.ERROR_COLORS, (-largest, largest)),
        ("Predictions", name, mean, plots.VALUE_COLORS, ends[0]),
        ("Standard deviations", f"std of {name}", std, plots.STD_COLORS, ends[1]),
    ]
    shape = plots.degree_shape(at[1]) * np.ptp(at[1]) / max(float(np.ptp(at[0])), 1e-9)
    height = float(np.clip(0.6 + 2.6 * shape, 1.7, 3.6))  # for a map about 2.6 inches wide
    return RowMaps(at, maps[: 1 if errors_alone else None], height, neighbour_correlation(*at, error))


def neighbour_correlation(longitude: Vector, latitude: Vector, error: Vector) -> tuple[float, float] | None:
    """Rank correlation of errors with those of the nearest other row, and what chance explains 19 times in 20.

    None if there are too few rows, or if they do not differ. The chance is that of errors that are shuffled.
    """
    if len(error) < FEWEST_ROWS or np.ptp(error) == 0:
        return None
    lon, lat = np.radians(longitude), np.radians(latitude)
    sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    near = np.asarray(KDTree(sphere).query(sphere, k=2)[1])
    nearest = np.where(near[:, 0] == np.arange(len(error)), near[:, 1], near[:, 0])
    ranks = rankdata(error)
    ranks = (ranks - ranks.mean()) / ranks.std()
    rng = np.random.default_rng(SEED)
    shuffled = [rng.permutation(ranks) for _ in range(PERMUTATIONS)]
    by_chance = [float((values * values[nearest]).mean()) for values in shuffled]
    return float((ranks * ranks[nearest]).mean()), float(np.quantile(by_chance, 0.95))


def _within(values: Vector, low: float, high: float) -> bool:
    finite = values[np.isfinite(values)]
    return bool(len(finite) and finite.min() >= low and finite.max() <= high)
