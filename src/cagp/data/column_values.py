"""One column of a table: what kind it is, and its values as numbers. Rows in messages count from 0."""

import re
from typing import Any

import numpy as np
import pandas as pd

from cagp.column_kinds import DATETIME, LEVELS, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data.table_checks import listed, numbers_of, short

MAX_LEVELS = 20  # of a text column: each level becomes an input, and many inputs make a Gaussian process worse

EMPTY = "empty"  # only missing values
# The kinds by what pandas.api.types.infer_dtype says about a column.
KINDS = {
    **dict.fromkeys(["integer", "floating", "mixed-integer-float", "decimal", "boolean"], NUMBER),
    **dict.fromkeys(["datetime64", "datetime", "date"], DATETIME),
    **dict.fromkeys(["timedelta64", "timedelta"], TIMEDELTA),
    **dict.fromkeys(["string", "categorical"], LEVELS),
    "empty": EMPTY,
}


def kind_of(values: pd.Series, name: str) -> str:
    """The kind of a column, or "empty"; ValueError for types that cannot be encoded."""
    # In a column of objects pandas takes NaT for a date, so that missing values are dropped first.
    what = pd.api.types.infer_dtype(values.dropna() if values.dtype == object else values, skipna=True)
    if what in KINDS:
        # Categories have a type even if every value is missing.
        return EMPTY if KINDS[what] == LEVELS and bool(values.isna().all()) else KINDS[what]
    if what == "complex":
        raise ValueError(f"Complex data not supported: column {name!r} holds complex numbers; use .real and .imag.")
    if what == "period":
        raise ValueError(f"column {name!r} holds periods; convert them to dates, e.g. with .dt.to_timestamp().")
    types = sorted({type(cell).__name__ for cell in values[~values.isna()].astype(object)})
    if len(types) == 1:
        raise ValueError(
            f"column {name!r} holds values of type {types[0]} (dtype {values.dtype}), expected numbers, text, "
            "booleans, dates or durations; convert or drop it."
        )
    raise ValueError(
        f"column {name!r} mixes values of the types {', '.join(types)}; convert it to one type, e.g. with "
        ".astype(str) for levels, or pandas.to_numeric for numbers."
    )


def fitted_column(values: pd.Series, name: str) -> Column:
    """The name, kind and levels of a column; a column of missing values counts as numbers."""
    kind = kind_of(values, name)
    if kind != LEVELS:
        return Column(name, NUMBER if kind == EMPTY else kind)
    _, found = pd.factorize(values)
    levels = sorted(_label(level) for level in found)
    if not isinstance(values.dtype, pd.CategoricalDtype):
        _check_text(name, levels)
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"column {name!r} has {len(levels)} levels, at most {MAX_LEVELS} are encoded{_odd_number(values)}. "
            "Drop the column, or encode it yourself: group rare levels, or use sklearn.preprocessing.TargetEncoder."
        )
    if len(set(levels)) < len(levels):
        twice = next(level for level in levels if levels.count(level) > 1)
        raise ValueError(
            f"column {name!r} has the level {twice!r} in several types; convert its categories to one type."
        )
    return Column(name, LEVELS, tuple(levels))


def column_codes(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    """The column as one number for each row, (n,): levels as their places 0, 1, 2, ...; NaN for missing values."""
    kind = kind_of(values, column.name)
    if column.kind == LEVELS and kind in (LEVELS, NUMBER, EMPTY):
        return _level_codes(column, values, rows_from)
    if column.kind == DATETIME and kind == LEVELS:
        values, kind = _parsed_dates(column, values, rows_from), DATETIME
    if kind not in (column.kind, EMPTY):
        raise ValueError(
            f"column {column.name!r} holds {WORDS[kind]}, at fit it held {WORDS[column.kind]}"
            f"{first_text(values, rows_from) if kind == LEVELS else ''}; convert it."
        )
    if kind == EMPTY:
        return np.full(len(values), np.nan)
    return {NUMBER: numbers_of, DATETIME: _days_since_epoch, TIMEDELTA: _days}[kind](values)


def expanded_column(column: Column, codes: np.ndarray) -> np.ndarray:
    """The inputs that the column becomes, (n, number of its names_out): a 0/1 column for each coded level."""
    if column.kind != LEVELS:
        return codes[:, None]
    offset = len(column.levels) - len(column.coded_levels)
    return (codes[:, None] == np.arange(offset, len(column.levels))).astype(np.float64)


def first_text(values: pd.Series, rows_from: int) -> str:
    """The first text that is not a number, or the first text, for an error message: ", 'text' at row 3"."""
    cells = [(row, value) for row, value in enumerate(values.astype(object)) if isinstance(value, str)]
    row, value = next((cell for cell in cells if not _is_number(cell[1])), cells[0] if cells else (0, values.iloc[0]))
    return f", {short(value)} at row {rows_from + row}"


# ---- levels ----


def _level_codes(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    codes, found = pd.factorize(values)
    labels = [_label(level) for level in found]
    unknown = next((code for code, label in enumerate(labels) if label not in column.levels), None)
    if unknown is not None:
        raise ValueError(
            f"column {column.name!r} has the level {short(labels[unknown])} (first at row "
            f"{rows_from + int((codes == unknown).argmax())}), which it did not have at fit; its levels at fit were "
            f"{listed(column.levels)}. Drop such rows, replace the value by one of these levels, or fit again with it."
        )
    places = np.array([*(column.levels.index(label) for label in labels), np.nan])
    return places[codes]  # missing: code -1, the last entry


def _label(level: Any) -> str:
    """The name of a level: 1, 1.0 and "1" have the same, since a column of integers can be read as any of them."""
    return str(int(level)) if isinstance(level, float | np.floating) and level.is_integer() else str(level)


def _check_text(name: str, levels: list[str]) -> None:
    if levels and all(_is_number(level) for level in levels):
        raise ValueError(
            f"column {name!r} holds numbers as text, e.g. {levels[0]!r}: use pandas.to_numeric if they are quantities, "
            '.astype("category") if they are codes.'
        )


def _odd_number(values: pd.Series) -> str:
    """A hint for a column that is text because a few of its cells are not numbers."""
    cells = {row: str(value) for row, value in enumerate(values) if not pd.isna(value)}
    odd = [row for row, cell in cells.items() if not _is_number(cell)]
    if not odd or 2 * len(odd) > len(cells):
        return ""
    return f" (most look like numbers; {short(cells[odd[0]])} at row {odd[0]} does not)"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", text) is not None


# ---- dates and durations ----


def _days_since_epoch(values: pd.Series) -> np.ndarray:
    """Days since 1970-01-01 in UTC; every unit of the dates gives the same bits."""
    instants = pd.to_datetime(values, utc=True).dt.tz_localize(None).to_numpy()
    midnights = instants.astype("datetime64[D]")
    days = np.where(np.isnat(instants), np.nan, midnights.astype(np.int64))
    return days + (instants - midnights) / np.timedelta64(1, "D")


def _days(values: pd.Series) -> np.ndarray:
    durations = pd.to_timedelta(values).to_numpy()
    whole = durations.astype("timedelta64[D]")
    days = np.where(np.isnat(durations), np.nan, whole.astype(np.int64))
    return days + (durations - whole) / np.timedelta64(1, "D")


def _parsed_dates(column: Column, values: pd.Series, rows_from: int) -> pd.Series:
    """Dates from a file without types, in the format of ISO 8601."""
    dates = pd.to_datetime(values.astype(object), format="ISO8601", utc=True, errors="coerce")
    wrong = (dates.isna() & ~values.isna()).to_numpy()
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"column {column.name!r} holds {short(values.iloc[first])} at row {rows_from + first}, at fit it held "
            "dates; write dates like 2024-03-31 or 2024-03-31T12:00:00, or convert them with pandas.to_datetime."
        )
    return dates
