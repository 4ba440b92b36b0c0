"""The encoder: users' tables (frames, arrays, tensors, lists) as float64 matrices, always in the same way."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from cagp.column_kinds import DATETIME, LEVELS, NUMBER, TIMEDELTA, WORDS, Column
from cagp.data.column_values import column_codes, expanded_column, fitted_column
from cagp.data.table_checks import Table, as_table, check_frame, check_values, columns_text, listed, names_of


class Encoder:
    """Turns frames, arrays, tensors and lists into float64 matrices, always in the same way; made by ``fit``.

    - Numbers stay as they are. True and False become 1 and 0, dates become days since 1970 (in UTC if they have a time
      zone), durations become days.
    - Text and categories become a 0/1 column for each level that occurs at fit, in sorted order. Two levels become one
      column, that of the second. Categories of other types are compared as text: 1, 1.0 and "1" are the same level.
    - Text that consists of numbers ("1.5") is an error: it could mean quantities or codes, and only the user knows.
    - Arrays hold numbers, dates or durations; text needs a frame.

    Columns of frames are matched by name, in any order, and additional columns are ignored. Columns are matched by
    position if the table is not a frame, or was not one at fit. Rows in error messages count from 0.
    """

    def __init__(self, columns: Sequence[Column], has_names: bool):
        self._columns, self._has_names = tuple(columns), has_names

    @classmethod
    def fit(cls, X: Any) -> "Encoder":
        """The encoder for tables like ``X``. ``X`` itself must have no errors: ``transform(X)`` will not fail."""
        return cls.fit_transform(X)[0]

    @classmethod
    def fit_transform(cls, X: Any) -> tuple["Encoder", Float64[np.ndarray, "n p"]]:
        """The encoder for tables like ``X``, and the rows of ``X`` as its ``transform`` gives them."""
        encoder, codes = cls.fit_codes(X)
        return encoder, encoder.expand(codes)

    @classmethod
    def fit_codes(cls, X: Any) -> tuple["Encoder", Float64[np.ndarray, "n c"]]:
        """The encoder for tables like ``X``, and the rows of ``X`` as its ``codes`` gives them."""
        table = as_table(X)
        if isinstance(table, pd.DataFrame):
            check_frame(table)
            columns = [fitted_column(table.iloc[:, j], name) for j, name in enumerate(names_of(table))]
            encoder = cls(columns, has_names=True)
        else:
            kind = {"M": DATETIME, "m": TIMEDELTA}.get(table.dtype.kind, NUMBER)
            encoder = cls([Column(f"x{j}", kind) for j in range(table.shape[1])], has_names=False)
        return encoder, encoder._codes(table, 0)

    @property
    def names_in(self) -> tuple[str, ...] | None:
        """The names of the columns at fit; None if the table was not a frame."""
        return tuple(column.name for column in self._columns) if self._has_names else None

    @property
    def names_out(self) -> tuple[str, ...]:
        """The names of the columns of ``transform``: "column", or "column=level"; "x0", "x1", ... for arrays."""
        return tuple(name for column in self._columns for name in column.names_out)

    @property
    def text_names(self) -> tuple[str, ...]:
        """The columns of levels: those to read from a file as text (see ``cagp.data.read_table``)."""
        return tuple(column.name for column in self._columns if column.kind == LEVELS)

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
        """The rows of ``X`` in compact form, with a column for each column of the table: levels as 0, 1, 2, ..."""
        table = as_table(X)
        if isinstance(table, pd.DataFrame):
            check_frame(table)
        return self._codes(table, rows_from)

    def expand(self, codes: Float64[np.ndarray, "n c"]) -> Float64[np.ndarray, "n p"]:
        """The inputs for rows in the form of ``codes``: a 0/1 column for each level; numbers stay as they are."""
        if not self.categorical:
            return codes
        parts = [expanded_column(column, codes[:, j]) for j, column in enumerate(self._columns)]
        return np.concatenate(parts, axis=1)

    def state(self) -> dict[str, Any]:
        """The whole encoder as dicts, lists, text and booleans, for ``from_state``."""
        columns = [{"name": c.name, "kind": c.kind, "levels": list(c.levels)} for c in self._columns]
        return {"has_names": self._has_names, "columns": columns}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Encoder":
        """The encoder whose ``state()`` this is."""
        columns = [Column(c["name"], c["kind"], tuple(c["levels"])) for c in state["columns"]]
        for column in columns:
            if column.kind not in WORDS:
                raise ValueError(f"column {column.name!r} has the kind {column.kind!r}, expected one of {list(WORDS)}.")
        return cls(columns, state["has_names"])

    def _codes(self, table: Table, rows_from: int) -> Float64[np.ndarray, "n c"]:
        if isinstance(table, pd.DataFrame):
            parts = [table.iloc[:, j] for j in self._places(table)]
        else:
            self._check_width(table.shape[1])
            if table.dtype.kind == "f" and all(column.kind == NUMBER for column in self._columns):
                check_values(table, self._columns, rows_from)
                return table
            parts = [pd.Series(table[:, j]) for j in range(table.shape[1])]

        codes = np.empty((len(table), len(self._columns)))
        for j, (column, values) in enumerate(zip(self._columns, parts, strict=True)):
            codes[:, j] = column_codes(column, values, rows_from)
        check_values(codes, self._columns, rows_from)
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
