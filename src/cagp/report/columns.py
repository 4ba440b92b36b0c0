"""The columns of the user's table: what they hold, their values as numbers, and tables with one column replaced."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cagp.plots import Vector

Matrix = NDArray[np.float64]
"""(rows, targets)"""

Table = pd.DataFrame | np.ndarray

MISSING = "(missing)"
"""The name of the level of rows without a value, in a column of levels."""


class InputColumn(NamedTuple):
    """A column of the table before anything is encoded."""

    name: str
    place: int
    kind: str  # "number", "date", "duration" or "levels"
    values: Vector  # NaN where missing; days for durations, days since 1970 for dates, codes 0, 1, ... for levels
    levels: tuple[str, ...]  # the name of each code, the most frequent first; () for other kinds

    @property
    def label(self) -> str:
        """The name, with the unit that the values have here."""
        return f"{self.name} (days)" if self.kind == "duration" else self.name

    @property
    def is_ordered(self) -> bool:
        """Whether the values are numbers in the usual sense."""
        return self.kind != "levels"

    def shown(self, row: int) -> str:
        """The value of one row in words."""
        value = float(self.values[row])
        if self.kind == "levels":
            return self.levels[int(value)]
        if np.isnan(value):
            return "missing"
        if self.kind == "date":
            return f"{pd.Timestamp(0) + pd.Timedelta(days=value):%Y-%m-%d}"
        return f"{value:.4g}".replace("-", "−")


def column_names(X: Table) -> list[str]:
    """The names of a frame's columns; "x0", "x1", ... for an array."""
    return [str(name) for name in X.columns] if isinstance(X, pd.DataFrame) else [f"x{j}" for j in range(X.shape[1])]


def input_columns(X: Table) -> list[InputColumn]:
    """The columns that have at least two different values, in the order of the table."""
    columns = [_column(X, place, name) for place, name in enumerate(column_names(X))]
    return [column for column in columns if len(np.unique(column.values[np.isfinite(column.values)])) > 1]


def with_values_of(X: Table, place: int, donors: NDArray[np.intp], source: Table) -> Table:
    """The table with one column replaced by the values that rows ``donors`` of ``source`` have in it.

    Taking values that occur, the column keeps its type, whatever that is.
    """
    if not isinstance(X, pd.DataFrame):
        changed = X.copy()
        changed[:, place] = np.asarray(source)[donors, place]
        return changed
    assert isinstance(source, pd.DataFrame)
    changed = X.reset_index(drop=True)
    changed.isetitem(place, source.iloc[donors, place].reset_index(drop=True))
    return changed


def _column(X: Table, place: int, name: str) -> InputColumn:
    series = X.iloc[:, place] if isinstance(X, pd.DataFrame) else pd.Series(X[:, place]).infer_objects()
    types = pd.api.types
    if types.is_numeric_dtype(series.dtype) and not types.is_bool_dtype(series.dtype):
        kind = "number"
    elif types.is_datetime64_any_dtype(series.dtype):
        kind, series = "date", (series - pd.Timestamp(0, tz=series.dt.tz)) / pd.Timedelta(days=1)
    elif types.is_timedelta64_dtype(series.dtype):
        kind, series = "duration", series / pd.Timedelta(days=1)
    else:
        missing = series.isna().to_numpy()
        text = series.astype(object).where(~missing, MISSING).map(str)
        counts = text.value_counts()
        levels = sorted(counts.index, key=lambda level: (-counts[level], level))
        return InputColumn(name, place, "levels", pd.Index(levels).get_indexer(text).astype(float), tuple(levels))
    return InputColumn(name, place, kind, series.to_numpy(dtype=float, na_value=np.nan), ())
