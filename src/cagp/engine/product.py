"""One public function, ``kernel_product``: it chooses the implementation and splits kernels into their parts."""

from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_same_kind
from cagp.engine import native, tiles
from cagp.engine.weights import BlockWeights
from cagp.kernels import Constant, Kernel, Linear, Product, Scale, Stationary, Sum

Backend = Literal["auto", "native", "torch"]

DEFAULT_MAX_BYTES = 2**28
"""Default limit for temporaries: 256 MiB."""


def kernel_product(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    Z: Float[Tensor, "m d"],
    W: Float[Tensor, "m c"] | BlockWeights | None = None,
    *,
    backend: Backend = "auto",
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Float[Tensor, "n c"]:
    """k(X, Z) W for dense or block-sparse ``W``, or k(X, Z) itself when ``W`` is None.

    Differentiable once in the kernel's parameters, ``W``, ``X`` and ``Z``. With ``W``, no more than a tile of
    k(X, Z) exists at any time; the gradient recomputes it. Where ``Z`` is the very same tensor as ``X`` and ``W`` is
    block-sparse, the compiled kernels evaluate each pair of rows once.

    Args:
        backend: "native" (compiled, CPU), "torch" (tiles) or "auto": native wherever it applies, see ``backend_for``.
        max_bytes: limit for temporaries; at least one row of k(X, Z) is always held.

    Time O(n m d) for block-sparse W, O(n m (d + c)) for dense; memory O(tile) besides the result.
    """
    if backend not in ("auto", "native", "torch"):
        raise ValueError(f'backend is {backend!r}, expected "auto", "native" or "torch".')
    _check_product(kernel, X, Z, W)
    parts = [
        _part_product(coefficient, part, X, Z, W, backend, max_bytes) for coefficient, part in linear_parts(kernel)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def backend_for(kernel: Kernel, X: Tensor) -> str:
    """The implementation "auto" takes, in words: "native (avx2)", or "torch tiles" and why."""
    reasons = [not_native(part, X) for _, part in linear_parts(kernel) if part.features(X[:1]) is None]
    missing = sorted({reason for reason in reasons if reason is not None})
    if missing:
        return f"torch tiles ({'; '.join(missing)})"
    return f"native ({native.instruction_set()})" if reasons else "explicit features"


def linear_parts(kernel: Kernel, coefficient: Tensor | None = None) -> Iterator[tuple[Tensor | None, Kernel]]:
    """(c, k') with k = Σ c k': k(X, Z) W is linear in k, so each part can take its own best path."""
    if isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from linear_parts(part, coefficient)
    elif isinstance(kernel, Scale):
        scale = kernel.outputscale
        yield from linear_parts(kernel.kernel, scale if coefficient is None else coefficient * scale)
    elif isinstance(kernel, Product):
        numbers = [k.variance for k in kernel.parts if isinstance(k, Constant)]
        others = [k for k in kernel.parts if not isinstance(k, Constant)]
        for number in numbers:
            coefficient = number if coefficient is None else coefficient * number
        if len(others) == 1:
            yield from linear_parts(others[0], coefficient)
        else:
            yield coefficient, Product(*others) if others else Constant().requires_grad_(False)
    else:
        yield coefficient, kernel


def _part_product(
    coefficient: Tensor | None,
    kernel: Kernel,
    X: Tensor,
    Z: Tensor,
    W: Tensor | BlockWeights | None,
    backend: Backend,
    max_bytes: int,
) -> Tensor:
    if coefficient is not None and W is not None:  # c (K W) = K (c W): scale the smaller one
        c = coefficient.to(X)
        W = BlockWeights(W.values * c, W.offsets) if isinstance(W, BlockWeights) else W * c
        coefficient = None
    features = kernel.features(X)
    if features is not None:
        features_Z = kernel.features(Z)
        assert features_Z is not None
        if isinstance(W, BlockWeights):
            out = features @ W.project(features_Z).to(X).mT
        else:
            out = features @ (features_Z.mT if W is None else features_Z.mT @ W)
    else:
        out = _tile_product(kernel, X, Z, W, backend, max_bytes)
    return out if coefficient is None else coefficient.to(X) * out


def _tile_product(
    kernel: Kernel, X: Tensor, Z: Tensor, W: Tensor | BlockWeights | None, backend: Backend, max_bytes: int
) -> Tensor:
    reason = not_native(kernel, X)
    if backend == "native" and reason is not None:
        raise ValueError(f'backend is "native", but {reason}; use backend="auto" or "torch".')
    if backend != "torch" and reason is None:
        assert isinstance(kernel, Stationary)
        if W is None:
            return native.matrix(kernel, X, Z)
        if isinstance(W, BlockWeights):
            return native.block_matmul(kernel, X, Z, W)
        return native.matmul(kernel, X, Z, W, max_bytes)
    if W is None:
        return kernel(X, Z)
    if isinstance(W, BlockWeights):
        return tiles.block_matmul(kernel, X, Z, W, max_bytes)
    return tiles.matmul(kernel, X, Z, W, max_bytes)


def not_native(kernel: Kernel, X: Tensor) -> str | None:
    """Why the compiled kernels do not apply, or None when they do."""
    if not native.available():
        return "the compiled kernels are not installed"
    if type(kernel) not in native.KINDS:
        return f"{type(kernel).__name__} is not compiled"
    if X.device.type != "cpu":
        return f"the data are on {X.device.type}"
    if X.dtype not in (torch.float32, torch.float64):
        return f"the data are {str(X.dtype).removeprefix('torch.')}"
    return None


def _check_product(kernel: Kernel, X: Tensor, Z: Tensor, W: Tensor | BlockWeights | None) -> None:
    if X.ndim != 2 or Z.ndim != 2 or X.shape[1] != Z.shape[1]:
        raise ValueError(
            f"X has shape {tuple(X.shape)} and Z {tuple(Z.shape)}, expected two matrices with equally many columns."
        )
    if Z.shape[0] == 0:
        raise ValueError(f"Z has shape {tuple(Z.shape)}, expected at least one row.")
    check_same_kind(Z, "Z", X, "X")
    _check_columns(kernel, X)
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


def _check_columns(kernel: Kernel, X: Tensor) -> None:
    """Raise ValueError where a kernel meets inputs of another width; kernels of one's own see to their parts."""
    if isinstance(kernel, Sum | Product):
        for part in kernel.parts:
            _check_columns(part, X)
    elif isinstance(kernel, Scale):
        _check_columns(kernel.kernel, X)
    elif isinstance(kernel, Stationary | Linear) and kernel.num_dims != X.shape[1]:
        name = type(kernel).__name__
        raise ValueError(f"X has {X.shape[1]} columns, the {name} kernel was made for num_dims = {kernel.num_dims}.")
