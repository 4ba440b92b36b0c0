"""Covariance functions: how the prior expects the values at two inputs to vary together.

A kernel is a torch module whose ``forward(X, Z)`` returns the matrix k(X, Z). A kernel of your own needs nothing else:

    class Periodic(Kernel):
        period, lengthscale = Positive(), Positive()

        def __init__(self, period=1.0, lengthscale=1.0):
            super().__init__()
            self.period, self.lengthscale = period, lengthscale

        def forward(self, X, Z):
            phase = torch.pi * (X.unsqueeze(-2) - Z.unsqueeze(-3)) / self.period.to(X)
            return torch.exp(-2 * (torch.sin(phase) / self.lengthscale.to(X)).square().sum(-1))

It then works everywhere, gradients included, through the engine's torch tiles. The stationary kernels of this file are
also compiled. ``forward`` is the reference formula: large products go through ``cagp.engine.kernel_product`` instead.
``cagp.kernel_registry`` lists the kernels of this file.
"""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.kernel_registry import KERNELS, NAMES, KernelEntry
from cagp.parameters import Positive


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

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Stationary(Kernel):
    """k(x, z) = profile(r) with r = ‖(x - z) / lengthscale‖, one lengthscale per input column."""

    lengthscale: Positive = Positive()

    def __init__(self, num_dims: int, lengthscale: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        lengthscale = torch.as_tensor(lengthscale, dtype=torch.float64)
        if lengthscale.numel() not in (1, num_dims):
            raise ValueError(f"lengthscale has {lengthscale.numel()} values, expected 1 or num_dims = {num_dims}.")
        self.num_dims = num_dims
        self.lengthscale = lengthscale.expand(num_dims).clone()

    @abstractmethod
    def profile(self, r: Tensor) -> Tensor:
        """The covariance at scaled distance r; 1 at r = 0."""

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        # Differences, not the expansion |x|² - 2xz + |z|², which loses close points; moving the origin to the data
        # keeps the digits of inputs far from it (years, map coordinates).
        origin = Z.detach().mean(-2, keepdim=True)
        lengthscale = self.lengthscale.to(X)
        r = torch.cdist(
            (X - origin) / lengthscale, (Z - origin) / lengthscale, compute_mode="donot_use_mm_for_euclid_dist"
        )
        # An infinite distance would make profiles infinity times zero; where r² is finite, they are right.
        return self.profile(r.clamp_max(math.sqrt(torch.finfo(r.dtype).max) / 4))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])


class RBF(Stationary):
    """exp(-r² / 2): infinitely smooth functions."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r.square())


class Matern12(Stationary):
    """exp(-r): continuous, nowhere differentiable functions."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-r)


class Matern32(Stationary):
    """(1 + √3 r) exp(-√3 r): once differentiable functions; the paper's kernel."""

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(3) * r
        return (1 + s) * torch.exp(-s)


class Matern52(Stationary):
    """(1 + √5 r + 5r²/3) exp(-√5 r): twice differentiable functions."""

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return (1 + s + s.square() / 3) * torch.exp(-s)


class RationalQuadratic(Stationary):
    """(1 + r² / (2 alpha))^-alpha: a mixture of RBF kernels over lengthscales; alpha → ∞ is the RBF kernel."""

    alpha: Positive = Positive()

    def __init__(self, num_dims: int, lengthscale: float | Sequence[float] | Tensor = 1.0, alpha: float = 1.0):
        super().__init__(num_dims, lengthscale)
        self.alpha = alpha

    def profile(self, r: Tensor) -> Tensor:
        alpha = self.alpha.to(r)
        return torch.exp(-alpha * torch.log1p(r.square() / (2 * alpha)))


class Constant(Kernel):
    """k(x, z) = variance: an unknown offset."""

    variance: Positive = Positive()

    def __init__(self, variance: float = 1.0):
        super().__init__()
        self.variance = variance

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.variance.to(X).expand(*X.shape[:-1], Z.shape[-2])

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.to(X).expand(X.shape[0])

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        return self.variance.to(X).sqrt().expand(X.shape[0], 1)


class Linear(Kernel):
    """k(x, z) = Σ_d variance_d x_d z_d: linear functions through the origin; add a Constant for an offset."""

    variance: Positive = Positive()

    def __init__(self, num_dims: int, variance: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        self.num_dims = num_dims
        self.variance = torch.as_tensor(variance, dtype=torch.float64).expand(num_dims).clone()

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return (X * self.variance.to(X)) @ Z.mT

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return (X.square() * self.variance.to(X)).sum(-1)

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X * self.variance.to(X).sqrt()


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


class Product(Kernel):
    """k₁(x, z) · k₂(x, z) · …: effects that modulate each other."""

    def __init__(self, *kernels: Kernel):
        super().__init__()
        self.parts = _Kernels(kernels)

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return reduce(operator.mul, (k(X, Z) for k in self.parts))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return reduce(operator.mul, (k.diag(X) for k in self.parts))


def kernel_class(name: str) -> type[Kernel]:
    """The class of a kernel of this package by its name in ``cagp.kernel_registry``, for example "matern32"."""
    if name not in KERNELS:
        raise ValueError(f"kernel is {name!r}, expected one of {', '.join(NAMES)}.")
    return globals()[KERNELS[name].class_name]


def entry_of(kernel: Kernel) -> KernelEntry | None:
    """The registry's entry for a kernel of this package; None for a class of your own."""
    return next((entry for entry in KERNELS.values() if type(kernel) is globals()[entry.class_name]), None)
