"""Where predictions are wrong: in groups of rows, along the predictions and the columns, and on a map."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.colors import Colormap
from scipy.spatial import KDTree
from scipy.stats import binom, rankdata, zscore
from scipy.stats import t as student

from cagp import plots
from cagp.metrics import LEVEL
from cagp.plots import Vector, shortened
from cagp.report.page import number
from cagp.report.subject import SEED, InputColumn, Rows
from cagp.report.targets import Target

CHANCE = 0.05
"""The probability that chance alone flags anything among all bins of a section, or all groups of one."""

FEWEST_ROWS = 5
"""Bins with fewer rows are left out; levels with fewer rows are in one group together."""


def equal_bins(values: Vector, most: int) -> list[Rows]:
    """Rows in up to ``most`` bins with about as many rows each; equal values share a bin, missing ones have none."""
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite) == 0:
        return []
    inner = np.unique(np.quantile(values[finite], np.linspace(0, 1, most + 1)[1:-1], method="inverted_cdf"))
    codes = np.searchsorted(inner, values[finite], side="left")
    bins = [finite[codes == k] for k in range(len(inner) + 1)]
    return [rows for rows in bins if len(rows) >= FEWEST_ROWS]


# ---- groups of rows ----

NUM_BINS = 5
MAX_LEVELS, MAX_COLUMNS = 12, 4
OTHERS = "(other levels)"


class Groups(NamedTuple):
    """Tables of groups of rows with the name of the criterion, one of ``_table`` for each."""

    binned: list[tuple[str, pd.DataFrame]]  # by prediction and by standard deviation
    by_level: list[tuple[str, pd.DataFrame]]  # by the levels of columns
    left_out: list[str]  # columns of levels beyond ``MAX_COLUMNS``

    @property
    def every(self) -> list[tuple[str, Any]]:
        """All groups, each with the name of its criterion."""
        return [(name, group) for name, table in (*self.binned, *self.by_level) for group in table.itertuples()]

    @property
    def beyond(self) -> list[tuple[str, Any]]:
        """Those whose coverage chance does not explain, the farthest off first."""
        off = [pair for pair in self.every if pair[1].is_beyond]
        return sorted(off, key=lambda pair: -abs(pair[1].coverage - LEVEL))


def groups_of(target: Target, columns: Sequence[InputColumn]) -> Groups:
    """Groups by prediction and by error bar, and by the levels of each of these columns."""
    binned = []
    for name, values in (("prediction", target.mean), ("standard deviation", target.std)):
        bins = equal_bins(values, NUM_BINS)
        ends = [f"{number(values[rows].min(), 3)} to {number(values[rows].max(), 3)}" for rows in bins]
        if len(bins) > 1:
            binned.append((name, dict(zip(ends, bins, strict=True))))
    with_levels = [column for column in columns if not column.is_ordered]
    by_level = [(column.name, _by_level(column)) for column in with_levels[:MAX_COLUMNS]]
    num_groups = sum(len(rows_of) for _, rows_of in (*binned, *by_level))
    binned, by_level = (
        [(name, _table(target, rows_of, num_groups)) for name, rows_of in part] for part in (binned, by_level)
    )
    return Groups(binned, by_level, [column.name for column in with_levels[MAX_COLUMNS:]])


def _by_level(column: InputColumn) -> dict[str, Rows]:
    """The rows of each level; rare levels together."""
    codes = column.values.astype(int)
    counts = np.bincount(codes, minlength=len(column.levels))
    frequent = np.flatnonzero(counts >= FEWEST_ROWS)[:MAX_LEVELS]
    others = np.flatnonzero(~np.isin(codes, frequent))
    rows_of = {column.levels[level]: np.flatnonzero(codes == level) for level in frequent}
    return rows_of | ({OTHERS: others} if len(others) else {})


def _table(target: Target, rows_of: Mapping[str, Rows], num_groups: int) -> pd.DataFrame:
    """Number of rows, RMSE, bias (the mean of actual minus predicted values) and coverage of each group, by its name.

    ``low`` and ``high`` are the coverages that chance explains, given the number of all groups.
    """
    rows = pd.DataFrame({"error": target.error, "square": np.square(target.error), "inside": target.inside})
    parts = pd.concat({name: rows.iloc[places] for name, places in rows_of.items()})
    groups: Any = parts.groupby(level=0, sort=False)
    mean, error = groups.mean(), groups.sem().fillna(0.0)
    table = pd.DataFrame({"num_rows": groups.size(), "rmse": np.sqrt(mean["square"]), "bias": mean["error"]})
    table["rmse_error"] = (error["square"] / (2 * table["rmse"])).fillna(0.0)  # √m changes by dm / 2√m
    table["bias_error"], table["coverage"] = error["error"], mean["inside"]
    tail = CHANCE / 2 / num_groups
    table["low"], table["high"] = (binom.ppf(p, table["num_rows"], LEVEL) / table["num_rows"] for p in (tail, 1 - tail))
    table["is_beyond"] = ~table["coverage"].between(table["low"], table["high"])
    return table


# ---- residuals along the predictions and the columns that matter most ----

NUM_INPUTS = 5
MAX_BINS, ROWS_PER_BIN = 16, 40


class Panel(NamedTuple):
    """Mean residuals of bins of rows, along one quantity."""

    name: str
    x: Vector  # NaN where missing
    column: InputColumn | None  # None for the predictions
    bins: list[Rows]
    mean: Vector  # of each bin
    flagged: list[bool]  # bins whose mean differs from zero by more than chance explains

    def ends(self, k: int) -> tuple[str, ...]:
        """The smallest and the largest value of a bin, in words."""
        rows = self.bins[k]
        ends = int(rows[self.x[rows].argmin()]), int(rows[self.x[rows].argmax()])
        return tuple(number(self.x[row], 3) if self.column is None else self.column.shown(row) for row in ends)


def residuals_of(target: Target, columns: Sequence[InputColumn], num_inputs: int = NUM_INPUTS) -> list[Panel]:
    """Residuals against the predictions and against the first of these columns that are ordered.

    Bins are flagged by t tests that are corrected for the number of all bins.
    """
    ordered = [column for column in columns if column.is_ordered][:num_inputs]
    along = [("prediction", target.mean, None), *((column.label, column.values, column) for column in ordered)]
    most = int(np.clip(len(target.mean) // ROWS_PER_BIN, 2, MAX_BINS))
    binned = [(what, bins) for what in along if len(bins := equal_bins(what[1], most)) > 1]
    num_bins, panels = sum(len(bins) for _, bins in binned), []
    for (name, x, column), bins in binned:
        num_rows = np.array([len(rows) for rows in bins])
        mean = np.array([target.error[rows].mean() for rows in bins])
        std = np.array([target.error[rows].std(ddof=1) for rows in bins])
        limit = student.isf(CHANCE / 2 / num_bins, num_rows - 1) * std / np.sqrt(num_rows)
        panels.append(Panel(name, x, column, bins, mean, ((np.abs(mean) > limit) & (std > 0)).tolist()))
    return panels


def farthest(panels: Sequence[Panel]) -> tuple[Panel, int] | None:
    """The flagged bin whose mean is farthest from zero; None if no bin is flagged."""
    every = [(panel, int(k)) for panel in panels for k in np.flatnonzero(panel.flagged)]
    return max(every, key=lambda pair: abs(pair[0].mean[pair[1]]), default=None)


# ---- maps, where two columns are longitude and latitude ----

PERMUTATIONS = 200
NEIGHBOUR_ROWS = 30
"""The fewest rows for a sentence on neighbours."""


class Places(NamedTuple):
    """The two columns that say where rows are."""

    longitude: InputColumn
    latitude: InputColumn


def places_of(columns: Sequence[InputColumn]) -> Places | None:
    """The first pair of columns that are longitude and latitude by name ("lon", "start_lat", ...) and ranges."""
    longitude = "longitude", {"lon", "long", "longitude", "lng"}, -180.0, 360.0
    latitude = "latitude", {"lat", "latitude"}, -90.0, 90.0
    pairs: dict[tuple[str, ...], dict[str, InputColumn]] = {}  # by the other words of the names, e.g. ("start",)
    for column in (column for column in columns if column.kind == "number"):
        words = [word.lower() for word in re.split(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])", column.name) if word]
        for what, names, low, high in (longitude, latitude):
            if names & set(words) and low <= np.nanmin(column.values) and np.nanmax(column.values) <= high:
                others = tuple(word for word in words if word not in names)
                pairs.setdefault(others, {}).setdefault(what, column)
    return next((Places(**pair) for pair in pairs.values() if len(pair) == 2), None)


class RowMaps(NamedTuple):
    """The test rows on a map."""

    at: tuple[Vector, Vector]  # longitude and latitude of rows with both
    maps: list[tuple[str, str, Vector, Colormap, tuple[float, float]]]  # title, label, values, colours and their limits
    height: float  # of a figure, in inches
    neighbours: tuple[float, float] | None  # see ``neighbour_correlation``


def maps_of(target: Target, places: Places, errors_alone: bool = False) -> RowMaps:
    """Maps of the errors, and of the predictions and the error bars unless ``errors_alone``."""
    shown = np.isfinite(places.longitude.values) & np.isfinite(places.latitude.values)
    longitude, latitude = (column.values[shown] for column in places)
    error, mean, std = (part[shown] for part in (target.error, target.mean, target.std))
    name, largest = shortened(target.name, 20), float(np.quantile(np.abs(error), 0.95)) or 1.0
    ends = [tuple(np.quantile(part, [0.02, 0.98]).tolist()) for part in (mean, std)]
    maps = [
        ("Mean errors, actual minus predicted", f"error of {name}", error, plots.ERROR_COLORS, (-largest, largest)),
        ("Predictions", name, mean, plots.VALUE_COLORS, ends[0]),
        ("Standard deviations", f"std of {name}", std, plots.STD_COLORS, ends[1]),
    ]
    shape = plots.degree_shape(latitude) * np.ptp(latitude) / max(np.ptp(longitude), 1e-9)
    height = float(np.clip(0.6 + 2.6 * shape, 1.7, 3.6))  # for a map about 2.6 inches wide
    neighbours = neighbour_correlation(longitude, latitude, error)
    return RowMaps((longitude, latitude), maps[: 1 if errors_alone else None], height, neighbours)


def neighbour_correlation(longitude: Vector, latitude: Vector, error: Vector) -> tuple[float, float] | None:
    """Rank correlation of errors with those of the nearest other row, and what chance explains 19 times in 20.

    None if there are too few rows, or if they do not differ. The chance is that of errors that are shuffled.
    """
    if len(error) < NEIGHBOUR_ROWS or np.ptp(error) == 0:
        return None
    lon, lat = np.radians(longitude), np.radians(latitude)
    sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], 1)
    near = np.asarray(KDTree(sphere).query(sphere, k=2)[1])
    nearest = np.where(near[:, 0] == np.arange(len(error)), near[:, 1], near[:, 0])
    ranks, rng = np.asarray(zscore(rankdata(error))), np.random.default_rng(SEED)
    shuffled = [rng.permutation(ranks) for _ in range(PERMUTATIONS)]
    by_chance = [(values * values[nearest]).mean() for values in shuffled]
    return float((ranks * ranks[nearest]).mean()), float(np.quantile(by_chance, 0.95))
