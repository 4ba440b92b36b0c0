"""``kernel_product``: checks its arguments, splits the kernel into parts and hands each to a backend."""

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_same_kind
from cagp.engine.backend import Backend
from cagp.engine.choice import choose_backend
from cagp.engine.weights import BlockWeights
from cagp.kernels import Kernel

DEFAULT_MAX_BYTES = 2**28
"""Default limit for temporaries: 256 MiB."""


def round_off(dtype: torch.dtype) -> float:
    """Half the distance of 1 to the next number: a kernel below this times its variance counts as zero."""
    return torch.finfo(dtype).eps / 2


def kernel_product(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    Z: Float[Tensor, "m d"],
    W: Float[Tensor, "m c"] | BlockWeights | None = None,
    *,
    backend: Backend | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    tolerance: float | None = None,
) -> Float[Tensor, "n c"]:
    """k(X, Z) W for dense or block-sparse ``W``, or k(X, Z) itself when ``W`` is None.

    Differentiable once in the kernel's parameters, ``W``, ``X`` and ``Z``. With ``W``, no more than a tile of
    k(X, Z) exists at any time; the gradient recomputes it. Where ``Z`` is the very same tensor as ``X`` and ``W`` is
    block-sparse, the compiled kernels evaluate each pair of rows once.

    Args:
        backend: ``cagp.engine.COMPILED`` or ``cagp.engine.TORCH``; None for the fastest that applies to each part of
            the kernel, see ``backend_for``.
        max_bytes: limit for temporaries; at least one row of k(X, Z) is always held.
        tolerance: with block-sparse ``W``, the compiled kernels leave out blocks so far away that a stationary kernel
            is at most this times its variance; None for round-off of the dtype, 0 to leave nothing out. See
            docs/derivations.md, "Blocks out of reach".

    Time O(n m d) for block-sparse W, O(n m (d + c)) for dense; memory O(tile) besides the result.
    """
    _check_product(kernel, X, Z, W)
    tolerance = round_off(X.dtype) if tolerance is None else tolerance
    parts = [
        _part_product(coefficient, part, X, Z, W, backend, max_bytes, tolerance)
        for coefficient, part in kernel.linear_parts()
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def precise_product(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    Z: Float[Tensor, "m d"],
    W: Float[Tensor, "m c"] | BlockWeights | None = None,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Float[Tensor, "n c"]:
    """``kernel_product`` in float64, also of float32 rows.

    Where a prior variance is explained but for a small rest, round-off of float32 can be larger than the rest: products
    that are subtracted from it, or factorised for that, are taken here. About twice the time of a float32 product.
    """
    same = Z is X
    X = X.double()
    if isinstance(W, BlockWeights):
        W = W._replace(values=W.values.double())
    elif W is not None:
        W = W.double()
    return kernel_product(kernel, X, X if same else Z.double(), W, max_bytes=max_bytes)


def _part_product(
    coefficient: Tensor | None,
    kernel: Kernel,
    X: Tensor,
    Z: Tensor,
    W: Tensor | BlockWeights | None,
    backend: Backend | None,
    max_bytes: int,
    tolerance: float,
) -> Tensor:
    if coefficient is not None and W is not None:  # c (K W) = K (c W): scale the smaller one
        c = coefficient.to(X)
        W = BlockWeights(W.values * c, W.offsets) if isinstance(W, BlockWeights) else W * c
        coefficient = None
    features = kernel.features(X)
    if features is not None:
        out = _feature_product(kernel, features.to(X), Z, W)
    elif W is None:
        out = choose_backend(kernel, X, backend).matrix(kernel, X, Z)
    else:
        out = choose_backend(kernel, X, backend).product(kernel, X, Z, W, max_bytes, tolerance)
    return out if coefficient is None else coefficient.to(X) * out


def _feature_product(kernel: Kernel, features: Tensor, Z: Tensor, W: Tensor | BlockWeights | None) -> Tensor:
    features_Z = kernel.features(Z)
    assert features_Z is not None
    features_Z = features_Z.to(features)
    if isinstance(W, BlockWeights):
        return features @ W.project(features_Z).to(features).mT
    return features @ (features_Z.mT if W is None else features_Z.mT @ W)


def _check_product(kernel: Kernel, X: Tensor, Z: Tensor, W: Tensor | BlockWeights | None) -> None:
    if X.ndim != 2 or Z.ndim != 2 or X.shape[1] != Z.shape[1]:
        raise ValueError(
            f"X has shape {tuple(X.shape)} and Z {tuple(Z.shape)}, expected two matrices with equally many columns."
        )
    if Z.shape[0] == 0:
        raise ValueError(f"Z has shape {tuple(Z.shape)}, expected at least one row.")
    check_same_kind(Z, "Z", X, "X")
    kernel.check_columns(X)
    if W is None:
        return
    values = W.values if isinstance(W, BlockWeights) else W
    if values.shape[0] != Z.shape[0]:
        raise ValueError(f"W has {values.shape[0]} rows, expected {Z.shape[0]}: one for each row of Z.")
    check_same_kind(values, "W", X, "X")
    if isinstance(W, BlockWeights):
        ends = W.offsets[0].item(), W.offsets[-1].item()
        if ends != (0, Z.shape[0]) or bool((W.sizes < 0).any()):
            raise ValueError(f"W: offsets must rise from 0 to {Z.shape[0]}, they go from {ends[0]} to {ends[1]}.")
