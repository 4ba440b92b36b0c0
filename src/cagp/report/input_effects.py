"""What the inputs do to the prediction, and which of them matter, as numbers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cagp.estimators import GPRegressor
from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Matrix, column_names, predictions, sample

NUM_EFFECTS = 6
EFFECT_NODES, BACKGROUND_ROWS = 31, 24
FIT_NODES = 200  # of the curve over a single input
MAP_NODES = 48  # a side, over two inputs
MAX_LEVELS = 12  # of a column of categories


class Axis(NamedTuple):
    """A column of the table and the values at which its effect is shown."""

    name: str
    place: int
    kind: str  # "number", "date", "duration" or "levels"
    nodes: Any  # in the column's own type
    values: Vector  # the nodes as numbers: days for durations, days since 1970 for dates, 0, 1, ... for levels
    rows: Vector  # the values of the column in the same units


class Effect(NamedTuple):
    """The prediction as a function of one input; arrays (nodes, targets)."""

    axis: Axis
    mean: Matrix
    std: Matrix  # of the function
    observation_std: Matrix
    num_background: int  # the number of rows it is a mean over; 0 if there is no other input


class Surface(NamedTuple):
    """The prediction as a function of two inputs; arrays (nodes of the second, nodes of the first, targets)."""

    axes: tuple[Axis, Axis]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]  # of the function


def varying(model: GPRegressor, rows: HeldOutRows) -> NDArray[np.bool_]:
    """Which encoded inputs vary among the test rows; all of them if none does.

    The lengthscale of an input that is constant in training remains at its starting value and means nothing.
    """
    table = rows.X if isinstance(rows.X, pd.DataFrame) else pd.DataFrame(rows.X)
    names = [str(name) for name in model.feature_names_out_]
    varies = dict(zip(column_names(rows.X), (table.nunique() > 1).tolist(), strict=True))
    if len(names) == len(varies):
        found = np.array(list(varies.values()))
    else:
        constant = [name for name, varied in varies.items() if not varied]
        found = np.array([not any(_comes_from(name, c) for c in constant) for name in names])
    return found if found.any() else np.ones_like(found)


def relevance_of_columns(model: GPRegressor, names: Sequence[str]) -> Vector | None:
    """1 / lengthscale of each column of the table, the largest one if it is encoded as several; None if unknown."""
    lengthscales = _lengthscales(model)
    if lengthscales is None:
        return None
    encoded = [str(name) for name in model.feature_names_out_]
    if len(encoded) == len(names):
        return 1 / lengthscales
    relevance = dict.fromkeys(names, 0.0)
    for name, lengthscale in zip(encoded, lengthscales, strict=True):
        # "column=level" belongs to "column", unless there is a column of that whole name.
        owner = name if name in relevance else max((n for n in names if _comes_from(name, n)), key=len, default=None)
        if owner is not None:
            relevance[owner] = max(relevance[owner], 1 / lengthscale)
    return np.array([relevance[name] for name in names])


def _comes_from(encoded: str, column: str) -> bool:
    """Whether an encoded input is that of a column, of one of its levels, or says where it is missing."""
    return encoded in (column, f"{column} is missing") or encoded.startswith(f"{column}=")


def input_effects_of(model: GPRegressor, rows: HeldOutRows) -> list[Effect] | Surface:
    """What the inputs do: a map if there are two columns of numbers, else the effects of the most relevant columns.

    It takes at most 6 · 31 · 24 further predictions, or 48² for a map.
    """
    names = column_names(rows.X)
    axes = [axis for j, name in enumerate(names) if (axis := _axis(rows, j, name)) is not None]
    if len(names) == len(axes) == 2 and all(axis.kind == "number" for axis in axes):
        return _surface(model, rows, axes[0], axes[1])
    relevance = relevance_of_columns(model, names)
    if relevance is not None:
        axes.sort(key=lambda axis: -relevance[axis.place])
    return [_effect(model, rows, axis, len(names)) for axis in axes[:NUM_EFFECTS]]


def _effect(model: GPRegressor, rows: HeldOutRows, axis: Axis, num_columns: int) -> Effect:
    if num_columns == 1:
        fine = axis
        if axis.kind == "number":
            nodes = np.linspace(np.nanmin(axis.rows), np.nanmax(axis.rows), FIT_NODES)
            fine = axis._replace(nodes=nodes, values=nodes)
        found = predictions(model, _with(rows.take(np.zeros(len(fine.values), np.intp)), fine, fine.nodes))
        return Effect(fine, found.mean, found.latent_std, found.std, 0)
    background = sample(len(rows.y), BACKGROUND_ROWS)
    shape = (len(axis.values), len(background), -1)
    table = rows.take(np.tile(background, len(axis.values)))
    found = predictions(model, _with(table, axis, np.repeat(axis.nodes, len(background))))
    mean, std, observation = (part.reshape(shape).mean(1) for part in (found.mean, found.latent_std, found.std))
    return Effect(axis, mean, std, observation, len(background))


def _surface(model: GPRegressor, rows: HeldOutRows, first: Axis, second: Axis) -> Surface:
    ends = [np.linspace(np.nanmin(axis.rows), np.nanmax(axis.rows), MAP_NODES) for axis in (first, second)]
    first, second = (axis._replace(nodes=e, values=e) for axis, e in zip((first, second), ends, strict=True))
    table = rows.take(np.zeros(MAP_NODES**2, np.intp))
    table = _with(table, first, np.tile(first.nodes, MAP_NODES))
    table = _with(table, second, np.repeat(second.nodes, MAP_NODES))
    found = predictions(model, table)
    mean, std = (part.reshape(MAP_NODES, MAP_NODES, -1) for part in (found.mean, found.latent_std))
    return Surface((first, second), mean, std)


def _axis(rows: HeldOutRows, place: int, name: str) -> Axis | None:
    """The axis of a column; None if the column is constant or cannot be drawn."""
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
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None
    low, high = np.quantile(known, [0.01, 0.99])
    if not low < high:
        low, high = known.min(), known.max()
    if not low < high:
        return None
    nodes = np.linspace(low, high, EFFECT_NODES)
    return Axis(name, place, "number", nodes, nodes, values)


def _with(X: pd.DataFrame | np.ndarray, axis: Axis, values: Any) -> pd.DataFrame | np.ndarray:
    """The table with the values of one column replaced."""
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


def _lengthscales(model: GPRegressor) -> Vector | None:
    values = np.asarray(model.lengthscales_, float).ravel()
    return values if np.isfinite(values).all() else None
