"""Which columns of the user's table matter, and what they do to the prediction, as numbers.

Importance is how much worse predictions become if a column's values are shuffled.
``sklearn.inspection.permutation_importance`` has the spread over shuffles of a few rows. What a reader needs is the
standard error over rows, so the errors of every row are kept.

Effects are accumulated local ones, which respect correlated inputs: Apley and Zhu (2020), Visualizing the effects of
predictor variables in black box supervised learning models.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import sem

from cagp.class_metrics import row_scores
from cagp.estimators.predictive import Observations, Predictive
from cagp.plots import Z95, Vector
from cagp.report.subject import SEED, InputColumn, Matrix, Rows, Subject, as_matrix, sample, with_values

SHUFFLES = 5
MAX_COLUMNS = 30
MAX_ROWS, MIN_ROWS = 1000, 100
SHUFFLED_ROWS = 30_000
"""Rows with a shuffled value, over all columns and shuffles, unless ``MIN_ROWS`` asks for more."""
SCREENED_ROWS = 10_000
"""The same for the choice of the columns to measure, where there are more than ``MAX_COLUMNS``."""


class Importance(NamedTuple):
    """How much worse the predictions are without what each column says; arrays (columns, targets)."""

    columns: list[InputColumn]  # those that were measured, the most important first
    rmse: Matrix  # the increase of the root mean squared error in the unit of the target; of the Brier score's root
    rmse_error: Matrix  # its standard error
    nll: Matrix  # the increase of the negative log density or probability, in nats per row
    nll_error: Matrix
    num_rows: int
    not_measured: list[InputColumn]

    def for_target(self, j: int, by: Literal["rmse", "nll"] = "rmse") -> "Importance":
        """That for one target, the most important columns first; arrays (columns,)."""
        order = np.argsort(-getattr(self, by)[:, j], kind="stable")
        parts = (part[order, j] for part in self[1:5])
        return Importance._make([[self.columns[k] for k in order], *parts, *self[5:]])

    def weak(self, by: Literal["rmse", "nll"] = "rmse") -> list[str]:
        """Of one target, the columns whose importance cannot be told from zero."""
        weak = getattr(self, by) <= Z95 * getattr(self, f"{by}_error")
        return [self.columns[k].name for k in np.flatnonzero(weak)]

    @property
    def ranked(self) -> list[InputColumn]:
        """All columns, the most important first."""
        return [*self.columns, *self.not_measured]


def importance_of(subject: Subject) -> Importance:
    """The permutation importance of each column, measured on some of the rows.

    Every column is shuffled by the same permutations. A row's increase is the mean over the shuffles, and standard
    errors are those of means over rows. Time: predictions of about 30,000 rows, 10,000 more if there are many columns.
    """
    measured, others = _screened(subject)
    size = int(np.clip(SHUFFLED_ROWS // (SHUFFLES * max(len(measured), 1)), MIN_ROWS, MAX_ROWS))
    chosen = subject.sample(size)
    if len(chosen) < 2 or not measured:
        return Importance._make([[], *np.empty((4, 0, subject.y.shape[1])), 0, [*measured, *others]])
    rng = np.random.default_rng(SEED)
    donors = np.concatenate([rng.permutation(chosen) for _ in range(SHUFFLES)])
    repeated = np.tile(chosen, SHUFFLES)
    noise = None if subject.noise is None else subject.noise[repeated]
    answers = subject.predicted[chosen] if subject.is_classifier else subject.predicted.take(chosen)
    before, increases = _row_errors(answers, subject.y[chosen]), []
    for column in measured:
        answers = subject.answers(subject.encoded(subject.replaced(column, repeated, donors)), noise)
        after = _row_errors(answers, subject.y[repeated]).reshape(2, SHUFFLES, len(chosen), -1).mean(1)
        increases.append(_increase(before, after))
    parts = np.stack(increases, 1)
    # Each target counts the same, whatever its unit.
    spread = np.sqrt(before[0].mean(0))
    leading = parts[2] if subject.is_classifier else parts[0] / np.where(spread > 0, spread, 1)
    order = np.argsort(-leading.mean(1), kind="stable")
    return Importance._make([[measured[k] for k in order], *parts[:, order], len(chosen), others])


def _row_errors(answers: Predictive | Observations | Matrix, y: Matrix) -> NDArray[np.float64]:
    """The squared error and the negative log density of each row and target, (2, rows, targets)."""
    if isinstance(answers, np.ndarray):
        rows = row_scores(y[:, 0].astype(np.int64), answers)
        return np.stack([rows.brier, rows.log_loss])[..., None]
    return np.stack([np.square(y - answers.mean()), -answers.log_density(y)])


def _increase(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[Vector, Vector, Vector, Vector]:
    """Increases of RMSE and NLL, each with its standard error, for each target."""
    (square, nll), (square_after, nll_after) = before, after
    rmse, rmse_after = np.sqrt(square.mean(0)), np.sqrt(square_after.mean(0))
    # √m changes by dm / 2√m: the RMSE as a mean over rows, to first order.
    parts = [part / np.where(root > 0, 2 * root, 1) for part, root in ((square_after, rmse_after), (square, rmse))]
    change = nll_after - nll
    return rmse_after - rmse, sem(parts[0] - parts[1]), change.mean(0), sem(change)


def _screened(subject: Subject) -> tuple[list[InputColumn], list[InputColumn]]:
    """The columns to measure, and the others: of many, those whose shuffling changes a few predictions most."""
    columns = subject.columns
    if len(columns) <= MAX_COLUMNS:
        return columns, []
    chosen = subject.sample(int(np.clip(SCREENED_ROWS // len(columns), 8, 100)))
    donors = np.random.default_rng(SEED).permutation(chosen)
    predict = subject.model.predict_proba if subject.is_classifier else subject.model.predict
    before = as_matrix(predict(subject.encoded_rows.take(chosen)), len(chosen))
    spread, change = subject.y.std(0), []
    for column in columns:
        after = as_matrix(predict(subject.encoded(subject.replaced(column, chosen, donors))), len(chosen))
        change.append(np.square((after - before) / np.where(spread > 0, spread, 1)).mean())
    order = np.argsort(-np.array(change), kind="stable")
    return [columns[k] for k in sorted(order[:MAX_COLUMNS])], [columns[k] for k in sorted(order[MAX_COLUMNS:])]


# ---- effects ----

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
    """What the inputs do: a map if there are two columns of numbers, else the effects of the most important columns.

    It takes predictions of at most 6 · 2,000 further rows, or of 48² for a map.
    """
    num_columns = len(subject.column_names)
    if num_columns == len(ranked) == 2 and all(c.kind == "number" and np.isfinite(c.values).all() for c in ranked):
        return _surface(subject, *sorted(ranked, key=lambda column: column.place))
    if num_columns == 1:
        return [_fit(subject, column) for column in ranked]
    return [(_accumulated if c.is_ordered else _between_levels)(subject, c) for c in ranked[:NUM_EFFECTS]]


def limits_of(effects: Sequence[Effect]) -> tuple[float, float]:
    """The range of effects on one target with their bands, for figures with the same scale."""
    ends = [effect.mean + sign * Z95 * effect.std for effect in effects for sign in (-1, 1)]
    low, high = (float(end(np.concatenate(ends))) if ends else 0.0 for end in (np.min, np.max))
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin


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
    effect = np.zeros((len(nodes), mean.shape[1]))
    effect[1:] = np.cumsum(_means(high - low, bins), axis=0)
    effect -= [np.interp(values[chosen], nodes, of_target).mean() for of_target in effect.T]
    return Effect(column, nodes, effect, _means(std, np.concatenate([bins, bins + 1])), None, len(chosen))


def _bin_ends(values: Vector, chosen: Rows) -> Rows:
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


def _means(values: Matrix, groups: Rows) -> Matrix:
    """The mean of the rows in each of the groups 0, 1, ..., (groups, targets)."""
    means: Any = pd.DataFrame(values).groupby(groups).mean()
    return means.to_numpy()


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
    others = [(other.values[chosen], other.is_ordered) for other in subject.columns if other.place != column.place]
    weights = _similarity(codes, others)
    effect = _least_squares(at_level, codes, weights)
    effect -= effect[codes].mean(0)
    stds = _means(std[codes, np.arange(len(chosen))], codes)
    order = np.argsort([column.levels[level] for level in shown], kind="stable")
    return Effect(column, shown[order].astype(float), effect[order], stds[order], None, len(chosen))


def _least_squares(at_level: NDArray[np.float64], codes: Rows, weights: Matrix) -> Matrix:
    """Effects of the levels, (levels, targets), up to a constant, from predictions (levels, rows, targets)."""
    differences, changes = [], []
    for k, m in combinations(range(len(at_level)), 2):
        either, root = (codes == k) | (codes == m), np.sqrt(weights[k, m])
        differences.append(root * (np.arange(len(at_level)) == k) - root * (np.arange(len(at_level)) == m))
        changes.append(root * (at_level[k, either] - at_level[m, either]).mean(0))
    return np.linalg.lstsq(np.array(differences), np.array(changes), rcond=None)[0]


def _similarity(codes: Rows, others: Sequence[tuple[Vector, bool]]) -> Matrix:
    """The weight of each pair of levels: their rows, times the fourth power of how alike their other columns are.

    Alike are two samples of a column by 1 minus the largest distance of their distribution functions, or the total
    variation of their levels; of all columns the least alike one counts. The power is a heuristic.
    """
    num_rows = np.bincount(codes)
    alike = np.ones((len(num_rows), len(num_rows)))
    for values, is_ordered in others:
        places = np.unique(values, return_inverse=True)[1]  # NaN, if any, is the last
        shares = pd.crosstab(codes, places, normalize="index").to_numpy()
        below = shares.cumsum(1)
        distance = cdist(below, below, "chebyshev") if is_ordered else cdist(shares, shares, "cityblock") / 2
        alike = np.minimum(alike, 1 - distance)
    # Never zero, so that all levels are connected.
    return (num_rows[:, None] + num_rows) * np.clip(alike, 0.05, 1) ** 4


# ---- one or two columns ----


def _fit(subject: Subject, column: InputColumn) -> Effect:
    """The prediction as a function of the only column."""
    values = column.values
    if column.kind == "number":
        nodes = np.linspace(np.nanmin(values), np.nanmax(values), FIT_NODES)
        table = with_values(subject.X.iloc[np.zeros(FIT_NODES, int)], column.place, nodes)
    else:
        # Values that occur keep their type: all levels, or dates at even quantiles.
        donors = np.unique(values, return_index=True)[1]
        donors = donors[np.isfinite(values[donors])]
        if column.is_ordered:
            donors = donors[np.unique(np.linspace(0, len(donors) - 1, FIT_NODES).round().astype(int))]
        else:
            donors = np.array(sorted(donors[:MAX_LEVELS], key=column.shown))
        nodes, table = values[donors], subject.X.iloc[donors]
    mean, std, function_std = subject.moments(table)
    return Effect(column, nodes, mean, function_std, std, subject.num_rows)


def _surface(subject: Subject, first: InputColumn, second: InputColumn) -> Surface:
    across, up = (np.linspace(c.values.min(), c.values.max(), MAP_NODES) for c in (first, second))
    table = subject.X.iloc[np.zeros(MAP_NODES**2, int)]
    table = with_values(table, first.place, np.tile(across, MAP_NODES))
    table = with_values(table, second.place, np.repeat(up, MAP_NODES))
    mean, _, std = (part.reshape(MAP_NODES, MAP_NODES, -1) for part in subject.moments(table))
    return Surface((first, second), (across, up), mean, std)
