"""How good the predictions of each target are, as numbers and a verdict in words, and where they are wrong."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial import KDTree
from scipy.stats import binom, rankdata, zscore
from scipy.stats import t as student

from cagp import metrics, plots
from cagp.estimators.predictive import Observations
from cagp.metrics import LEVEL, Calibration, Scores
from cagp.plots import Z95, Vector, coverage_band, shortened
from cagp.report.page import number, share
from cagp.report.subject import SEED, InputColumn, Rows, Subject

MOST_BINS = 30
"""Of counts: with more of them, several share a bin."""

AS_IT_SHOULD = "as it should be, up to chance"


class CountShares(NamedTuple):
    """How many rows have each count, and how many should, by the predicted distributions."""

    start: Vector  # the smallest count of each bin
    width: int  # counts in a bin
    observed: Vector
    expected: Vector


class Verdict(NamedTuple):
    """Whether the error bars are right, up to chance, and what is wrong with them."""

    is_right: bool
    words: str  # after "The 95 % intervals contain 93 % of the actual values: "


@dataclass(frozen=True)
class Target:
    """A target, its predictions and their scores."""

    name: str
    number: int  # from 0
    y: Vector
    mean: Vector
    std: Vector
    z: Vector  # the errors in standard deviations, on the scale of the fit, where they are normal
    interval: tuple[Vector, Vector]  # the ends of the 95 % intervals
    scores: Scores
    baseline: Scores
    baseline_words: str  # what the baseline predicts
    counts: CountShares | None = None  # of a target that is a count
    allows_outliers: bool = False  # whether gross errors among the targets are to be expected

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each actual value lies in its 95 % interval."""
        return (self.interval[0] <= self.y) & (self.y <= self.interval[1])

    @cached_property
    def error(self) -> Vector:
        """Actual minus predicted values."""
        return self.y - self.mean

    @cached_property
    def error_quantiles(self) -> tuple[float, float]:
        """The median and the 90 % quantile of the absolute errors."""
        median, upper = np.quantile(np.abs(self.error), [0.5, 0.9])
        return float(median), float(upper)

    @property
    def share_in_the_middle(self) -> float:
        """Of the targets, those in the middle 95 % of their distributions; random within a count."""
        return float((np.abs(self.z) <= Z95).mean())

    @property
    def standard(self) -> tuple[Vector, Vector, Vector]:
        """Targets, means and standard deviations where all predictions are standard normal: what calibration needs."""
        return self.z, np.zeros_like(self.z), np.ones_like(self.z)

    @cached_property
    def calibration(self) -> Calibration:
        """Nominal and observed coverage of the central intervals at 19 levels, the last of which is 95 %."""
        return metrics.calibration(*metrics.scaled(*self.standard)[:3])

    @cached_property
    def verdict(self) -> Verdict:
        """What the coverage at 19 levels says about the error bars."""
        return verdict_on(self.calibration, len(self.y))

    @property
    def error_by_chance(self) -> float:
        """The mean coverage error of right predictions, on average.

        An observed share is nearly normal about p with variance p (1 - p) / n, so E|share - p| ≈ √(2p (1 - p) / πn).
        """
        levels = self.calibration.levels
        return float(np.sqrt(2 * levels * (1 - levels) / (np.pi * len(self.y))).mean())

    @property
    def expected_coverage(self) -> tuple[float, float]:
        """The range of the coverage of the 95 % intervals in which all 19 levels lie together with probability 95 %."""
        low, high = coverage_band(LEVEL, len(self.y))
        return float(low), float(high)


def targets_of(subject: Subject) -> list[Target]:
    predicted, model = subject.predicted, subject.model
    constant = model.fitted.constant_prediction(predicted)
    mean, std, z = predicted.mean(), predicted.std(), predicted.standardized(subject.y)
    ends = predicted.quantiles([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    counts, outliers, targets = None, isinstance(predicted, Observations), []
    if isinstance(predicted, Observations) and predicted.likelihood.are_counts:
        counts, outliers = _count_shares(predicted, subject.y[:, 0]), False
    for j, name in enumerate(model.target_names_):
        y, interval = np.ascontiguousarray(subject.y[:, j]), (ends[:, j, 0], ends[:, j, 1])
        scores = predicted.scores(j, y), constant.scores(j, y)
        values = y, mean[:, j], std[:, j], z[:, j], interval, *scores, model.fitted.constant_words, counts
        targets.append(Target(str(name), j, *values, outliers))
    return targets


def _count_shares(predicted: Observations, y: Vector) -> CountShares:
    """Bins up to the largest count; of many counts, all bins have the same width."""
    width = max(1, int(np.ceil((y.max() + 1) / MOST_BINS)))
    start = np.arange(0, y.max() + 1, width)
    observed = np.histogram(y, bins=[*start, start[-1] + width])[0].astype(float)
    below = [predicted.cdf(np.full((len(y), 1), edge - 1)).sum() for edge in (*start, start[-1] + width)]
    return CountShares(start, width, observed, np.diff(below))


def verdict_on(curve: Calibration, num_rows: int) -> Verdict:
    """The error bars are right if the whole curve lies in the grey band of its figure."""
    low, high = coverage_band(curve.levels, num_rows)
    distance = curve.coverage - curve.levels
    beyond = (curve.coverage < low) | (curve.coverage > high)
    if not beyond.any():
        return Verdict(True, AS_IT_SHOULD)
    sides = np.where(distance < 0, "narrow", "wide")
    last = int(np.abs(curve.levels - LEVEL).argmin())
    # Of the levels beyond chance, the one that is farthest off; if the last is, of those on the other side.
    others = beyond & (sides != sides[last]) if beyond[last] else beyond
    worst = int(np.where(others, np.abs(distance), -1).argmax())
    level, side = curve.levels[worst], sides[worst]
    other = f"the {100 * level:.0f} % intervals contain {share(curve.coverage[worst])}"
    if not beyond[last]:
        where = "in the middle" if level < 0.85 else "there"
        return Verdict(False, f"{AS_IT_SHOULD}, but {other}, so the error bars are too {side} {where}")
    words = f"the intervals are {'slightly ' if abs(distance[last]) < 0.02 else ''}too {sides[last]}"
    if others.any():
        tails = "; errors have heavier tails than a normal distribution" if side == "wide" else ""
        words += f". But {other} and are too {side}{tails}"
    return Verdict(False, words)


# ---- errors in bins of rows ----

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


def maps_of(target: Target, places: Places, errors_alone: bool) -> dict[str, Any]:
    """Maps of the errors, and of the predictions and the error bars unless ``errors_alone``, of rows with a place.

    Each map is its title, its label, values of the rows, their colours and the ends of these.
    """
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
    at = longitude, latitude
    return {"at": at, "maps": maps[: 1 if errors_alone else None], "height": height, "neighbours": neighbours}


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
