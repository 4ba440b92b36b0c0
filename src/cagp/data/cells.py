"""Any table as a frame or a matrix, the checks of its names and values, and numbers and dates written as text."""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64
from scipy import sparse
from sklearn.utils import check_array

from cagp.column_kinds import AWARE, DATE_FORMATS, DATETIME, DECIMAL_COMMA, NAIVE, NUMBER

LARGEST = 1e150  # squares of larger values, and so squared distances, leave the range of float64

Table = pd.DataFrame | np.ndarray


def as_table(X: Any) -> Table:
    """A frame, or a matrix of float64 (which may hold NaN and infinities), dates or durations.

    Raises ValueError for tables without columns or rows, and for frames in which columns have the same name.
    """
    X = plain(X, "X")
    array = X if isinstance(X, pd.DataFrame) else as_array(X, "X")
    if isinstance(array, np.ndarray) and array.dtype.names is not None and array.ndim == 1:
        array = pd.DataFrame(array)
    if isinstance(array, pd.DataFrame):
        for size, what in ((array.shape[1], "feature"), (len(array), "sample")):
            if size == 0:
                raise ValueError(f"X has 0 {what}(s) (shape={array.shape}) while a minimum of 1 is required.")
        check_duplicates(names_of(array), "X")
        return array
    if array.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {array.ndim}D of shape {array.shape} as X. Reshape your data: "
            "X.reshape(-1, 1) if it is one column, X.reshape(1, -1) if it is one row."
        )
    if array.dtype.kind in "OSUV":
        array = _object_numbers(array)
    for j in range(array.shape[1]) if array.dtype.kind in "iu" else ():
        check_integers(array[:, j], f"x{j}", "categories with a pandas DataFrame")
    dtype: Any = None if array.dtype.kind in "mM" else np.float64
    array = check_array(array, dtype=dtype, ensure_all_finite=False, input_name="X")
    # Torch accepts neither read-only memory nor negative strides.
    array = np.require(array, requirements=["W"])
    return array if min(array.strides) >= 0 else array.copy()


def plain(values: Any, name: str) -> Any:
    """The values, as a frame if they are one of another library; TypeError for sparse matrices and tensors."""
    if hasattr(values, "to_pandas") and not isinstance(values, pd.DataFrame | pd.Series):
        return values.to_pandas()
    if sparse.issparse(values):
        raise TypeError(f"{name} is a sparse matrix, expected a dense one: use {name}.toarray(), if memory allows.")
    if isinstance(values, torch.Tensor) and values.layout != torch.strided:
        raise TypeError(f"{name} is a sparse tensor, expected a dense one: use {name}.to_dense(), if memory allows.")
    return values


def as_array(values: Any, name: str) -> np.ndarray:
    """A tensor, masked array or list as an array; masked values are missing."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.double() if values.dtype == torch.bfloat16 else values).resolve_conj().numpy()
    if isinstance(values, np.ma.MaskedArray):
        check_integers(values.compressed(), name, "categories with a pandas DataFrame")
        return np.ma.filled(values.astype(np.float64), np.nan)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is not a table, expected rows of equal length: {error}") from error


def check_integers(values: np.ndarray, name: str, as_codes: str, rows_from: int = 0) -> None:
    """Raise ValueError for integers that float64 cannot hold; ``as_codes`` says how to take them as codes."""
    if values.dtype == object:
        lost = np.array([_is_lost(value) for value in values], dtype=bool)
    elif values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        with np.errstate(invalid="ignore"):
            lost = values.astype(np.float64).astype(values.dtype) != values
    else:
        return
    if lost.any():
        first, number = int(lost.argmax()), int(lost.sum())
        raise ValueError(
            f"column {name!r} has {number:,} integer{'' if number == 1 else 's'} that float64 cannot hold (first "
            f"{values[first]} at row {rows_from + first}): beyond 2**53, several integers become the same number. If "
            f"they are codes, use {as_codes}. If they are quantities, subtract a constant, or convert them with "
            ".astype(float), which rounds them. If they are nanoseconds, use pandas.to_datetime."
        )


def _is_lost(value: Any) -> bool:
    """Whether a Python number is an integer that float64 rounds; those beyond its range become infinite."""
    if not isinstance(value, int | np.integer | Decimal) or not 2**53 < abs(value) <= LARGEST:
        return False
    return int(value) == value and int(float(value)) != int(value)


def numbers_of(values: pd.Series, name: str, rows_from: int = 0) -> np.ndarray:
    """Numbers and booleans as float64: NaN for missing values, infinity for what is too large for float64."""
    if isinstance(values.dtype, np.dtype) and values.dtype != object:
        array = values.to_numpy()
    else:
        array = np.where(values.isna().to_numpy(), np.nan, values.to_numpy(dtype=object))
    check_integers(array, name, f"categories=[{name!r}] (--categories in a command)", rows_from)
    with np.errstate(over="ignore"):
        try:
            return array.astype(np.float64)
        except OverflowError:  # Python's integers have no limit
            return np.array([value if abs(value) <= LARGEST else np.inf for value in array], dtype=np.float64)


def _object_numbers(array: np.ndarray) -> np.ndarray:
    """An array of Python objects as float64; TypeError unless all are numbers, booleans or missing values."""
    numbers = np.empty(array.shape)
    for j in range(array.shape[1]):
        values = pd.Series(array[:, j].astype(object), dtype=object)
        if pd.api.types.infer_dtype(values, skipna=True) == "complex":
            raise ValueError(f"Complex data not supported: column x{j} of X holds complex numbers.")
        wrong = [row for row, cell in values.dropna().items() if not isinstance(cell, Real | Decimal)]
        if wrong:
            cell = values[wrong[0]]
            # The first words are those of Python's float(), by which scikit-learn recognises the error.
            raise TypeError(
                f"float() argument must be a string or a real number, not {type(cell).__name__!r}; "
                f"and in an array a real number: column x{j} of X holds {short(cell)} at row {wrong[0]}. "
                "Pass a pandas DataFrame, whose text columns are encoded, or encode it yourself."
            )
        numbers[:, j] = numbers_of(values, f"x{j}")
    return numbers


def check_duplicates(names: Sequence[str], where: str) -> None:
    """Raise ValueError if a name occurs twice."""
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{where} has more than one column named {listed(twice)}; drop or rename the others.")


def column_places(option: str, wanted: Any, names: Sequence[str], by_position: bool) -> list[int]:
    """The places of the columns that an option names; ValueError for columns that are not there."""
    if isinstance(wanted, str | bytes) or not np.iterable(wanted):
        raise ValueError(f"{option} is {wanted!r}, expected a list of columns, e.g. [{wanted!r}].")
    if by_position:
        wrong = [c for c in wanted if type(c) is bool or not isinstance(c, int | np.integer) or not 0 <= c < len(names)]
        if wrong:
            raise ValueError(
                f"{option} has {', '.join(map(short, wrong))}, expected positions of columns from 0 to "
                f"{len(names) - 1}: X is an array, without names."
            )
        return [int(place) for place in wanted]
    absent = [str(name) for name in wanted if str(name) not in names]
    if absent:
        raise ValueError(
            f"{option} names {columns_text(absent)}, which X does not have; its columns are {listed(names)}."
        )
    return [list(names).index(str(name)) for name in wanted]


def check_exposure(values: Float64[np.ndarray, " n"], name: str, rows_from: int) -> None:
    """Raise ValueError unless all exposures are positive numbers."""
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"the exposure, column {name!r}, has {int(wrong.sum())} values that are not positive numbers (first "
            f"{values[row]:g} at row {rows_from + row}); leave these rows out, or correct them."
        )


def check_values(codes: Float64[np.ndarray, "n c"], names: Sequence[str], rows_from: int) -> None:
    """Raise ValueError for values that are infinite or too large; the message names all columns that have any."""
    least, largest = np.fmin.reduce(codes, axis=None), np.fmax.reduce(codes, axis=None)
    if not (least < -LARGEST or largest > LARGEST):  # NaN where all values are missing
        return
    infinite, sentences = np.isinf(codes), []
    huge, words = (np.abs(codes) > LARGEST) & ~infinite, f"values beyond {LARGEST:g}, whose squares overflow"
    kinds = [("infinite values (inf)", infinite, "Replace them"), (words, huge, "Rescale the column")]
    for what, wrong, remedy in kinds:
        places = [
            f"column {name!r} has {int(rows.sum())} (first at row {rows_from + int(rows.argmax())})"
            for name, rows in zip(names, wrong.T, strict=True)
            if rows.any()
        ]
        sentences += [f"X has {what}: {', '.join(places)}. {remedy} or drop the rows."] if places else []
    raise ValueError(" ".join(sentences))


# ---- words ----


def names_of(frame: pd.DataFrame) -> tuple[str, ...]:
    """The names of the columns as text."""
    return tuple(str(name) for name in frame.columns)


def columns_text(names: Sequence[str]) -> str:
    """Columns in a sentence: "column 'a'", or "columns 'a', 'b'"."""
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {listed(names)}"


def listed(names: Iterable[str]) -> str:
    """Names in quotes, with commas."""
    return ", ".join(repr(name) for name in names)


def short(value: Any) -> str:
    """A value in at most 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


ISO_DATE = r"\s*\d{4}-\d\d(-\d\d)?([T ].*)?"
PLAIN_NUMBER = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
COMMA_NUMBER = r"\s*[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?\s*"
THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*"

PARTS = {"day": r"(?P<day>\d{1,2})", "month": r"(?P<month>\d{1,2})", "year": r"(?P<year>\d{4})"}
TIME = r"(?:[T ]\s*(?P<time>\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?))?"
OFFSET = r".*[T ]\s*\d{1,2}(:?\d\d)*([.,]\d+)?\s*(Z|z|[+-]\d\d(:?\d\d)?)\s*"
"""A date with a time of day and a time zone, in the format of ISO 8601."""


class TextFormat(NamedTuple):
    """How numbers or dates are written as text."""

    name: str  # as ``Column.format`` has it
    kind: str
    pattern: str
    words: str  # what it holds, for messages
    example: str

    def read(self, values: Any) -> pd.Series:
        """Text as numbers or dates (in UTC), missing where it cannot be read; dates may be in ISO 8601 as well."""
        if self.kind == NUMBER:
            texts = _strings(values)
            numbers: Any = texts.where(texts.str.fullmatch(self.pattern), "").str.replace(",", ".", regex=False)
            return pd.Series(pd.to_numeric(numbers, errors="coerce"))
        if not self.name:
            return iso_dates(values)
        parts = _strings(values).str.extract(f"^{self.pattern}$")
        time = parts["time"].fillna("00:00").str.zfill(5).str.replace(r"^(\d:)", r"0\1", regex=True)
        dates = parts["year"] + "-" + parts["month"].str.zfill(2) + "-" + parts["day"].str.zfill(2) + "T" + time
        return iso_dates(dates.where(dates.notna(), values.astype(object)))

    def holds(self, texts: pd.Series) -> bool:
        """Whether all texts, of which none is missing, have this format."""
        return re.fullmatch(self.pattern, texts.iloc[0]) is not None and bool(self.read(texts).notna().all())


DATE = "dates like 2024-03-31 or 2024-03-31T12:00:00, or convert them with pandas.to_datetime"
DATES = [TextFormat("", DATETIME, ISO_DATE, "dates", DATE)]
for name in DATE_FORMATS:
    pattern = re.sub("|".join(PARTS), lambda part: PARTS[part[0]], re.escape(name))
    DATES.append(TextFormat(name, DATETIME, rf"\s*{pattern}{TIME}\s*", f"dates as {name}", DATE))
COMMAS = TextFormat(
    DECIMAL_COMMA, NUMBER, COMMA_NUMBER, "numbers with decimal commas", "numbers like 3,14, or convert the column"
)
TEXT_FORMATS = {form.name: form for form in (COMMAS, *DATES)}
"""By ``Column.format``."""


def format_of(texts: pd.Series, name: str) -> TextFormat | None:
    """The format of texts that are all dates, or all numbers with commas; ValueError if they have two readings."""
    if texts.empty:
        return None
    if _has_decimal_commas(texts, name):
        return COMMAS
    formats = [form for form in DATES if form.holds(texts)]
    if len(formats) > 1:
        raise ValueError(
            f"column {name!r} holds dates like {texts.iloc[0]!r}, which can be read as "
            f"{' and as '.join(form.name for form in formats)}. Write them like 2024-03-31, or convert them with "
            "pandas.to_datetime(..., dayfirst=True) or dayfirst=False."
        )
    return formats[0] if formats else None


def is_number(text: str) -> bool:
    """Whether text is a number with a decimal point, or without decimals."""
    return re.fullmatch(PLAIN_NUMBER, text) is not None


def is_date(text: str) -> bool:
    """Whether text looks like a date in one of the formats."""
    return any(re.fullmatch(form.pattern, text) for form in DATES)


def iso_dates(values: Any) -> pd.Series:
    """Text as dates in the format of ISO 8601, in UTC; missing where it cannot be read."""
    return pd.to_datetime(values.astype(object), format="ISO8601", utc=True, errors="coerce")


def time_zones(values: Any) -> set[str]:
    """Whether dates, or text that is read as dates, are ``AWARE`` or ``NAIVE``, or some of each."""
    if values.dtype.kind == "M" or isinstance(values.dtype, pd.DatetimeTZDtype):
        return {NAIVE if getattr(values.dt, "tz", None) is None else AWARE} if values.notna().any() else set()
    dates = values.dropna().unique()
    zones = (re.fullmatch(OFFSET, date) if isinstance(date, str) else getattr(date, "tzinfo", None) for date in dates)
    return {NAIVE if zone is None else AWARE for zone in zones}


def with_decimal_commas_read(values: Any, name: str) -> pd.Series:
    """The column with text like "3,14" as numbers, if all its text is; else as it is."""
    if pd.api.types.infer_dtype(values, skipna=True) != "string":
        return values
    texts = _strings(values.dropna())
    return COMMAS.read(values) if len(texts) and _has_decimal_commas(texts, name) else values


def _has_decimal_commas(texts: pd.Series, name: str) -> bool:
    if not re.fullmatch(f"{COMMA_NUMBER}|{THOUSANDS}", texts.iloc[0]):
        return False
    commas: Any = texts[texts.str.contains(",", regex=False)]
    if commas.empty:
        return False
    if bool(commas.str.fullmatch(THOUSANDS).all()) and bool(texts.str.fullmatch(f"{THOUSANDS}|{PLAIN_NUMBER}").all()):
        raise ValueError(
            f"column {name!r} holds numbers with commas that may separate thousands, e.g. {commas.iloc[0]!r}. Write "
            'them without, e.g. with .str.replace(",", ""), or .str.replace(",", ".") if they separate decimals; then '
            "convert the column with pandas.to_numeric."
        )
    return bool(texts.str.fullmatch(COMMA_NUMBER).all())


def _strings(values: pd.Series) -> Any:
    """The values as Python's text, "" for missing ones."""
    return values.astype(object).where(~values.isna(), "").astype(str)
