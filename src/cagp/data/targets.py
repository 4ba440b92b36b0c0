"""Targets as float64 vectors or matrices. Rows in messages count from 0."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from cagp.column_kinds import DATETIME, LEVELS, TIMEDELTA, WORDS
from cagp.data.column_values import EMPTY, first_text, kind_of
from cagp.data.table_checks import LARGEST, as_array, check_duplicates, names_of, numbers_of, plain
from cagp.data.text_values import with_decimal_commas_read


class Target(NamedTuple):
    """Targets as numbers, with NaN for missing values."""

    values: Float64[np.ndarray, "n"] | Float64[np.ndarray, "n q"]  # one column is a vector
    names: tuple[str, ...]
    missing: Bool[np.ndarray, "n"]  # the rows in which at least one target is missing
    empty: Bool[np.ndarray, "n"]  # the rows in which all targets are missing


def encode_target(y: Any, name: str = "y") -> Target:
    """The targets as float64, their names, and the rows in which they are missing; only numbers and booleans.

    Args:
        name: what error messages call the targets; also the name of targets that have none.
    """
    target = encode_target_rows(y, name)
    values = target.values.reshape(len(target.missing), -1)
    for column, absent in zip(target.names, np.isnan(values).T, strict=True):
        if absent.all():
            raise ValueError(f"Input {name} contains only NaN in column {column!r}: there is nothing to learn from.")
    return target


def encode_target_rows(y: Any, name: str = "y", rows_from: int = 0) -> Target:
    """The same for rows of a table from one number on, of which all may lack a target."""
    if y is None:
        raise ValueError(f"This regressor requires y to be passed, but the target {name} is None.")
    frame = _target_frame(y, name)
    if 0 in frame.shape:
        raise ValueError(f"{name} has the shape {frame.shape}, expected at least 1 row and 1 column (minimum of 1).")
    names = names_of(frame)
    check_duplicates(names, name)
    values = np.stack([_target_values(frame.iloc[:, j], names[j], name) for j in range(len(names))], axis=1)
    for column, wrong in zip(names, (np.abs(values) > LARGEST).T, strict=True):
        if wrong.any():
            raise ValueError(
                f"Input {name} contains infinity or a value too large for dtype('float64'): column {column!r} has "
                f"{int(wrong.sum())} (first at row {rows_from + int(wrong.argmax())}). Drop these rows, or write NaN "
                "for a target that is not known."
            )
    absent = np.isnan(values)
    missing, empty = np.asarray(absent.any(axis=1)), np.asarray(absent.all(axis=1))
    return Target(values[:, 0] if len(names) == 1 else values, names, missing, empty)


def _target_frame(y: Any, name: str) -> pd.DataFrame:
    y = plain(y, name)
    if isinstance(y, pd.DataFrame):
        return y
    if isinstance(y, pd.Series):
        return y.to_frame(name if y.name is None else str(y.name))
    array = as_array(y, name)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} should be a 1d array, or a 2d array with a column for each target; it has shape {array.shape}."
        )
    width = 1 if array.ndim == 1 else array.shape[1]
    return pd.DataFrame(array, columns=[name] if width == 1 else [f"{name}{j}" for j in range(width)])


def _target_values(values: pd.Series, column: str, name: str) -> np.ndarray:
    values = with_decimal_commas_read(values, column)
    kind = kind_of(values, column)
    if kind in (DATETIME, TIMEDELTA):
        raise ValueError(
            f"{name} holds {WORDS[kind]} in column {column!r}, expected numbers; convert them, e.g. to days: "
            + ("(y - y.min()) / pandas.Timedelta(days=1)." if kind == DATETIME else "y / pandas.Timedelta(days=1).")
        )
    if kind == LEVELS:
        raise ValueError(
            f"{name} holds text or categories in column {column!r}{first_text(values, 0)}. This is regression: "
            "targets are numbers. Convert numbers written as text with pandas.to_numeric; for classes use "
            "CaGPClassifier, or cagp fit --classify."
        )
    return np.full(len(values), np.nan) if kind == EMPTY else numbers_of(values, column)
