"""What a kernel is: a matrix k(X, Z), its diagonal, how far it reaches; and kernels scaled, added and multiplied."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.parameters import Positive


class Reach(Enum):
    """How a kernel varies along a column of the inputs."""

    DECAYS = "decays"  # the covariance goes to zero with distance: nearest rows say nearly all
    ENDLESS = "endless"  # it does not, so that rows far away matter as well; or nobody knows
    NONE = "none"  # the kernel does not depend on the column


class InputUnits(NamedTuple):
    """Where the inputs of a kernel come from: they are (x - mean) / std, x the columns of a table."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    names: tuple[str, ...] | None = None


class Kernel(nn.Module, ABC):
    """A positive semi-definite function of two inputs; add and multiply kernels with ``+`` and ``*``."""

    @abstractmethod
    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        """The matrix k(X, Z)."""

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        """``forward(X, Z)``, checked, in the dtype of ``X`` whatever dtype ``forward`` computes in."""
        K = super().__call__(X, Z)
        shape = (*torch.broadcast_shapes(X.shape[:-2], Z.shape[:-2]), X.shape[-2], Z.shape[-2])
        if K.shape != shape:
            inputs = f"inputs of shapes {tuple(X.shape)} and {tuple(Z.shape)}"
            raise ValueError(
                f"{type(self).__name__}.forward returned shape {tuple(K.shape)} for {inputs}, expected {shape}; count "
                "axes from the end, e.g. X.unsqueeze(-2) - Z.unsqueeze(-3), because inputs may come in batches."
            )
        return K.to(X.dtype)

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The diagonal of k(X, X), in O(n)."""
        rows = X.unsqueeze(-2)
        return self(rows, rows)[:, 0, 0]

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"] | None:
        """F(X) with k(X, Z) = F(X) F(Z)ᵀ where that is cheaper than k(X, Z), otherwise None."""
        return None

    def reach(self, column: int) -> Reach:
        """How the kernel varies along a column; ``Reach.ENDLESS`` unless a class says more of itself."""
        return Reach.ENDLESS

    def decays(self, num_dims: int) -> bool:
        """Whether all parts go to zero with distance along each of ``num_dims`` columns.

        If so, nearest rows are enough to learn the hyperparameters. If not, regressors learn from rows far apart too.
        """
        return all(self.reach(column) is Reach.DECAYS for column in range(num_dims))

    def tell(self, units: InputUnits) -> None:
        """Learn how the inputs were standardised; regressors tell their copy of a kernel.

        Periods and degrees are then in the units of the table. A kernel that contains others passes it on.
        """
        for part in self.kernels_inside():
            part.tell(units)

    def kernels_inside(self) -> "list[Kernel]":
        """The kernels that this one contains."""
        found = [[child] if isinstance(child, Kernel) else list(child.children()) for child in self.children()]
        return [part for parts in found for part in parts if isinstance(part, Kernel)]

    def plain_arguments(self) -> dict[str, Any]:
        """The plain arguments, besides kernels and sizes of parameters, that make a kernel of this package again."""
        return {}

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Scale(Kernel):
    """outputscale · k(x, z): the prior variance of the function is ``outputscale`` times that of ``kernel``."""

    outputscale: Positive = Positive()

    def __init__(self, kernel: Kernel, outputscale: float = 1.0):
        super().__init__()
        self.kernel = kernel
        self.outputscale = outputscale

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.outputscale.to(X) * self.kernel(X, Z)

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.outputscale.to(X) * self.kernel.diag(X)

    def reach(self, column: int) -> Reach:
        return self.kernel.reach(column)


class _Kernels(nn.ModuleList):
    """A module list that knows its members' type."""

    def __iter__(self) -> Iterator[Kernel]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().__iter__()  # pyright: ignore[reportReturnType]


class Sum(Kernel):
    """k₁(x, z) + k₂(x, z) + …: independent effects that add up."""

    def __init__(self, *kernels: Kernel):
        super().__init__()
        self.parts = _Kernels(kernels)

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return reduce(operator.add, (k(X, Z) for k in self.parts))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return reduce(operator.add, (k.diag(X) for k in self.parts))

    def reach(self, column: int) -> Reach:
        """Decays if every part does: a part that does not depend on the column links rows however far apart."""
        found = {part.reach(column) for part in self.parts}
        return found.pop() if len(found) == 1 else Reach.ENDLESS


class Product(Kernel):
    """k₁(x, z) · k₂(x, z) · …: effects that modulate each other."""

    def __init__(self, *kernels: Kernel):
        super().__init__()
        self.parts = _Kernels(kernels)

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return reduce(operator.mul, (k(X, Z) for k in self.parts))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return reduce(operator.mul, (k.diag(X) for k in self.parts))

    def reach(self, column: int) -> Reach:
        """Endless if a part is, even beside one that decays: a season that fades over many periods is not local."""
        found = {part.reach(column) for part in self.parts}
        return next(reach for reach in (Reach.ENDLESS, Reach.DECAYS, Reach.NONE) if reach in found)


def for_each(value: float | Sequence[float] | Tensor, name: str, num_dims: int) -> Tensor:
    """A value for each column: the one given for all, or those given."""
    values = torch.as_tensor(value, dtype=torch.float64)
    if values.numel() not in (1, num_dims):
        raise ValueError(f"{name} has {values.numel()} values, expected 1 or num_dims = {num_dims}.")
    return values.expand(num_dims).clone()
