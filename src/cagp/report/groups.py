"""The section on groups of rows: whether the error bars hold in each of them, and which have the largest errors."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from cagp import plots
from cagp.metrics import LEVEL
from cagp.plots import Vector
from cagp.report.columns import InputColumn
from cagp.report.html import NBSP, number, share, side_by_side, table, text, with_error
from cagp.report.residuals import CHANCE, equal_bins
from cagp.report.svg import Drawing, listed
from cagp.report.targets import Target

NUM_BINS = 5
MAX_LEVELS, MAX_COLUMNS = 12, 4
FEWEST_ROWS = 5
"""Levels with fewer rows are in one group together."""
OTHERS = "(other levels)"


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


def groupings_of(target: Target, columns: Sequence[InputColumn]) -> tuple[list[Grouping], list[Grouping]]:
    """Groups by prediction and by error bar, and groups by the levels of each of these columns."""
    found: list[tuple[str, dict[str, NDArray[np.intp]]]] = []
    for name, values in (("prediction", target.mean), ("standard deviation", target.std)):
        bins = equal_bins(values, NUM_BINS, FEWEST_ROWS)
        if len(bins) > 1:
            found.append((name, {_range(values[rows]): rows for rows in bins}))
    num_binned = len(found)
    found += [(column.name, _by_level(column)) for column in columns if column.kind == "levels"][:MAX_COLUMNS]
    num_groups = sum(len(groups) for _, groups in found)
    groupings = [
        Grouping(name, [_group(level, target, rows, num_groups) for level, rows in groups.items()])
        for name, groups in found
    ]
    return groupings[:num_binned], groupings[num_binned:]


def group_figures(draw: Drawing, target: Target, columns: Sequence[InputColumn]) -> list[str]:
    """Coverage by prediction and by error bar; errors and coverage by the levels of categories."""
    binned, by_level = groupings_of(target, columns)
    if not binned and not by_level:
        return ["<p>There are too few test rows to form groups.</p>"]
    labels = {"prediction": "groups by prediction", "standard deviation": "groups by standard deviation"}
    drawn = [draw(partial(_coverage, grouping=g, xlabel=labels[g.name]), _alt(g, target), "", 2.5) for g in binned]
    left_out = [column.name for column in columns if column.kind == "levels"][MAX_COLUMNS:]
    more = f" Columns without a table: {text(listed(left_out), 320)}." if left_out else ""
    return [
        "<p>The error bars may be right on average and wrong in parts. Here are the shares of actual values inside "
        "their 95 % intervals in groups of rows. Grey is what chance explains if the intervals are right, for "
        f"independent rows and all groups of this section together.{more}</p>",
        f"<p>{_words([*binned, *by_level])}</p>",
        side_by_side(*drawn),
        *(_level_table(grouping) for grouping in by_level),
    ]


def _coverage(ax, grouping: Grouping, xlabel: str) -> None:
    groups = grouping.groups
    low, high = (np.array([group.expected[side] for group in groups]) for side in (0, 1))
    coverage = np.array([group.coverage for group in groups])
    plots.coverage_by_group(ax, [group.name for group in groups], coverage, low, high, LEVEL, xlabel)


def _alt(grouping: Grouping, target: Target) -> str:
    values = ", ".join(f"{group.name}: {share(group.coverage)}" for group in grouping.groups)
    return f"Coverage of the 95 % intervals of {target.name} by {grouping.name}: {values}."


def _words(groupings: Sequence[Grouping]) -> str:
    every = [(grouping, group) for grouping in groupings for group in grouping.groups]
    off = [(grouping, group) for grouping, group in every if group.is_beyond]
    if not off:
        return f"In all {len(every)} groups the coverage is as it should be, up to chance."
    off.sort(key=lambda found: -abs(found[1].coverage - LEVEL))
    shown = "; ".join(
        f"{text(grouping.name, 40)} {text(group.name, 40)}: {share(group.coverage)}, too "
        f"{'narrow' if group.coverage < LEVEL else 'wide'}"
        for grouping, group in off[:4]
    )
    more = f"; and {len(off) - 4} more" if len(off) > 4 else ""
    return f"In {len(off)} of {len(every)} groups the coverage is beyond what chance explains ({shown}{more})."


def _level_table(grouping: Grouping) -> str:
    cells = [
        [
            text(group.name, 40),
            f"{group.num_rows:,}",
            with_error(group.rmse, group.rmse_error),
            with_error(group.bias, group.bias_error),
            _marked(group),
        ]
        for group in sorted(grouping.groups, key=lambda group: -group.rmse)
    ]
    caption = (
        f"By {text(grouping.name, 60)}: RMSE and bias (the mean of actual minus predicted values) with standard "
        "errors, and the coverage of the 95 % intervals, with ↓ or ↑ if it is beyond chance."
    )
    return table(["Level", "Rows", "RMSE", "Bias", "Coverage"], cells, caption, kind="dense")


def _marked(group: Group) -> str:
    if not group.is_beyond:
        return share(group.coverage)
    return f'<span class="off">{share(group.coverage)}{NBSP}{"↓" if group.coverage < LEVEL else "↑"}</span>'


def _group(name: str, target: Target, rows: NDArray[np.intp], num_groups: int) -> Group:
    residual = target.y[rows] - target.mean[rows]
    square, n = np.square(residual), len(rows)
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
    own = [level for level in range(len(column.levels)) if counts[level] >= FEWEST_ROWS][:MAX_LEVELS]
    found = {column.levels[level]: np.flatnonzero(codes == level) for level in own}
    others = np.flatnonzero(~np.isin(codes, own))
    return found | ({OTHERS: others} if len(others) else {})


def _range(values: Vector) -> str:
    return f"{number(float(values.min()), 3)} to {number(float(values.max()), 3)}"
