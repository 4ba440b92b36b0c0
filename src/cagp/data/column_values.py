"""One column of a table: what kind it is, and its values as numbers. Rows in messages count from 0."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from cagp.column_kinds import AWARE, DATETIME, EXPOSURE, LEVELS, NAIVE, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data.cells import TEXT_FORMATS, format_of, is_date, is_number, numbers_of, short, time_zones

MAX_LEVELS = 20
"""Levels of a column that become an input each. The others share one: many inputs make a Gaussian process worse."""

NUM_QUANTILES, QUANTILE_ROWS = 12, 100_000
"""Values of a column of numbers that stand in for a missing one, and the rows, evenly spaced, that they come from."""

MOST_VALUES = 1_000_000
"""Different values of a column of text that are kept of a table that comes in parts."""

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


@dataclass
class _Cells:
    """How often a value occurs."""

    first_row: int
    count: int = 0
    count_kept: int = 0  # in rows to learn from


class ColumnScan:
    """Learns what a column holds from its rows, in one part or in several; with ``as_levels``, numbers are levels."""

    def __init__(self, name: str, as_levels: bool):
        self.name, self._as_levels = name, as_levels
        self._kind = EMPTY
        self._is_text = False  # rather than categories
        self._cells: dict[Any, _Cells] = {}  # of levels, by first occurrence
        self._text: Column | None = None  # of text with more values than are kept
        self._zones: set[str] = set()  # of dates
        self._num_kept = self._num_present = 0  # rows to learn from, and those of them that are not missing

    def add(self, values: pd.Series, kept: np.ndarray | None = None, rows_from: int = 0) -> None:
        """Further rows; those that are not ``kept`` to learn from decide what the column holds, no more."""
        kind = kind_of(values, self.name)
        if self._as_levels and kind in (DATETIME, TIMEDELTA):
            raise ValueError(
                f"categories names column {self.name!r}, which holds {WORDS[kind]}; remove it there, or convert the "
                "column with .astype(str)."
            )
        if kind not in (self._kind, EMPTY) and self._kind != EMPTY:
            raise MixedKindsError(self.name, self._kind, kind, rows_from)
        self._kind = self._kind if kind == EMPTY else kind
        if kind == DATETIME:
            self._zones |= time_zones(values)
        kept = np.ones(len(values), dtype=bool) if kept is None else kept
        self._num_kept += int(kept.sum())
        self._num_present += int((values.notna().to_numpy() & kept).sum())
        if self._has_levels and kind != EMPTY:
            self._is_text |= not self._as_levels and not isinstance(values.dtype, pd.CategoricalDtype)
            self._count(values, kept, rows_from)

    @property
    def _has_levels(self) -> bool:
        return self._kind == LEVELS or (self._as_levels and self._kind != EMPTY)

    def _count(self, values: pd.Series, kept: np.ndarray, rows_from: int) -> None:
        if self._text is not None:
            return
        if len(self._cells) > MOST_VALUES:
            self._text, self._cells = self.without_levels(), {}
            if self._text.kind == LEVELS:
                raise ValueError(
                    f"column {self.name!r} has more than {MOST_VALUES:,} levels: it looks like an identifier or free "
                    "text. Drop it, or keep a part of it that occurs in many rows."
                )
            return
        codes, distinct = pd.factorize(values)
        _check_codes(self.name, distinct)
        rows = np.flatnonzero(codes >= 0)
        counts = np.bincount(codes[rows], minlength=len(distinct))
        counts_kept = np.bincount(codes[rows[kept[rows]]], minlength=len(distinct))
        first = rows_from + rows[np.unique(codes[rows], return_index=True)[1]]
        for value, row, count, count_kept in zip(distinct, first, counts, counts_kept, strict=True):
            cells = self._cells.setdefault(value, _Cells(int(row)))
            cells.count += int(count)
            cells.count_kept += int(count_kept)

    def without_levels(self) -> Column:
        """The column but for its levels; one of missing values counts as numbers."""
        if self._text is not None:
            return self._text
        kind, form = NUMBER if self._kind == EMPTY else self._kind, ""
        if self._has_levels:
            distinct = list(self._cells)
            text = format_of(pd.Series(distinct, dtype=object).astype(str), self.name) if self._is_text else None
            if text is None:
                return Column(self.name, LEVELS)
            kind, form = text.kind, text.name
            if kind == DATETIME:
                self._zones |= time_zones(pd.Series(distinct, dtype=object))
        zone = one_zone(self.name, self._zones) if kind == DATETIME else ""
        return Column(self.name, kind, format=form, time_zone=zone)

    def column(self) -> Column:
        """The column as the rows to learn from show it: its kind, levels, and whether values are missing."""
        column = self.without_levels()
        if self._num_present == 0:
            raise ValueError(f"column {self.name!r} has only missing values in the rows to learn from; drop it.")
        column = column._replace(missing=self._num_present < self._num_kept)
        if column.kind != LEVELS:
            return column
        self._check_levels()
        counts = {_label(value): cells.count_kept for value, cells in self._cells.items() if cells.count_kept}
        levels, common = tuple(sorted(counts)), ()
        if len(levels) > MAX_LEVELS:  # of those that are as frequent, the first by name
            common = tuple(sorted(sorted(levels, key=lambda level: -counts[level])[:MAX_LEVELS]))
        return column._replace(levels=levels, common=common)

    def _check_levels(self) -> None:
        """Raise ValueError for levels whose meaning only the user knows."""
        name, levels = self.name, sorted(map(_label, self._cells))
        if len(set(levels)) < len(levels):
            twice = next(level for level in levels if levels.count(level) > 1)
            raise ValueError(
                f"column {name!r} has the level {twice!r} in several types; convert its categories to one type."
            )
        if self._is_text and levels and all(map(is_number, levels)):
            raise ValueError(
                f"column {name!r} holds numbers as text, e.g. {levels[0]!r}: use pandas.to_numeric if they are "
                f"quantities, categories=[{name!r}] if they are codes."
            )
        if not self._is_text or len(levels) <= MAX_LEVELS:
            return
        remedy = f"If its values do occur again in other rows, pass categories=[{name!r}] (--categories in a command)."
        num_values = sum(cells.count for cells in self._cells.values())
        for looks_right, what in ((is_number, "numbers"), (is_date, "dates")):
            odd = {value: cells for value, cells in self._cells.items() if not looks_right(str(value))}
            if odd and 2 * sum(cells.count for cells in odd.values()) <= num_values:
                value, cells = next(iter(odd.items()))
                raise ValueError(
                    f"column {name!r} holds text that mostly looks like {what}; {short(str(value))} at row "
                    f"{cells.first_row} does not. Correct such cells or leave them empty, and convert the column. "
                    f"{remedy}"
                )
        if 2 * len(levels) > num_values:
            raise ValueError(
                f"column {name!r} has {len(levels):,} levels in {num_values:,} rows: it looks like an identifier or "
                f"free text, from which nothing can be learned for other rows. Drop it. {remedy}"
            )


class MixedKindsError(ValueError):
    """A column holds different things in different parts of a table."""

    def __init__(self, name: str, before: str, now: str, rows_from: int):
        super().__init__(
            f"column {name!r} holds {WORDS[now]} from row {rows_from} on, and {WORDS[before]} before; convert it to "
            "one type, e.g. with .astype(str) for levels, or pandas.to_numeric for numbers."
        )
        self.name = name


def quantile_stride(num_rows: int) -> int:
    """The distance between rows that count for quantiles."""
    return math.ceil(num_rows / QUANTILE_ROWS)


def column_codes(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    """The column as one number for each row, NaN for missing values; of levels, their places, or L for unknown ones."""
    kind, expected = kind_of(values, column.name), NUMBER if column.kind == EXPOSURE else column.kind
    if expected == DATETIME and kind in (DATETIME, LEVELS):
        _check_zone(column, values)
    if expected == LEVELS and kind in (LEVELS, NUMBER, EMPTY):
        return _level_codes(column, values)
    if kind == LEVELS and (expected == DATETIME or column.format):
        values, kind = _read(column, values, rows_from), expected
    if kind == EMPTY:
        return np.full(len(values), np.nan)
    if kind != expected:
        raise ValueError(
            f"column {column.name!r} holds {WORDS[kind]}, at fit it held {WORDS[expected]}"
            f"{first_text(values, rows_from) if kind == LEVELS else ''}; convert it."
        )
    if kind == NUMBER:
        return numbers_of(values, column.name, rows_from)
    if kind == DATETIME:
        return _days(pd.to_datetime(values, utc=True).dt.tz_localize(None).to_numpy())
    return _days(pd.to_timedelta(values).to_numpy())


def expanded_column(column: Column, codes: np.ndarray) -> np.ndarray:
    """The inputs that the column becomes, (n, number of its names_out).

    Of the 0/1 columns of levels, a missing value or unknown level is in none, and half way between two levels.
    """
    if column.kind == EXPOSURE:
        return np.empty((len(codes), 0))
    inputs = codes[:, None]
    if column.kind == LEVELS:
        inputs = (inputs == [column.levels.index(level) for level in column.coded_levels]).astype(np.float64)
        if column.common:
            inputs = np.column_stack([inputs, ~np.isnan(codes) & ~inputs.any(axis=1)])
        elif len(column.levels) == 2:
            inputs[~np.isin(codes, (0, 1))] = 0.5
    return np.column_stack([inputs, np.isnan(codes)]) if column.missing else inputs


def is_unknown(column: Column, codes: np.ndarray) -> np.ndarray:
    """Where the column lacks a value though it never did at fit, or has an unknown level beside several known ones."""
    unknown = codes == len(column.levels) if len(column.levels) > 1 else np.zeros(len(codes), dtype=bool)
    return unknown if column.missing else unknown | np.isnan(codes)


def stand_ins(column: Column) -> np.ndarray:
    """The codes of quantiles or levels that stand in for an unknown value; of many levels, one that is not common."""
    if column.kind != LEVELS:
        return np.array(column.quantiles)
    known = set(column.common or column.levels)
    places = [j for j, level in enumerate(column.levels) if level in known]
    others = [j for j, level in enumerate(column.levels) if level not in known]
    return np.array(places + others[:1], dtype=np.float64)


def first_text(values: pd.Series, rows_from: int) -> str:
    """The first text that is not a number, or the first text, for an error message: ", 'text' at row 3"."""
    cells = [(row, value) for row, value in enumerate(values.astype(object)) if isinstance(value, str)]
    row, value = next((cell for cell in cells if not is_number(cell[1])), cells[0] if cells else (0, values.iloc[0]))
    return f", {short(value)} at row {rows_from + row}"


def _level_codes(column: Column, values: pd.Series) -> np.ndarray:
    codes, distinct = pd.factorize(values)
    _check_codes(column.name, distinct)
    place = {level: j for j, level in enumerate(column.levels)}
    whole = {_without_point(level): j for level, j in place.items()}
    labels, unknown = map(_label, distinct), len(column.levels)
    places = [place.get(label, whole.get(_without_point(label), unknown)) for label in labels]
    return np.array([*places, np.nan])[codes]  # missing: code -1, the last entry


def _label(level: Any) -> str:
    """The name of a level: 1, 1.0 and "1" have the same, since a column of integers can be read as any of them."""
    return str(int(level)) if isinstance(level, float | np.floating) and level.is_integer() else str(level)


def _check_codes(name: str, levels: Any) -> None:
    """Raise ValueError for codes that were rounded to float64, as pandas does if others are missing."""
    rounded = [level for level in levels if isinstance(level, float | np.floating) and abs(level) >= 2**53]
    if rounded:
        raise ValueError(
            f"column {name!r} holds codes as floating-point numbers from 2**53 on, e.g. {rounded[0]!r}: several "
            'integers become the same number there. Read them as text, or as integers with dtype "Int64".'
        )


def _without_point(label: str) -> str:
    """Another name for a level: "1.0" is how a file may have the code 1 if other rows lack theirs."""
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", label)


def one_zone(name: str, zones: set[str]) -> str:
    """With a time zone or without; ValueError for dates of both sorts."""
    if len(zones) > 1:
        raise ValueError(
            f"column {name!r} mixes dates with a time zone and dates without one; give all of them one, e.g. with "
            'pandas.Series.dt.tz_localize("Europe/Paris"), or none.'
        )
    return next(iter(zones), "")


def _check_zone(column: Column, values: pd.Series) -> None:
    zone = one_zone(column.name, time_zones(values))
    if zone not in ("", column.time_zone):
        remedy = {
            NAIVE: 'say where their clock is, e.g. with .dt.tz_localize("Europe/Paris")',
            AWARE: 'convert them to the clock of fit, e.g. with .dt.tz_convert("Europe/Paris").dt.tz_localize(None)',
        }
        raise ValueError(
            f"column {column.name!r} holds dates {zone}, at fit it held dates {column.time_zone}; {remedy[zone]}."
        )


def _days(values: np.ndarray) -> np.ndarray:
    """Days of durations, or from 1970-01-01 to dates; every unit of time gives the same bits."""
    whole = values.astype(f"{values.dtype.kind}8[D]")
    days = np.where(np.isnat(values), np.nan, whole.astype(np.int64))
    return days + (values - whole) / np.timedelta64(1, "D")


def _read(column: Column, values: pd.Series, rows_from: int) -> pd.Series:
    """Numbers or dates from text, in the format that they had at fit; dates also in that of ISO 8601."""
    text = TEXT_FORMATS[column.format]
    read = text.read(values)
    wrong = (read.isna() & ~values.isna()).to_numpy()
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"column {column.name!r} holds {short(values.iloc[first])} at row {rows_from + first}, at fit it held "
            f"{text.words}; write {text.example}."
        )
    return read
