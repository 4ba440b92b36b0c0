"""One column of a table: what kind it is, and its values as numbers. Rows in messages count from 0."""

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cagp.column_kinds import AWARE, DATETIME, EXPOSURE, LEVELS, NAIVE, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data.table_checks import numbers_of, short
from cagp.data.text_values import TextKind, is_date, is_number, kind_of_text, read_text, time_zones

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


class _Cells(NamedTuple):
    """How often a value occurs."""

    count: int
    first_row: int
    count_kept: int  # in rows to learn from


class ColumnScan:
    """What a column holds, from its rows in one part or in several.

    Args:
        as_levels: take numbers, too, as levels.
    """

    def __init__(self, name: str, as_levels: bool):
        self.name, self._as_levels = name, as_levels
        self.kind = EMPTY
        self._is_text = False  # rather than categories
        self._cells: dict[Any, _Cells] = {}  # of levels, by first occurrence
        self._read: TextKind | None = None  # of text with more values than are kept
        self._zones: set[str] = set()  # of dates
        self._num_kept = self._num_known = 0  # rows to learn from, and those of them that are not missing

    def add(self, values: pd.Series, kept: np.ndarray | None = None, rows_from: int = 0) -> None:
        """Further rows.

        Args:
            kept: which of them are rows to learn from; None for all. Others decide what the column holds, no more.
            rows_from: the number of the first one.
        """
        kind = kind_of(values, self.name)
        if self._as_levels and kind in (DATETIME, TIMEDELTA):
            raise ValueError(
                f"categories names column {self.name!r}, which holds {WORDS[kind]}; remove it there, or convert the "
                "column with .astype(str)."
            )
        if kind not in (self.kind, EMPTY) and self.kind != EMPTY:
            raise MixedKindsError(self.name, self.kind, kind, rows_from)
        self.kind = self.kind if kind == EMPTY else kind
        if kind == DATETIME:
            self._zones |= time_zones(values)
        known = values.notna().to_numpy()
        self._num_kept += len(values) if kept is None else int(kept.sum())
        self._num_known += int((known if kept is None else known & kept).sum())
        if kind != EMPTY and (kind == LEVELS or self._as_levels):
            self._is_text |= not self._as_levels and not isinstance(values.dtype, pd.CategoricalDtype)
            self._count(values, kept, rows_from)

    def _count(self, values: pd.Series, kept: np.ndarray | None, rows_from: int) -> None:
        if self._read is not None:
            return
        if len(self._cells) > MOST_VALUES:
            column = self.column_of_all_rows()
            if column.kind == LEVELS:
                raise ValueError(
                    f"column {self.name!r} has more than {MOST_VALUES:,} levels: it looks like an identifier or free "
                    "text. Drop it, or keep a part of it that occurs in many rows."
                )
            self._read, self._cells = TextKind(column.kind, column.format), {}
            return
        codes, found = pd.factorize(values)
        _check_codes(self.name, found)
        counts = np.bincount(codes[codes >= 0], minlength=len(found))
        counts_kept = counts if kept is None else np.bincount(codes[(codes >= 0) & kept], minlength=len(found))
        first = np.empty(len(found), dtype=np.int64)
        rows = np.flatnonzero(codes >= 0)[::-1]
        first[codes[rows]] = rows  # of several assignments the last one counts
        for value, count, row, count_kept in zip(found, counts, first, counts_kept, strict=True):
            old = self._cells.get(value, _Cells(0, rows_from + int(row), 0))
            self._cells[value] = _Cells(old.count + int(count), old.first_row, old.count_kept + int(count_kept))

    def column_of_all_rows(self) -> Column:
        """The name, kind, levels and format of the column; a column of missing values counts as numbers."""
        if self._read is not None:
            return self._as_read(self._read)
        if self.kind == EMPTY or (self.kind != LEVELS and not self._as_levels):
            zone = one_zone(self.name, self._zones) if self.kind == DATETIME else ""
            return Column(self.name, NUMBER if self.kind == EMPTY else self.kind, time_zone=zone)
        found = list(self._cells)
        read = kind_of_text(pd.Series(found, dtype=object).astype(str), self.name) if self._is_text else None
        if read is not None:
            if read.kind == DATETIME:
                self._zones |= time_zones(pd.Series(found, dtype=object))
            return self._as_read(read)
        levels = sorted(map(_label, found))
        if self._is_text:
            _check_text(self.name, levels, self._cells)
        if len(set(levels)) < len(levels):
            twice = next(level for level in levels if levels.count(level) > 1)
            raise ValueError(
                f"column {self.name!r} has the level {twice!r} in several types; convert its categories to one type."
            )
        return Column(self.name, LEVELS, tuple(levels))

    def _as_read(self, read: TextKind) -> Column:
        zone = one_zone(self.name, self._zones) if read.kind == DATETIME else ""
        return Column(self.name, read.kind, format=read.format, time_zone=zone)

    def column(self) -> Column:
        """The column as the rows to learn from show it: their levels, and whether values are missing."""
        column = self.column_of_all_rows()
        counts: dict[str, int] = {}
        if column.kind == LEVELS:
            counts = {_label(value): cells.count_kept for value, cells in self._cells.items() if cells.count_kept}
            column = column._replace(levels=tuple(sorted(counts)))
        return _with_counts(
            column, np.array([counts[level] for level in column.levels]), self._num_known, self._num_kept
        )


class MixedKindsError(ValueError):
    """A column holds different things in different parts of a table."""

    def __init__(self, name: str, before: str, now: str, rows_from: int):
        super().__init__(
            f"column {name!r} holds {WORDS[now]} from row {rows_from} on, and {WORDS[before]} before; convert it to "
            "one type, e.g. with .astype(str) for levels, or pandas.to_numeric for numbers."
        )
        self.name = name


def fitted_column(values: pd.Series, name: str, as_levels: bool) -> Column:
    """The name, kind, levels and format of a column; a column of missing values counts as numbers.

    Args:
        as_levels: take numbers, too, as levels.
    """
    scan = ColumnScan(name, as_levels)
    scan.add(values)
    return scan.column_of_all_rows()


def with_statistics(column: Column, codes: np.ndarray) -> Column:
    """The column as these rows show it: whether values are missing, its quantiles, which of many levels are common."""
    known = codes[~np.isnan(codes)]
    many = len(column.levels) > MAX_LEVELS
    counts = np.bincount(known.astype(np.int64), minlength=len(column.levels)) if many else np.empty(0)
    counted = _with_counts(column, counts, len(known), len(codes))
    return with_quantiles(counted, known[:: quantile_stride(len(known))])


def _with_counts(column: Column, counts: np.ndarray, num_known: int, num_rows: int) -> Column:
    """The column with its common levels, by the number of rows that have each, and with what is missing."""
    if num_known == 0:
        raise ValueError(f"column {column.name!r} has only missing values in the rows to learn from; drop it.")
    common: tuple[str, ...] = ()
    if len(column.levels) > MAX_LEVELS:
        most = np.argsort(-counts, kind="stable")[:MAX_LEVELS]  # of those that are as frequent, the first by name
        common = tuple(column.levels[place] for place in np.sort(most))
    return column._replace(common=common, missing=num_known < num_rows)


def quantile_stride(num_rows: int) -> int:
    """The distance between rows that count for quantiles."""
    return math.ceil(num_rows / QUANTILE_ROWS)


def with_quantiles(column: Column, values: np.ndarray) -> Column:
    """The column with its quantiles, where it has any: values that occur, in the middle of parts of equal probability.

    Args:
        values: of every ``quantile_stride``-th row.
    """
    if column.missing or column.kind in (LEVELS, EXPOSURE):
        return column
    probabilities = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    found = np.quantile(values, probabilities, method="inverted_cdf")
    return column._replace(quantiles=tuple(map(float, found)))


def with_levels_of(column: Column, codes: np.ndarray, rows: np.ndarray) -> tuple[Column, np.ndarray]:
    """The column with the levels of some rows alone, and the codes of all rows for it."""
    if column.kind != LEVELS:
        return column, codes
    seen = np.unique(codes[rows])
    seen = seen[seen < len(column.levels)].astype(np.int64)  # neither missing values nor unknown levels
    places = np.full(len(column.levels) + 2, float(len(seen)))
    places[seen], places[-1] = np.arange(len(seen)), np.nan
    again = places[np.where(np.isnan(codes), -1, codes).astype(np.int64)]
    return column._replace(levels=tuple(column.levels[place] for place in seen)), again


def column_codes(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    """The column as one number for each row, (n,); NaN for missing values.

    Levels become their places 0, 1, 2, ...; those that did not occur at fit get the next number.
    """
    kind = kind_of(values, column.name)
    if column.kind == EXPOSURE:
        column = column._replace(kind=NUMBER)
    if column.kind == DATETIME and column.time_zone and kind in (DATETIME, LEVELS):
        _check_zone(column, values)
    if column.kind == LEVELS and kind in (LEVELS, NUMBER, EMPTY):
        return _level_codes(column, values)
    if kind == LEVELS and (column.kind == DATETIME or column.format):
        values, kind = _read(column, values, rows_from), column.kind
    if kind not in (column.kind, EMPTY):
        raise ValueError(
            f"column {column.name!r} holds {WORDS[kind]}, at fit it held {WORDS[column.kind]}"
            f"{first_text(values, rows_from) if kind == LEVELS else ''}; convert it."
        )
    if kind == EMPTY:
        return np.full(len(values), np.nan)
    if kind == NUMBER:
        return numbers_of(values, column.name, rows_from)
    return {DATETIME: _days_since_epoch, TIMEDELTA: _days}[kind](values)


def expanded_column(column: Column, codes: np.ndarray) -> np.ndarray:
    """The inputs that the column becomes, (n, number of its names_out)."""
    if column.kind == EXPOSURE:
        return np.empty((len(codes), 0))
    parts = [_expanded_levels(column, codes) if column.kind == LEVELS else codes[:, None]]
    parts += [np.isnan(codes)[:, None]] if column.missing else []
    return np.concatenate(parts, axis=1, dtype=np.float64)


def is_unknown(column: Column, codes: np.ndarray) -> np.ndarray:
    """Where the column has what fit has not seen: a level, or a missing value where none was missing.

    A single level tells nothing about others, which stay as they are.
    """
    unknown = codes == len(column.levels) if len(column.levels) > 1 else np.zeros(len(codes), dtype=bool)
    return unknown if column.missing else unknown | np.isnan(codes)


def stand_ins(column: Column) -> np.ndarray:
    """The codes of known values that stand in for an unknown one: quantiles, or levels.

    Of many levels, these are the common ones and one of the others.
    """
    if column.kind != LEVELS:
        return np.array(column.quantiles)
    if not column.common:
        return np.arange(len(column.levels), dtype=np.float64)
    common = set(column.common)
    places = [j for j, level in enumerate(column.levels) if level in common]
    other = next(j for j, level in enumerate(column.levels) if level not in common)
    return np.array([*places, other], dtype=np.float64)


def first_text(values: pd.Series, rows_from: int) -> str:
    """The first text that is not a number, or the first text, for an error message: ", 'text' at row 3"."""
    cells = [(row, value) for row, value in enumerate(values.astype(object)) if isinstance(value, str)]
    row, value = next((cell for cell in cells if not is_number(cell[1])), cells[0] if cells else (0, values.iloc[0]))
    return f", {short(value)} at row {rows_from + row}"


# ---- levels ----


def _level_codes(column: Column, values: pd.Series) -> np.ndarray:
    codes, found = pd.factorize(values)
    _check_codes(column.name, found)
    place = {level: j for j, level in enumerate(column.levels)}
    whole = {_without_point(level): j for level, j in place.items()}
    labels = (_label(level) for level in found)
    unknown = len(column.levels)
    places = [place.get(label, whole.get(_without_point(label), unknown)) for label in labels]
    return np.array([*places, np.nan])[codes]  # missing: code -1, the last entry


def _expanded_levels(column: Column, codes: np.ndarray) -> np.ndarray:
    """0/1 columns. A missing value or unknown level is in none of them, and half way between two levels."""
    place = {level: j for j, level in enumerate(column.levels)}
    block = (codes[:, None] == [place[level] for level in column.coded_levels]).astype(np.float64)
    if column.common:
        others = ~np.isnan(codes) & ~block.any(axis=1)
        return np.column_stack([block, others])
    if len(column.levels) == 2:
        block[~np.isin(codes, (0, 1))] = 0.5
    return block


def _label(level: Any) -> str:
    """The name of a level: 1, 1.0 and "1" have the same, since a column of integers can be read as any of them."""
    return str(int(level)) if isinstance(level, float | np.floating) and level.is_integer() else str(level)


def _check_codes(name: str, found: Any) -> None:
    """Raise ValueError for codes that were rounded to float64, as pandas does if others are missing."""
    rounded = [level for level in found if isinstance(level, float | np.floating) and abs(level) >= 2**53]
    if rounded:
        raise ValueError(
            f"column {name!r} holds codes as floating-point numbers from 2**53 on, e.g. {rounded[0]!r}: several "
            'integers become the same number there. Read them as text, or as integers with dtype "Int64".'
        )


def _without_point(label: str) -> str:
    """Another name for a level: "1.0" is how a file may have the code 1 if other rows lack theirs."""
    return re.sub(r"^([+-]?\d+)\.0*$", r"\1", label)


def _check_text(name: str, levels: list[str], cells: dict[Any, _Cells]) -> None:
    """Raise ValueError for text whose meaning only the user knows."""
    if levels and all(is_number(level) for level in levels):
        raise ValueError(
            f"column {name!r} holds numbers as text, e.g. {levels[0]!r}: use pandas.to_numeric if they are quantities, "
            f"categories=[{name!r}] if they are codes."
        )
    if len(levels) <= MAX_LEVELS:
        return
    remedy = f"If its values do occur again in other rows, pass categories=[{name!r}] (--categories in a command)."
    for looks_right, what in ((is_number, "numbers"), (is_date, "dates")):
        odd = _odd_cell(cells, looks_right)
        if odd is not None:
            raise ValueError(
                f"column {name!r} holds text that mostly looks like {what}; {odd} does not. Correct such cells or "
                f"leave them empty, and convert the column. {remedy}"
            )
    num_values = sum(found.count for found in cells.values())
    if 2 * len(levels) > num_values:
        raise ValueError(
            f"column {name!r} has {len(levels):,} levels in {num_values:,} rows: it looks like an identifier or free "
            f"text, from which nothing can be learned for other rows. Drop it. {remedy}"
        )


def _odd_cell(cells: dict[Any, _Cells], looks_right: Callable[[str], bool]) -> str | None:
    """The first cell that is not like most of the others, and its row; None where there are none or many."""
    odd = {value: found for value, found in cells.items() if not looks_right(str(value))}
    if not odd or 2 * sum(found.count for found in odd.values()) > sum(found.count for found in cells.values()):
        return None
    value = next(iter(odd))
    return f"{short(str(value))} at row {odd[value].first_row}"


# ---- dates and durations ----


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


def _read(column: Column, values: pd.Series, rows_from: int) -> pd.Series:
    """Numbers or dates from text, in the format that they had at fit; dates also in that of ISO 8601."""
    read = read_text(values, TextKind(column.kind, column.format))
    wrong = (read.isna() & ~values.isna()).to_numpy()
    if wrong.any():
        first = int(wrong.argmax())
        what = f"column {column.name!r} holds {short(values.iloc[first])} at row {rows_from + first}, at fit it held "
        if column.kind == NUMBER:
            raise ValueError(f"{what}numbers with decimal commas; write numbers like 3,14, or convert the column.")
        written = f" as {column.format}" if column.format else ""
        raise ValueError(
            f"{what}dates{written}; write dates like 2024-03-31 or 2024-03-31T12:00:00, or convert them with "
            "pandas.to_datetime."
        )
    return read
