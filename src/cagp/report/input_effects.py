"""What the inputs do to the prediction, as numbers: accumulated local effects, which respect correlated inputs.

Apley and Zhu (2020), Visualizing the effects of predictor variables in black box supervised learning models.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cagp.plots import Vector
from cagp.report.columns import InputColumn, input_columns, with_values_of
from cagp.report.rows import HeldOutRows, Matrix, Table, column_names, function_moments, predictions, sample
from cagp.report.subject import AnyModel, Model, regressor_inputs

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


class Surface(NamedTuple):
    """The prediction as a function of two inputs; arrays (nodes of the second, nodes of the first, targets)."""

    columns: tuple[InputColumn, InputColumn]
    nodes: tuple[Vector, Vector]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]  # of the function


def varying(model: AnyModel, rows: HeldOutRows) -> NDArray[np.bool_]:
    """Which encoded inputs vary among the test rows; all of them if none does.

    The lengthscale of an input that is constant in training remains at its starting value and means nothing.
    """
    X = regressor_inputs(model, rows.X)
    table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
    names = [str(name) for name in model.feature_names_out_]
    given = column_names(X if isinstance(X, pd.DataFrame) else np.asarray(X))
    varies = dict(zip(given, (table.nunique() > 1).tolist(), strict=True))
    if len(names) == len(varies):
        found = np.array(list(varies.values()))
    else:
        constant = [name for name, varied in varies.items() if not varied]
        found = np.array([not any(_comes_from(name, c) for c in constant) for name in names])
    return found if found.any() else np.ones_like(found)


def _comes_from(encoded: str, column: str) -> bool:
    """Whether an encoded input is that of a column, of one of its levels, or says where it is missing."""
    return encoded in (column, f"{column} is missing") or encoded.startswith(f"{column}=")


def input_effects_of(model: Model, rows: HeldOutRows, ranked: Sequence[InputColumn]) -> list[Effect] | Surface:
    """What the inputs do: a map if there are two columns of numbers, else the effects of the first columns.

    It takes predictions of at most 6 · 2,000 further rows, or of 48² for a map.

    Args:
        ranked: the columns that vary, the most important first.
    """
    num_columns = len(column_names(rows.X))
    if num_columns == len(ranked) == 2 and all(_is_complete(column) for column in ranked):
        first, second = sorted(ranked, key=lambda column: column.place)
        return _surface(model, rows, first, second)
    if num_columns == 1:
        return [_fit(model, rows, column) for column in ranked]
    others = input_columns(rows)
    return [
        _accumulated(model, rows, column)
        if column.is_ordered
        else _between_levels(model, rows, column, [other for other in others if other.place != column.place])
        for column in ranked[:NUM_EFFECTS]
    ]


def _is_complete(column: InputColumn) -> bool:
    return column.kind == "number" and bool(np.isfinite(column.values).all())


# ---- columns of numbers, dates and durations ----


def _accumulated(model: Model, rows: HeldOutRows, column: InputColumn) -> Effect:
    """The accumulated local effect: mean changes of the prediction across each bin, for the rows in the bin, summed up.

    A row is moved to both ends of its own bin and nowhere else, so that no input meets others that it never occurs
    with. For f(x) = Σⱼ gⱼ(xⱼ) the effect of column j is gⱼ up to a constant, however the columns are correlated.
    """
    values = column.values
    known = np.flatnonzero(np.isfinite(values))
    chosen = known[sample(len(known), EFFECT_ROWS)]
    ends = _bin_ends(values, chosen)
    nodes = values[ends]
    chosen = chosen[(values[chosen] >= nodes[0]) & (values[chosen] <= nodes[-1])]
    # Bin k is (node k, node k + 1]; the first one has its lower end as well.
    bins = (np.searchsorted(nodes, values[chosen], side="left") - 1).clip(0)
    table = rows.take(np.tile(chosen, 2))
    moved = with_values_of(table, column.place, np.concatenate([ends[bins], ends[bins + 1]]), rows.X)
    mean, std = function_moments(model, moved)
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


def _between_levels(model: Model, rows: HeldOutRows, column: InputColumn, others: Sequence[InputColumn]) -> Effect:
    """The counterpart for levels: mean changes of the prediction between two levels, for the rows with one of them.

    Effects a minimise Σ w(l, m) (a(l) - a(m) - d(l, m))², where d(l, m) is the mean change from m to l and w is the
    larger, the more rows the two levels have and the more alike the other columns of these rows are.
    """
    num_levels = min(len(column.levels), MAX_LEVELS)
    among = np.flatnonzero(column.values < num_levels)
    chosen = among[sample(len(among), LEVEL_ROWS // num_levels)]
    codes = column.values[chosen].astype(int)
    shown = np.unique(codes)
    if len(shown) < 2:  # the sample missed all levels but one
        nothing = np.zeros((len(shown), rows.y.shape[1]))
        return Effect(column, shown.astype(float), nothing, nothing, None, len(chosen))
    codes = np.searchsorted(shown, codes)
    donors = np.array([np.flatnonzero(column.values == level)[0] for level in shown])
    table = rows.take(np.tile(chosen, len(shown)))
    mean, std = function_moments(model, with_values_of(table, column.place, np.repeat(donors, len(chosen)), rows.X))
    at_level = mean.reshape(len(shown), len(chosen), -1)
    weights = _similarity(codes, len(shown), [other.values[chosen] for other in others], [o.is_ordered for o in others])
    effect = _least_squares(at_level, codes, weights)
    effect -= effect[codes].mean(0)
    own = std.reshape(at_level.shape)[codes, np.arange(len(chosen))]
    order = np.argsort([column.levels[level] for level in shown], kind="stable")
    found = _means(own, codes, len(shown))
    return Effect(column, shown[order].astype(float), effect[order], found[order], None, len(chosen))


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


def _fit(model: Model, rows: HeldOutRows, column: InputColumn) -> Effect:
    """The prediction as a function of the only column."""
    known = np.flatnonzero(np.isfinite(column.values))
    if column.is_ordered and column.kind == "number":
        nodes = np.linspace(column.values[known].min(), column.values[known].max(), FIT_NODES)
        table = _with_numbers(rows.take(np.zeros(FIT_NODES, np.intp)), column, nodes)
    else:
        # Values that occur keep their type: all levels, or dates at even quantiles.
        _, first = np.unique(column.values[known], return_index=True)
        donors = known[first]
        if column.is_ordered:
            donors = donors[np.unique(np.linspace(0, len(donors) - 1, FIT_NODES).round().astype(int))]
        else:
            donors = np.array(sorted(donors[:MAX_LEVELS], key=lambda row: column.levels[int(column.values[row])]))
        nodes, table = column.values[donors], rows.take(donors)
    found = predictions(model, table)
    return Effect(column, nodes, found.mean, found.latent_std, found.std, len(rows.y))


def _surface(model: Model, rows: HeldOutRows, first: InputColumn, second: InputColumn) -> Surface:
    across, up = (np.linspace(c.values.min(), c.values.max(), MAP_NODES) for c in (first, second))
    table = rows.take(np.zeros(MAP_NODES**2, np.intp))
    table = _with_numbers(table, first, np.tile(across, MAP_NODES))
    table = _with_numbers(table, second, np.repeat(up, MAP_NODES))
    found = predictions(model, table)
    mean, std = (part.reshape(MAP_NODES, MAP_NODES, -1) for part in (found.mean, found.latent_std))
    return Surface((first, second), (across, up), mean, std)


def _with_numbers(X: Table, column: InputColumn, values: Any) -> Table:
    """The table with other numbers in one column."""
    if not isinstance(X, pd.DataFrame):
        changed = X.astype(float)
        changed[:, column.place] = values
        return changed
    changed = X.reset_index(drop=True)
    changed.isetitem(column.place, pd.Series(values))
    return changed
