"""Tables in files, read at once or in pieces, as often as needed; CSV and Parquet are written in pieces."""

import glob
import gzip
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cagp.data.cells import check_duplicates, listed, names_of, plain
from cagp.data.table_files import (
    CSV_ENDINGS,
    READABLE,
    ending_of,
    is_standard,
    open_npy,
    pieces_of_file,
    rows_of_file,
    with_dates,
)
from cagp.files import PathLike, checked_destination, replacing

WRITABLE = [".csv", ".csv.gz", ".parquet"]

CHUNK_ROWS = 65_536
"""Rows of a piece."""


class Chunk(NamedTuple):
    """Consecutive rows of a table."""

    frame: pd.DataFrame  # its index counts the rows of the whole table
    rows_from: int  # the number of the first row, from 0
    fraction: float | None  # of the table that has been read; None if its size is not known


def read_table(path: PathLike, text: Sequence[str] = ()) -> pd.DataFrame:
    """All rows of a table.

    - CSV (.csv, .tsv, .txt, each also with .gz, and "-" for stdin): UTF-8, with names in the first line. The separator
      is the comma, tab or semicolon, whichever is most frequent in the first line. A text column becomes dates if all
      its values are dates in the format of ISO 8601 (2024-03-31, 2024-03-31T12:00:00). Numbers keep every bit.
    - Parquet (.parquet): an index stored by pandas is ignored.
    - NPZ (.npz): an array X (n, d) becomes the columns x0, x1, ..., or those named by an array ``names``. An array y,
      (n,) or (n, q), becomes y, or y0, y1, ..., or is named by the last entries of ``names``. Other arrays with one
      dimension become columns, those with none or several are ignored.
    - NPY (.npy): a matrix becomes the columns x0, x1, ...

    A folder or a pattern like "parts/*.parquet" is one table, whose files follow each other by name.

    Args:
        text: columns to read as text if the file has no types (CSV): those that a model knows as levels
            (``Encoder.text_names``), so that the level "007" does not become 7.
    """
    parts = table_parts(path)
    frames = [chunk.frame for chunk in stream_parts(parts, None, text)]
    frame = frames[0] if len(frames) == 1 else pd.concat(frames)
    return with_dates(frame, text) if ending_of(parts[0]) in CSV_ENDINGS else frame


def stream_table(path: PathLike, rows: int = CHUNK_ROWS, text: Sequence[str] = ()) -> Iterator[Chunk]:
    """The table of ``read_table`` in pieces of at most ``rows`` rows, in order.

    A CSV column has the type that its values in the piece suggest, and dates stay text; an ``Encoder`` accepts either
    if its levels are read as ``text``. Memory O(piece), except for an NPZ array in Fortran order, which is read at
    once, and row groups of Parquet files, which are held in their compressed form.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1.")
    return stream_parts(table_parts(path), rows, text)


def stream_parts(parts: Sequence[PathLike], rows: int | None, text: Sequence[str]) -> Iterator[Chunk]:
    """The same for files that are known, each in one piece for None; one that is gone or has no rows is an error."""
    rows_from, names = 0, []
    for number, path in enumerate(parts):
        before = rows_from
        for frame, fraction in pieces_of_file(_checked(path), rows, text):
            if len(frame) == 0:
                continue
            names = names or list(frame.columns)
            if set(frame.columns) != set(names):
                raise ValueError(
                    f"{path} has the columns {listed(frame.columns)}, {parts[0]} has {listed(names)}; the files of "
                    "a table have the same columns."
                )
            if len(parts) > 1:
                fraction = (number + (0.5 if fraction is None else fraction)) / len(parts)
            index = pd.RangeIndex(rows_from, rows_from + len(frame))
            yield Chunk(frame.set_axis(index, axis=0).loc[:, names], rows_from, fraction)
            rows_from += len(frame)
        if rows_from == before:
            raise ValueError(f"{path} has no rows.")


def table_size(path: PathLike) -> int | None:
    """The size of the files of a table in bytes; None for stdin."""
    return None if is_standard(path) else sum(os.stat(part).st_size for part in table_parts(path))


def table_rows(path: PathLike) -> int | None:
    """The number of rows of a table, where its files say so: Parquet and NPY; None for other formats."""
    counts = [rows_of_file(part) for part in table_parts(path)]
    return None if None in counts else sum(filter(None, counts))


def is_several_files(path: PathLike) -> bool:
    """Whether a path is a folder or a pattern, rather than the name of a file."""
    is_one = is_standard(path) or Path(path).is_file()
    return not is_one and (Path(path).is_dir() or glob.has_magic(os.fspath(path)))


def table_parts(path: PathLike) -> Sequence[PathLike]:
    """The files of a table, sorted by name: those in a folder, or those that match a pattern, or the file itself.

    Names that begin with a point or an underscore do not count. All files have the same format, and each can be opened.
    """
    if not is_several_files(path):
        return [_checked(path)]
    folder = Path(path)
    inside = folder.iterdir() if folder.is_dir() else map(Path, glob.glob(os.fspath(path), recursive=True))
    parts = sorted(part for part in inside if not part.name.startswith((".", "_")))
    parent = folder if folder.is_dir() else folder.parent
    if inner := [part for part in parts if part.is_dir()]:
        raise ValueError(
            f"{path} has folders inside, such as {inner[0]}, which are not read; give a pattern for files alone, e.g. "
            f"{parent / '**' / '*.parquet'}."
        )
    if not parts:
        what = "the folder has no files" if folder.is_dir() else f"no file matches (looked from {Path.cwd()})"
        raise FileNotFoundError(f"{path} has no tables: {what}; expected {', '.join(READABLE)}.")
    endings = {".csv" if ending_of(part) in CSV_ENDINGS else ending_of(part): part for part in parts}
    if len(endings) > 1:
        first, second = list(endings.values())[:2]
        raise ValueError(
            f"{path} has files of several formats, such as {first} and {second}; give a pattern for one of them, e.g. "
            f"{parent / '*.parquet'}."
        )
    return [_checked(part) for part in parts]


class TableWriter:
    """Writes a table in pieces: to .csv, .csv.gz or .parquet, or as CSV to stdout for the path "-".

        with TableWriter("predictions.csv") as writer:
            for chunk in stream_table("inputs.csv"):
                writer.write(predictions_for(chunk.frame))

    The file is complete or does not exist, and an older file survives errors: see ``cagp.files.replacing``.
    """

    def __init__(self, path: PathLike):
        self._path, self._ending = path, ending_of(path)
        if not is_standard(path):
            _check_ending(path, WRITABLE, "written")
            checked_destination(path)

    def __enter__(self) -> "TableWriter":
        self._columns: list[Any] = []
        self._stack = ExitStack()  # what must be closed, in reverse order
        self._parquet: pq.ParquetWriter | None = None
        if is_standard(self._path):
            self._file: Any = sys.stdout
            self._stack.callback(sys.stdout.flush)
            return self
        self._file = self._stack.enter_context(replacing(self._path))
        if self._ending.endswith(".gz"):
            self._file = self._stack.enter_context(gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))
        if self._ending != ".parquet":
            self._file = io.TextIOWrapper(self._file, encoding="utf-8", newline="")
            self._stack.callback(self._file.detach)
        return self

    def write(self, frame: pd.DataFrame) -> None:
        """Append rows; the first frame determines the columns and their order."""
        first = not self._columns
        if first:
            if frame.shape[1] == 0:
                raise ValueError("The frame to write has no columns.")
            self._columns = list(frame.columns)
        check_duplicates(names_of(frame), "The frame to write")
        if set(frame.columns) != set(self._columns):
            raise ValueError(
                f"The frame to write has the columns {listed(frame.columns)}, the first one had "
                f"{listed(self._columns)}; all frames must have the same columns."
            )
        frame = frame.loc[:, self._columns]
        if self._ending != ".parquet":
            frame.to_csv(self._file, index=False, header=first, lineterminator="\n")
            return
        frame = frame.set_axis(names_of(frame), axis=1)
        schema = None if self._parquet is None else self._parquet.schema
        try:
            table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise ValueError(
                f"{self._path} cannot take these rows: {' '.join(map(str, error.args))}. "
                "A column keeps the type it has in the first frame: convert it there, e.g. with .astype(float)."
            ) from error
        if self._parquet is None:
            self._parquet = self._stack.enter_context(pq.ParquetWriter(self._file, table.schema))
        self._parquet.write_table(table)

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None or self._columns or is_standard(self._path):
            self._stack.__exit__(*error)
            return
        with self._stack:
            raise ValueError(f"{self._path} is not written: there were no rows.")


def _check_ending(path: PathLike, endings: list[str], done: str) -> None:
    if ending_of(path) not in endings:
        raise ValueError(
            f"{path} cannot be {done}: the ending of its name is {ending_of(path)!r}, expected one of "
            f"{', '.join(endings)}."
        )


def _checked(path: PathLike) -> PathLike:
    """The path, if it is that of a file that can be opened as a table."""
    if is_standard(path):
        return path
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist (looked in {Path(path).absolute().parent}).")
    _check_ending(path, READABLE, "read")
    if Path(path).is_file() and Path(path).stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes).")
    return path


# ---- tables in pieces, each with inputs and targets ----


class ChunkOfRows(NamedTuple):
    """Consecutive rows of a table, as ``fit`` takes them."""

    inputs: Any  # a frame or a matrix
    targets: Any  # a column, a vector, or several of them
    noise: np.ndarray | None  # known variances
    rows_from: int  # the number of the first row, from 0


Reader = Callable[[Sequence[str], int, int], Iterator[ChunkOfRows]]
"""The pieces of one of several parts of a table, by its number and theirs; some columns are read as text."""


@final
@dataclass(frozen=True)
class Chunks:
    """A table in pieces, each with inputs and targets; made by ``open_chunks``, and taken by ``fit`` as ``X``."""

    words: str  # what the table is called in messages
    num_rows: int | None  # None where only reading tells
    reader: Reader
    has_types: bool = True  # False for CSV, where a column can be read as text
    share: tuple[int, int] = (0, 1)  # the part of the table that these pieces are, and the number of parts

    def read(self, text: Sequence[str] = ()) -> Iterator[ChunkOfRows]:
        """All pieces, in order, from the first row on; ``text`` are columns to read as text from CSV."""
        return self.reader(text, *self.share)

    def where(self, rows: Callable[[int, int], np.ndarray], num_rows: int | None) -> "Chunks":
        """Some of the rows, ``num_rows`` in all: ``rows(start, stop)`` says as booleans which of these numbers."""

        def reader(text: Sequence[str], part: int, num_parts: int) -> Iterator[ChunkOfRows]:
            for chunk in self.reader(text, part, num_parts):
                kept = rows(chunk.rows_from, chunk.rows_from + len(chunk.inputs))
                if kept.all():
                    yield chunk
                elif kept.any():
                    inputs, targets, noise = (None if values is None else values[kept] for values in chunk[:3])
                    yield ChunkOfRows(inputs, targets, noise, chunk.rows_from)

        return replace(self, num_rows=num_rows, reader=reader)

    def part(self, part: int, num_parts: int) -> "Chunks":
        """One of several parts, from 0, that have all rows: some files, where these are Parquet; else some pieces."""
        if num_parts == 1:
            return self
        words = f"part {part + 1} of {num_parts} of {self.words}"
        return replace(self, words=words, num_rows=None, share=(part, num_parts))


def open_chunks(
    source: Any,
    target: str | Sequence[str] | None = None,
    *,
    drop: Sequence[str] = (),
    noise: str | None = None,
    rows: int = CHUNK_ROWS,
) -> Chunks:
    """A table that ``fit`` reads in pieces, so that it can be larger than memory.

    Args:
        source: one of

            - a file, a folder or a pattern like "parts/*.parquet": see ``cagp.data.read_table``;
            - a tuple (X, y) or (X, y, noise) of arrays or of NPY files, which are read from disk when needed;
            - a list of pieces, or a function that returns an iterator over them each time it is called. A piece is a
              frame, or a tuple (X, y) or (X, y, noise) as ``fit`` takes them.
        target: of files and frames, the name of the target, or a list of names.
        drop: of files and frames, columns that are not inputs.
        noise: of files and frames, the column with the known noise variance of each row.
        rows: in a piece of a file or of an array, at most.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}, expected at least 1.")
    columns = _Columns(target, tuple(drop), noise)
    if isinstance(source, str | os.PathLike):
        if os.fspath(source) == "-":
            raise ValueError(
                "stdin can be read once, and a fit in pieces reads a table several times; write it to a file."
            )
        opened = _of_files(table_parts(source), str(source), columns, rows)
        next(opened.read())  # a column that is not there is reported at once
        return opened
    if isinstance(source, tuple) and source and all(isinstance(p, str | os.PathLike | np.ndarray) for p in source):
        return _of_arrays(source, columns, rows)
    return _of_pieces(source, columns)


class _Columns(NamedTuple):
    """What the columns of a frame are."""

    target: str | Sequence[str] | None
    drop: tuple[str, ...]
    noise: str | None

    def in_turn(self, pieces: Callable[[], Iterable[Any]]) -> Reader:
        """What reads the pieces that a function returns: several parts of a table take turns."""
        return lambda text, part, num_parts: islice(self.chunks(pieces()), part, None, num_parts)

    def chunks(self, pieces: Iterable[Any], words: str | None = None, first_row: int = 0) -> Iterator[ChunkOfRows]:
        """Pieces as inputs, targets and noise, with the numbers of their rows; empty ones are left out."""
        for piece in pieces:
            where = words or f"the piece from row {first_row} on"
            chunk = ChunkOfRows(*self._parts(plain(piece, "a piece"), where), first_row)
            if len(chunk.inputs):
                yield chunk
            first_row += len(chunk.inputs)

    def refuse(self, words: str) -> None:
        """Raise ValueError if columns are named, since arrays have no names."""
        if self.target is not None or self.drop or self.noise is not None:
            raise ValueError(f"target, drop and noise name columns, and {words} have no names; pass (X, y).")

    def _parts(self, piece: Any, words: str) -> tuple[Any, Any, np.ndarray | None]:
        """Inputs, targets and noise of a piece."""
        if isinstance(piece, pd.DataFrame):
            return self._split(piece, words)
        if not isinstance(piece, tuple) or len(piece) not in (2, 3):
            raise TypeError(
                f"a piece is a {type(piece).__name__}, expected a frame, or a tuple (X, y) or (X, y, noise)."
            )
        self.refuse("pieces that are tuples")
        lengths = [len(part) for part in piece if part is not None]
        if len(set(lengths)) > 1:
            raise ValueError(f"{words} has parts of {lengths} rows, expected equal numbers.")
        inputs, targets, noise = (*piece, None)[:3]
        return inputs, targets, None if noise is None else np.asarray(noise, dtype=np.float64)

    def _split(self, frame: pd.DataFrame, words: str) -> tuple[Any, Any, np.ndarray | None]:
        if self.target is None:
            raise ValueError(f"say with target which column to predict; {words} has {listed(frame.columns)}.")
        is_one = isinstance(self.target, str)
        targets = [self.target] if is_one else list(self.target)
        others = [*targets, *self.drop, *([] if self.noise is None else [self.noise])]
        absent = [name for name in others if name not in frame.columns]
        if absent:
            raise ValueError(f"{words} has no column {listed(absent)}; its columns are {listed(frame.columns)}.")
        inputs = frame.drop(columns=others)
        if inputs.shape[1] == 0:
            raise ValueError(f"no inputs are left: {words} has the columns {listed(frame.columns)}.")
        noise = None if self.noise is None else frame[self.noise].to_numpy()
        return inputs, frame[self.target if is_one else targets], noise


def _of_files(parts: Sequence[PathLike], words: str, columns: _Columns, rows: int) -> Chunks:
    counts: list[Any] = [rows_of_file(part) for part in parts]
    ends = None if None in counts else np.cumsum([0, *counts])

    def reader(text: Sequence[str], part: int, num_parts: int) -> Iterator[ChunkOfRows]:
        """Whole files for each part, as even in their rows as their order allows; pieces where files are too few."""
        owners = np.zeros(len(parts), dtype=int)
        if ends is not None and num_parts > 1:
            owners = ((ends[:-1] + ends[1:]) / 2 * num_parts / ends[-1]).astype(int)
        if len(np.unique(owners)) < num_parts:  # a part would have no file
            return islice(reader(text, 0, 1), part, None, num_parts)
        own = np.flatnonzero(owners == part).tolist()
        frames = (chunk.frame for chunk in stream_parts([parts[k] for k in own], rows, text))
        return columns.chunks(frames, words, 0 if ends is None else int(ends[own[0]]))

    has_types = ending_of(parts[0]) not in CSV_ENDINGS
    return Chunks(words, None if ends is None else int(ends[-1]), reader, has_types)


def _of_arrays(source: tuple[Any, ...], columns: _Columns, rows: int) -> Chunks:
    columns.refuse("arrays")
    if len(source) not in (2, 3):
        raise ValueError(f"the source is a tuple of {len(source)} arrays or files, expected (X, y) or (X, y, noise).")
    arrays = [part if isinstance(part, np.ndarray) else open_npy(part) for part in source]
    names = [n if isinstance(part, np.ndarray) else str(part) for n, part in zip(("X", "y", "noise"), source)]  # noqa: B905
    num_rows = len(arrays[0])
    if any(len(array) != num_rows for array in arrays):
        lengths = ", ".join(f"{name} has {len(array):,} rows" for name, array in zip(names, arrays, strict=True))
        raise ValueError(f"the arrays differ in their number of rows: {lengths}.")
    starts = range(0, num_rows, rows)
    pieces = columns.in_turn(lambda: (tuple(np.array(array[k : k + rows]) for array in arrays) for k in starts))
    return Chunks(names[0], num_rows, pieces)


def _of_pieces(source: Any, columns: _Columns) -> Chunks:
    if not callable(source) and not isinstance(source, Iterable):
        raise TypeError(
            f"the source is a {type(source).__name__}, expected a path, a tuple (X, y), a list of pieces, or a "
            "function that returns an iterator over pieces."
        )
    if not callable(source) and iter(source) is source:
        raise TypeError(
            "the source is an iterator, which can be read once; a fit reads the pieces several times. Pass the "
            "function that makes it, e.g. open_chunks(make_pieces) instead of open_chunks(make_pieces())."
        )

    def pieces() -> Iterable[Any]:
        made = source() if callable(source) else source
        if not isinstance(made, Iterable):
            raise TypeError(f"the function returned a {type(made).__name__}, expected an iterator over pieces.")
        return made

    return Chunks("the table", None, columns.in_turn(pieces))
