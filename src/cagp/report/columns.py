"""The columns of the user's table: what they hold, their values as numbers, and tables with one column replaced."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Table, column_names

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


def input_columns(rows: HeldOutRows) -> list[InputColumn]:
    """The columns that have at least two different values among the rows, in the order of the table."""
    names = column_names(rows.X)
    found = [_column(rows.X, place, name) for place, name in enumerate(names)]
    return [column for column in found if _varies(column.values)]


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
        return InputColumn(name, place, "number", series.to_numpy(dtype=float, na_value=np.nan), ())
    if types.is_datetime64_any_dtype(series.dtype):
        days = (series - pd.Timestamp(0, tz=series.dt.tz)) / pd.Timedelta(days=1)
        return InputColumn(name, place, "date", days.to_numpy(dtype=float, na_value=np.nan), ())
    if types.is_timedelta64_dtype(series.dtype):
        days = series / pd.Timedelta(days=1)
        return InputColumn(name, place, "duration", days.to_numpy(dtype=float, na_value=np.nan), ())
    missing = series.isna().to_numpy()
    text = series.astype(object).where(~missing, MISSING).map(str)
    counts = text.value_counts()
    levels = sorted(counts.index, key=lambda level: (-counts[level], level))
    return InputColumn(name, place, "levels", pd.Index(levels).get_indexer(text).astype(float), tuple(levels))


def _varies(values: Vector) -> bool:
    known = values[np.isfinite(values)]
    return len(known) > 1 and float(known.min()) < float(known.max())
