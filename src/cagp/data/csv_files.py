"""CSV files, in pieces, plain or packed."""

import csv
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pandas as pd

from cagp.column_kinds import NAIVE
from cagp.data.pieces import PathLike, Pieces, ending_of, is_standard, rows_at_once
from cagp.data.table_checks import check_duplicates
from cagp.data.text_values import ISO_DATE, is_number, iso_dates, time_zones
from cagp.notices import warn

SEPARATORS = [",", "\t", ";"]
# Before pandas 3.1 the parser rounds correctly only on request; since then it always does, and the request is an error.
FLOAT_PRECISION = "round_trip" if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else None
NAMELESS = "\0"
"""The column behind a separator at the end of every line."""


def csv_pieces(path: PathLike, rows: int | None, text: Sequence[str], stack: ExitStack) -> Pieces:
    stream, fraction = _open_csv(path, stack)
    with _csv_errors(path, 0):
        separator, names, num_lines = _csv_header(path, stream)
        first, lines = _next_record(stream, separator)
        rest = _TextAgain("".join(lines), stream)
        # Every line may end with a separator. Fields beyond that have no name, and pandas would drop them.
        trailing = len(first) == len(names) + 1 and not first[-1].strip()
        if len(first) > len(names) and not trailing:
            raise _too_many_fields(path, num_lines + 1)
    with _csv_errors(path, num_lines):
        try:
            reader: Any = pd.read_csv(
                rest,
                sep=separator,
                header=None,
                names=[*names, NAMELESS] if trailing else names,
                index_col=False,
                dtype={name: str for name in text if name in names},
                float_precision=FLOAT_PRECISION,
                low_memory=False,
                iterator=True,
            )
        except pd.errors.EmptyDataError:
            return
        stack.enter_context(reader)
    warned: set[str] = set()
    while True:
        with _csv_errors(path, num_lines):
            try:
                frame = reader.read() if rows is None else reader.get_chunk(rows_at_once(rows, len(names)))
            except (StopIteration, pd.errors.EmptyDataError):
                return
        if trailing:
            if bool(frame[NAMELESS].notna().any()):
                raise _too_many_fields(path, num_lines + 1)
            frame = frame.drop(columns=NAMELESS)
        _warn_of_rounding(frame, path, warned)
        yield frame, fraction()
        if rows is None:
            return


def _warn_of_rounding(frame: pd.DataFrame, path: PathLike, warned: set[str]) -> None:
    """Warn of integers of 2**53 and more beside missing values, which pandas reads as float64 and rounds."""
    for name in frame.columns[[dtype == np.float64 for dtype in frame.dtypes]]:
        values = frame[name].to_numpy()
        present = values[~np.isnan(values)]
        if name in warned or len(present) in (0, len(values)) or not 2**53 <= np.abs(present).max() < 2**64:
            continue
        if (present == np.rint(present)).all():
            warned.add(name)
            warn(
                f"{path}: column {name!r} has integers of 2**53 and more, and missing values; it is read as float64, "
                "in which several such integers become the same number. If they are codes, take them as text: "
                f"--categories {name}.",
                UserWarning,
            )


def _open_csv(path: PathLike, stack: ExitStack) -> tuple[io.TextIOWrapper, Callable[[], float | None]]:
    """The text, and a function that gives the fraction of the file that has been read."""
    if is_standard(path):
        stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        stack.callback(stream.detach)  # stdin stays open
        return stream, lambda: None
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    binary = stack.enter_context(gzip.GzipFile(fileobj=file)) if ending_of(path).endswith(".gz") else file
    stream = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""))
    if not file.seekable():  # a pipe
        return stream, lambda: None
    return stream, lambda: min(1.0, file.tell() / size) if size else None


def _csv_header(path: PathLike, stream: io.TextIOWrapper) -> tuple[str, list[str], int]:
    """The separator, the names of the columns, and the number of lines that the names take."""
    fields, lines = _next_record(stream)
    if not fields:
        raise ValueError(f"{path} is empty, expected a line with the column names and at least one row.")
    separators = ["\t"] if ending_of(path).startswith(".tsv") else SEPARATORS
    record = [line for line in lines if line.strip()]
    fields, separator = max(
        ((next(csv.reader(record, delimiter=separator)), separator) for separator in separators),
        key=lambda choice: len(choice[0]),
    )
    names = [field.strip() or f"Unnamed: {j}" for j, field in enumerate(fields)]
    check_duplicates(names, f"The first line of {path}")
    if all(map(is_number, names)) and not all(name.isdecimal() for name in names):
        raise ValueError(
            f"{path} has only numbers in its first line ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''}), "
            "expected the names of the columns; add a line with them."
        )
    return separator, names, len(lines)


@contextmanager
def _csv_errors(path: PathLike, lines_before: int) -> Iterator[None]:
    """Turn errors of parsers into errors about the file; parsers count the lines after the header."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: it has the byte 0x{error.object[error.start]:02x}, which does not begin a "
            f"character. Save it as UTF-8, e.g. with: iconv -f latin1 -t utf-8 {path}"
        ) from error
    except (pd.errors.ParserError, csv.Error) as error:
        what = str(error).removeprefix("Error tokenizing data. ").removeprefix("C error: ").strip()
        what = re.sub(r"\bline (\d+)", lambda match: f"line {int(match[1]) + lines_before}", what)  # from 1
        what = re.sub(r"\brow (\d+)", lambda match: f"line {int(match[1]) + 1 + lines_before}", what)  # from 0
        raise ValueError(f"{path} is not a well-formed CSV file: {what}. Correct that line.") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}") from error


class _TextAgain(io.TextIOBase):
    """Text that was read already, and the rest of its stream."""

    def __init__(self, text: str, stream: io.TextIOWrapper):
        self._text, self._stream = text, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> str:
        """What was read already first, all of it; then the stream."""
        text, self._text = self._text, ""
        if size is None or size < 0:
            return text + self._stream.read()
        return text or self._stream.read(size)


def _next_record(stream: io.TextIOWrapper, separator: str = ",") -> tuple[list[str], list[str]]:
    """The fields of the next record that is not blank, if there is one, and all lines that were read for it.

    Quoted fields may span lines.
    """
    lines: list[str] = []

    def recorded() -> Iterator[str]:
        for line in stream:
            lines.append(line)
            yield line

    records = csv.reader(recorded(), delimiter=separator)
    return next((fields for fields in records if any(field.strip() for field in fields)), []), lines


def _too_many_fields(path: PathLike, line: int) -> ValueError:
    return ValueError(
        f"{path} is not a well-formed CSV file: from line {line} on, rows have more fields than the first line has "
        "names. Add the names, or remove the fields."
    )


def with_dates(frame: pd.DataFrame, text: Sequence[str]) -> pd.DataFrame:
    """The frame with dates for the text columns in which all values are dates in the format of ISO 8601.

    Dates with a time zone are in UTC. A column in which some have one and others do not stays text.
    """
    columns = {}
    for name in frame.columns:
        values = frame[name]
        if name in text or pd.api.types.infer_dtype(values, skipna=True) != "string":
            continue
        if re.fullmatch(ISO_DATE, str(values.dropna().iloc[0])):
            dates = iso_dates(values)
            zones = time_zones(values)
            if (dates.isna() == values.isna()).all() and len(zones) == 1:
                columns[name] = dates.dt.tz_localize(None) if zones == {NAIVE} else dates
    return frame.assign(**columns) if columns else frame
