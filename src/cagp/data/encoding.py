"""Users' tables (frames, arrays, tensors, lists) as float64 matrices, always in the same way; and their targets."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int64

from cagp.column_kinds import DATETIME, DECIMAL_COMMA, EXPOSURE, LEVELS, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data import cells, column_values

PLAIN = {NUMBER, EXPOSURE}
"""Kinds of columns that an array of numbers holds as they are."""

MOST_NAMES = 8
"""Columns that a sentence lists."""

MOST_COMBINATIONS, ROUNDS = 64, 4
"""A row with several unknown values has all combinations of their stand-ins, up to this many; with more, it goes this
often through the stand-ins of each."""


class Encoder:
    """Turns frames, arrays, tensors and lists into float64 matrices, always in the same way; made by ``fit``.

    Numbers stay as they are, dates and durations become days, and levels (text, categories) become 0/1 columns; a
    column that lacked values at fit gets another, "NAME is missing". The page on data frames has the whole table. What
    has no clear meaning is an error that names column and row, which count from 0.

    Columns of frames are matched by name, in any order, and additional columns are ignored. Columns are matched by
    position if the table is not a frame, or was not one at fit.

    There are two steps. ``codes`` has one number for each cell, with NaN for missing values and levels as 0, 1, 2, ...,
    for methods that know categories, e.g. trees. ``expand`` turns codes into the inputs of a Gaussian process.

    Attributes:
        columns: what is known of each column.
        num_columns: the number of columns of the tables, and of ``codes``.
        names_in: the names of the columns at fit; None if the table was not a frame.
        names_out: the names of the columns of ``transform``: "column", "column=level" or "column is missing".
        text_names: columns to read from a file as text (``cagp.data.read_table``): levels, and numbers with commas.
        categorical: the positions of the columns of levels in ``codes``.
        exposure_name: the name of the column of exposures; None where there is none.
    """

    def __init__(self, columns: Sequence[Column], has_names: bool):
        self.columns, self._has_names, self.num_columns = tuple(columns), has_names, len(columns)
        self.names_in = tuple(column.name for column in columns) if has_names else None
        self.names_out = tuple(name for column in columns for name in column.names_out)
        self.text_names = tuple(c.name for c in columns if c.kind == LEVELS or c.format == DECIMAL_COMMA)
        self.categorical = tuple(j for j, column in enumerate(columns) if column.kind == LEVELS)
        self.exposure_name = next((column.name for column in columns if column.kind == EXPOSURE), None)

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
    def fit_codes(
        cls, X: Any, categories: Sequence[Any] = (), kept: Bool[np.ndarray, " n"] | None = None
    ) -> tuple["Encoder", Float64[np.ndarray, "n c"]]:
        """The encoder and its ``codes`` of ``X``; rows not ``kept`` to learn from decide the kinds of columns alone."""
        table, scan = cells.as_table(X), EncoderScan(categories)
        scan.add(table, kept)
        encoder = scan.encoder()
        codes = encoder.codes(table)
        rows = codes if kept is None or kept.all() else codes[kept]
        return encoder.with_quantiles(rows[:: column_values.quantile_stride(len(rows))]), codes

    def with_exposure(self, exposure: Any, codes: Float64[np.ndarray, "n c"]) -> "Encoder":
        """The same encoder with a column of exposures (its name, or position in an array): positive, and no input."""
        names = [column.name for column in self.columns]
        (place,) = cells.column_places("exposure", [exposure], names, by_position=not self._has_names)
        if len(names) == 1:
            raise ValueError("X has no column besides the exposure; add one to predict from.")
        column, columns = self.columns[place], list(self.columns)
        if column.kind != NUMBER:
            raise ValueError(f"the exposure, column {column.name!r}, holds {WORDS[column.kind]}, expected numbers.")
        cells.check_exposure(codes[:, place], column.name, 0)
        columns[place] = Column(column.name, EXPOSURE, format=column.format)
        return Encoder(columns, self._has_names)

    def without_exposure(
        self, codes: Float64[np.ndarray, "n c"]
    ) -> tuple[Float64[np.ndarray, "n c"], Float64[np.ndarray, " n"] | None]:
        """Codes in which every exposure is one, and the exposures; None where there are none."""
        if self.exposure_name is None:
            return codes, None
        place, constant = [column.kind for column in self.columns].index(EXPOSURE), codes.copy()
        constant[:, place] = 1.0
        return constant, codes[:, place].copy()

    def with_quantiles(self, codes: Float64[np.ndarray, "m c"]) -> "Encoder":
        """The same encoder with quantiles, from the codes of every ``quantile_stride``-th row to learn from."""
        columns, parts = list(self.columns), column_values.NUM_QUANTILES
        middles = (np.arange(parts) + 0.5) / parts  # of parts of equal probability
        for j, column in enumerate(columns):
            if not column.missing and column.kind not in (LEVELS, EXPOSURE):
                quantiles = np.quantile(codes[:, j], middles, method="inverted_cdf")
                columns[j] = column._replace(quantiles=tuple(map(float, quantiles)))
        return Encoder(columns, self._has_names)

    def transform(self, X: Any, rows_from: int = 0) -> Float64[np.ndarray, "n p"]:
        """The rows of ``X`` as inputs of a Gaussian process: ``expand(codes(X))``, which may be ``X`` itself.

        Args:
            rows_from: the number of the first row, for error messages about a table that comes in pieces.
        """
        return self.expand(self.codes(X, rows_from))

    def codes(self, X: Any, rows_from: int = 0) -> Float64[np.ndarray, "n c"]:
        """A number for each cell: NaN for missing values, 0 to L - 1 for levels, L for one that fit did not see."""
        table = cells.as_table(X)
        columns = self._ours(table)
        if isinstance(table, np.ndarray) and table.dtype.kind == "f" and {c.kind for c in self.columns} <= PLAIN:
            codes = table
        else:
            codes = np.empty((len(table), self.num_columns))
            for j, (column, values) in enumerate(zip(self.columns, columns, strict=True)):
                codes[:, j] = column_values.column_codes(column, values, rows_from)
        for j, column in enumerate(self.columns):
            if column.kind == EXPOSURE:
                cells.check_exposure(codes[:, j], column.name, rows_from)
        cells.check_values(codes, [column.name for column in self.columns], rows_from)
        return codes

    def expand(self, codes: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "n p"]:
        """The inputs for rows in the form of ``codes``; a missing number stays NaN."""
        if not any(column.kind in (LEVELS, EXPOSURE) or column.missing for column in self.columns):
            return codes
        parts = [column_values.expanded_column(column, codes[:, j]) for j, column in enumerate(self.columns)]
        return np.concatenate(parts, axis=1)

    def stand_ins(
        self, codes: Float64[np.ndarray, "n c"]
    ) -> tuple[Float64[np.ndarray, "m c"], Int64[np.ndarray, " m"]]:
        """The rows, where a value is unknown once with each of its stand-ins in its place; and their numbers.

        Unknown are levels that did not occur at fit, and missing values in columns that had none. Of several in a row,
        all combinations are taken; where these are many, each column goes several times through its stand-ins, in
        random orders of its own: columns then vary nearly independently.
        """
        unknown = {j: column_values.is_unknown(column, codes[:, j]) for j, column in enumerate(self.columns)}
        unknown = {j: rows for j, rows in unknown.items() if rows.any()}
        if not unknown:
            return codes, np.arange(len(codes))
        values = {j: column_values.stand_ins(self.columns[j]) for j in unknown}
        longest, product, strides = np.ones(len(codes), dtype=np.int64), np.ones(len(codes)), {}
        for j, rows in unknown.items():
            strides[j] = product  # combinations after which this column takes its next stand-in
            longest = np.where(rows, np.maximum(longest, len(values[j])), longest)
            product = np.where(rows, product * len(values[j]), product)
        all_of_them = (product <= MOST_COMBINATIONS) | (np.sum(list(unknown.values()), axis=0) == 1)
        counts = np.where(all_of_them, np.minimum(product, 2**31), ROUNDS * longest).astype(np.int64)
        numbers = np.repeat(np.arange(len(codes)), counts)
        turn = np.arange(len(numbers)) - np.repeat(np.cumsum(counts) - counts, counts)
        replaced = codes[numbers]
        for j, rows in unknown.items():
            random, rounds = np.random.default_rng(seed=j), math.ceil(counts[rows].max() / len(values[j]))
            random_order = np.concatenate([random.permutation(len(values[j])) for _ in range(rounds)])
            in_turn = (turn // strides[j][numbers]).astype(np.int64) % len(values[j])
            place = np.where(all_of_them[numbers], in_turn, random_order[turn % len(random_order)])
            replaced[:, j] = np.where(rows[numbers], values[j][place], replaced[:, j])
        return replaced, numbers

    def num_unknown(self, codes: Float64[np.ndarray, "n c"]) -> dict[str, int]:
        """In how many rows columns have a level that did not occur at fit; only columns with such rows."""
        levels = {j: len(self.columns[j].levels) for j in self.categorical}
        return {self.columns[j].name: n for j, L in levels.items() if (n := int((codes[:, j] == L).sum()))}

    def num_missing(self, codes: Float64[np.ndarray, "n c"]) -> dict[str, int]:
        """The same of values that are missing in columns that had them all at fit."""
        counts = zip(self.columns, np.isnan(codes).sum(axis=0).tolist(), strict=True)
        return {column.name: n for column, n in counts if n and not column.missing}

    def typed(self, frame: Any) -> Any:
        """A frame with dates and numbers for text columns that are read as such; any other table as it is."""
        if not isinstance(frame, pd.DataFrame) or not self._has_names:
            return frame
        known = {column.name: column for column in self.columns if column.kind in (NUMBER, DATETIME)}
        columns = _columns(frame)
        for j, name in enumerate(cells.names_of(frame)):
            if name in known and column_values.kind_of(columns[j], name) == LEVELS:
                values = cells.TEXT_FORMATS[known[name].format].read(columns[j])
                columns[j] = values if known[name].kind == NUMBER else values.dt.tz_localize(None)
        return pd.concat(columns, axis=1).set_axis(frame.columns, axis=1)

    def missing_words(self, codes: Float64[np.ndarray, "n c"]) -> list[str]:
        """How many values are missing in which columns, in a sentence; none where none are missing."""
        return self.missing_in_words(np.isnan(codes).sum(axis=0), len(codes))

    def missing_in_words(self, counts: Int64[np.ndarray, " c"], num_rows: int) -> list[str]:
        """The same for a number of missing values in each column."""
        parts = [f"{column.name!r} in {n:,}" for column, n in zip(self.columns, counts, strict=True) if n]
        rest = f" and {len(parts) - MOST_NAMES:,} more columns" if len(parts) > MOST_NAMES else ""
        words = (
            f"Missing values: {', '.join(parts[:MOST_NAMES])}{rest} of {num_rows:,} rows. Each of these columns has "
            "a further input that says where."
        )
        return [words] if parts else []

    def state(self) -> dict[str, Any]:
        """The whole encoder as dicts, lists, text and booleans, for ``from_state``."""
        return {"has_names": self._has_names, "columns": [column.state() for column in self.columns]}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Encoder":
        """The encoder whose ``state()`` this is; ValueError for what no encoder can be."""
        columns, has_names = [Column.from_state(column) for column in state["columns"]], state["has_names"]
        if not columns or len({column.name for column in columns}) < len(columns) or not isinstance(has_names, bool):
            raise ValueError("the state does not have columns as cagp stores them; save the model again.")
        return cls(columns, has_names)

    def _ours(self, table: cells.Table) -> list[pd.Series]:
        """The columns of fit in this table."""
        columns, ours = _columns(table), [column.name for column in self.columns]
        if isinstance(table, pd.DataFrame) and self._has_names:
            found = dict(zip(cells.names_of(table), columns, strict=True))
            absent = [name for name in ours if name not in found]
            if absent:
                raise ValueError(
                    f"X has no {cells.columns_text(absent)}, which fit had; its columns are {cells.listed(found)}."
                )
            return [found[name] for name in ours]
        if len(columns) != len(ours):
            raise ValueError(
                f"X has {len(columns)} features, but Encoder is expecting {len(ours)} features as input: "
                f"the columns of fit, {cells.listed(ours)}."
            )
        return columns


def _columns(table: cells.Table) -> list[pd.Series]:
    if isinstance(table, pd.DataFrame):
        return [table.iloc[:, j] for j in range(table.shape[1])]
    return [pd.Series(column) for column in table.T]


class EncoderScan:
    """Learns the encoder of a table that comes in parts: the one that ``Encoder.fit`` learns from the whole of it.

    Of text with more than a million values, the first million decide its format.
    """

    def __init__(self, categories: Sequence[Any] = ()):
        self._categories = categories
        self._has_names = False
        self._scans: dict[str, column_values.ColumnScan] = {}

    def add(self, X: Any, kept: Bool[np.ndarray, " n"] | None = None, rows_from: int = 0) -> None:
        """Further rows, from the number ``rows_from`` on; those to learn from are ``kept``, or all."""
        table = cells.as_table(X)
        if kept is not None and len(kept) != len(table):
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: X has {len(table):,} rows, "
                f"y has {len(kept):,}."
            )
        is_frame = isinstance(table, pd.DataFrame)
        names = cells.names_of(table) if is_frame else tuple(f"x{j}" for j in range(table.shape[1]))
        if not self._scans:
            chosen = cells.column_places("categories", self._categories, names, by_position=not is_frame)
            self._has_names = is_frame
            self._scans = {name: column_values.ColumnScan(name, j in chosen) for j, name in enumerate(names)}
        if is_frame != self._has_names or self._scans.keys() != set(names):
            raise ValueError(
                f"the rows from {rows_from} on have the columns {cells.listed(names)}, those before had "
                f"{cells.listed(self._scans)}; all parts of a table have the same columns."
            )
        for name, values in zip(names, _columns(table), strict=True):
            self._scans[name].add(values, kept, rows_from)

    def encoder(self) -> Encoder:
        """The encoder for tables like this one, but for quantiles: see ``Encoder.with_quantiles``."""
        return Encoder([scan.column() for scan in self._scans.values()], self._has_names)


class Target(NamedTuple):
    """Targets as numbers, with NaN for missing values."""

    values: Float64[np.ndarray, "n"] | Float64[np.ndarray, "n q"]  # one column is a vector
    names: tuple[str, ...]
    missing: Bool[np.ndarray, "n"]  # the rows in which at least one target is missing
    empty: Bool[np.ndarray, "n"]  # the rows in which all targets are missing


def encode_target(y: Any, name: str = "y", rows_from: int | None = None) -> Target:
    """The targets as float64, their names, and the rows in which they are missing; only numbers and booleans.

    Args:
        name: what error messages call the targets; also the name of targets that have none.
        rows_from: of a part of a table, in which all rows may lack a target: the number of its first row.
    """
    if y is None:
        raise ValueError(f"This regressor requires y to be passed, but the target {name} is None.")
    frame = _target_frame(y, name)
    if 0 in frame.shape:
        raise ValueError(f"{name} has the shape {frame.shape}, expected at least 1 row and 1 column (minimum of 1).")
    names = cells.names_of(frame)
    cells.check_duplicates(names, name)
    values = np.stack([_target_values(frame.iloc[:, j], names[j], name) for j in range(len(names))], axis=1)
    for column, wrong in zip(names, (np.abs(values) > cells.LARGEST).T, strict=True):
        if wrong.any():
            raise ValueError(
                f"Input {name} contains infinity or a value too large for dtype('float64'): column {column!r} has "
                f"{int(wrong.sum())} (first at row {(rows_from or 0) + int(wrong.argmax())}). Drop these rows, or "
                "write NaN for a target that is not known."
            )
    absent = np.isnan(values)
    if rows_from is None and absent.all(axis=0).any():
        column = names[int(absent.all(axis=0).argmax())]
        raise ValueError(f"Input {name} contains only NaN in column {column!r}: there is nothing to learn from.")
    missing, empty = np.asarray(absent.any(axis=1)), np.asarray(absent.all(axis=1))
    return Target(values[:, 0] if len(names) == 1 else values, names, missing, empty)


def _target_frame(y: Any, name: str) -> pd.DataFrame:
    y = cells.plain(y, name)
    if isinstance(y, pd.DataFrame):
        return y
    if isinstance(y, pd.Series):
        return y.to_frame(name if y.name is None else str(y.name))
    array = cells.as_array(y, name)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"{name} should be a 1d array, or a 2d array with a column for each target; it has shape {array.shape}."
        )
    width = 1 if array.ndim == 1 else array.shape[1]
    return pd.DataFrame(array, columns=[name] if width == 1 else [f"{name}{j}" for j in range(width)])


def _target_values(values: pd.Series, column: str, name: str) -> np.ndarray:
    values = cells.with_decimal_commas_read(values, column)
    kind = column_values.kind_of(values, column)
    if kind in (DATETIME, TIMEDELTA):
        raise ValueError(
            f"{name} holds {WORDS[kind]} in column {column!r}, expected numbers; convert them, e.g. to days: "
            + ("(y - y.min()) / pandas.Timedelta(days=1)." if kind == DATETIME else "y / pandas.Timedelta(days=1).")
        )
    if kind == LEVELS:
        raise ValueError(
            f"{name} holds text or categories in column {column!r}{column_values.first_text(values, 0)}. "
            "This is regression: targets are numbers. Convert numbers written as text with pandas.to_numeric; for "
            "classes use CaGPClassifier, or cagp fit --classify."
        )
    return np.full(len(values), np.nan) if kind == column_values.EMPTY else cells.numbers_of(values, column)
