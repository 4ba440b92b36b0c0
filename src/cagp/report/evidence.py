"""What the report shows, as numbers: the model is asked here and nowhere else."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from cagp import metrics
from cagp.data.targets import encode_target
from cagp.plots import Vector

Matrix = NDArray[np.float64]
"""(rows, targets)"""

COMPONENT_ROWS = 300  # whose variance is taken apart: that may cost far more than predicting
NUM_EFFECTS = 6
EFFECT_NODES, BACKGROUND_ROWS = 31, 24
FIT_NODES = 200  # of the curve over a single input
MAP_NODES = 48  # a side, over two inputs
MAX_LEVELS = 12  # of a column of categories
SEED = 0


class Rows(NamedTuple):
    """The rows that are tested."""

    X: pd.DataFrame | np.ndarray
    y: Matrix
    num_given: int
    num_missing: int  # rows whose target is missing: left out

    def take(self, rows: NDArray[np.intp]) -> pd.DataFrame | np.ndarray:
        """Some of the inputs."""
        return self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]


def test_rows(model: Any, X: Any, y: Any, max_rows: int | None) -> Rows:
    """The rows with known targets, or ``max_rows`` of them drawn at random, in their order."""
    table, target, num_targets = _inputs_of(model, _table(X)), encode_target(y, "y_test"), model.n_outputs_
    values = target.values[:, None] if target.values.ndim == 1 else target.values
    if values.shape != (len(table), num_targets):
        raise ValueError(
            f"y_test has {values.shape[0]} rows and {values.shape[1]} column(s), expected {len(table)} rows, as in "
            f"X_test, and {num_targets} column(s), as in fit."
        )
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}, expected at least 1, or None for all rows.")
    kept = np.flatnonzero(~target.missing)
    num_missing = len(values) - len(kept)
    if max_rows is not None and len(kept) > max_rows:
        kept = np.sort(np.random.default_rng(SEED).choice(kept, max_rows, replace=False))
    every = Rows(table, values, len(values), num_missing)
    return every if len(kept) == len(values) else every._replace(X=every.take(kept), y=values[kept])


def sample(num_rows: int, size: int) -> NDArray[np.intp]:
    """``size`` of the rows, drawn at random, in their order; all if there are no more."""
    if num_rows <= size:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, size, replace=False))


class Answers(NamedTuple):
    """The mean and standard deviation of new observations, and that of the function without noise."""

    mean: Matrix
    std: Matrix
    latent_std: Matrix


def ask(model: Any, X: pd.DataFrame | np.ndarray) -> Answers:
    """What the model predicts, all finite."""
    mean, std = (_matrix(part, len(X)) for part in model.predict(X, return_std=True))
    wrong = ~(np.isfinite(mean) & np.isfinite(std) & (std > 0)).all(1)
    if wrong.any():
        raise ValueError(
            f"the model's predictions of {int(wrong.sum())} of {len(X)} rows are not finite, or have no positive "
            "standard deviation; a report would say nothing of use. See model.fit_report_ for what the fit found."
        )
    noise = _matrix(model.noise_std(X), len(X))
    return Answers(mean, std, std * np.sqrt((1 - np.square(noise / std)).clip(0)))


# ---- how good ----


class Scores(NamedTuple):
    """The metrics of one target, in its unit; see ``cagp.metrics``."""

    nll: float
    rmse: float
    r2: float  # NaN where the targets do not vary
    crps: float
    coverage: float
    width: float


def scores(y: Vector, mean: Vector, std: Vector) -> Scores:
    """The metrics of predictions, computed in a unit in which no square over- or underflows."""
    unit, targets, centre, variance = _scaled(y, mean, std)
    spread = float((targets - targets.mean()).square().sum())
    return Scores(
        metrics.nll(targets, centre, variance) + float(np.log(unit)),
        metrics.rmse(targets, centre) * unit,
        1 - float((targets - centre).square().sum()) / spread if spread > 0 else float("nan"),
        metrics.crps(targets, centre, variance) * unit,
        metrics.coverage(targets, centre, variance),
        metrics.interval_width(variance) * unit,
    )


def _scaled(y: Vector, mean: Vector, std: Vector) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A unit, and in it targets, means and variances."""
    unit = float(np.median(std))
    parts = [torch.from_numpy(np.ascontiguousarray(part / unit)) for part in (y, mean, std)]
    return unit, parts[0], parts[1], parts[2].square()


def baseline(model: Any, j: int, y: Vector) -> Scores:
    """The metrics of one prediction for all rows: mean and standard deviation of the training targets."""
    centre, spread = (float(np.ravel(part)[j]) for part in (model.scaler_.target_mean, model.scaler_.target_std))
    return scores(y, np.full_like(y, centre), np.full_like(y, spread))


def chance(level: float, num_rows: int) -> tuple[float, float]:
    """Between what the observed coverage lies with probability 95 %, were the intervals and the independence right."""
    low, high = binom.ppf([0.025, 0.975], num_rows, level) / num_rows
    return float(low), float(high)


def coverage_error(y: Vector, mean: Vector, std: Vector) -> tuple[float, float]:
    """The mean absolute difference of observed and promised coverage, and what is expected of right predictions.

    An observed share is nearly normal about p with variance p (1 - p) / n, whence E|share - p| ≈ √(2p (1 - p) / πn).
    """
    found = metrics.calibration(*_scaled(y, mean, std)[1:])
    expected = (2 * found.levels * (1 - found.levels) / (np.pi * len(y))).sqrt().mean()
    return found.error, float(expected)


# ---- where the uncertainty comes from ----


class Components(NamedTuple):
    """The predictive variance of some test rows, taken apart."""

    noise: Matrix
    latent: Matrix
    computational: Matrix | None  # None where it is not known
    kind: str


def components(model: Any, rows: Rows) -> Components:
    """The parts for up to ``COMPONENT_ROWS`` of the rows."""
    X = rows.take(sample(len(rows.y), COMPONENT_ROWS))
    parts = model.predict(X, return_components=True)[-1]
    noise, latent, computational = (_matrix(parts[name], len(X)) for name in ("noise", "latent", "computational"))
    unknown = parts["computational_kind"] == "unknown" or not np.isfinite(computational).all()
    return Components(noise, latent, None if unknown else computational, parts["computational_kind"])


# ---- what the inputs do ----


class Axis(NamedTuple):
    """A column of the table and the values at which its effect is shown."""

    name: str
    place: int
    kind: str  # "number", "date", "duration" or "levels"
    nodes: Any  # in the column's own type
    values: Vector  # the nodes as numbers: days (since 1970) for durations and dates, 0, 1, ... for levels
    rows: Vector  # of the column, as such numbers


class Effect(NamedTuple):
    """The prediction over one input; an array (nodes, targets) each."""

    axis: Axis
    mean: Matrix
    std: Matrix  # of the function
    observation_std: Matrix
    num_background: int  # rows it is a mean over; 0 where there is no other input


class Surface(NamedTuple):
    """The prediction over two inputs; arrays (nodes of the second, nodes of the first, targets)."""

    axes: tuple[Axis, Axis]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]  # of the function


def varying(model: Any, rows: Rows) -> NDArray[np.bool_]:
    """Which encoded inputs vary among the test rows; all if none does.

    The lengthscale of an input that is constant in training stays where it started and means nothing.
    """
    table = rows.X if isinstance(rows.X, pd.DataFrame) else pd.DataFrame(rows.X)
    names = [str(name) for name in model.feature_names_out_]
    varies = dict(zip(column_names(rows.X), (table.nunique() > 1).tolist(), strict=True))
    if len(names) == len(varies):
        found = np.array(list(varies.values()))
    else:
        constant = [name for name, varied in varies.items() if not varied]
        found = np.array([not any(name == c or name.startswith(f"{c}=") for c in constant) for name in names])
    return found if found.any() else np.ones_like(found)


def relevance_of_columns(model: Any, names: Sequence[str]) -> Vector | None:
    """1 / lengthscale of each column of the table, the largest where it is encoded as several; None where unknown."""
    lengthscales = _lengthscales(model)
    if lengthscales is None:
        return None
    encoded = [str(name) for name in model.feature_names_out_]
    if len(encoded) == len(names):
        return 1 / lengthscales
    relevance = dict.fromkeys(names, 0.0)
    for name, lengthscale in zip(encoded, lengthscales, strict=True):
        # "column=level" belongs to "column"; a column that has a "=" in its name is found first.
        owner = (
            name if name in relevance else max((n for n in names if name.startswith(f"{n}=")), key=len, default=None)
        )
        if owner is not None:
            relevance[owner] = max(relevance[owner], 1 / lengthscale)
    return np.array([relevance[name] for name in names])


def learned(model: Any, rows: Rows) -> list[Effect] | Surface:
    """What the inputs do: a map for two columns of numbers, else the effects of the most relevant columns.

    At most 6 · 31 · 24 further predictions, or 48².
    """
    names = column_names(rows.X)
    axes = [axis for j, name in enumerate(names) if (axis := _axis(rows, j, name)) is not None]
    if len(names) == len(axes) == 2 and all(axis.kind == "number" for axis in axes):
        return _surface(model, rows, axes[0], axes[1])
    relevance = relevance_of_columns(model, names)
    if relevance is not None:
        axes.sort(key=lambda axis: -relevance[axis.place])
    return [_effect(model, rows, axis, len(names)) for axis in axes[:NUM_EFFECTS]]


def _effect(model: Any, rows: Rows, axis: Axis, num_columns: int) -> Effect:
    if num_columns == 1:
        fine = axis
        if axis.kind == "number":
            nodes = np.linspace(axis.rows.min(), axis.rows.max(), FIT_NODES)
            fine = axis._replace(nodes=nodes, values=nodes)
        found = ask(model, _with(rows.take(np.zeros(len(fine.values), np.intp)), fine, fine.nodes))
        return Effect(fine, found.mean, found.latent_std, found.std, 0)
    background = sample(len(rows.y), BACKGROUND_ROWS)
    shape = (len(axis.values), len(background), -1)
    table = rows.take(np.tile(background, len(axis.values)))
    found = ask(model, _with(table, axis, np.repeat(axis.nodes, len(background))))
    mean, std, observation = (part.reshape(shape).mean(1) for part in (found.mean, found.latent_std, found.std))
    return Effect(axis, mean, std, observation, len(background))


def _surface(model: Any, rows: Rows, first: Axis, second: Axis) -> Surface:
    ends = [np.linspace(axis.rows.min(), axis.rows.max(), MAP_NODES) for axis in (first, second)]
    first, second = (axis._replace(nodes=e, values=e) for axis, e in zip((first, second), ends, strict=True))
    table = rows.take(np.zeros(MAP_NODES**2, np.intp))
    table = _with(table, first, np.tile(first.nodes, MAP_NODES))
    table = _with(table, second, np.repeat(second.nodes, MAP_NODES))
    found = ask(model, table)
    mean, std = (part.reshape(MAP_NODES, MAP_NODES, -1) for part in (found.mean, found.latent_std))
    return Surface((first, second), mean, std)


def _axis(rows: Rows, place: int, name: str) -> Axis | None:
    """None for a column whose effect cannot be shown: it is constant, or has too many categories."""
    if not isinstance(rows.X, pd.DataFrame):
        if rows.X.dtype.kind not in "biuf":
            return None
        return _numbers(name, place, rows.X[:, place].astype(float))
    column = rows.X.iloc[:, place]
    types = pd.api.types
    if types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype):
        return _numbers(name, place, column.to_numpy(dtype=float))
    if types.is_datetime64_any_dtype(column.dtype):
        epoch = pd.Timestamp(0, tz=column.dt.tz)
        axis = _numbers(name, place, ((column - epoch) / pd.Timedelta(days=1)).to_numpy(dtype=float))
        if axis is None:
            return None
        return axis._replace(kind="date", nodes=pd.Series(epoch + pd.to_timedelta(axis.values, unit="D")))
    if types.is_timedelta64_dtype(column.dtype):
        axis = _numbers(f"{name} (days)", place, (column / pd.Timedelta(days=1)).to_numpy(dtype=float))
        if axis is None:
            return None
        return axis._replace(kind="duration", nodes=pd.Series(pd.to_timedelta(axis.values, unit="D")))
    levels = column.value_counts()  # the most frequent first
    levels = sorted(levels[levels > 0].index[:MAX_LEVELS], key=str)
    if len(levels) < 2:
        return None
    places = pd.Index(levels).get_indexer(column)
    return Axis(name, place, "levels", pd.Series(levels), np.arange(len(levels), dtype=float), places.astype(float))


def _numbers(name: str, place: int, values: Vector) -> Axis | None:
    low, high = np.quantile(values, [0.01, 0.99])
    if not low < high:
        low, high = values.min(), values.max()
    if not low < high:
        return None
    nodes = np.linspace(low, high, EFFECT_NODES)
    return Axis(name, place, "number", nodes, nodes, values)


def _with(X: pd.DataFrame | np.ndarray, axis: Axis, values: Any) -> pd.DataFrame | np.ndarray:
    """The table with other values in one column."""
    if not isinstance(X, pd.DataFrame):
        changed = X.astype(float)
        changed[:, axis.place] = values
        return changed
    column = pd.Series(values).reset_index(drop=True)
    if axis.kind == "levels":
        column = column.astype(X.dtypes.iloc[axis.place])
    frame = X.reset_index(drop=True)
    columns = [column if j == axis.place else frame.iloc[:, j] for j in range(frame.shape[1])]
    return pd.concat(columns, axis=1).set_axis(frame.columns, axis=1)


# ---- tables ----


def column_names(X: pd.DataFrame | np.ndarray) -> list[str]:
    """The names of a frame's columns; "x0", "x1", ... for an array."""
    return [str(name) for name in X.columns] if isinstance(X, pd.DataFrame) else [f"x{j}" for j in range(X.shape[1])]


def _table(X: Any) -> pd.DataFrame | np.ndarray:
    if not isinstance(X, pd.DataFrame) and hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, pd.DataFrame):
        return X
    array = np.asarray(X)
    if array.dtype.names is not None:
        return pd.DataFrame(array)
    if array.ndim != 2:
        raise ValueError(f"X_test has shape {array.shape}, expected a table of rows and columns.")
    return array


def _inputs_of(model: Any, table: pd.DataFrame | np.ndarray) -> pd.DataFrame | np.ndarray:
    """A frame's columns that the model knows, where it has them all: others do nothing."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if isinstance(table, pd.DataFrame) and names:
        place = {str(name): j for j, name in enumerate(table.columns)}
        if set(names) <= set(place):
            return table.iloc[:, [place[name] for name in names]]
    return table


def _matrix(values: Any, num_rows: int) -> Matrix:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    return np.asarray(values, float).reshape(num_rows, -1)


def _lengthscales(model: Any) -> Vector | None:
    values = np.asarray(model.lengthscales_, float).ravel()
    return values if np.isfinite(values).all() else None
