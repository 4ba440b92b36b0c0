"""Tensors in files: they take disk instead of memory, and the system reads of them what is used."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.quantities import size

ROWS_AT_ONCE = 1_000_000
"""Rows that are taken at a time."""

DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


def mapped_tensor(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in a file without a name in this folder: when the last use of the tensor ends, the file does.

    Raises OSError if the disk has no room for it.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            # Room is reserved now: a disk that is full at a later write would end the process without a word.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
            else:
                file.truncate(max(1, num_bytes))
        except OSError as error:
            raise OSError(
                f"{folder} has no room for {size(num_bytes)}: {error}; free some, or name a folder on another disk."
            ) from error
        array = np.memmap(file, dtype=DTYPES[dtype], mode="r+", shape=shape)
    return torch.from_numpy(array)


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise OSError if the disk of a folder has fewer bytes left."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise OSError(
            f"the rows need {size(num_bytes)} on disk, and the disk of {folder} has {size(free)} left; free some, or "
            "name a folder on another disk with checkpoint_dir."
        )


def gathered(values: Tensor, rows: Int[Tensor, " m"], folder: Path | None) -> Tensor:
    """``values[rows]``: in memory, or in a file if a folder is given and the rows are many."""
    if folder is None or len(rows) <= ROWS_AT_ONCE:
        return values[rows]
    shape = (len(rows), *values.shape[1:])
    transposed = values.ndim == 2 and values.stride(0) == 1  # each column is contiguous, rather than each row
    found = mapped_tensor(folder, shape[::-1] if transposed else shape, values.dtype)
    found = found.mT if transposed else found
    for start in range(0, len(rows), ROWS_AT_ONCE):
        found[start : start + ROWS_AT_ONCE] = values[rows[start : start + ROWS_AT_ONCE]]
    return found


class ColumnStatistics(NamedTuple):
    """Of each column of a matrix, float64."""

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]  # divided by n


def column_statistics(X: Float[Tensor, "n d"]) -> ColumnStatistics:
    """Means and variances of the columns, of a part of the rows at a time: never all of them in float64."""
    n, mean, variance = 0, X.new_zeros(X.shape[1]).double(), X.new_zeros(X.shape[1]).double()
    for part in X.split(ROWS_AT_ONCE):
        values = part.double()
        share = len(part) / (n + len(part))
        apart = values.mean(0) - mean
        own = values.var(0, correction=0)
        # Chan, Golub and LeVeque; a single part is taken as it is, to the last bit.
        mean = mean + share * apart if n else values.mean(0)
        variance = (1 - share) * variance + share * own + share * (1 - share) * apart.square() if n else own
        n += len(part)
    return ColumnStatistics(mean, variance)
