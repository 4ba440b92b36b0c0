"""The rows to learn from: checked once, where they enter, and trusted from there on; in memory or in files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_data, check_matrix, check_new_inputs, check_row_noise, check_vector
from cagp.neighbours import IndexKind, NeighbourIndex
from cagp.quantities import size

ROWS_AT_ONCE = 1_000_000
"""Rows that are taken at a time."""


def mapped_tensor(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in a file without a name, which ends with its last use; OSError if the disk has no room."""
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
        array = np.memmap(file, dtype=str(dtype).removeprefix("torch."), mode="r+", shape=shape)
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


AnyTargets = Float[Tensor, "n *q"]  # one column, or several


@final
@dataclass(frozen=True, eq=False)
class Data:
    """Inputs, targets and known noise variances of some rows, which must not change any more.

    They are checked here. Whatever takes ``X, y, row_noise`` also takes a ``Data`` alone, and does not check it again.

    Args:
        X: inputs.
        y: targets: a vector, or a column for each target.
        row_noise: known noise variances, of the shape of ``y``; None for none.
        trusted: whether these tensors were checked before.
        search: the indices of the rows of ``X``, from other data with the same inputs; None for new ones.
    """

    X: Float[Tensor, "n d"]
    y: AnyTargets
    row_noise: AnyTargets | None = None
    trusted: InitVar[bool] = False
    search: Any = field(default=None, repr=False)

    def __post_init__(self, trusted: bool) -> None:
        if not trusted:
            _check(self.X, self.y, self.row_noise)
        if self.search is None:
            object.__setattr__(self, "search", Search(self.X))

    @classmethod
    def of(cls, X: "Tensor | Data", y: Tensor | None = None, row_noise: Tensor | None = None) -> "Data":
        """The data themselves, or those of checked tensors."""
        if not isinstance(X, Data):
            return cls(X, y, row_noise)  # pyright: ignore[reportArgumentType]
        if y is not None or row_noise is not None:
            raise ValueError("X is a Data, which has targets and noise of its own; leave y and row_noise out.")
        return X

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and noise: ``X, y, row_noise = data.tensors``."""
        return self.X, self.y, self.row_noise

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tensors)

    @property
    def num_rows(self) -> int:
        """n."""
        return self.X.shape[0]

    def with_targets(self, y: AnyTargets, row_noise: AnyTargets | None = None) -> "Data":
        """The same rows with other targets and noise, which the caller has made of checked ones."""
        return Data(self.X, y, row_noise, True, self.search)

    def with_inputs(self, X: Float[Tensor, "n d"]) -> "Data":
        """The same targets and noise at other inputs, which the caller has made of checked ones."""
        return Data(X, self.y, self.row_noise, True)

    def column(self, j: int) -> "Data":
        """The same rows with the j-th target alone."""
        noise = None if self.row_noise is None else self.row_noise[:, j].contiguous()
        return self.with_targets(self.y[:, j].contiguous(), noise)

    def take(self, rows: Int[Tensor, " m"], folder: Path | None = None) -> "Data":
        """Some of the rows; in files of a folder, if one is given and the rows are many."""
        noise = None if self.row_noise is None else gathered(self.row_noise, rows, folder)
        return Data(gathered(self.X, rows, folder), gathered(self.y, rows, folder), noise, True)

    def double(self) -> "Data":
        """The same data in float64."""
        noise = None if self.row_noise is None else self.row_noise.double()
        search = self.search if self.X.dtype == torch.float64 else None
        return Data(self.X.double(), self.y.double(), noise, True, search)

    def index(self, lengthscale: Float[Tensor, " d"] | None = None, kind: IndexKind = "auto") -> NeighbourIndex:
        """The index of the rows in units of these lengthscales; what does not depend on the units is made once."""
        return self.search.index(lengthscale, kind)


@final
class Search:
    """The indices of some rows, all with the same tree; the last one is kept, as two may not fit into memory."""

    def __init__(self, X: Float[Tensor, "n d"]):
        self._X = X
        self._last: dict[IndexKind, NeighbourIndex] = {}

    def index(self, lengthscale: Tensor | None, kind: IndexKind) -> NeighbourIndex:
        """See ``Data.index``."""
        last, self._last = self._last.get(kind), {}
        if last is None:
            last = NeighbourIndex(self._X, lengthscale, kind, check=False)
        elif not _same(last.lengthscale, lengthscale):
            last = last.with_lengthscale(self._X, lengthscale)
        self._last = {kind: last}
        return last


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def inputs_of(X: Tensor | Data, like: Tensor | None = None) -> Tensor:
    """Checked inputs, or test points of a model with inputs ``like``; the values of ``Data`` were checked already."""
    rows, seen = (X.X, X.X[:1]) if isinstance(X, Data) else (X, X)
    check_matrix(seen, "X") if like is None else check_new_inputs(seen, like)
    return rows


def _check(X: Tensor, y: Tensor, row_noise: Tensor | None) -> None:
    """Raise ValueError unless inputs, targets and known noise variances fit together. Time O(n d)."""
    if not isinstance(y, Tensor) or y.ndim != 2 or y.shape[1] == 0:
        check_data(X, y, row_noise)
        return
    check_matrix(X, "X")
    if row_noise is not None and (not isinstance(row_noise, Tensor) or row_noise.shape != y.shape):
        found = tuple(row_noise.shape) if isinstance(row_noise, Tensor) else type(row_noise).__name__
        raise ValueError(f"row_noise is {found}, y has shape {tuple(y.shape)}; expected a variance for each target.")
    for j in range(y.shape[1]):
        check_vector(y[:, j], "y", X)
        check_row_noise(None if row_noise is None else row_noise[:, j], X)
