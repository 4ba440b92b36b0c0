"""The rows to learn from: checked once, where they enter, and trusted from there on."""

from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_matrix, check_row_noise, check_vector
from cagp.mapped import gathered
from cagp.neighbours import IndexKind, NeighbourIndex

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
    """The indices of some rows: one for each unit that is asked for, all with the same tree.

    The last index is kept; two of them may not fit into memory.
    """

    def __init__(self, X: Float[Tensor, "n d"]):
        self._X, self._asked, self._last = X, "", None

    def index(self, lengthscale: Tensor | None, kind: IndexKind) -> NeighbourIndex:
        """See ``Data.index``."""
        last = self._last
        if last is None or self._asked != kind:
            self._last = last = None
            last = NeighbourIndex(self._X, lengthscale, kind, check=False)
        elif not _same(last.lengthscale, lengthscale):
            self._last = None
            last = last.with_lengthscale(self._X, lengthscale)
        self._asked, self._last = kind, last
        return last


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _check(X: Tensor, y: Tensor, row_noise: Tensor | None) -> None:
    """Raise ValueError unless inputs, targets and known noise variances fit together. Time O(n d)."""
    check_matrix(X, "X")
    if not isinstance(y, Tensor) or y.ndim != 2 or y.shape[1] == 0:
        check_vector(y, "y", X)
        check_row_noise(row_noise, X)
        return
    if row_noise is not None and (not isinstance(row_noise, Tensor) or row_noise.shape != y.shape):
        found = tuple(row_noise.shape) if isinstance(row_noise, Tensor) else type(row_noise).__name__
        raise ValueError(f"row_noise is {found}, y has shape {tuple(y.shape)}; expected a variance for each target.")
    for j in range(y.shape[1]):
        check_vector(y[:, j], "y", X)
        check_row_noise(None if row_noise is None else row_noise[:, j], X)
