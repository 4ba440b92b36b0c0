"""How kernels are evaluated on many rows: each function checks its arguments and hands them to a backend, compiled CPU
code where it applies and torch for the rest."""

from functools import reduce
from operator import add

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_same_kind
from cagp.engine.backend import (
    NEGLIGIBLE,
    TORCH,
    Backend,
    BlockWeights,
    Inputs,
    LocalMoments,
    LocalRows,
    Weights,
    recomputed,
)
from cagp.engine.compiled_backend import (
    COMPILED,
    INSTRUCTION_SETS,
    CompiledBackend,
    OrderedRows,
    RowTree,
    column_means,
    spatial_order,
)
from cagp.kernels import Kernel

BACKENDS: tuple[Backend, ...] = (COMPILED, TORCH)  # fastest first; the last one can compute everything
DEFAULT_MAX_BYTES = 2**28  # default limit for temporaries: 256 MiB


def choose_backend(kernel: Kernel | None, X: Tensor, wanted: Backend | None = None) -> Backend:
    """``wanted``, or the fastest backend for this kernel (None: for nearest rows) and these inputs."""
    if wanted is None:
        return next(backend for backend in BACKENDS if backend.unsupported_reason(kernel, X) is None)
    if not isinstance(wanted, Backend):
        raise ValueError(f"backend is {wanted!r}, expected a Backend such as cagp.engine.TORCH, or None to choose one.")
    reason = wanted.unsupported_reason(kernel, X)
    if reason is not None:
        raise ValueError(f"backend is {wanted.name}, but {reason}; use backend=None to choose one that applies.")
    return wanted


def backend_for(kernel: Kernel, X: Tensor) -> str:
    """The backend that is chosen, in words: "native (avx2)", or "torch tiles" and why nothing faster applies."""
    parts = [part for _, part in kernel.linear_parts() if part.features(X[:1]) is None]
    if not parts:
        return "explicit features"
    slowest = max((choose_backend(part, X) for part in parts), key=BACKENDS.index)
    if slowest is not BACKENDS[-1]:
        return slowest.words
    reasons = {backend.unsupported_reason(part, X) for backend in BACKENDS[:-1] for part in parts}
    return f"{slowest.words} ({'; '.join(sorted(filter(None, reasons)))})"


def kernel_product(
    kernel: Kernel,
    X: Inputs,
    Z: Float[Tensor, "m d"],
    W: Weights | None = None,
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
    tolerance = torch.finfo(X.dtype).eps / 2 if tolerance is None else tolerance

    def product_of(coefficient: Tensor | None, part: Kernel) -> Tensor:
        scaled = W
        if coefficient is not None and W is not None:  # c (K W) = K (c W): the smaller one is scaled
            c = coefficient.to(X)
            scaled = W._replace(values=W.values * c) if isinstance(W, BlockWeights) else W * c
        features, features_Z = part.features(X), part.features(Z)
        if features is not None and features_Z is not None:
            right = features_Z.to(X)
            if isinstance(scaled, BlockWeights):
                right = scaled.project(right).to(right)
            out = features.to(X) @ (right.mT @ scaled if isinstance(scaled, Tensor) else right.mT)
        else:
            out = choose_backend(part, X, backend).product(part, X, Z, scaled, max_bytes, tolerance)
        return out if coefficient is None or W is not None else coefficient.to(X) * out

    return reduce(add, (product_of(*part) for part in kernel.linear_parts()))


def precise_product(
    kernel: Kernel, X: Inputs, Z: Float[Tensor, "m d"], W: Weights | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES
) -> Float[Tensor, "n c"]:
    """``kernel_product`` in float64, also of float32 rows.

    Where a prior variance is explained but for a small rest, round-off of float32 can be larger than the rest: products
    that are subtracted from it, or factorised for that, are taken here. About twice the time of a float32 product.
    """
    X, Z = (X.double(),) * 2 if Z is X else (X.double(), Z.double())
    return kernel_product(kernel, X, Z, None if W is None else W.double(), max_bytes=max_bytes)


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


def local_moments(
    kernel: Kernel,
    points: Float[Tensor, "t d"],
    X: Float[Tensor, "n d"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, "t k"] | Float[Tensor, ""],
    residual: Float[Tensor, "t k"] | Float[Tensor, " n"],
    gram: Float[Tensor, "t k k"] | None = None,
    cross: Float[Tensor, "t k"] | None = None,
    *,
    backend: Backend | None = None,
) -> LocalMoments:
    """Moments of every test point x with its rows N, C = k(N, N) + diag(noise) - gram, c = k(N, x) - cross, float64.

    All arithmetic is float64, also with float32 rows: k(x, x) - explained can be less than round-off of float32. Rows
    that the rows before them already determine (duplicates without noise) are left out. Mean and explained are
    differentiable once, in the kernel's parameters, ``points``, ``noise``, ``residual``, ``gram`` and ``cross``, but
    not in ``X``.

    Args:
        neighbours: rows of ``X`` for each of the test points ``points``; -1 for none.
        noise: the noise variance of each neighbour, or one for all.
        residual: target minus mean of each neighbour, or of each row of ``X``; then it need not be gathered.
        gram, cross: what other actions already explain (see the hybrid posterior).

    Time O(t k² (d + k)), memory O(t (k + d)) compiled, O(t k²) in torch.
    """
    if residual.ndim == 1 and residual.requires_grad:
        residual = residual[neighbours.clamp_min(0)]
    residual = residual.to(X) if residual.ndim == 1 else residual.double()
    gram, cross = (None if v is None else v.double() for v in (gram, cross))
    rows = LocalRows(points, X, neighbours, noise.expand(neighbours.shape).double(), residual, gram, cross)
    return choose_backend(kernel, X, backend).conditionals(kernel, rows)


def local_density(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, ""],
    *,
    backend: Backend | None = None,
) -> Float[Tensor, ""] | None:
    """-Σ log p(y_r | y_N) over ``rows``, N the neighbours of r, with prior mean zero and one noise variance for all.

    Value and gradient in one sweep, without the moments of each row; None where the backend has no such sweep.
    Differentiable once, in the kernel's parameters and ``noise``. Time O(t k² (d + k)), memory O(k² + k d) per thread.
    """
    if X.requires_grad or y.requires_grad:
        return None
    return choose_backend(kernel, X, backend).density(kernel, X, y, rows, neighbours, noise)


__all__ = [
    "BACKENDS",
    "COMPILED",
    "DEFAULT_MAX_BYTES",
    "INSTRUCTION_SETS",
    "NEGLIGIBLE",
    "TORCH",
    "Backend",
    "BlockWeights",
    "CompiledBackend",
    "LocalMoments",
    "OrderedRows",
    "RowTree",
    "backend_for",
    "choose_backend",
    "column_means",
    "kernel_product",
    "local_density",
    "local_moments",
    "precise_product",
    "recomputed",
    "spatial_order",
]
