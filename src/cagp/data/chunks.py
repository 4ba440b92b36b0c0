"""Tables that are read in pieces, as often as needed: files, arrays on disk, or what a program makes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd

from cagp.data.array_files import open_npy
from cagp.data.pieces import CSV_ENDINGS, PathLike
from cagp.data.tables import stream_parts, table_parts, table_rows

CHUNK_ROWS = 65_536
"""Rows of a piece."""


class ChunkOfRows(NamedTuple):
    """Consecutive rows of a table, as ``fit`` takes them."""

    inputs: Any  # a frame or a matrix
    targets: Any  # a column, a vector, or several of them
    noise: np.ndarray | None  # known variances
    rows_from: int  # the number of the first row, from 0


@final
@dataclass(frozen=True)
class Chunks:
    """A table in pieces, each with inputs and targets; made by ``open_chunks``, and taken by ``fit`` as ``X``."""

    words: str  # what the table is called in messages
    num_rows: int | None  # None where only reading tells
    reader: Callable[[Sequence[str]], Iterator[ChunkOfRows]]
    has_types: bool  # False for CSV, where a column can be read as text
    sharer: "Callable[[int, int], Chunks] | None" = None  # what ``part`` returns, where it knows better

    def read(self, text: Sequence[str] = ()) -> Iterator[ChunkOfRows]:
        """All pieces, in order, from the first row on.

        Args:
            text: columns to read as text where the table has no types (CSV).
        """
        return self.reader(text)

    def where(self, rows: Callable[[int, int], np.ndarray], num_rows: int | None) -> "Chunks":
        """Some of the rows.

        Args:
            rows: which rows of those from one number up to another, as booleans.
            num_rows: how many they are in all.
        """

        def reader(text: Sequence[str]) -> Iterator[ChunkOfRows]:
            for chunk in self.read(text):
                kept = rows(chunk.rows_from, chunk.rows_from + len(chunk.inputs))
                if kept.all():
                    yield chunk
                elif kept.any():
                    inputs, targets, noise = (None if part is None else part[kept] for part in chunk[:3])
                    yield ChunkOfRows(inputs, targets, noise, chunk.rows_from)

        def sharer(part: int, num_parts: int) -> "Chunks":
            return self.part(part, num_parts).where(rows, None)

        return Chunks(self.words, num_rows, reader, self.has_types, sharer)

    def part(self, part: int, num_parts: int) -> "Chunks":
        """One of several parts that together have all rows: some files of it, where these are Parquet; else pieces.

        Rows keep their numbers.

        Args:
            part: its number, from 0.
        """
        if num_parts == 1:
            return self
        if self.sharer is not None:
            return self.sharer(part, num_parts)

        def reader(text: Sequence[str]) -> Iterator[ChunkOfRows]:
            return (chunk for number, chunk in enumerate(self.read(text)) if number % num_parts == part)

        return Chunks(f"part {part + 1} of {num_parts} of {self.words}", None, reader, self.has_types)


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
        return _of_files(source, columns, rows)
    if isinstance(source, tuple) and source and all(isinstance(p, str | os.PathLike | np.ndarray) for p in source):
        return _of_arrays(source, columns, rows)
    return _of_pieces(source, columns)


class _Columns(NamedTuple):
    """What the columns of a frame are."""

    target: str | Sequence[str] | None
    drop: tuple[str, ...]
    noise: str | None

    def split(self, frame: pd.DataFrame, rows_from: int, words: str) -> ChunkOfRows:
        if self.target is None:
            raise ValueError(f"say with target which column to predict; {words} has {_listed(frame.columns)}.")
        targets = [self.target] if isinstance(self.target, str) else list(self.target)
        noise = [] if self.noise is None else [self.noise]
        absent = [name for name in (*targets, *self.drop, *noise) if name not in frame.columns]
        if absent:
            raise ValueError(f"{words} has no column {_listed(absent)}; its columns are {_listed(frame.columns)}.")
        inputs = frame.drop(columns=[*targets, *self.drop, *noise])
        if inputs.shape[1] == 0:
            raise ValueError(f"no inputs are left: {words} has the columns {_listed(frame.columns)}.")
        known = frame[self.noise].to_numpy() if noise else None
        return ChunkOfRows(inputs, frame[self.target if isinstance(self.target, str) else targets], known, rows_from)

    def refuse(self, words: str) -> None:
        if self.target is not None or self.drop or self.noise is not None:
            raise ValueError(f"target, drop and noise name columns, and {words} have no names; pass (X, y).")


def _of_files(path: PathLike, columns: _Columns, rows: int) -> Chunks:
    if os.fspath(path) == "-":
        raise ValueError("stdin can be read once, and a fit in pieces reads a table several times; write it to a file.")
    parts, words = table_parts(path), str(path)

    def reader(text: Sequence[str]) -> Iterator[ChunkOfRows]:
        for chunk in stream_parts(parts, rows, text):
            yield columns.split(chunk.frame, chunk.rows_from, words)

    is_csv = any(Path(parts[0]).name.lower().endswith(ending) for ending in CSV_ENDINGS)
    num_rows = table_rows(path)
    opened = Chunks(words, num_rows, reader, not is_csv)
    if num_rows is not None:
        opened = replace(opened, sharer=_shares_of_files(opened, parts, columns, rows))
    next(opened.read())  # a column that is not there is found at once
    return opened


def _shares_of_files(whole: Chunks, parts: Sequence[PathLike], columns: _Columns, rows: int) -> Any:
    """Whole files for each part, as even in their rows as their order allows; pieces where there are too few files."""

    def sharer(part: int, num_parts: int) -> Chunks:
        counts = [table_rows(path) or 0 for path in parts]
        first_rows = np.cumsum([0, *counts])
        middles = (first_rows[:-1] + first_rows[1:]) / 2
        owners = (middles * num_parts / first_rows[-1]).astype(int)
        if len(np.unique(owners)) < num_parts:  # a part would have no file
            return replace(whole, sharer=None).part(part, num_parts)
        own = np.flatnonzero(owners == part).tolist()
        words = f"part {part + 1} of {num_parts} of {whole.words}"

        def reader(text: Sequence[str]) -> Iterator[ChunkOfRows]:
            for k in own:
                for chunk in stream_parts([parts[k]], rows, text):
                    yield columns.split(chunk.frame, int(first_rows[k]) + chunk.rows_from, str(parts[k]))

        return Chunks(words, sum(counts[k] for k in own), reader, whole.has_types)

    return sharer


def _of_arrays(source: tuple[Any, ...], columns: _Columns, rows: int) -> Chunks:
    columns.refuse("arrays")
    if len(source) not in (2, 3):
        raise ValueError(f"the source is a tuple of {len(source)} arrays or files, expected (X, y) or (X, y, noise).")
    arrays = [part if isinstance(part, np.ndarray) else open_npy(part) for part in source]
    called = ("X", "y", "noise")[: len(source)]
    names = [n if isinstance(part, np.ndarray) else str(part) for n, part in zip(called, source, strict=True)]
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        found = ", ".join(f"{name} has {length:,} rows" for name, length in zip(names, lengths, strict=True))
        raise ValueError(f"the arrays differ in their number of rows: {found}.")

    def reader(_: Sequence[str]) -> Iterator[ChunkOfRows]:
        for start in range(0, lengths[0], rows):
            parts = [np.array(array[start : start + rows]) for array in arrays]
            yield ChunkOfRows(parts[0], parts[1], parts[2] if len(parts) == 3 else None, start)

    return Chunks(names[0], lengths[0], reader, has_types=True)


def _of_pieces(source: Any, columns: _Columns) -> Chunks:
    if not callable(source) and not isinstance(source, Iterable):
        raise TypeError(
            f"the source is a {type(source).__name__}, expected a path, a tuple (X, y), a list of pieces, or a "
            "function that returns an iterator over pieces."
        )
    words = "the piece"

    def pieces() -> Iterator[Any]:
        found = source() if callable(source) else source
        if not isinstance(found, Iterable):
            raise TypeError(f"the function returned a {type(found).__name__}, expected an iterator over pieces.")
        return iter(found)

    if not callable(source) and iter(source) is source:
        raise TypeError(
            "the source is an iterator, which can be read once; a fit reads the pieces several times. Pass the "
            "function that makes it, e.g. open_chunks(make_pieces) instead of open_chunks(make_pieces())."
        )

    def reader(_: Sequence[str]) -> Iterator[ChunkOfRows]:
        rows_from = 0
        for piece in pieces():
            chunk = _piece(piece, columns, rows_from, words)
            if len(chunk.inputs):
                yield chunk
            rows_from += len(chunk.inputs)

    return Chunks("the table", None, reader, has_types=True)


def _piece(piece: Any, columns: _Columns, rows_from: int, words: str) -> ChunkOfRows:
    if not isinstance(piece, pd.DataFrame) and hasattr(piece, "to_pandas"):
        piece = piece.to_pandas()
    if isinstance(piece, pd.DataFrame):
        return columns.split(piece, rows_from, f"{words} from row {rows_from} on")
    if not isinstance(piece, tuple) or len(piece) not in (2, 3):
        raise TypeError(f"a piece is a {type(piece).__name__}, expected a frame, or a tuple (X, y) or (X, y, noise).")
    columns.refuse("pieces that are tuples")
    inputs, targets, *noise = piece
    known = np.asarray(noise[0], dtype=np.float64) if noise and noise[0] is not None else None
    lengths = [len(part) for part in (inputs, targets, known) if part is not None]
    if len(set(lengths)) > 1:
        raise ValueError(f"the piece from row {rows_from} on has parts of {lengths} rows, expected equal numbers.")
    return ChunkOfRows(inputs, targets, known, rows_from)


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)
