"""What stored posteriors have in common: rows that may be rounded, weights of actions, and what one file shares."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.checks import check_matrix
from cagp.engine import BlockWeights
from cagp.fields import Check, Sizes, checked, entry, mapping, numbers, require, strange, tensor
from cagp.neighbours import NeighbourIndex
from cagp.prior import GP
from cagp.storage import State

DTYPES = {"float32": torch.float32, "float64": torch.float64}

MODULE_BYTES = 10_000
"""About what a kernel takes besides its parameters."""


class Rounding(NamedTuple):
    """Rows as they are stored: as they are, or rounded if that makes them smaller."""

    dtype: torch.dtype | None  # None: as they are
    of_rows: torch.dtype  # of the posterior's rows

    def __call__(self, values: Tensor | BlockWeights | None, name: str) -> Any:
        """The values, rounded if that makes them smaller; those that belong to rows of this dtype stay as they are."""
        if isinstance(values, BlockWeights):
            return {"values": self(values.values, name), "offsets": values.offsets}
        if values is None or self.dtype in (None, self.of_rows) or values.dtype.itemsize <= self.dtype.itemsize:
            return values
        rounded = values.to(self.dtype)
        lost = ~torch.isfinite(rounded) | ((rounded == 0) & (values != 0) & (name == "row_noise"))
        if bool(lost.any()):
            raise ValueError(f"{name} has values beyond the range of {self.dtype}; store it with dtype=None.")
        return rounded


class Sharing:
    """What posteriors made from one file share, so that they take memory in proportion to the file.

    A file can refer to the same rows as often as it likes: they are converted once, and searched through one index.

    Args:
        max_bytes: what all parameters may take, which are copied for each posterior.
    """

    def __init__(self, max_bytes: int = 2**62):
        self.left = max_bytes
        self._rows: dict[Any, tuple[Tensor, Tensor]] = {}
        self._indices: dict[Any, NeighbourIndex] = {}

    def spend(self, module: Any) -> None:
        """Count a stored module and those inside it; ValueError if there are more than a file of this size can mean."""
        held = entry(module, "tensors", mapping).values()
        self.left -= MODULE_BYTES + sum(t.numel() * t.element_size() for t in held if isinstance(t, Tensor))
        if self.left < 0:
            raise ValueError("its kernels have far more parameters than cagp writes into a file of this size.")
        for part in module.get("parts") or []:
            self.spend(part)

    def rows(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows in this dtype."""
        if X.dtype == dtype:
            return X
        key = (X.data_ptr(), X.shape, X.stride(), dtype)
        return self._rows.setdefault(key, (X, X.to(dtype)))[1]  # X stays, and so does its address

    def index(self, X: Tensor, lengthscale: Tensor | None, kind: Any, origin: Tensor) -> NeighbourIndex:
        """The index of these rows."""
        unit = None if lengthscale is None else tuple(lengthscale.tolist())
        key = (X.data_ptr(), X.shape, X.stride(), unit, kind, tuple(origin.tolist()))
        if key not in self._indices:
            self._indices[key] = NeighbourIndex(X, lengthscale, kind, origin)
        return self._indices[key]

    def inputs(self, state: State, prior: GP) -> Tensor:
        """The stored rows ``X`` in the stored ``dtype``; ValueError unless the prior takes their columns."""
        X = entry(state, "X", tensor("n", "d"))
        check_matrix(X, "X")
        if X.dtype not in DTYPES.values() or state.get("dtype") not in DTYPES:
            raise strange("'X'")
        X = self.rows(X, DTYPES[state["dtype"]])
        try:
            prior.mean(X[:1])
            prior.kernel(X[:1], X[:1])
        except (RuntimeError, ValueError) as error:
            raise strange(f"a kernel and a mean for {X.shape[1]} columns") from error
        return X

    def weights(self, dtype: torch.dtype) -> Check:
        """The check of weights of i actions on n rows."""

        def check(value: Any, sizes: Sizes) -> Tensor | BlockWeights:
            if isinstance(value, Tensor):
                W = numbers("n", "i")(value, sizes)
                require(W.shape[1] > 0)
                # Those of iterative methods are float64 also beside float32 rows: rounding them would change SᵀK̂S.
                return W if W.dtype == torch.float64 else self.rows(W, dtype)
            parts = checked(value, {"offsets": _offsets, "values": numbers("n")}, sizes)
            return BlockWeights(parts["values"].to(dtype), parts["offsets"])

        return check


def _offsets(value: Any, sizes: Sizes) -> Tensor:
    """Where blocks begin in the rows, and where the last one ends."""
    require(isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 1 and len(value) > 1)
    require(int(value[0]) == 0 and int(value[-1]) == sizes["n"] and not bool((value.diff() < 0).any()))
    sizes["i"] = len(value) - 1
    return value
