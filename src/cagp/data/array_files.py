"""NPY and NPZ files, in pieces."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pandas as pd

from cagp.data.pieces import PathLike, Pieces, rows_at_once
from cagp.data.table_checks import check_duplicates

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


def npy_pieces(path: PathLike, rows: int | None) -> Pieces:
    matrix = open_npy(path)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    names = [f"x{j}" for j in range(matrix.shape[1])]
    at_once = len(matrix) if rows is None else rows_at_once(rows, max(1, len(names)))
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


def npz_pieces(path: PathLike, rows: int | None, stack: ExitStack) -> Pieces:
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
    at_once = num_rows if rows is None else rows_at_once(rows, sum(map(len, columns.values())))
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
        sizes = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ValueError(f"{path}: the arrays differ in their number of rows: {sizes}.")

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
    check_duplicates([name for labels in columns.values() for name in labels], str(path))
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
