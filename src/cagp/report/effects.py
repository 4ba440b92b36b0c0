"""What the inputs do to the prediction, as numbers: accumulated local effects, which respect correlated inputs.

Apley and Zhu (2020), Visualizing the effects of predictor variables in black box supervised learning models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cagp.plots import Vector
from cagp.report.columns import InputColumn, Matrix, Table
from cagp.report.subject import Subject, sample

NUM_EFFECTS = 6
EFFECT_ROWS = 500  # that are moved to both ends of their bin
LEVEL_ROWS = 2000  # that are moved to another level, at most
ROWS_PER_BIN, MAX_BINS = 25, 20
FIT_NODES = 200  # of the curve over a single input
MAP_NODES = 48  # a side, over two inputs
MAX_LEVELS = 12  # of a column of levels: the most frequent ones


class Effect(NamedTuple):
    """What one column does to the prediction; arrays (nodes, targets)."""

    column: InputColumn
    nodes: Vector  # values of the column, as numbers; codes of levels
    mean: Matrix  # the accumulated effect, whose mean over the rows is zero; the prediction itself if ``is_alone``
    std: Matrix  # of the function (without noise), as a mean over rows near the node
    observation_std: Matrix | None  # of a new observation; known if ``is_alone``
    num_rows: int  # the number of rows it is a mean over

    @property
    def is_alone(self) -> bool:
        """Whether there is no other column, so that the effect is the prediction itself."""
        return self.observation_std is not None

    def for_target(self, j: int) -> "Effect":
        """That on one target; arrays (nodes,)."""
        observation_std = None if self.observation_std is None else self.observation_std[:, j]
        return self._replace(mean=self.mean[:, j], std=self.std[:, j], observation_std=observation_std)

    @property
    def names(self) -> list[str]:
        """The names of the nodes, of a column of levels."""
        return [self.column.levels[int(code)] for code in self.nodes]

    @property
    def marks(self) -> Vector:
        """Some values that occur, between the first and the last node."""
        values = self.column.values[sample(len(self.column.values), 80)]
        return values[(values >= self.nodes[0]) & (values <= self.nodes[-1])]


class Surface(NamedTuple):
    """The prediction as a function of two inputs; arrays (nodes of the second, nodes of the first, targets)."""

    columns: tuple[InputColumn, InputColumn]
    nodes: tuple[Vector, Vector]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]  # of the function

    def for_target(self, j: int) -> "Surface":
        """That of one target; arrays (nodes of the second, nodes of the first)."""
        return self._replace(mean=self.mean[..., j], std=self.std[..., j])


def effects_of(subject: Subject, ranked: Sequence[InputColumn]) -> list[Effect] | Surface:
    """What the inputs do: a map if there are two columns of numbers, else the effects of the first columns.

    It takes predictions of at most 6 · 2,000 further rows, or of 48² for a map.

    Args:
        ranked: the columns that vary, the most important first.
    """
    num_columns = len(subject.column_names)
    if num_columns == len(ranked) == 2 and all(_is_complete(column) for column in ranked):
        first, second = sorted(ranked, key=lambda column: column.place)
        return _surface(subject, first, second)
    if num_columns == 1:
        return [_fit(subject, column) for column in ranked]
    effect = {True: _accumulated, False: _between_levels}
    return [effect[column.is_ordered](subject, column) for column in ranked[:NUM_EFFECTS]]


def _is_complete(column: InputColumn) -> bool:
    return column.kind == "number" and bool(np.isfinite(column.values).all())


# ---- columns of numbers, dates and durations ----


def _accumulated(subject: Subject, column: InputColumn) -> Effect:
    """The accumulated local effect: mean changes of the prediction across each bin, for the rows in the bin, summed up.

    A row is moved to both ends of its own bin and nowhere else, so that no input meets others that it never occurs
    with. For f(x) = Σⱼ gⱼ(xⱼ) the effect of column j is gⱼ up to a constant, however the columns are correlated.
    """
    values = column.values
    finite = np.flatnonzero(np.isfinite(values))
    chosen = finite[sample(len(finite), EFFECT_ROWS)]
    ends = _bin_ends(values, chosen)
    nodes = values[ends]
    chosen = chosen[(values[chosen] >= nodes[0]) & (values[chosen] <= nodes[-1])]
    # Bin k is (node k, node k + 1]; the first one has its lower end as well.
    bins = (np.searchsorted(nodes, values[chosen], side="left") - 1).clip(0)
    donors = np.concatenate([ends[bins], ends[bins + 1]])
    mean, std = subject.function(subject.replaced(column, np.tile(chosen, 2), donors))
    low, high = np.split(mean, 2)
    num_bins = len(nodes) - 1
    effect = np.zeros((num_bins + 1, mean.shape[1]))
    effect[1:] = np.cumsum(_means(high - low, bins, num_bins), axis=0)
    for j in range(effect.shape[1]):
        effect[:, j] -= np.interp(values[chosen], nodes, effect[:, j]).mean()
    return Effect(column, nodes, effect, _means(std, np.concatenate([bins, bins + 1]), num_bins + 1), None, len(chosen))


def _bin_ends(values: Vector, chosen: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows whose values are the ends of bins with about as many rows each, from the 1 % to the 99 % quantile."""
    ordered = chosen[np.argsort(values[chosen], kind="stable")]
    num_bins = int(np.clip(len(chosen) // ROWS_PER_BIN, 1, MAX_BINS))
    for tail in (0.01, 0.0):
        shares = np.linspace(tail, 1 - tail, num_bins + 1)
        rows = ordered[np.round(shares * (len(ordered) - 1)).astype(int)]
        _, first = np.unique(values[rows], return_index=True)
        if len(first) > 1:
            return rows[first]
    # All quantiles are the same value, but for a few rows: the smallest and the largest one.
    return ordered[[0, -1]]


def _means(values: Matrix, groups: NDArray[np.intp], num_groups: int) -> Matrix:
    """The mean of the rows in each group, (groups, targets); no group is empty."""
    sums = np.zeros((num_groups, values.shape[1]))
    np.add.at(sums, groups, values)
    return sums / np.bincount(groups, minlength=num_groups)[:, None]


# ---- columns of levels ----


def _between_levels(subject: Subject, column: InputColumn) -> Effect:
    """The counterpart for levels: mean changes of the prediction between two levels, for the rows with one of them.

    Effects a minimise Σ w(l, m) (a(l) - a(m) - d(l, m))², where d(l, m) is the mean change from m to l and w is the
    larger, the more rows the two levels have and the more alike the other columns of these rows are.
    """
    num_levels = min(len(column.levels), MAX_LEVELS)
    among = np.flatnonzero(column.values < num_levels)
    chosen = among[sample(len(among), LEVEL_ROWS // num_levels)]
    shown, codes = np.unique(column.values[chosen].astype(int), return_inverse=True)
    if len(shown) < 2:  # the sample missed all levels but one
        nothing = np.zeros((len(shown), subject.y.shape[1]))
        return Effect(column, shown.astype(float), nothing, nothing, None, len(chosen))
    donors = np.array([np.flatnonzero(column.values == level)[0] for level in shown])
    moved = subject.replaced(column, np.tile(chosen, len(shown)), np.repeat(donors, len(chosen)))
    at_level, std = (part.reshape(len(shown), len(chosen), -1) for part in subject.function(moved))
    others = [other for other in subject.columns if other.place != column.place]
    weights = _similarity(codes, len(shown), [other.values[chosen] for other in others], [o.is_ordered for o in others])
    effect = _least_squares(at_level, codes, weights)
    effect -= effect[codes].mean(0)
    stds = _means(std[codes, np.arange(len(chosen))], codes, len(shown))
    order = np.argsort([column.levels[level] for level in shown], kind="stable")
    return Effect(column, shown[order].astype(float), effect[order], stds[order], None, len(chosen))


def _least_squares(at_level: NDArray[np.float64], codes: NDArray[np.intp], weights: Matrix) -> Matrix:
    """Effects of the levels, (levels, targets), up to a constant, from predictions (levels, rows, targets)."""
    num_levels = len(at_level)
    laplacian, right = np.zeros((num_levels, num_levels)), np.zeros((num_levels, at_level.shape[2]))
    for k in range(num_levels):
        for m in range(k):
            either = (codes == k) | (codes == m)
            change = (at_level[k, either] - at_level[m, either]).mean(0)
            weight = weights[k, m]
            laplacian[[k, m], [k, m]] += weight
            laplacian[[k, m], [m, k]] -= weight
            right[k] += weight * change
            right[m] -= weight * change
    return np.asarray(np.linalg.lstsq(laplacian, right, rcond=None)[0], float)


def _similarity(
    codes: NDArray[np.intp], num_levels: int, others: Sequence[Vector], ordered: Sequence[bool]
) -> NDArray[np.float64]:
    """The weight of each pair of levels: their rows, times the fourth power of how alike their other columns are.

    Alike are two samples of a column by 1 minus the largest distance of their distribution functions, or the total
    variation of their levels; of all columns the least alike one counts. The power is a heuristic.
    """
    alike = np.ones((num_levels, num_levels))
    for values, is_ordered in zip(others, ordered, strict=True):
        places = np.unique(values, return_inverse=True)[1]  # NaN, if any, is the last
        shares = np.stack([np.bincount(places[codes == k], minlength=places.max() + 1) for k in range(num_levels)])
        shares = shares / shares.sum(1, keepdims=True)
        if is_ordered:
            shares = shares.cumsum(1)
        distance = np.abs(shares[:, None] - shares[None])
        distance = distance.max(2) if is_ordered else distance.sum(2) / 2
        alike = np.minimum(alike, 1 - distance)
    num_rows = np.bincount(codes, minlength=num_levels)
    # Never zero, so that all levels are connected.
    return (num_rows[:, None] + num_rows) * np.clip(alike, 0.05, 1) ** 4


# ---- one or two columns ----


def _fit(subject: Subject, column: InputColumn) -> Effect:
    """The prediction as a function of the only column."""
    finite = np.flatnonzero(np.isfinite(column.values))
    if column.kind == "number":
        nodes = np.linspace(column.values[finite].min(), column.values[finite].max(), FIT_NODES)
        table = _with_numbers(subject.take(np.zeros(FIT_NODES, np.intp)), column, nodes)
    else:
        # Values that occur keep their type: all levels, or dates at even quantiles.
        donors = finite[np.unique(column.values[finite], return_index=True)[1]]
        if column.is_ordered:
            donors = donors[np.unique(np.linspace(0, len(donors) - 1, FIT_NODES).round().astype(int))]
        else:
            donors = np.array(sorted(donors[:MAX_LEVELS], key=lambda row: column.levels[int(column.values[row])]))
        nodes, table = column.values[donors], subject.take(donors)
    mean, std, function_std = subject.moments(table)
    return Effect(column, nodes, mean, function_std, std, subject.num_rows)


def _surface(subject: Subject, first: InputColumn, second: InputColumn) -> Surface:
    across, up = (np.linspace(c.values.min(), c.values.max(), MAP_NODES) for c in (first, second))
    table = subject.take(np.zeros(MAP_NODES**2, np.intp))
    table = _with_numbers(table, first, np.tile(across, MAP_NODES))
    table = _with_numbers(table, second, np.repeat(up, MAP_NODES))
    mean, _, std = (part.reshape(MAP_NODES, MAP_NODES, -1) for part in subject.moments(table))
    return Surface((first, second), (across, up), mean, std)


def _with_numbers(X: Table, column: InputColumn, values: Vector) -> Table:
    """The table with other numbers in one column."""
    if not isinstance(X, pd.DataFrame):
        changed = X.astype(float)
        changed[:, column.place] = values
        return changed
    changed = X.reset_index(drop=True)
    changed.isetitem(column.place, pd.Series(values))
    return changed
