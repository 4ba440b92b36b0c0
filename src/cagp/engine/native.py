"""The compiled CPU kernels as differentiable torch functions."""

import importlib
import warnings
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_first_order
from cagp.engine import tiles
from cagp.engine.weights import BlockWeights
from cagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, RationalQuadratic, Stationary

_native: Any = None
try:
    _native = importlib.import_module("cagp.engine._native")
except ImportError:
    warnings.warn(
        "cagp was installed without its compiled kernels (no C++ compiler, or CAGP_NATIVE=0): everything works "
        "through torch, more slowly. Install a C++ compiler and reinstall cagp to change that.",
        RuntimeWarning,
        stacklevel=2,
    )

# In the order of `enum class Kind` in src/native/sweeps.h.
KINDS: dict[type[Kernel], int] = {RBF: 0, Matern12: 1, Matern32: 2, Matern52: 3, RationalQuadratic: 4}

# k(X, Z) V in tiles of this many elements: large enough to hide starting threads, small enough for the cache.
_TILE_ELEMENTS = 2**21


def available() -> bool:
    """Whether the compiled kernels were built."""
    return _native is not None


def module() -> Any:
    """The compiled module; None where it was not built."""
    return _native


@lru_cache
def instruction_set() -> str:
    """The instruction set in use on this machine."""
    return _native.instruction_sets()[-1]


def matrix(kernel: Stationary, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """k(X, Z). Time O(n m d), memory O(n m): the result."""
    return _Matrix.apply(X, Z, kernel.lengthscale, alpha_of(kernel), KINDS[type(kernel)])


def matmul(
    kernel: Stationary, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"], V: Float[Tensor, "m c"], max_bytes: int
) -> Float[Tensor, "n c"]:
    """k(X, Z) V, the product itself by BLAS. Time O(n m (d + c)), memory O(tile + n c)."""
    elements = min(_TILE_ELEMENTS, max_bytes // (4 * X.element_size()))
    rows = max(1, elements // Z.shape[0])
    return tiles.by_rows(lambda tile: matrix(kernel, tile, Z) @ V, X, rows)


def block_matmul(
    kernel: Stationary, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"], W: BlockWeights
) -> Float[Tensor, "n i"]:
    """k(X, Z) W in one sweep; when Z is X, each pair is evaluated once. Time O(n m d), memory O(n i): the result."""
    return _BlockMatmul.apply(
        X, None if Z is X else Z, kernel.lengthscale, alpha_of(kernel), W.values, W.offsets, KINDS[type(kernel)]
    )


def alpha_of(kernel: Stationary) -> Tensor | None:
    """The shape parameter of a rational quadratic kernel."""
    return kernel.alpha if isinstance(kernel, RationalQuadratic) else None


def number_of(alpha: Tensor | None) -> float:
    """The shape parameter as the compiled kernels take it, where there is none, too."""
    return 1.0 if alpha is None else float(alpha)


def arrays(*tensors: Tensor | None) -> list[Any]:
    """The tensors as the compiled kernels take them fastest: contiguous, without their gradients, as views of NumPy."""
    return [None if tensor is None else tensor.detach().contiguous().numpy() for tensor in tensors]


def _scaled(X: Tensor, Z: Tensor | None, lengthscale: Tensor) -> tuple[Tensor, Tensor | None]:
    """Both inputs in lengthscale units, with the origin moved to the data so that no digits are lost far from it."""
    origin, lengthscale = (X if Z is None else Z).mean(0), lengthscale.to(X)
    X = ((X - origin) / lengthscale).contiguous()
    return X, None if Z is None else ((Z - origin) / lengthscale).contiguous()


class _Gradients:
    """Buffers for what the compiled gradients return, and their conversion from lengthscale units."""

    def __init__(self, X: Tensor, Z: Tensor | None, lengthscale: Tensor, need_X: bool, need_Z: bool):
        self.lengthscale = lengthscale
        self.square = torch.zeros(X.shape[1], dtype=torch.float64)
        self.alpha = torch.zeros(1, dtype=torch.float64)
        self.X = torch.zeros_like(X) if need_X and Z is not None else None
        if Z is None:  # the product of X with itself: one gradient, returned in the place of Z
            self.Z = torch.zeros_like(X) if need_X else None
        else:
            self.Z = torch.zeros_like(Z) if need_Z else None

    def unscaled(self, alpha: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
        """Gradients of X, Z, lengthscale and alpha: ∂r²/∂ℓ = -2 difference² / ℓ, differences in lengthscale units."""
        lengthscale = self.lengthscale
        grad_X = None if self.X is None else self.X / lengthscale.to(self.X)
        grad_Z = None if self.Z is None else self.Z / lengthscale.to(self.Z)
        grad_alpha = None if alpha is None else self.alpha.reshape(alpha.shape).to(alpha)
        return grad_X, grad_Z, -2 * self.square.to(lengthscale) / lengthscale, grad_alpha


class _Matrix(torch.autograd.Function):
    @staticmethod
    def forward(ctx, X: Tensor, Z: Tensor, lengthscale: Tensor, alpha: Tensor | None, kind: int) -> Tensor:
        ctx.save_for_backward(X, Z, lengthscale, alpha)
        ctx.kind = kind
        out = X.new_empty(X.shape[0], Z.shape[0])
        _native.matrix(kind, *_scaled(X, Z, lengthscale), number_of(alpha), out, torch.get_num_threads())
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        X, Z, lengthscale, alpha = ctx.saved_tensors
        gradients = _Gradients(X, Z, lengthscale, *ctx.needs_input_grad[:2])
        _native.matrix_gradient(
            ctx.kind,
            *_scaled(X, Z, lengthscale),
            number_of(alpha),
            grad_outputs[0].contiguous(),
            gradients.square,
            gradients.alpha,
            gradients.X,
            gradients.Z,
            torch.get_num_threads(),
        )
        return *gradients.unscaled(alpha), None


class _BlockMatmul(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        X: Tensor,
        Z: Tensor | None,
        lengthscale: Tensor,
        alpha: Tensor | None,
        values: Tensor,
        offsets: Tensor,
        kind: int,
    ) -> Tensor:
        ctx.save_for_backward(X, Z, lengthscale, alpha, values, offsets)
        ctx.kind = kind
        out = X.new_empty(X.shape[0], offsets.shape[0] - 1)
        _native.block(
            kind,
            *_scaled(X, Z, lengthscale),
            number_of(alpha),
            values.contiguous(),
            offsets,
            out,
            torch.get_num_threads(),
        )
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        X, Z, lengthscale, alpha, values, offsets = ctx.saved_tensors
        gradients = _Gradients(X, Z, lengthscale, *ctx.needs_input_grad[:2])
        grad_values = torch.empty_like(values)
        _native.block_gradient(
            ctx.kind,
            *_scaled(X, Z, lengthscale),
            number_of(alpha),
            values.contiguous(),
            offsets,
            grad_outputs[0].contiguous(),
            gradients.square,
            gradients.alpha,
            grad_values,
            gradients.X,
            gradients.Z,
            torch.get_num_threads(),
        )
        grad_X, grad_Z, grad_lengthscale, grad_alpha = gradients.unscaled(alpha)
        if Z is None:
            grad_X, grad_Z = grad_Z, None
        return grad_X, grad_Z, grad_lengthscale, grad_alpha, grad_values, None, None
