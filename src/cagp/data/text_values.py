"""Numbers and dates that are written as text: in which format, and their values."""

import re
from typing import Any, NamedTuple

import pandas as pd

from cagp.column_kinds import AWARE, DATE_FORMATS, DATETIME, DECIMAL_COMMA, NAIVE, NUMBER

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


def _date_format(name: str) -> TextFormat:
    pattern = re.escape(name)
    for part, expression in PARTS.items():
        pattern = pattern.replace(part, expression)
    example = "dates like 2024-03-31 or 2024-03-31T12:00:00, or convert them with pandas.to_datetime"
    if not name:
        return TextFormat("", DATETIME, ISO_DATE, "dates", example)
    return TextFormat(name, DATETIME, rf"\s*{pattern}{TIME}\s*", f"dates as {name}", example)


DATES = [_date_format(name) for name in ("", *DATE_FORMATS)]
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
