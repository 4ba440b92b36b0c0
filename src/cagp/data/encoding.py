"""What users have (frames, arrays, tensors, lists) as float64 matrices, and errors that name the column and the remedy.

Rows in messages count from 0.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64
from scipy import sparse
from sklearn.utils import check_array

MAX_LEVELS = 20  # of a text column: each is an input of its own, and a Gaussian process suffers from many inputs
LARGEST = 1e150  # the squares of larger values, and so their squared distances, leave the range of float64

NUMBER, DATETIME, TIMEDELTA, LEVELS = "number", "datetime", "timedelta", "levels"
EMPTY = "empty"  # nothing but missing values
# By what pandas.api.types.infer_dtype says of a column.
KINDS = {
    **dict.fromkeys(["integer", "floating", "mixed-integer-float", "decimal", "boolean"], NUMBER),
    **dict.fromkeys(["datetime64", "datetime", "date"], DATETIME),
    **dict.fromkeys(["timedelta64", "timedelta"], TIMEDELTA),
    **dict.fromkeys(["string", "categorical"], LEVELS),
    "empty": EMPTY,
}
WORDS = {NUMBER: "numbers", DATETIME: "dates", TIMEDELTA: "durations", LEVELS: "levels (text or categories)"}


class Column(NamedTuple):
    """An input column as it was at fit."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()

    @property
    def coded_levels(self) -> tuple[str, ...]:
        """The levels that have a 0/1 column: of two only the second, since the first would be its mirror image."""
        return self.levels[1:] if len(self.levels) == 2 else self.levels

    @property
    def names_out(self) -> list[str]:
        return [f"{self.name}={level}" for level in self.coded_levels] if self.kind == LEVELS else [self.name]


class Encoder:
    """Turns frames, arrays, tensors and lists into float64 matrices, always in the same way; made by ``fit``.

    - Numbers stay, True and False become 1 and 0, dates days since 1970 (UTC if they have a time zone), durations days.
    - Text and categories become a 0/1 column for each level that occurs at fit, in sorted order; two levels become one
      column, that of the second. Categories of other types go by their text, so that 1, 1.0 and "1" are one level.
    - Text that is all numbers ("1.5") is an error: it could mean quantities or codes, and only the user knows.
    - Arrays hold numbers, or dates or durations; text needs a frame.

    Frames are matched by the names of their columns, in any order; further columns are ignored. What is not a frame, or
    was not one at fit, goes by position.
    """

    def __init__(self, columns: Sequence[Column], has_names: bool):
        self._columns, self._has_names = tuple(columns), has_names

    @classmethod
    def fit(cls, X: Any) -> "Encoder":
        """The encoder for tables like ``X``, which must itself be free of errors: ``transform(X)`` will not fail."""
        X = _table(X)
        if isinstance(X, pd.DataFrame):
            _check_frame(X)
            encoder = cls([_fit_column(X.iloc[:, j], name) for j, name in enumerate(_names(X))], has_names=True)
        else:
            kind = {"M": DATETIME, "m": TIMEDELTA}.get(X.dtype.kind, NUMBER)
            encoder = cls([Column(f"x{j}", kind) for j in range(X.shape[1])], has_names=False)
        encoder.transform(X)
        return encoder

    @property
    def names_in(self) -> tuple[str, ...] | None:
        """The names of the frame's columns at fit; None if it was no frame."""
        return tuple(column.name for column in self._columns) if self._has_names else None

    @property
    def names_out(self) -> tuple[str, ...]:
        """The names of the matrix's columns: "column", or "column=level"; "x0", "x1", ... for arrays."""
        return tuple(name for column in self._columns for name in column.names_out)

    @property
    def text_names(self) -> tuple[str, ...]:
        """The columns of levels: what to read as text from a file (see ``cagp.data.read_table``)."""
        return tuple(column.name for column in self._columns if column.kind == LEVELS)

    def transform(self, X: Any, rows_from: int = 0) -> Float64[np.ndarray, "n p"]:
        """The rows of ``X`` as numbers: writable, all finite; shares memory with an ``X`` that is so already.

        Args:
            rows_from: the number of the first row, for messages about a table that comes in pieces.
        """
        X = _table(X)
        if isinstance(X, pd.DataFrame):
            _check_frame(X)
            parts = [X.iloc[:, j] for j in self._places(X)]
        else:
            self._check_width(X.shape[1])
            if X.dtype.kind == "f" and all(column.kind == NUMBER for column in self._columns):
                _check_values(X, self._columns, range(X.shape[1]), rows_from)
                return X
            parts = [pd.Series(X[:, j]) for j in range(X.shape[1])]

        matrix = np.empty((len(X), len(self.names_out)))
        starts, end = [], 0
        for column, values in zip(self._columns, parts, strict=True):
            starts.append(end)
            end += len(column.names_out)
            matrix[:, starts[-1] : end] = _encode(column, values, rows_from)
        _check_values(matrix, self._columns, starts, rows_from)
        return matrix

    def state(self) -> dict[str, Any]:
        """All of the encoder in dicts, lists, text and booleans, for ``from_state``."""
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

    def _places(self, frame: pd.DataFrame) -> list[int]:
        """Where the columns of fit are in this frame."""
        if not self._has_names:
            self._check_width(frame.shape[1])
            return list(range(frame.shape[1]))
        place = {name: j for j, name in enumerate(_names(frame))}
        absent = [column.name for column in self._columns if column.name not in place]
        if absent:
            raise ValueError(f"X has no {_columns_text(absent)}, which fit had; its columns are {_listed(place)}.")
        return [place[column.name] for column in self._columns]

    def _check_width(self, width: int) -> None:
        if width != len(self._columns):
            raise ValueError(
                f"X has {width} features, but Encoder is expecting {len(self._columns)} features as input: "
                f"the columns of fit, {_listed(column.name for column in self._columns)}."
            )


class Target(NamedTuple):
    """Targets as numbers, with NaN where they are missing."""

    values: Float64[np.ndarray, "n"] | Float64[np.ndarray, "n q"]  # one column is a vector
    names: tuple[str, ...]
    missing: Bool[np.ndarray, "n"]  # the rows that lack at least one target


def encode_target(y: Any, name: str = "y") -> Target:
    """The targets as float64, their names, and the rows where they are missing; numbers and booleans only.

    Args:
        name: what messages call the targets, and the name of those that have none of their own.
    """
    if y is None:
        raise ValueError(f"This regressor requires y to be passed, but the target {name} is None.")
    frame = _target_frame(y, name)
    if 0 in frame.shape:
        raise ValueError(f"{name} has the shape {frame.shape}, expected at least 1 row and 1 column (minimum of 1).")
    names = _names(frame)
    _check_duplicates(names, name)
    values = np.stack([_target_values(frame.iloc[:, j], names[j], name) for j in range(len(names))], axis=1)
    for j, column in enumerate(names):
        wrong = np.abs(values[:, j]) > LARGEST
        if wrong.any():
            raise ValueError(
                f"Input {name} contains infinity or a value too large for dtype('float64'): column {column!r} has "
                f"{int(wrong.sum())} (first at row {int(wrong.argmax())}). Drop these rows, or write NaN for a target "
                "that is not known."
            )
        if np.isnan(values[:, j]).all():
            raise ValueError(f"Input {name} contains NaN alone in column {column!r}: there is nothing to learn from.")
    missing = np.asarray(np.isnan(values).any(axis=1))
    if missing.all():
        raise ValueError(f"Input {name} contains NaN in every row, in one of {_columns_text(names)} or another.")
    return Target(values[:, 0] if len(names) == 1 else values, names, missing)


# ---- tables ----


def _table(X: Any) -> pd.DataFrame | np.ndarray:
    """A frame, or a matrix of finite or infinite float64, dates or durations."""
    if isinstance(X, pd.DataFrame):
        return X
    _check_dense(X, "X")
    if hasattr(X, "to_pandas"):  # other libraries' frames
        return X.to_pandas()
    array = _array(X, "X")
    if array.dtype.names is not None and array.ndim == 1:
        return pd.DataFrame(array)
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D of shape {array.shape} as X. Reshape your data: "
            "X.reshape(-1, 1) if it is one column, X.reshape(1, -1) if it is one row."
        )
    if array.dtype.kind in "OSUV":
        array = _object_numbers(array)
    dtype: Any = None if array.dtype.kind in "mM" else np.float64
    array = check_array(array, dtype=dtype, ensure_all_finite=False, input_name="X")
    # Torch takes neither read-only memory nor negative strides.
    array = np.require(array, requirements=["W"])
    return array if min(array.strides) >= 0 else array.copy()


def _check_dense(values: Any, name: str) -> None:
    if sparse.issparse(values):
        raise TypeError(f"{name} is a sparse matrix, expected a dense one: use {name}.toarray(), if memory allows.")
    if isinstance(values, torch.Tensor) and values.layout != torch.strided:
        raise TypeError(f"{name} is a sparse tensor, expected a dense one: use {name}.to_dense(), if memory allows.")


def _array(values: Any, name: str) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.double() if values.dtype == torch.bfloat16 else values).resolve_conj().numpy()
    if isinstance(values, np.ma.MaskedArray):  # what is masked is missing
        return np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is no table, expected rows of equal length: {error}") from error


def _object_numbers(array: np.ndarray) -> np.ndarray:
    """An array of Python objects as float64; only numbers, booleans and missing values are."""
    if array.dtype.kind in "SU":
        array = array.astype(object)
    numbers = np.empty(array.shape)
    for j in range(array.shape[1]):
        values = pd.Series(array[:, j], dtype=object)
        if pd.api.types.infer_dtype(values, skipna=True) == "complex":
            raise ValueError(f"Complex data not supported: column x{j} of X holds complex numbers.")
        missing = values.isna().tolist()
        wrong = [row for row, cell in enumerate(values) if not missing[row] and not isinstance(cell, Real | Decimal)]
        if wrong:
            cell = values[wrong[0]]
            # The first words are those of Python's float(), by which scikit-learn knows the error.
            raise TypeError(
                f"float() argument must be a string or a real number, not {type(cell).__name__!r}; "
                f"and in an array a real number: column x{j} of X holds {_short(cell)} at row {wrong[0]}. "
                "Pass a pandas DataFrame, whose text columns are encoded, or encode it yourself."
            )
        numbers[:, j] = _numbers(values)
    return numbers


def _check_frame(frame: pd.DataFrame) -> None:
    if frame.shape[1] == 0:
        raise ValueError(f"X has 0 feature(s) (shape={frame.shape}) while a minimum of 1 is required.")
    if len(frame) == 0:
        raise ValueError(f"X has 0 sample(s) (shape={frame.shape}) while a minimum of 1 is required.")
    _check_duplicates(_names(frame), "X")


def _check_duplicates(names: Sequence[str], table: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{table} has more than one {_columns_text(twice)}; drop or rename the others.")


def _names(frame: pd.DataFrame) -> tuple[str, ...]:
    return tuple(str(name) for name in frame.columns)


# ---- columns ----


def _fit_column(values: pd.Series, name: str) -> Column:
    kind = _kind(values, name)
    if kind != LEVELS:
        return Column(name, NUMBER if kind == EMPTY else kind)
    _, found = pd.factorize(values)
    levels = sorted(_label(level) for level in found)
    if not isinstance(values.dtype, pd.CategoricalDtype):
        _check_text(values, name, levels)
    if len(levels) > MAX_LEVELS:
        raise ValueError(
            f"column {name!r} has {len(levels)} levels, at most {MAX_LEVELS} are encoded{_odd_number(values)}. "
            "Drop the column, or encode it yourself: group rare levels, or use sklearn.preprocessing.TargetEncoder."
        )
    if len(set(levels)) < len(levels):
        twice = next(level for level in levels if levels.count(level) > 1)
        raise ValueError(f"column {name!r} has the level {twice!r} in several types; make its categories of one type.")
    return Column(name, LEVELS, tuple(levels))


def _kind(values: pd.Series, name: str) -> str:
    # In a column of objects pandas takes NaT for a date, so that it is left out first.
    what = pd.api.types.infer_dtype(values.dropna() if values.dtype == object else values, skipna=True)
    if what in KINDS:
        # Categories have a type even where every value is missing.
        return EMPTY if KINDS[what] == LEVELS and bool(values.isna().all()) else KINDS[what]
    if what == "complex":
        raise ValueError(f"Complex data not supported: column {name!r} holds complex numbers; use .real and .imag.")
    if what == "period":
        raise ValueError(f"column {name!r} holds periods; make them dates, e.g. with .dt.to_timestamp().")
    types = sorted({type(cell).__name__ for cell in values[~values.isna()].astype(object)})
    if len(types) == 1:
        raise ValueError(
            f"column {name!r} holds values of type {types[0]} (dtype {values.dtype}), expected numbers, text, "
            "booleans, dates or durations; convert or drop it."
        )
    raise ValueError(
        f"column {name!r} mixes values of the types {', '.join(types)}; give it one type, e.g. with "
        ".astype(str) for levels, or pandas.to_numeric for numbers."
    )


def _encode(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    """The column's block of the matrix, (n, number of its names_out); NaN where a value is missing."""
    kind = _kind(values, column.name)
    if column.kind == LEVELS and kind in (LEVELS, NUMBER, EMPTY):
        return _encode_levels(column, values, rows_from)
    if column.kind == DATETIME and kind == LEVELS:
        values, kind = _parsed_dates(column, values, rows_from), DATETIME
    if kind not in (column.kind, EMPTY):
        raise ValueError(
            f"column {column.name!r} holds {WORDS[kind]}, at fit it held {WORDS[column.kind]}"
            f"{_first_text(values, rows_from) if kind == LEVELS else ''}; convert it."
        )
    if kind == EMPTY:
        return np.full((len(values), 1), np.nan)
    return {NUMBER: _numbers, DATETIME: _days_since_epoch, TIMEDELTA: _days}[kind](values)[:, None]


def _encode_levels(column: Column, values: pd.Series, rows_from: int) -> np.ndarray:
    codes, found = pd.factorize(values)
    labels = [_label(level) for level in found]
    unknown = next((code for code, label in enumerate(labels) if label not in column.levels), None)
    if unknown is not None:
        raise ValueError(
            f"column {column.name!r} has the level {_short(labels[unknown])} (first at row "
            f"{rows_from + int((codes == unknown).argmax())}), which it did not have at fit; the levels then were "
            f"{_listed(column.levels)}. Drop such rows, replace the value by one of these, or fit again with it."
        )
    place = np.array([*(column.levels.index(label) for label in labels), -1])[codes]  # code -1, missing, is the last
    offset = len(column.levels) - len(column.coded_levels)
    block = (place[:, None] == np.arange(offset, len(column.levels))).astype(np.float64)
    block[codes < 0] = np.nan
    return block


def _numbers(values: pd.Series) -> np.ndarray:
    """Numbers and booleans as float64, NaN where missing; what float64 cannot hold is infinite."""
    if isinstance(values.dtype, np.dtype) and values.dtype != object:
        array = values.to_numpy()
    else:
        array = values.to_numpy(dtype=object)
        array = np.where(values.isna().to_numpy(), np.nan, array)
    with np.errstate(over="ignore"):
        try:
            return array.astype(np.float64)
        except OverflowError:  # Python's integers have no end
            return np.array([value if abs(value) <= LARGEST else np.inf for value in array], dtype=np.float64)


def _days_since_epoch(values: pd.Series) -> np.ndarray:
    """Days since 1970-01-01, UTC, the same to the last bit whatever the unit of the dates."""
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
    """Dates from a file without types, written as by ISO 8601."""
    dates = pd.to_datetime(values.astype(object), format="ISO8601", utc=True, errors="coerce")
    wrong = (dates.isna() & ~values.isna()).to_numpy()
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"column {column.name!r} holds {_short(values.iloc[first])} at row {rows_from + first}, "
            "at fit it held dates; write dates as in 2024-03-31 or 2024-03-31T12:00:00, or use pandas.to_datetime."
        )
    return dates


def _check_text(values: pd.Series, name: str, levels: list[str]) -> None:
    if levels and all(_is_number(level) for level in levels):
        raise ValueError(
            f"column {name!r} holds numbers as text, e.g. {levels[0]!r}: use pandas.to_numeric if they are quantities, "
            '.astype("category") if they are codes.'
        )


def _odd_number(values: pd.Series) -> str:
    """A hint for a column that is text because of a few cells that are no numbers."""
    cells = {row: str(value) for row, value in enumerate(values) if not pd.isna(value)}
    odd = [row for row, cell in cells.items() if not _is_number(cell)]
    if not odd or 2 * len(odd) > len(cells):
        return ""
    return f" (most look like numbers; {_short(cells[odd[0]])} at row {odd[0]} does not)"


def _first_text(values: pd.Series, rows_from: int) -> str:
    cells = [(row, value) for row, value in enumerate(values.astype(object)) if isinstance(value, str)]
    row, value = next((cell for cell in cells if not _is_number(cell[1])), cells[0] if cells else (0, values.iloc[0]))
    return f", {_short(value)} at row {rows_from + row}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", text) is not None


def _label(level: Any) -> str:
    """The name of a level: 1, 1.0 and "1" are one, since a column of whole numbers may come as any of them."""
    return str(int(level)) if isinstance(level, float | np.floating) and level.is_integer() else str(level)


# ---- values ----


def _check_values(
    matrix: Float64[np.ndarray, "n p"], columns: Sequence[Column], starts: Iterable[int], rows_from: int
) -> None:
    """Raise ValueError for values that are missing, infinite or too large, naming all columns that have some."""
    least, largest = matrix.min(), matrix.max()  # NaN if there is one
    if least >= -LARGEST and largest <= LARGEST:
        return
    complaints = {
        "missing values (NaN)": ("Impute them, e.g. with sklearn.impute.SimpleImputer, or drop the rows.", np.isnan),
        "infinite values (inf)": ("Replace them or drop the rows.", np.isinf),
        f"values beyond {LARGEST:g}, whose squares overflow": (
            "Rescale the column or drop the rows.",
            lambda values: np.isfinite(values) & (np.abs(values) > LARGEST),
        ),
    }
    sentences = []
    for what, (remedy, test) in complaints.items():
        found = [
            f"column {column.name!r} has {int(wrong.sum())} (first at row {rows_from + int(wrong.argmax())})"
            for column, start in zip(columns, starts, strict=True)
            if (wrong := test(matrix[:, start])).any()
        ]
        if found:
            sentences.append(f"X has {what}: {', '.join(found)}. {remedy}")
    raise ValueError(" ".join(sentences))


# ---- targets ----


def _target_frame(y: Any, name: str) -> pd.DataFrame:
    _check_dense(y, name)
    if not isinstance(y, pd.DataFrame | pd.Series) and hasattr(y, "to_pandas"):
        y = y.to_pandas()
    if isinstance(y, pd.DataFrame):
        return y
    if isinstance(y, pd.Series):
        return y.to_frame(name if y.name is None else str(y.name))
    array = _array(y, name)
    if array.ndim not in (1, 2):
        raise ValueError(f"{name} should be a 1d array, or 2d with a column a target; it has shape {array.shape}.")
    if array.ndim == 1:
        return pd.DataFrame({name: array})
    width = array.shape[1]
    return pd.DataFrame(array, columns=[name] if width == 1 else [f"{name}{j}" for j in range(width)])


def _target_values(values: pd.Series, column: str, name: str) -> np.ndarray:
    kind = _kind(values, column)
    if kind in (DATETIME, TIMEDELTA):
        raise ValueError(
            f"{name} holds {WORDS[kind]} in column {column!r}, expected numbers; make them so, e.g. as days: "
            + ("(y - y.min()) / pandas.Timedelta(days=1)." if kind == DATETIME else "y / pandas.Timedelta(days=1).")
        )
    if kind == LEVELS:
        raise ValueError(
            f"{name} holds text or categories in column {column!r}{_first_text(values, 0)}. This is regression: "
            "targets are numbers. Convert numbers written as text with pandas.to_numeric; for classes use a classifier."
        )
    return np.full(len(values), np.nan) if kind == EMPTY else _numbers(values)


# ---- words ----


def _columns_text(names: Sequence[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {_listed(names)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
