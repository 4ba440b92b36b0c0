"""One file of a table, in pieces: CSV (plain or packed), Parquet, NPY or NPZ."""

import csv
import gzip
import io
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cagp.column_kinds import NAIVE
from cagp.data.cells import ISO_DATE, check_duplicates, is_number, iso_dates, time_zones
from cagp.files import PathLike
from cagp.notices import warn

CHUNK_CELLS = 4_000_000  # values of a piece at most, 32 MB as float64: wide tables come in pieces of fewer rows
CSV_ENDINGS = [".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"]
FORMATS = {".parquet": "a Parquet file", ".npz": "an NPZ file", ".npy": "an NPY file"}
READABLE = [*CSV_ENDINGS, *FORMATS]

SEPARATORS = [",", "\t", ";"]
# Before pandas 3.1 the parser rounds correctly only on request; since then it always does, and the request is an error.
FLOAT_PRECISION = "round_trip" if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else None
NAMELESS = "\0"
"""The column behind a separator at the end of every line."""

Pieces = Iterator[tuple[pd.DataFrame, float | None]]
"""Consecutive rows, and the share of the file that has been read; None if its size is not known."""


def is_standard(path: PathLike) -> bool:
    """Whether the table comes from standard input."""
    return os.fspath(path) == "-"


def ending_of(path: PathLike) -> str:
    """What says in which format a file is."""
    if is_standard(path):
        return ".csv"
    name = Path(path).name.lower()
    return next((ending for ending in READABLE if name.endswith(ending)), Path(name).suffix)


def pieces_of_file(path: PathLike, rows: int | None, text: Sequence[str]) -> Pieces:
    """Pieces of at most ``rows`` rows, or one piece for None; fewer rows where the table is wide."""
    ending = ending_of(path)
    with ExitStack() as stack, _file_errors(path):
        if ending in CSV_ENDINGS:
            yield from _csv_pieces(path, rows, text, stack)
        elif ending == ".parquet":
            yield from _parquet_pieces(path, rows, stack)
        elif ending == ".npy":
            matrix = open_npy(path)
            names = [f"x{j}" for j in range(1 if matrix.ndim == 1 else matrix.shape[1])]
            yield from _array_pieces(len(matrix), [(names, lambda start, stop: matrix[start:stop])], rows)
        else:
            yield from _npz_pieces(path, rows, stack)


def rows_of_file(path: PathLike) -> int | None:
    """The number of rows, where a file says it: Parquet and NPY."""
    ending = ending_of(path)
    with _file_errors(path):
        if ending == ".npy":
            return len(open_npy(path))
        return pq.read_metadata(os.fspath(path)).num_rows if ending == ".parquet" else None


@contextmanager
def _file_errors(path: PathLike) -> Iterator[None]:
    """Turn errors of parsers into errors about the file."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: it has the byte 0x{error.object[error.start]:02x}, which does not begin a "
            f"character. Save it as UTF-8, e.g. with: iconv -f latin1 -t utf-8 {path}"
        ) from error
    except (pd.errors.ParserError, csv.Error) as error:
        what = str(error).removeprefix("Error tokenizing data. ").removeprefix("C error: ").strip()
        what = re.sub(r"\brow (\d+)", lambda match: f"line {int(match[1]) + 1}", what)  # rows count from 0
        raise ValueError(f"{path} is not a well-formed CSV file: {what}. Correct that line.") from error
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as error:
        if type(error) is ValueError and str(path) in str(error):  # it is about the file already
            raise
        ending = ending_of(path)
        what = f"cannot be read as {FORMATS.get(ending, 'a CSV file')}"
        raise ValueError(
            f"{path} {'is not a complete gzip file' if ending.endswith('.gz') else what}: {error}"
        ) from error


def _rows_at_once(rows: int | None, num_columns: int) -> int | None:
    return None if rows is None else max(1, min(rows, CHUNK_CELLS // num_columns))


def _csv_pieces(path: PathLike, rows: int | None, text: Sequence[str], stack: ExitStack) -> Pieces:
    stream, fraction = _open_csv(path, stack)
    separator, names, num_lines = _csv_header(path, stream)
    first, lines = _next_record(stream, separator)
    # Every line may end with a separator. Fields beyond that have no name, and pandas would drop them.
    trailing = len(first) == len(names) + 1 and not first[-1].strip()
    too_many = ValueError(
        f"{path} is not a well-formed CSV file: from line {num_lines + 1} on, rows have more fields than the first "
        "line has names. Add the names, or remove the fields."
    )
    if len(first) > len(names) and not trailing:
        raise too_many
    reader = pd.read_csv(
        _TextAgain("\n" * num_lines + "".join(lines), stream),  # lines keep their numbers in errors
        sep=separator,
        header=None,
        names=[*names, NAMELESS] if trailing else names,
        index_col=False,
        dtype={name: str for name in text if name in names},
        float_precision=FLOAT_PRECISION,
        low_memory=False,
        iterator=True,
        chunksize=_rows_at_once(rows, len(names)),
    )
    warned: set[str] = set()
    for frame in stack.enter_context(reader):
        if trailing and bool(frame.pop(NAMELESS).notna().any()):
            raise too_many
        _warn_of_rounding(frame, path, warned)
        yield frame, fraction()


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
    binary = stack.enter_context(gzip.GzipFile(fileobj=file)) if ending_of(path).endswith(".gz") else file
    stream = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""))
    size = os.fstat(file.fileno()).st_size if file.seekable() else 0  # a pipe has none
    return stream, lambda: min(1.0, file.tell() / size) if size else None


def _csv_header(path: PathLike, stream: io.TextIOWrapper) -> tuple[str, list[str], int]:
    """The separator, the names of the columns, and the number of lines that the names take."""
    fields, lines = _next_record(stream)
    if not fields:
        raise ValueError(f"{path} is empty, expected a line with the column names and at least one row.")
    separators = ["\t"] if ending_of(path).startswith(".tsv") else SEPARATORS
    record = [line for line in lines if line.strip()]
    split = {separator: next(csv.reader(record, delimiter=separator)) for separator in separators}
    separator = max(split, key=lambda separator: len(split[separator]))
    names = [field.strip() or f"Unnamed: {j}" for j, field in enumerate(split[separator])]
    check_duplicates(names, f"The first line of {path}")
    if all(map(is_number, names)) and not all(name.isdecimal() for name in names):
        raise ValueError(
            f"{path} has only numbers in its first line ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''}), "
            "expected the names of the columns; add a line with them."
        )
    return separator, names, len(lines)


class _TextAgain(io.TextIOBase):
    """Text that was read already, and the rest of its stream."""

    def __init__(self, text: str, stream: io.TextIOWrapper):
        self._text, self._stream = text, stream

    def read(self, size: int | None = -1) -> str:
        """What was read already first, all of it; then the stream. The parser always gives a size."""
        text, self._text = self._text, ""
        return text or self._stream.read(size)


def _next_record(stream: io.TextIOWrapper, separator: str = ",") -> tuple[list[str], list[str]]:
    """The fields of the next record that is not blank, and all lines read for it: quoted fields may span lines."""
    lines, again = tee(stream)
    records = csv.reader(lines, delimiter=separator)
    fields = next((fields for fields in records if any(field.strip() for field in fields)), [])
    return fields, list(islice(again, records.line_num))


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
            dates, zones = iso_dates(values), time_zones(values)
            if (dates.isna() == values.isna()).all() and len(zones) == 1:
                columns[name] = dates.dt.tz_localize(None) if zones == {NAIVE} else dates
    return frame.assign(**columns) if columns else frame


def _parquet_pieces(path: PathLike, rows: int | None, stack: ExitStack) -> Pieces:
    file = stack.enter_context(pq.ParquetFile(os.fspath(path)))
    names = file.schema_arrow.names
    check_duplicates(names, str(path))
    num_rows, done = file.metadata.num_rows, 0
    if num_rows and names:
        at_once = _rows_at_once(rows, len(names))
        for table in [file.read()] if at_once is None else file.iter_batches(at_once):
            done += table.num_rows
            yield table.to_pandas(), done / num_rows


def open_npy(path: PathLike) -> np.ndarray:
    """The array of an NPY file, whose rows are read from disk when they are used."""
    with _file_errors(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise ValueError(f"{path} does not hold a matrix or a vector of numbers.")
    return array


def _array_pieces(
    num_rows: int, arrays: list[tuple[list[str], Callable[[int, int], np.ndarray]]], rows: int | None
) -> Pieces:
    """Pieces of arrays side by side, from the names of their columns and what reads some rows of each."""
    at_once = _rows_at_once(rows, max(1, sum(len(names) for names, _ in arrays))) or max(1, num_rows)
    for start in range(0, num_rows, at_once):
        stop, frame = min(start + at_once, num_rows), {}
        for names, read in arrays:
            frame.update(zip(names, read(start, stop).reshape(stop - start, len(names)).T, strict=True))
        yield pd.DataFrame(frame), stop / num_rows


class _Member:
    """An array of an NPZ file, read in pieces."""

    def __init__(self, path: PathLike, name: str, stream: Any):
        self.name, self._stream = name, stream
        is_first = np.lib.format.read_magic(stream) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        self.shape, in_columns, self._dtype = read_header(stream)
        if self._dtype.hasobject:
            raise ValueError(
                f"{path}: array {name!r} holds Python objects, which are not loaded because that can run code; "
                "save it as numbers or text, e.g. with .astype(float) or .astype(str)."
            )
        self._whole = self._values(self.shape[::-1]).T if in_columns and len(self.shape) == 2 else None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Some rows; each piece begins where the one before it ended."""
        return self._values((stop - start, *self.shape[1:])) if self._whole is None else self._whole[start:stop]

    def _values(self, shape: tuple[int, ...]) -> np.ndarray:
        num_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        content = self._stream.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError(f"array {self.name!r} ends early")
        return np.frombuffer(content, self._dtype).reshape(shape).astype(self._dtype.newbyteorder("="), copy=False)


def _npz_pieces(path: PathLike, rows: int | None, stack: ExitStack) -> Pieces:
    file = stack.enter_context(zipfile.ZipFile(path))
    keys = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
    members = {key: _Member(path, key, stack.enter_context(file.open(f"{key}.npy"))) for key in keys}
    names = members.pop("names") if "names" in members and "X" in members else None
    columns = _npz_columns(path, members, None if names is None else names.rows(0, names.shape[0]))
    if not columns:
        raise ValueError(f"{path} has no table: expected an array X (n, d), and y or other arrays of length n.")
    num_rows = members[next(iter(columns))].shape[0]
    yield from _array_pieces(num_rows, [(labels, members[key].rows) for key, labels in columns.items()], rows)


def _npz_columns(path: PathLike, members: dict[str, _Member], names: np.ndarray | None) -> dict[str, list[str]]:
    """The names of the columns that each array becomes: X first, then y, then the others."""
    keys = sorted(members, key=lambda key: (key != "X", key != "y"))
    shapes = {key: members[key].shape for key in keys if key in ("X", "y") or len(members[key].shape) == 1}
    for key, shape in shapes.items():
        if len(shape) not in (1, 2):
            raise ValueError(f"{path}: {key} has shape {shape}, expected rows and columns.")
    if len({shape[0] for shape in shapes.values()}) > 1:
        sizes = ", ".join(f"{key} has {shape[0]}" for key, shape in shapes.items())
        raise ValueError(f"{path}: the arrays differ in their number of rows: {sizes}.")
    columns = {key: [key] for key in shapes}
    for key, letter in (("X", "x"), ("y", "y")):
        width = (*shapes.get(key, (0, 0)), 1)[1]
        columns[key] = ["y"] if key == "y" and width == 1 else [f"{letter}{j}" for j in range(width)]
    if names is not None:
        given = [str(name) for name in names.astype(str)] if names.ndim == 1 else []
        num_inputs, num_targets = len(columns["X"]), len(columns["y"])
        if len(given) not in (num_inputs, num_inputs + num_targets):
            raise ValueError(
                f"{path}: names has {len(given)} entries, expected {num_inputs}, one for each column of X"
                + (f", or {num_inputs + num_targets} with those of y." if num_targets else ".")
            )
        columns["X"], columns["y"] = given[:num_inputs], given[num_inputs:] or columns["y"]
    check_duplicates([name for labels in columns.values() for name in labels], str(path))
    return {key: labels for key, labels in columns.items() if labels}
