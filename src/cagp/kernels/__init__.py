"""Covariance functions: how the prior expects the values at two inputs to vary together.

A kernel is a torch module whose ``forward(X, Z)`` returns the matrix k(X, Z). A kernel of your own needs nothing else
(docs/own-kernels.md): it works everywhere, gradients included, through the engine's torch tiles. The stationary kernels
of this package are also compiled. ``forward`` is the reference formula: large products go through
``cagp.engine.kernel_product`` instead. ``cagp.kernel_registry`` lists the kernels of this package.
"""

from typing import Any

from cagp.kernel_registry import KERNELS, NAMES
from cagp.kernels.base import ActiveDims, Constant, Decay, InputUnits, Kernel, Product, Scale, StartingData, Sum
from cagp.kernels.formulas import (
    RBF,
    Cosine,
    GreatCircle,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    Stationary,
    repeating_parts,
)


def named_kernel(name: str, num_dims: int) -> Kernel:
    """The kernel that a user's name stands for, for ``num_dims`` columns: scaled, and beside others it needs."""
    classes: list[Any] = [kernel_class(part) for part in (name, *KERNELS[name].beside)]
    parts = [made(num_dims) if made is Linear else Scale(made(num_dims)) for made in classes]
    return Sum(*parts) if len(parts) > 1 else parts[0]


def kernel_class(name: str) -> type[Kernel]:
    """The class of a kernel of this package by its name in ``cagp.kernel_registry``, for example "matern32"."""
    if name not in KERNELS:
        raise ValueError(f"kernel is {name!r}, expected one of {', '.join(NAMES)}.")
    return globals()[KERNELS[name].class_name]


__all__ = [
    "RBF",
    "ActiveDims",
    "Constant",
    "Cosine",
    "Decay",
    "GreatCircle",
    "InputUnits",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scale",
    "StartingData",
    "Stationary",
    "Sum",
    "kernel_class",
    "named_kernel",
    "repeating_parts",
]
