"""What the readers of all file formats share: paths, formats, and how many rows a piece has."""

import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

CHUNK_CELLS = 4_000_000  # values of a piece at most, 32 MB as float64: wide tables come in pieces of fewer rows
CSV_ENDINGS = [".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"]
READABLE = [*CSV_ENDINGS, ".parquet", ".npz", ".npy"]

PathLike = str | os.PathLike[str]
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


def rows_at_once(rows: int, num_columns: int) -> int:
    """The rows of a piece: fewer where a table is wide."""
    return max(1, min(rows, CHUNK_CELLS // num_columns))
