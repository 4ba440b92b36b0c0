"""Tables that are read in pieces, as often as needed: files, arrays on disk, or what a program makes."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd

from cagp.data.table_checks import listed, plain
from cagp.data.table_files import CSV_ENDINGS, ending_of, open_npy, rows_of_file
from cagp.data.tables import stream_parts, table_parts
from cagp.files import PathLike

CHUNK_ROWS = 65_536
"""Rows of a piece."""


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
        """All pieces, in order, from the first row on.

        Args:
            text: columns to read as text where the table has no types (CSV).
        """
        return self.reader(text, *self.share)

    def where(self, rows: Callable[[int, int], np.ndarray], num_rows: int | None) -> "Chunks":
        """Some of the rows.

        Args:
            rows: which rows of those from one number up to another, as booleans.
            num_rows: how many they are in all.
        """

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
        """One of several parts that together have all rows: some files of it, where these are Parquet; else pieces.

        Rows keep their numbers. Parts count from 0.
        """
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

    def chunks(self, pieces: Iterable[Any], words: str | None = None, first_row: int = 0) -> Iterator[ChunkOfRows]:
        """Pieces as inputs, targets and noise, with the numbers of their rows; empty ones are left out."""
        for piece in pieces:
            chunk = self._chunk(piece, first_row, words or f"the piece from row {first_row} on")
            if len(chunk.inputs):
                yield chunk
            first_row += len(chunk.inputs)

    def refuse(self, words: str) -> None:
        """Raise ValueError if columns are named, since arrays have no names."""
        if self.target is not None or self.drop or self.noise is not None:
            raise ValueError(f"target, drop and noise name columns, and {words} have no names; pass (X, y).")

    def _chunk(self, piece: Any, first_row: int, words: str) -> ChunkOfRows:
        piece = plain(piece, "a piece")
        if isinstance(piece, pd.DataFrame):
            return self._split(piece, first_row, words)
        if not isinstance(piece, tuple) or len(piece) not in (2, 3):
            raise TypeError(
                f"a piece is a {type(piece).__name__}, expected a frame, or a tuple (X, y) or (X, y, noise)."
            )
        self.refuse("pieces that are tuples")
        inputs, targets, noise = (*piece, None)[:3]
        noise = None if noise is None else np.asarray(noise, dtype=np.float64)
        lengths = [len(part) for part in (inputs, targets, noise) if part is not None]
        if len(set(lengths)) > 1:
            raise ValueError(f"the piece from row {first_row} on has parts of {lengths} rows, expected equal numbers.")
        return ChunkOfRows(inputs, targets, noise, first_row)

    def _split(self, frame: pd.DataFrame, first_row: int, words: str) -> ChunkOfRows:
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
        return ChunkOfRows(inputs, frame[self.target if is_one else targets], noise, first_row)


def _of_files(parts: Sequence[PathLike], words: str, columns: _Columns, rows: int) -> Chunks:
    counts = [count for part in parts if (count := rows_of_file(part)) is not None]
    ends = np.cumsum([0, *counts]) if len(counts) == len(parts) else None

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

    def reader(text: Sequence[str], part: int, num_parts: int) -> Iterator[ChunkOfRows]:
        pieces = (tuple(np.array(a[k : k + rows]) for a in arrays) for k in range(0, num_rows, rows))
        return islice(columns.chunks(pieces), part, None, num_parts)

    return Chunks(names[0], num_rows, reader)


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

    def reader(text: Sequence[str], part: int, num_parts: int) -> Iterator[ChunkOfRows]:
        pieces = source() if callable(source) else source
        if not isinstance(pieces, Iterable):
            raise TypeError(f"the function returned a {type(pieces).__name__}, expected an iterator over pieces.")
        return islice(columns.chunks(pieces), part, None, num_parts)

    return Chunks("the table", None, reader)
