"""Tables in files: CSV, Parquet, NPY and NPZ are read at once or in pieces; CSV and Parquet are written in pieces.

CSV keeps every bit of a float64: numbers are written with the fewest digits that identify them (Python's repr), and
read by a parser that rounds correctly.
"""

import csv
import glob
import gzip
import io
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cagp.data.text_values import ISO_DATE, iso_dates

CHUNK_CELLS = 4_000_000  # values of a piece at most, 32 MB as float64: wide tables come in pieces of fewer rows
CSV_ENDINGS = [".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"]
READABLE = [*CSV_ENDINGS, ".parquet", ".npz", ".npy"]
WRITABLE = [".csv", ".csv.gz", ".parquet"]
SEPARATORS = [",", "\t", ";"]
# Before pandas 3.1 the parser rounds correctly only on request; since then it always does, and the request is an error.
FLOAT_PRECISION = "round_trip" if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1) else None

PathLike = str | os.PathLike[str]


class Chunk(NamedTuple):
    """Consecutive rows of a table."""

    frame: pd.DataFrame  # its index counts the rows of the whole table
    rows_from: int  # the number of the first row, from 0
    fraction: float | None  # of the table that has been read; None if its size is not known


def read_table(path: PathLike, text: Sequence[str] = ()) -> pd.DataFrame:
    """All rows of a table.

    - CSV (.csv, .tsv, .txt, each also with .gz, and "-" for stdin): UTF-8, with names in the first line. The separator
      is the comma, tab or semicolon, whichever is most frequent in the first line. A text column becomes dates if all
      its values are dates in the format of ISO 8601 (2024-03-31, 2024-03-31T12:00:00).
    - Parquet (.parquet): an index stored by pandas is ignored.
    - NPZ (.npz): an array X (n, d) becomes the columns x0, x1, ..., or those named by an array ``names``. An array y,
      (n,) or (n, q), becomes y, or y0, y1, ..., or is named by the last entries of ``names``. Other arrays with one
      dimension become columns, those with none or several are ignored.
    - NPY (.npy): a matrix becomes the columns x0, x1, ...

    A folder or a pattern like "parts/*.parquet" is one table, whose files follow each other by name: see
    ``table_parts``.

    Args:
        text: columns to read as text if the file has no types (CSV): those that a model knows as levels
            (``Encoder.text_names``), so that the level "007" does not become 7.
    """
    parts = _checked_parts(path)
    frames = [chunk.frame for chunk in _closing_chunks(parts, None, text)]
    frame = frames[0] if len(frames) == 1 else pd.concat(frames)
    return _with_dates(frame, text) if _ending(parts[0]) in CSV_ENDINGS else frame


def stream_table(path: PathLike, rows: int = 65536, text: Sequence[str] = ()) -> Iterator[Chunk]:
    """The table of ``read_table`` in pieces of at most ``rows`` rows, in order.

    A CSV column has the type that its values in the piece suggest: integers in one piece may be text in the next. An
    ``Encoder`` accepts either, or says which row it cannot encode; pass its levels as ``text``. Dates stay text.
    Memory O(piece), except for an NPZ array in Fortran order, which is read at once, and row groups of Parquet files,
    which are held in their compressed form.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1.")
    return _closing_chunks(_checked_parts(path), rows, text)


def table_size(path: PathLike) -> int | None:
    """The size of the files of a table in bytes; None for stdin."""
    return None if _is_standard(path) else sum(os.stat(part).st_size for part in _checked_parts(path))


def table_rows(path: PathLike) -> int | None:
    """The number of rows of a table, where its files say so: Parquet and NPY; None for other formats."""
    counts = [_num_rows(part) for part in _checked_parts(path)]
    return None if any(count is None for count in counts) else sum(count for count in counts if count is not None)


def is_several_files(path: PathLike) -> bool:
    """Whether a path is a folder or a pattern, rather than the name of a file."""
    if _is_standard(path) or Path(path).is_file():
        return False
    return Path(path).is_dir() or glob.has_magic(os.fspath(path))


def table_parts(path: PathLike) -> Sequence[PathLike]:
    """The files of a table, sorted by name: those in a folder, or those that match a pattern, or the file itself.

    Names that begin with a point or an underscore do not count. All files have the same format.
    """
    if not is_several_files(path):
        return [path]
    folder = Path(path)
    inside = folder.iterdir() if folder.is_dir() else map(Path, glob.glob(os.fspath(path), recursive=True))
    found = sorted(part for part in inside if not part.name.startswith((".", "_")))
    inner = [part for part in found if part.is_dir()]
    if inner:
        raise ValueError(
            f"{path} has folders inside, such as {inner[0]}, which are not read; give a pattern for files alone, e.g. "
            f"{(folder if folder.is_dir() else folder.parent) / '**' / '*.parquet'}."
        )
    if not found:
        what = "the folder has no files" if folder.is_dir() else f"no file matches (looked from {Path.cwd()})"
        raise FileNotFoundError(f"{path} has no tables: {what}; expected {', '.join(READABLE)}.")
    endings = {".csv" if _ending(part) in CSV_ENDINGS else _ending(part): part for part in found}
    if len(endings) > 1:
        first, second = list(endings.values())[:2]
        raise ValueError(
            f"{path} has files of several formats, such as {first} and {second}; give a pattern for one of them, e.g. "
            f"{(folder if folder.is_dir() else folder.parent) / '*.parquet'}."
        )
    return found


class TableWriter:
    """Writes a table in pieces: to .csv, .csv.gz or .parquet, or as CSV to stdout for the path "-".

        with TableWriter("predictions.csv") as writer:
            for chunk in stream_table("inputs.csv"):
                writer.write(predictions_for(chunk.frame))

    The rows go to a temporary file with ".part" added to the name. It gets its final name when everything is written,
    and is removed after an error. So the file is complete or does not exist, and an older file survives errors.
    """

    def __init__(self, path: PathLike):
        self._path = path
        if _is_standard(path):
            return
        _check_ending(path, WRITABLE, "written")
        if Path(path).is_dir():
            raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write.")
        if not Path(path).absolute().parent.is_dir():
            raise FileNotFoundError(
                f"{path} cannot be written: the folder {Path(path).parent} does not exist; create it first."
            )

    def __enter__(self) -> "TableWriter":
        self._columns: list[Any] = []
        self._stack = ExitStack()  # what must be closed, in reverse order
        self._parquet: pq.ParquetWriter | None = None
        if _is_standard(self._path):
            self._text: Any = sys.stdout
            return self
        self._part = Path(f"{os.fspath(self._path)}.part")
        self._file = self._stack.enter_context(open(self._part, "wb"))
        if _ending(self._path) == ".parquet":
            return self
        binary: Any = self._file
        if _ending(self._path).endswith(".gz"):
            binary = self._stack.enter_context(gzip.GzipFile(filename="", fileobj=self._file, mode="wb", mtime=0))
        self._text = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        self._stack.callback(self._text.detach)
        return self

    def write(self, frame: pd.DataFrame) -> None:
        """Append rows; the first frame determines the columns and their order."""
        first = not self._columns
        if first:
            if frame.shape[1] == 0:
                raise ValueError("The frame to write has no columns.")
            self._columns = list(frame.columns)
        _check_names([str(name) for name in frame.columns], "The frame to write")
        if set(frame.columns) != set(self._columns):
            raise ValueError(
                f"The frame to write has the columns {_listed(frame.columns)}, the first one had "
                f"{_listed(self._columns)}; all frames must have the same columns."
            )
        frame = frame.loc[:, self._columns]
        if not _is_standard(self._path) and _ending(self._path) == ".parquet":
            self._write_parquet(frame)
        else:
            frame.to_csv(self._text, index=False, header=first, lineterminator="\n")

    def _write_parquet(self, frame: pd.DataFrame) -> None:
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        schema = None if self._parquet is None else self._parquet.schema
        try:
            table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(
                f"{self._path} cannot take these rows: {' '.join(map(str, error.args))}. "
                "A column keeps the type it has in the first frame: convert it there, e.g. with .astype(float)."
            ) from error
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, table.schema)
            self._stack.callback(self._parquet.close)
        self._parquet.write_table(table)

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if _is_standard(self._path):
            self._text.flush()
            return
        try:
            self._stack.close()
            if kind is None:
                if not self._columns:
                    raise ValueError(f"{self._path} is not written: there were no rows.")
                _sync(self._part)
                os.replace(self._part, self._path)
        finally:
            self._part.unlink(missing_ok=True)


# ---- paths ----


def _is_standard(path: PathLike) -> bool:
    return os.fspath(path) == "-"


def _ending(path: PathLike) -> str:
    if _is_standard(path):
        return ".csv"
    name = Path(path).name.lower()
    found = [ending for ending in READABLE if name.endswith(ending)]
    return found[0] if found else Path(name).suffix


def _check_ending(path: PathLike, known: list[str], done: str) -> None:
    if _ending(path) not in known:
        raise ValueError(
            f"{path} cannot be {done}: the ending of its name is {_ending(path)!r}, expected one of {', '.join(known)}."
        )


def _checked(path: PathLike) -> PathLike:
    """The path, if it is that of a file that can be opened as a table."""
    if _is_standard(path):
        return path
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist (looked in {Path(path).absolute().parent}).")
    _check_ending(path, READABLE, "read")
    if Path(path).is_file() and Path(path).stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes).")
    return path


def _checked_parts(path: PathLike) -> Sequence[PathLike]:
    """The files of a table, each of which can be opened as one."""
    return [_checked(part) for part in table_parts(path)]


def _sync(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _check_names(names: Sequence[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{where} has more than one column named {_listed(twice)}; rename or remove the others.")


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)


# ---- reading ----


def _closing_chunks(parts: Sequence[PathLike], rows: int | None, text: Sequence[str]) -> Iterator[Chunk]:
    """The pieces of all files; their rows are counted on from file to file, and have the columns of the first."""
    rows_from, names, share = 0, None, 1 / len(parts)
    for number, path in enumerate(parts):
        with ExitStack() as stack:
            for chunk in _chunks(path, rows, text, stack):
                frame, fraction = chunk.frame, chunk.fraction
                if names is None:
                    names = list(frame.columns)
                elif number and list(frame.columns) != names:
                    frame = _with_columns(frame, names, path, parts[0])
                if number:
                    frame = frame.set_axis(pd.RangeIndex(rows_from, rows_from + len(frame)), axis=0)
                if len(parts) > 1:
                    fraction = number * share + (0.5 if fraction is None else fraction) * share
                yield Chunk(frame, rows_from, fraction)
                rows_from += len(frame)


def _with_columns(frame: pd.DataFrame, names: list[Any], path: PathLike, first: PathLike) -> pd.DataFrame:
    """The frame with its columns in this order; ValueError where it has others."""
    if set(frame.columns) != set(names):
        raise ValueError(
            f"{path} has the columns {_listed(frame.columns)}, {first} has {_listed(names)}; the files of a table have "
            "the same columns."
        )
    return frame.loc[:, names]


def _chunks(path: PathLike, rows: int | None, text: Sequence[str], stack: ExitStack) -> Iterator[Chunk]:
    """Pieces of at most ``rows`` rows, or one piece for None; at least one piece, and none is empty."""
    if _ending(path) == ".parquet":
        pieces = _parquet_pieces(path, rows, stack)
    elif _ending(path) == ".npz":
        pieces = _npz_pieces(path, rows, stack)
    elif _ending(path) == ".npy":
        pieces = _npy_pieces(path, rows)
    else:
        pieces = _csv_pieces(path, rows, text, stack)
    rows_from = 0
    for frame, fraction in pieces:
        if len(frame):
            yield Chunk(frame.set_axis(pd.RangeIndex(rows_from, rows_from + len(frame)), axis=0), rows_from, fraction)
            rows_from += len(frame)
    if rows_from == 0:
        raise ValueError(f"{path} has no rows.")


def _rows_at_once(rows: int, num_columns: int) -> int:
    return max(1, min(rows, CHUNK_CELLS // num_columns))


# ---- CSV ----

NAMELESS = "\0"
"""The column behind a separator at the end of every line."""


def _csv_pieces(
    path: PathLike, rows: int | None, text: Sequence[str], stack: ExitStack
) -> Iterator[tuple[pd.DataFrame, float | None]]:
    stream, fraction = _open_csv(path, stack)
    with _csv_errors(path, 0):
        separator, names, num_lines = _csv_header(path, stream)
        first, rest = _first_record(stream, separator)
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
    while True:
        with _csv_errors(path, num_lines):
            try:
                frame = reader.read() if rows is None else reader.get_chunk(_rows_at_once(rows, len(names)))
            except (StopIteration, pd.errors.EmptyDataError):
                return
        if trailing:
            if bool(frame[NAMELESS].notna().any()):
                raise _too_many_fields(path, num_lines + 1)
            frame = frame.drop(columns=NAMELESS)
        yield frame, fraction()
        if rows is None:
            return


def _open_csv(path: PathLike, stack: ExitStack) -> tuple[io.TextIOWrapper, Callable[[], float | None]]:
    """The text, and a function that gives the fraction of the file that has been read."""
    if _is_standard(path):
        stream = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        stack.callback(stream.detach)  # stdin stays open
        return stream, lambda: None
    file = stack.enter_context(open(path, "rb"))  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    binary = stack.enter_context(gzip.GzipFile(fileobj=file)) if _ending(path).endswith(".gz") else file
    stream = stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""))
    if not file.seekable():  # a pipe
        return stream, lambda: None
    return stream, lambda: min(1.0, file.tell() / size) if size else None


def _csv_header(path: PathLike, stream: io.TextIOWrapper) -> tuple[str, list[str], int]:
    """The separator, the names of the columns, and the number of lines that the names take."""
    lines = []

    def recorded() -> Iterator[str]:
        for line in stream:
            lines.append(line)
            yield line

    # Quoted names may span lines: the reader finds where the first record ends.
    if next((fields for fields in csv.reader(recorded()) if any(field.strip() for field in fields)), None) is None:
        raise ValueError(f"{path} is empty, expected a line with the column names and at least one row.")
    separators = ["\t"] if _ending(path).startswith(".tsv") else SEPARATORS
    record = [line for line in lines if line.strip()]
    fields, separator = max(
        ((next(csv.reader(record, delimiter=separator)), separator) for separator in separators),
        key=lambda found: len(found[0]),
    )
    names = [field.strip() or f"Unnamed: {j}" for j, field in enumerate(fields)]
    _check_names(names, f"The first line of {path}")
    if all(_is_number(name) for name in names) and not all(name.isdecimal() for name in names):
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
        what = re.sub(r"\bline (\d+)", lambda found: f"line {int(found[1]) + lines_before}", what)  # from 1
        what = re.sub(r"\brow (\d+)", lambda found: f"line {int(found[1]) + 1 + lines_before}", what)  # from 0
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


def _first_record(stream: io.TextIOWrapper, separator: str) -> tuple[list[str], _TextAgain]:
    """The fields of the first record that is not blank, and the stream with all of it still to read."""
    lines: list[str] = []

    def recorded() -> Iterator[str]:
        for line in stream:
            lines.append(line)
            yield line

    records = csv.reader(recorded(), delimiter=separator)
    first = next((fields for fields in records if any(field.strip() for field in fields)), [])
    return first, _TextAgain("".join(lines), stream)


def _too_many_fields(path: PathLike, line: int) -> ValueError:
    return ValueError(
        f"{path} is not a well-formed CSV file: from line {line} on, rows have more fields than the first line has "
        "names. Add the names, or remove the fields."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_dates(frame: pd.DataFrame, text: Sequence[str]) -> pd.DataFrame:
    """The frame with dates for the text columns in which all values are dates in the format of ISO 8601."""
    found = {}
    for name in frame.columns:
        values = frame[name]
        if name in text or pd.api.types.infer_dtype(values, skipna=True) != "string":
            continue
        if re.fullmatch(ISO_DATE, str(values.dropna().iloc[0])):
            dates = iso_dates(values)
            if (dates.isna() == values.isna()).all():
                found[name] = dates.dt.tz_localize(None)
    return frame.assign(**found) if found else frame


# ---- Parquet ----


def _parquet_pieces(path: PathLike, rows: int | None, stack: ExitStack) -> Iterator[tuple[pd.DataFrame, float | None]]:
    try:
        file = stack.enter_context(pq.ParquetFile(os.fspath(path)))
        names = file.schema_arrow.names
        _check_names(names, str(path))
        num_rows, done = file.metadata.num_rows, 0
        if num_rows == 0 or not names:
            return
        if rows is None:
            yield file.read().to_pandas(), 1.0
            return
        for batch in file.iter_batches(batch_size=_rows_at_once(rows, len(names))):
            done += batch.num_rows
            yield batch.to_pandas(), done / num_rows
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from error


def _num_rows(path: PathLike) -> int | None:
    """The number of rows that a file says it has."""
    if _ending(path) == ".npy":
        return len(open_npy(path))
    if _ending(path) != ".parquet":
        return None
    try:
        return pq.read_metadata(os.fspath(path)).num_rows
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from error


# ---- NPY ----


def open_npy(path: PathLike) -> np.ndarray:
    """The array of an NPY file, whose rows are read from disk when they are used."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as an NPY file: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise ValueError(f"{path} does not hold a matrix or a vector of numbers.")
    return array


def _npy_pieces(path: PathLike, rows: int | None) -> Iterator[tuple[pd.DataFrame, float | None]]:
    matrix = open_npy(path)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    names = [f"x{j}" for j in range(matrix.shape[1])]
    at_once = len(matrix) if rows is None else _rows_at_once(rows, max(1, len(names)))
    for start in range(0, len(matrix), max(1, at_once)):
        part = np.array(matrix[start : start + at_once])
        yield pd.DataFrame(part, columns=names), (start + len(part)) / len(matrix)


# ---- NPZ ----


class _Member:
    """An array of an NPZ file, read in pieces."""

    def __init__(self, path: PathLike, name: str, stream: Any):
        self.name, self._stream = name, stream
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"array {name!r} has the format version {version}")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, in_columns, self._dtype = read_header(stream)
        if self._dtype.hasobject:
            raise ValueError(
                f"{path}: array {name!r} holds Python objects, which are not loaded because that can run code; "
                "save it as numbers or text, e.g. with .astype(float) or .astype(str)."
            )
        self._whole = None
        if in_columns and len(self.shape) == 2:
            self._whole = self._values(self.shape[::-1]).T
        self._done = 0

    def take(self, num_rows: int) -> np.ndarray:
        """The next rows."""
        start, self._done = self._done, self._done + num_rows
        if self._whole is not None:
            return self._whole[start : self._done]
        return self._values((num_rows, *self.shape[1:]))

    def _values(self, shape: tuple[int, ...]) -> np.ndarray:
        num_bytes = int(np.prod(shape, dtype=np.int64)) * self._dtype.itemsize
        content = self._stream.read(num_bytes)
        if len(content) < num_bytes:
            raise EOFError(f"array {self.name!r} ends early")
        return np.frombuffer(content, self._dtype).reshape(shape).astype(self._dtype.newbyteorder("="), copy=False)


def _npz_pieces(path: PathLike, rows: int | None, stack: ExitStack) -> Iterator[tuple[pd.DataFrame, float | None]]:
    with _npz_errors(path):
        file = stack.enter_context(zipfile.ZipFile(path))
        members = {
            name.removesuffix(".npy"): _Member(path, name.removesuffix(".npy"), stack.enter_context(file.open(name)))
            for name in file.namelist()
            if name.endswith(".npy")
        }
        names = members.pop("names") if "names" in members and "X" in members else None
        columns = _npz_columns(path, members, None if names is None else names.take(names.shape[0]))
    if not columns:
        raise ValueError(f"{path} has no table: expected an array X (n, d), and y or other arrays of length n.")
    num_rows, done = members[next(iter(columns))].shape[0], 0
    at_once = num_rows if rows is None else _rows_at_once(rows, sum(map(len, columns.values())))
    while done < num_rows:
        count = min(at_once, num_rows - done)
        frame = {}
        with _npz_errors(path):
            for key, labels in columns.items():
                frame.update(zip(labels, members[key].take(count).reshape(count, len(labels)).T, strict=True))
        done += count
        yield pd.DataFrame(frame), done / num_rows


def _npz_columns(path: PathLike, members: dict[str, _Member], names: np.ndarray | None) -> dict[str, list[str]]:
    """The names of the columns that each array becomes: X first, then y, then the others."""
    shapes = {key: members[key].shape for key in sorted(members, key=lambda key: (key != "X", key != "y"))}
    shapes = {key: shape for key, shape in shapes.items() if len(shape) == 1 or key in ("X", "y")}
    for key in ("X", "y"):
        if len(shapes.get(key, (0,))) not in (1, 2):
            raise ValueError(f"{path}: {key} has shape {shapes[key]}, expected rows and columns.")
    lengths = {key: shape[0] for key, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ValueError(f"{path}: the arrays differ in their number of rows: {found}.")

    def numbered(key: str, letter: str) -> list[str]:
        shape = shapes.get(key)
        if shape is None:
            return []
        return [letter] if key == "y" and shape[1:] in ((), (1,)) else [f"{letter}{j}" for j in range((*shape, 1)[1])]

    inputs, targets = numbered("X", "x"), numbered("y", "y")
    if names is not None:
        given = [str(name) for name in names.astype(str)] if names.ndim == 1 else []
        if len(given) not in (len(inputs), len(inputs) + len(targets)):
            raise ValueError(
                f"{path}: names has {len(given)} entries, expected {len(inputs)}, one for each column of X"
                + (f", or {len(inputs) + len(targets)} with those of y." if targets else ".")
            )
        inputs, targets = given[: len(inputs)], given[len(inputs) :] or targets
    columns = {"X": inputs, "y": targets, **{key: [key] for key in shapes if key not in ("X", "y")}}
    _check_names([name for labels in columns.values() for name in labels], str(path))
    return {key: labels for key, labels in columns.items() if labels}


@contextmanager
def _npz_errors(path: PathLike) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} cannot be read as an NPZ file: {error}") from error
    except ValueError as error:
        if str(error).startswith(str(path)):
            raise
        raise ValueError(f"{path} cannot be read as an NPZ file: {error}") from error
