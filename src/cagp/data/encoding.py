"""The encoder: users' tables (frames, arrays, tensors, lists) as float64 matrices, always in the same way."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from cagp.column_kinds import DATETIME, DECIMAL_COMMA, EXPOSURE, LEVELS, NAIVE, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data.column_values import (
    ColumnScan,
    column_codes,
    expanded_column,
    fitted_column,
    is_unknown,
    kind_of,
    stand_ins,
    with_levels_of,
    with_quantiles,
    with_statistics,
)
from cagp.data.table_checks import (
    Table,
    as_table,
    category_places,
    check_exposure,
    check_frame,
    check_values,
    columns_text,
    exposure_place,
    listed,
    names_of,
)
from cagp.data.text_values import TextKind, read_text

MOST_NAMES = 8
"""Columns that a sentence lists."""

MOST_COMBINATIONS, ROUNDS = 64, 4
"""A row with several unknown values has all combinations of their stand-ins, up to this many; with more, it goes this
often through the stand-ins of each."""


class Encoder:
    """Turns frames, arrays, tensors and lists into float64 matrices, always in the same way; made by ``fit``.

    - Numbers stay as they are; integers that float64 cannot hold are an error. True and False become 1 and 0, dates
      become days since 1970 (in UTC if they have a time zone), durations become days. Dates have a time zone at fit and
      later, or never.
    - Text and categories become a 0/1 column for each level that occurs at fit, in sorted order. Two levels become one
      column, that of the second. Of more than 20 levels, the 20 most frequent ones have a column each, and the others
      share one. Categories of other types are compared as text: 1, 1.0 and "1" are the same level.
    - A level that did not occur at fit is in none of these columns; of two levels, it is half way between them; of more
      than 20, it is among the others. Regressors predict such rows with known levels in its place (``stand_ins``).
    - A column that has missing values at fit gets a further 0/1 column, "NAME is missing". A missing number stays NaN,
      which ``Standardizer`` puts at the mean of the training rows; a missing level is in none of the columns of its
      levels. Regressors predict rows that lack a value in a column that had them all at fit with known values in its
      place (``stand_ins``), as they do for unknown levels.
    - Text becomes dates if all of it is in one of the formats 2024-03-31 (ISO 8601), 31.03.2024, 31/03/2024,
      03/31/2024, 31-03-2024, 03-31-2024, 2024/03/31 or 2024.03.31, each with or without a time; it becomes numbers if
      all of it has decimal commas ("3,14"). Text that can be read in two ways is an error.
    - Text that consists of numbers ("1.5") is an error: it could mean quantities or codes, and only the user knows.
      So is text of which more than half of the rows, and more than 20, have a level of their own: an identifier.
    - Arrays hold numbers, dates or durations; text needs a frame.

    Columns of frames are matched by name, in any order, and additional columns are ignored. Columns are matched by
    position if the table is not a frame, or was not one at fit. Rows in error messages count from 0.

    There are two steps. ``codes`` has one number for each cell, with NaN for missing values and levels as 0, 1, 2, ...,
    for methods that know categories, e.g. trees. ``expand`` turns codes into the inputs of a Gaussian process.
    """

    def __init__(self, columns: Sequence[Column], has_names: bool):
        self._columns, self._has_names = tuple(columns), has_names

    @classmethod
    def fit(cls, X: Any, categories: Sequence[Any] = ()) -> "Encoder":
        """The encoder for tables like ``X``. ``X`` itself must have no errors: ``transform(X)`` will not fail.

        Args:
            categories: columns to take as levels even if they hold numbers, e.g. codes: their names in a frame, their
                positions in an array.
        """
        return cls.fit_codes(X, categories)[0]

    @classmethod
    def fit_transform(cls, X: Any, categories: Sequence[Any] = ()) -> tuple["Encoder", Float64[np.ndarray, "n p"]]:
        """The encoder for tables like ``X``, and the rows of ``X`` as its ``transform`` gives them."""
        encoder, codes = cls.fit_codes(X, categories)
        return encoder, encoder.expand(codes)

    @classmethod
    def fit_codes(cls, X: Any, categories: Sequence[Any] = ()) -> tuple["Encoder", Float64[np.ndarray, "n c"]]:
        """The encoder for tables like ``X``, and the rows of ``X`` as its ``codes`` gives them."""
        table = as_table(X)
        if isinstance(table, pd.DataFrame):
            check_frame(table)
            names = names_of(table)
            chosen = category_places(categories, names, by_position=False)
            columns = [fitted_column(table.iloc[:, j], name, j in chosen) for j, name in enumerate(names)]
        else:
            kind = {"M": DATETIME, "m": TIMEDELTA}.get(table.dtype.kind, NUMBER)
            zone = NAIVE if kind == DATETIME else ""
            names = [f"x{j}" for j in range(table.shape[1])]
            chosen = category_places(categories, names, by_position=True)
            columns = [
                fitted_column(pd.Series(table[:, j]), name, as_levels=True)
                if j in chosen
                else Column(name, kind, time_zone=zone)
                for j, name in enumerate(names)
            ]
        encoder = cls(columns, has_names=isinstance(table, pd.DataFrame))
        codes = encoder._read(table, 0)
        columns = [with_statistics(column, codes[:, j]) for j, column in enumerate(columns)]
        check_values(codes, columns, 0)
        return cls(columns, encoder._has_names), codes

    def for_rows(self, codes: Float64[np.ndarray, "n c"], rows: Any) -> tuple["Encoder", Float64[np.ndarray, "n c"]]:
        """The encoder that ``fit`` gives for some rows alone, and all rows in its codes.

        Args:
            codes: of all rows.
            rows: those to learn from, as an index of arrays.
        """
        parts = [with_levels_of(column, codes[:, j], rows) for j, column in enumerate(self._columns)]
        columns = [with_statistics(column, part[rows]) for column, part in parts]
        return Encoder(columns, self._has_names), np.column_stack([part for _, part in parts])

    def with_exposure(self, exposure: Any, codes: Float64[np.ndarray, "n c"]) -> "Encoder":
        """The same encoder with a column of exposures, which is not an input; all must be positive.

        Args:
            exposure: the name of the column in a frame, its position in an array.
            codes: of the rows to learn from.
        """
        place = exposure_place(exposure, [column.name for column in self._columns], not self._has_names)
        column = self._columns[place]
        if column.kind != NUMBER:
            raise ValueError(f"the exposure, column {column.name!r}, holds {WORDS[column.kind]}, expected numbers.")
        check_exposure(codes[:, place], column.name, 0)
        exposed = Column(column.name, EXPOSURE, format=column.format)
        return Encoder([*self._columns[:place], exposed, *self._columns[place + 1 :]], self._has_names)

    @property
    def exposure_name(self) -> str | None:
        """The name of the column of exposures; None where there is none."""
        return next((column.name for column in self._columns if column.kind == EXPOSURE), None)

    def without_exposure(
        self, codes: Float64[np.ndarray, "n c"]
    ) -> tuple[Float64[np.ndarray, "n c"], Float64[np.ndarray, " n"] | None]:
        """Codes in which every exposure is one, and the exposures; None where there are none."""
        for place, column in enumerate(self._columns):
            if column.kind == EXPOSURE:
                alike = codes.copy()
                alike[:, place] = 1.0
                return alike, codes[:, place].copy()
        return codes, None

    def with_quantiles(self, codes: Float64[np.ndarray, "m c"]) -> "Encoder":
        """The same encoder with the quantiles of its columns.

        Args:
            codes: of every ``quantile_stride``-th row to learn from.
        """
        return Encoder([with_quantiles(c, codes[:, j]) for j, c in enumerate(self._columns)], self._has_names)

    @property
    def names_in(self) -> tuple[str, ...] | None:
        """The names of the columns at fit; None if the table was not a frame."""
        return tuple(column.name for column in self._columns) if self._has_names else None

    @property
    def num_columns(self) -> int:
        """The number of columns of the tables, and of ``codes``."""
        return len(self._columns)

    @property
    def names_out(self) -> tuple[str, ...]:
        """The names of the columns of ``transform``: "column", "column=level" or "column is missing"."""
        return tuple(name for column in self._columns for name in column.names_out)

    @property
    def text_names(self) -> tuple[str, ...]:
        """Columns to read from a file as text (see ``cagp.data.read_table``): levels, and numbers with commas."""
        return tuple(c.name for c in self._columns if c.kind == LEVELS or c.format == DECIMAL_COMMA)

    @property
    def categorical(self) -> tuple[int, ...]:
        """The positions of the columns of levels in ``codes``."""
        return tuple(j for j, column in enumerate(self._columns) if column.kind == LEVELS)

    def transform(self, X: Any, rows_from: int = 0) -> Float64[np.ndarray, "n p"]:
        """The rows of ``X`` as inputs of a Gaussian process: ``expand(codes(X))``.

        Writable; shares memory with ``X`` if that already is such a matrix.

        Args:
            rows_from: the number of the first row, for error messages about a table that comes in pieces.
        """
        return self.expand(self.codes(X, rows_from))

    def codes(self, X: Any, rows_from: int = 0) -> Float64[np.ndarray, "n c"]:
        """The rows of ``X`` in compact form, with a column for each column of the table; NaN for missing values.

        The L levels of a column are 0 to L - 1; L is a level that did not occur at fit.
        """
        table = as_table(X)
        if isinstance(table, pd.DataFrame):
            check_frame(table)
        codes = self._read(table, rows_from)
        for j, column in enumerate(self._columns):
            if column.kind == EXPOSURE:
                check_exposure(codes[:, j], column.name, rows_from)
        check_values(codes, self._columns, rows_from)
        return codes

    def expand(self, codes: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "n p"]:
        """The inputs for rows in the form of ``codes``: 0/1 columns for levels and for missing values.

        Numbers stay as they are, NaN where they are missing.
        """
        if not any(column.kind in (LEVELS, EXPOSURE) or column.missing for column in self._columns):
            return codes
        parts = [expanded_column(column, codes[:, j]) for j, column in enumerate(self._columns)]
        return np.concatenate(parts, axis=1)

    def stand_ins(
        self, codes: Float64[np.ndarray, "n c"]
    ) -> tuple[Float64[np.ndarray, "m c"], Int64[np.ndarray, " m"]]:
        """The rows, where a value is unknown once with each of its stand-ins in its place; and their numbers.

        Unknown are levels that did not occur at fit, and missing values in columns that had none. Their stand-ins are
        all levels that have an input, and quantiles of numbers. Where several values of a row are unknown, all
        combinations of their stand-ins are taken. Where these are many, each column goes several times through its
        stand-ins, in random orders of its own: columns then vary nearly independently.
        """
        unknown = {
            j: found
            for j, column in enumerate(self._columns)
            if column.has_stand_ins and (found := is_unknown(column, codes[:, j])).any()
        }
        if not unknown:
            return codes, np.arange(len(codes))
        values = {j: stand_ins(self._columns[j]) for j in unknown}
        longest, product, strides = np.ones(len(codes), dtype=np.int64), np.ones(len(codes)), {}
        for j, found in unknown.items():
            strides[j] = product  # of the combinations, of which this column changes every so many
            longest = np.where(found, np.maximum(longest, len(values[j])), longest)
            product = np.where(found, product * len(values[j]), product)
        all_of_them = (product <= MOST_COMBINATIONS) | (np.sum(list(unknown.values()), axis=0) == 1)
        counts = np.where(all_of_them, np.minimum(product, 2**31), ROUNDS * longest).astype(np.int64)
        numbers = np.repeat(np.arange(len(codes)), counts)
        turn = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = codes[numbers]
        for j, found in unknown.items():
            random_order = _rounds(len(values[j]), int(counts[found].max()), seed=j)
            in_turn = (turn // strides[j][numbers]).astype(np.int64) % len(values[j])
            place = np.where(all_of_them[numbers], in_turn, random_order[turn % len(random_order)])
            rows[:, j] = np.where(found[numbers], values[j][place], rows[:, j])
        return rows, numbers

    def num_unknown(self, codes: Float64[np.ndarray, "n c"]) -> dict[str, int]:
        """In how many rows each column of levels has a level that did not occur at fit; only columns with such rows."""
        counts = {
            self._columns[j].name: int((codes[:, j] == len(self._columns[j].levels)).sum()) for j in self.categorical
        }
        return {name: count for name, count in counts.items() if count}

    def typed(self, frame: Any) -> Any:
        """A frame with dates and numbers for text columns that are read as such; any other table as it is."""
        if not isinstance(frame, pd.DataFrame) or not self._has_names:
            return frame
        place = {name: j for j, name in enumerate(names_of(frame))}
        columns = [frame.iloc[:, j] for j in range(frame.shape[1])]
        for column in self._columns:
            j = place.get(column.name)
            if j is None or column.kind not in (NUMBER, DATETIME) or kind_of(columns[j], column.name) != LEVELS:
                continue
            values = read_text(columns[j], TextKind(column.kind, column.format))
            columns[j] = values if column.kind == NUMBER else values.dt.tz_localize(None)
        return pd.concat(columns, axis=1).set_axis(frame.columns, axis=1)

    def missing_words(self, codes: Float64[np.ndarray, "n c"]) -> str | None:
        """How many values are missing in which columns, in one sentence; None where there are none."""
        counts = np.isnan(codes).sum(axis=0)
        return self.missing_in_words(counts, len(codes)) if counts.any() else None

    def missing_in_words(self, counts: Int64[np.ndarray, " c"], num_rows: int) -> str:
        """The same for a number of missing values in each column, of which one at least is not zero."""
        found = [f"{column.name!r} in {n:,}" for column, n in zip(self._columns, counts, strict=True) if n]
        rest = f" and {len(found) - MOST_NAMES:,} more columns" if len(found) > MOST_NAMES else ""
        return (
            f"Missing values: {', '.join(found[:MOST_NAMES])}{rest} of {num_rows:,} rows. Each of these columns has "
            "a further input that says where."
        )

    def num_missing(self, codes: Float64[np.ndarray, "n c"]) -> dict[str, int]:
        """In how many rows each column that had no missing value at fit has one; only columns with such rows."""
        counts = {c.name: int(np.isnan(codes[:, j]).sum()) for j, c in enumerate(self._columns) if not c.missing}
        return {name: count for name, count in counts.items() if count}

    def state(self) -> dict[str, Any]:
        """The whole encoder as dicts, lists, text and booleans, for ``from_state``."""
        return {"has_names": self._has_names, "columns": [column.state() for column in self._columns]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Encoder":
        """The encoder whose ``state()`` this is."""
        return cls([Column.from_state(column) for column in state["columns"]], state["has_names"])

    def _read(self, table: Table, rows_from: int) -> Float64[np.ndarray, "n c"]:
        """The codes of a table, before any check of values."""
        if isinstance(table, pd.DataFrame):
            parts = [table.iloc[:, j] for j in self._places(table)]
        else:
            self._check_width(table.shape[1])
            if table.dtype.kind == "f" and all(column.kind in (NUMBER, EXPOSURE) for column in self._columns):
                return table
            parts = [pd.Series(table[:, j]) for j in range(table.shape[1])]
        codes = np.empty((len(table), len(self._columns)))
        for j, (column, values) in enumerate(zip(self._columns, parts, strict=True)):
            codes[:, j] = column_codes(column, values, rows_from)
        return codes

    def _places(self, frame: pd.DataFrame) -> list[int]:
        """Where the columns of fit are in this frame."""
        if not self._has_names:
            self._check_width(frame.shape[1])
            return list(range(frame.shape[1]))
        place = {name: j for j, name in enumerate(names_of(frame))}
        absent = [column.name for column in self._columns if column.name not in place]
        if absent:
            raise ValueError(f"X has no {columns_text(absent)}, which fit had; its columns are {listed(place)}.")
        return [place[column.name] for column in self._columns]

    def _check_width(self, width: int) -> None:
        if width != len(self._columns):
            raise ValueError(
                f"X has {width} features, but Encoder is expecting {len(self._columns)} features as input: "
                f"the columns of fit, {listed(column.name for column in self._columns)}."
            )


def _rounds(count: int, length: int, seed: int) -> Int64[np.ndarray, " k"]:
    """The numbers 0 to count - 1 in random orders, one after the other, at least ``length`` numbers in all."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.permutation(count) for _ in range(math.ceil(length / count))])


class EncoderScan:
    """Learns the encoder of a table that comes in parts: the one that ``Encoder.fit`` learns from the whole of it.

    Text with more than a million values is judged by the first million.

    Args:
        categories: as for ``Encoder.fit``.
    """

    def __init__(self, categories: Sequence[Any] = ()):
        self._categories = categories
        self._has_names = False
        self._scans: list[ColumnScan] = []

    def add(self, X: Any, kept: Bool[np.ndarray, " n"] | None = None, rows_from: int = 0) -> None:
        """Further rows.

        Args:
            kept: which of them are rows to learn from; None for all.
            rows_from: the number of the first one, for error messages.
        """
        table = as_table(X)
        is_frame = isinstance(table, pd.DataFrame)
        names = names_of(table) if is_frame else tuple(f"x{j}" for j in range(table.shape[1]))
        if is_frame:
            check_frame(table)
        if not self._scans:
            chosen = category_places(self._categories, names, by_position=not is_frame)
            self._has_names = is_frame
            self._scans = [ColumnScan(name, j in chosen) for j, name in enumerate(names)]
        known = [scan.name for scan in self._scans]
        if is_frame != self._has_names or sorted(names) != sorted(known):
            raise ValueError(
                f"the rows from {rows_from} on have the columns {listed(names)}, those before had {listed(known)}; all "
                "parts of a table have the same columns."
            )
        place = {name: j for j, name in enumerate(names)}
        for scan in self._scans:
            j = place[scan.name]
            scan.add(table.iloc[:, j] if is_frame else pd.Series(table[:, j]), kept, rows_from)

    def encoder(self) -> Encoder:
        """The encoder for tables like this one, but for quantiles: see ``Encoder.with_quantiles``."""
        return Encoder([scan.column() for scan in self._scans], self._has_names)
