"""Numbers and dates that are written as text: in which format, and their values."""

import re
from typing import Any, NamedTuple

import pandas as pd

from cagp.column_kinds import AWARE, DATETIME, DECIMAL_COMMA, NAIVE, NUMBER

ISO_DATE = r"\s*\d{4}-\d\d(-\d\d)?([T ].*)?"
PLAIN_NUMBER = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
COMMA_NUMBER = r"\s*[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?\s*"
THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?\s*"

PARTS = {"day": r"(?P<day>\d{1,2})", "month": r"(?P<month>\d{1,2})", "year": r"(?P<year>\d{4})"}
TIME = r"(?:[T ]\s*(?P<time>\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?))?"
DATE_FORMATS = [
    "day.month.year",
    "day/month/year",
    "month/day/year",
    "day-month-year",
    "month-day-year",
    "year/month/day",
    "year.month.day",
]
"""Dates besides those of ISO 8601, each with or without a time of day. Numbers with points have the day first."""


OFFSET = r".*[T ]\s*\d{1,2}(:?\d\d)*([.,]\d+)?\s*(Z|z|[+-]\d\d(:?\d\d)?)\s*"
"""A date with a time of day and a time zone, in the format of ISO 8601."""


class TextKind(NamedTuple):
    """What a column of text holds."""

    kind: str
    format: str  # see Column


def kind_of_text(texts: pd.Series, name: str) -> TextKind | None:
    """Whether all texts, of which none is missing, are dates or numbers with decimal commas; None if they are neither.

    Raises ValueError where they can be read in two ways.
    """
    if texts.empty:
        return None
    if _has_decimal_commas(texts, name):
        return TextKind(NUMBER, DECIMAL_COMMA)
    if re.fullmatch(ISO_DATE, texts.iloc[0]) and iso_dates(texts).notna().all():
        return TextKind(DATETIME, "")
    formats = [f for f in DATE_FORMATS if re.fullmatch(_pattern(f), texts.iloc[0]) and _dates(texts, f).notna().all()]
    if len(formats) > 1:
        raise ValueError(
            f"column {name!r} holds dates like {texts.iloc[0]!r}, which can be read as {' and as '.join(formats)}. "
            "Write them like 2024-03-31, or convert them with pandas.to_datetime(..., dayfirst=True) or dayfirst=False."
        )
    return TextKind(DATETIME, formats[0]) if formats else None


def is_number(text: str) -> bool:
    """Whether text is a number with a decimal point, or without decimals."""
    return re.fullmatch(PLAIN_NUMBER, text) is not None


def is_date(text: str) -> bool:
    """Whether text looks like a date in one of the formats."""
    return any(re.fullmatch(pattern, text) for pattern in [ISO_DATE, *map(_pattern, DATE_FORMATS)])


def read_text(values: pd.Series, kind: TextKind) -> pd.Series:
    """Text as numbers or dates (in UTC); missing where it cannot be read. ISO 8601 is read besides any other format."""
    if kind.kind == NUMBER:
        texts = _strings(values)
        numbers: Any = texts.where(texts.str.fullmatch(COMMA_NUMBER), "").str.replace(",", ".", regex=False)
        return pd.Series(pd.to_numeric(numbers, errors="coerce"))
    return _dates(values, kind.format) if kind.format else iso_dates(values)


def iso_dates(values: Any) -> pd.Series:
    """Text as dates in the format of ISO 8601, in UTC; missing where it cannot be read."""
    return pd.to_datetime(values.astype(object), format="ISO8601", utc=True, errors="coerce")


def time_zones(values: Any) -> set[str]:
    """Whether dates, or text that is read as dates, are ``AWARE`` or ``NAIVE``, or some of each."""
    if values.dtype.kind == "M" or isinstance(values.dtype, pd.DatetimeTZDtype):
        return {NAIVE if getattr(values.dt, "tz", None) is None else AWARE} if values.notna().any() else set()
    known = pd.Series(values.dropna().unique(), dtype=object)
    is_aware = known.map(
        lambda date: (
            re.fullmatch(OFFSET, date) is not None
            if isinstance(date, str)
            else getattr(date, "tzinfo", None) is not None
        )
    )
    return {AWARE if aware else NAIVE for aware in is_aware.unique()}


def with_decimal_commas_read(values: Any, name: str) -> pd.Series:
    """The column with text like "3,14" as numbers, if all its text is; else as it is."""
    if pd.api.types.infer_dtype(values, skipna=True) != "string":
        return values
    texts = _strings(values.dropna())
    if texts.empty or not _has_decimal_commas(texts, name):
        return values
    return read_text(values, TextKind(NUMBER, DECIMAL_COMMA))


def _has_decimal_commas(texts: pd.Series, name: str) -> bool:
    if not (re.fullmatch(COMMA_NUMBER, texts.iloc[0]) or re.fullmatch(THOUSANDS, texts.iloc[0])):
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


def _pattern(form: str) -> str:
    """The regular expression of a format of dates."""
    pattern = re.escape(form)
    for part, expression in PARTS.items():
        pattern = pattern.replace(part, expression)
    return rf"\s*{pattern}{TIME}\s*"


def _strings(values: pd.Series) -> Any:
    """The values as Python's text, "" for missing ones."""
    return values.astype(object).where(~values.isna(), "").astype(str)


def _dates(values: pd.Series, form: str) -> pd.Series:
    """Text as dates in this format, or in that of ISO 8601; missing where it cannot be read."""
    found = _strings(values).str.extract(f"^{_pattern(form)}$")
    time = found["time"].fillna("00:00").str.zfill(5).str.replace(r"^(\d:)", r"0\1", regex=True)
    dates = found["year"] + "-" + found["month"].str.zfill(2) + "-" + found["day"].str.zfill(2) + "T" + time
    return iso_dates(dates.where(dates.notna(), values.astype(object)))
