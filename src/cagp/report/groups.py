"""Groups of rows: bins along a quantity, and whether the error bars hold in each group."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from cagp.metrics import LEVEL
from cagp.plots import Vector
from cagp.report.columns import InputColumn
from cagp.report.page import number
from cagp.report.targets import Target

NUM_BINS = 5
MAX_LEVELS, MAX_COLUMNS = 12, 4
FEWEST_ROWS = 5
"""Levels with fewer rows are in one group together."""
OTHERS = "(other levels)"

CHANCE = 0.05
"""The probability that chance alone flags anything among all bins of a section, or all groups of one."""


class Group(NamedTuple):
    """Some rows, and how well they are predicted."""

    name: str
    num_rows: int
    rmse: float
    rmse_error: float  # standard errors
    bias: float  # the mean of actual minus predicted values
    bias_error: float
    coverage: float
    expected: tuple[float, float]  # the coverages that chance explains, given the number of all groups

    @property
    def is_beyond(self) -> bool:
        """Whether the coverage differs from what it should be by more than chance explains."""
        return not self.expected[0] <= self.coverage <= self.expected[1]


class Grouping(NamedTuple):
    """All rows in groups by one criterion."""

    name: str
    groups: list[Group]

    @property
    def bars(self) -> tuple[list[str], Vector, Vector, Vector]:
        """Names, coverages and the ranges that chance explains, as ``plots.coverage_by_group`` takes them."""
        names, coverage, expected = zip(*((g.name, g.coverage, g.expected) for g in self.groups), strict=True)
        return list(names), np.array(coverage), *np.array(expected).T


class Groups(NamedTuple):
    """All groups of a section."""

    binned: list[Grouping]  # by prediction and by standard deviation
    by_level: list[Grouping]  # by the levels of columns
    left_out: list[str]  # columns of levels beyond ``MAX_COLUMNS``

    @property
    def every(self) -> list[tuple[str, Group]]:
        """All groups, each with the name of its grouping."""
        return [(grouping.name, group) for grouping in (*self.binned, *self.by_level) for group in grouping.groups]

    @property
    def beyond(self) -> list[tuple[str, Group]]:
        """Those whose coverage chance does not explain, the farthest off first."""
        off = [pair for pair in self.every if pair[1].is_beyond]
        return sorted(off, key=lambda pair: -abs(pair[1].coverage - LEVEL))


def groups_of(target: Target, columns: list[InputColumn]) -> Groups:
    """Groups by prediction and by error bar, and by the levels of each of these columns."""
    rows_of: list[tuple[str, dict[str, NDArray[np.intp]]]] = []
    for name, values in (("prediction", target.mean), ("standard deviation", target.std)):
        bins = equal_bins(values, NUM_BINS, FEWEST_ROWS)
        if len(bins) > 1:
            rows_of.append((name, {_range(values[rows]): rows for rows in bins}))
    num_binned = len(rows_of)
    with_levels = [column for column in columns if not column.is_ordered]
    rows_of += [(column.name, _by_level(column)) for column in with_levels[:MAX_COLUMNS]]
    num_groups = sum(len(groups) for _, groups in rows_of)
    groupings = [
        Grouping(name, [_group(level, target, rows, num_groups) for level, rows in groups.items()])
        for name, groups in rows_of
    ]
    left_out = [column.name for column in with_levels[MAX_COLUMNS:]]
    return Groups(groupings[:num_binned], groupings[num_binned:], left_out)


def equal_bins(values: Vector, most: int, fewest_rows: int = 2) -> list[NDArray[np.intp]]:
    """Rows in up to ``most`` bins with about as many rows each; equal values share a bin, missing ones have none."""
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite) == 0:
        return []
    inner = np.unique(np.quantile(values[finite], np.linspace(0, 1, most + 1)[1:-1], method="inverted_cdf"))
    codes = np.searchsorted(inner, values[finite], side="left")
    bins = [finite[codes == k] for k in range(len(inner) + 1)]
    return [rows for rows in bins if len(rows) >= fewest_rows]


def _group(name: str, target: Target, rows: NDArray[np.intp], num_groups: int) -> Group:
    residual, n = target.error[rows], len(rows)
    square = np.square(residual)
    rmse = float(np.sqrt(square.mean()))
    # √m changes by dm / 2√m.
    rmse_error = float(square.std(ddof=1) / np.sqrt(n) / (2 * rmse)) if n > 1 and rmse > 0 else 0.0
    bias_error = float(residual.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    tail = CHANCE / 2 / num_groups
    low, high = binom.ppf([tail, 1 - tail], n, LEVEL) / n
    coverage = float(target.inside[rows].mean())
    return Group(name, n, rmse, rmse_error, float(residual.mean()), bias_error, coverage, (float(low), float(high)))


def _by_level(column: InputColumn) -> dict[str, NDArray[np.intp]]:
    """The rows of each level; rare levels together."""
    codes = column.values.astype(int)
    counts = np.bincount(codes, minlength=len(column.levels))
    frequent = [level for level in range(len(column.levels)) if counts[level] >= FEWEST_ROWS][:MAX_LEVELS]
    others = np.flatnonzero(~np.isin(codes, frequent))
    rows_of = {column.levels[level]: np.flatnonzero(codes == level) for level in frequent}
    return rows_of | ({OTHERS: others} if len(others) else {})


def _range(values: Vector) -> str:
    return f"{number(float(values.min()), 3)} to {number(float(values.max()), 3)}"
