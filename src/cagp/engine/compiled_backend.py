"""The compiled backend: the C++ code of src/native as differentiable torch functions, on the CPU."""

import importlib
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_first_order
from cagp.engine.backend import Backend, LocalMoments
from cagp.engine.tiles import by_rows
from cagp.engine.weights import BlockWeights
from cagp.kernels import Kernel, kernel_class

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

if _native is not None and not hasattr(_native, "tree_nearest"):
    raise ImportError(
        f"the compiled kernels in {_native.__file__} are older than the Python sources; install cagp again, e.g. with "
        "pip install --editable ."
    )

INSTRUCTION_SETS: tuple[str, ...] = () if _native is None else tuple(_native.instruction_sets())
"""What the compiled code was built for and this machine runs, best last; empty where it was not built."""

# k(X, Z) V in tiles of this many elements: large enough to hide starting threads, small enough for the cache.
_TILE_ELEMENTS = 2**21


class _Kind(NamedTuple):
    """How the compiled module knows a class of kernels."""

    number: int
    has_alpha: bool  # whether it has a parameter ``alpha`` besides the lengthscales


_KINDS: dict[type[Kernel], _Kind] = {
    kernel_class(name): _Kind(number, has_alpha)
    for number, (name, has_alpha) in enumerate([] if _native is None else _native.kernels())
}


class _Stationary(NamedTuple):
    """A kernel as the compiled code takes it: a number times one of the stationary kernels."""

    kind: int
    lengthscale: Tensor
    alpha: Tensor | None
    scale: Tensor | None  # None for one
    part: Kernel  # the stationary kernel itself


@final
@dataclass(frozen=True)
class CompiledBackend(Backend):
    """Compiled loops over pairs of rows, in as many threads as torch uses.

    Results depend neither on the number of threads nor on which thread did what.

    Args:
        instruction_set: one of ``INSTRUCTION_SETS``; None where the compiled code was not built.
    """

    name: ClassVar[str] = "native"
    instruction_set: str | None

    @property
    def available(self) -> bool:
        """Whether the compiled code was built."""
        return self.instruction_set is not None

    @property
    def words(self) -> str:
        return f"native ({self.instruction_set})"

    def unsupported_reason(self, kernel: Kernel | None, X: Tensor) -> str | None:
        if not self.available:
            return "the compiled kernels are not installed"
        if kernel is not None and type(kernel) not in _KINDS:
            with torch.no_grad():
                (_, part), *others = kernel.linear_parts()
            if others:
                return "the kernel is a sum"
            if type(part) not in _KINDS:
                return f"{type(part).__name__} is not compiled"
        if X.device.type != "cpu":
            return f"the data are on {X.device.type}"
        if X.dtype not in (torch.float32, torch.float64):
            return f"the data are {str(X.dtype).removeprefix('torch.')}"
        return None

    def matrix(self, kernel: Kernel, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
        """k(X, Z). Time O(n m d), memory O(n m): the result."""
        k = _stationary(kernel)
        return _times(k.scale, _Matrix.apply(X, Z, k.lengthscale, k.alpha, k.kind, self.instruction_set))

    def product(
        self,
        kernel: Kernel,
        X: Float[Tensor, "n d"],
        Z: Float[Tensor, "m d"],
        W: Float[Tensor, "m c"] | BlockWeights,
        max_bytes: int,
        tolerance: float,
    ) -> Float[Tensor, "n c"]:
        """Block-sparse ``W`` in one sweep, time O(n m d); dense ``W`` in tiles by BLAS, time O(n m (d + c)).

        With block-sparse ``W``, where ``Z`` is ``X``, each pair of rows is evaluated once. A block is left out for a
        panel of nearby rows, up to 32 of them, if no point of its bounding box is within the support radius of theirs.
        """
        if not isinstance(W, BlockWeights):
            elements = min(_TILE_ELEMENTS, max_bytes // (4 * X.element_size()))
            return by_rows(lambda tile: self.matrix(kernel, tile, Z) @ W, X, max(1, elements // Z.shape[0]))
        k = _stationary(kernel)
        arguments = (X, None if Z is X else Z, k.lengthscale, k.alpha, W.values, W.offsets)
        radius = k.part.support_radius(tolerance)
        return _times(k.scale, _BlockProduct.apply(*arguments, k.kind, self.instruction_set, radius))

    def conditionals(
        self,
        kernel: Kernel,
        points: Float[Tensor, "t d"],
        X: Float[Tensor, "n d"],
        neighbours: Int[Tensor, "t k"],
        noise: Float[Tensor, "t k"],
        residual: Float[Tensor, "t k"] | Float[Tensor, " n"],
        gram: Float[Tensor, "t k k"] | None,
        cross: Float[Tensor, "t k"] | None,
    ) -> LocalMoments:
        """One sweep. Time O(t k² (d + k)), memory O(t (k + d))."""
        k = _stationary(kernel)
        values = (noise, residual, gram, cross)
        arguments = (points, X.detach(), neighbours, *values, k.lengthscale, k.alpha, _number(k.scale))
        needed = _Needed(*(torch.is_grad_enabled() and v is not None and v.requires_grad for v in arguments))
        return LocalMoments(*_Conditionals.apply(k.kind, self.instruction_set, needed, *arguments))

    def density(
        self,
        kernel: Kernel,
        X: Float[Tensor, "n d"],
        y: Float[Tensor, " n"],
        rows: Int[Tensor, " t"],
        neighbours: Int[Tensor, "t k"],
        noise: Float[Tensor, ""],
    ) -> Float[Tensor, ""] | None:
        """Time O(t k² (d + k)), memory O(k² + k d) per thread."""
        k = _stationary(kernel)
        parameters = (noise, k.lengthscale, k.alpha, _number(k.scale))
        slopes = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in parameters)
        return _Density.apply(k.kind, self.instruction_set, slopes, X, y, rows, neighbours, *parameters)

    def nearest(
        self,
        points: Float[Tensor, "t d"],
        X: Float[Tensor, "n d"],
        k: int,
        left_out: Int[Tensor, " t"] | None,
        before: Int[Tensor, " t"] | None,
    ) -> Int[Tensor, "t k"]:
        """All distances, none of them kept. Time O(t n d), memory O(t k): the result."""
        rows = torch.empty(len(points), k, dtype=torch.long)
        _native.nearest(*_arrays(points, X, left_out, before, rows), torch.get_num_threads(), self.instruction_set)
        return rows


COMPILED = CompiledBackend(INSTRUCTION_SETS[-1] if INSTRUCTION_SETS else None)


def _stationary(kernel: Kernel) -> _Stationary:
    """A kernel for which ``unsupported_reason`` has no reason."""
    ((scale, part),) = kernel.linear_parts()
    kind: _Kind = _KINDS[type(part)]
    parameters: Any = part
    return _Stationary(kind.number, parameters.lengthscale, parameters.alpha if kind.has_alpha else None, scale, part)


def _times(scale: Tensor | None, out: Tensor) -> Tensor:
    return out if scale is None else scale.to(out) * out


def _number(scale: Tensor | None) -> Tensor:
    return torch.ones((), dtype=torch.float64) if scale is None else scale


def _alpha(alpha: Tensor | None) -> float:
    """The parameter as the compiled code takes it, even where there is none."""
    return 1.0 if alpha is None else float(alpha)


def _arrays(*tensors: Tensor | None) -> list[Any]:
    """The tensors as the compiled code takes them fastest: contiguous, without their gradients, as views of NumPy."""
    return [None if tensor is None else tensor.detach().contiguous().numpy() for tensor in tensors]


# ---- products ----


def _scaled(X: Tensor, Z: Tensor | None, lengthscale: Tensor) -> tuple[Tensor, Tensor | None]:
    """Both inputs in lengthscale units, with the origin moved to the data so that no digits are lost far from it."""
    origin, lengthscale = (X if Z is None else Z).mean(0), lengthscale.to(X)
    X = ((X - origin) / lengthscale).contiguous()
    return X, None if Z is None else ((Z - origin) / lengthscale).contiguous()


class _Gradients:
    """Contiguous buffers for what the compiled gradients return, and their conversion from lengthscale units."""

    def __init__(self, X: Tensor, Z: Tensor | None, lengthscale: Tensor, need_X: bool, need_Z: bool):
        self.lengthscale = lengthscale
        self.square = torch.zeros(X.shape[1], dtype=torch.float64)
        self.alpha = torch.zeros(1, dtype=torch.float64)
        self.X = X.new_zeros(X.shape) if need_X and Z is not None else None
        if Z is None:  # the product of X with itself: one gradient, returned where that of Z would be
            self.Z = X.new_zeros(X.shape) if need_X else None
        else:
            self.Z = Z.new_zeros(Z.shape) if need_Z else None

    def unscaled(self, alpha: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
        """Gradients of X, Z, lengthscale and alpha: ∂r²/∂ℓ = -2 difference² / ℓ, differences in lengthscale units."""
        lengthscale = self.lengthscale
        grad_X = None if self.X is None else self.X / lengthscale.to(self.X)
        grad_Z = None if self.Z is None else self.Z / lengthscale.to(self.Z)
        grad_alpha = None if alpha is None else self.alpha.reshape(alpha.shape).to(alpha)
        return grad_X, grad_Z, -2 * self.square.to(lengthscale) / lengthscale, grad_alpha


class _Matrix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, X: Tensor, Z: Tensor, lengthscale: Tensor, alpha: Tensor | None, kind: int, instruction_set: str
    ) -> Tensor:
        ctx.save_for_backward(X, Z, lengthscale, alpha)
        ctx.kind, ctx.instruction_set = kind, instruction_set
        out = X.new_empty(X.shape[0], Z.shape[0])
        inputs = _arrays(*_scaled(X, Z, lengthscale))
        _native.matrix(kind, *inputs, _alpha(alpha), out.numpy(), torch.get_num_threads(), instruction_set)
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        X, Z, lengthscale, alpha = ctx.saved_tensors
        gradients = _Gradients(X, Z, lengthscale, *ctx.needs_input_grad[:2])
        _native.matrix_gradient(
            ctx.kind,
            *_arrays(*_scaled(X, Z, lengthscale)),
            _alpha(alpha),
            *_arrays(grad_outputs[0], gradients.square, gradients.alpha, gradients.X, gradients.Z),
            torch.get_num_threads(),
            ctx.instruction_set,
        )
        return *gradients.unscaled(alpha), None, None


class _BlockProduct(torch.autograd.Function):
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
        instruction_set: str,
        radius: float,
    ) -> Tensor:
        ctx.save_for_backward(X, Z, lengthscale, alpha, values, offsets)
        ctx.kind, ctx.instruction_set, ctx.radius = kind, instruction_set, radius
        out = X.new_empty(X.shape[0], offsets.shape[0] - 1)
        _native.block(
            kind,
            *_arrays(*_scaled(X, Z, lengthscale)),
            _alpha(alpha),
            *_arrays(values, offsets, out),
            torch.get_num_threads(),
            instruction_set,
            radius,
        )
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        X, Z, lengthscale, alpha, values, offsets = ctx.saved_tensors
        gradients = _Gradients(X, Z, lengthscale, *ctx.needs_input_grad[:2])
        grad_values = values.new_empty(values.shape)
        _native.block_gradient(
            ctx.kind,
            *_arrays(*_scaled(X, Z, lengthscale)),
            _alpha(alpha),
            *_arrays(values, offsets, grad_outputs[0]),
            *_arrays(gradients.square, gradients.alpha, grad_values, gradients.X, gradients.Z),
            torch.get_num_threads(),
            ctx.instruction_set,
            ctx.radius,
        )
        grad_X, grad_Z, grad_lengthscale, grad_alpha = gradients.unscaled(alpha)
        if Z is None:
            grad_X, grad_Z = grad_Z, None
        return grad_X, grad_Z, grad_lengthscale, grad_alpha, grad_values, None, None, None, None


# ---- conditionals ----


class _Needed(NamedTuple):
    """Which arguments need a gradient, in the order in which ``_Conditionals`` takes them."""

    points: bool
    X: bool
    neighbours: bool
    noise: bool
    residual: bool
    gram: bool
    cross: bool
    lengthscale: bool
    alpha: bool
    scale: bool

    @property
    def slopes(self) -> bool:
        """Whether the slopes of the kernel are needed."""
        return self.points or self.lengthscale or self.alpha or self.scale


class _Conditionals(torch.autograd.Function):
    """Of all that a forward pass computes, gradients need C⁻¹r, C⁻¹c and each test point's slopes in the parameters."""

    @staticmethod
    def forward(
        ctx,
        kind: int,
        instruction_set: str,
        needed: _Needed,
        points,
        X,
        neighbours,
        noise,
        residual,
        gram,
        cross,
        lengthscale,
        alpha,
        scale,
    ) -> LocalMoments:
        (t, k), d = neighbours.shape, X.shape[1]
        empty = partial(torch.empty, dtype=torch.float64)
        moments = LocalMoments(*(empty(t) for _ in LocalMoments._fields))
        solutions = [empty(t, k) if any(needed) else None for _ in range(2)]
        of_parameters = empty(t, 2, d + 2) if needed.slopes else None
        of_points = empty(t, 2, d) if needed.points else None
        saved = (*solutions, of_parameters, of_points)
        _native.conditionals(
            kind,
            *_arrays(points, X, lengthscale.reciprocal(), neighbours),
            _alpha(alpha),
            float(scale),
            noise.detach().numpy(),
            *_arrays(*((residual, None) if residual.ndim == 2 else (None, residual)), gram, cross, *moments, *saved),
            torch.get_num_threads(),
            instruction_set,
        )
        ctx.needed, ctx.dtype = needed, X.dtype
        ctx.save_for_backward(lengthscale, alpha, scale, *saved)
        ctx.mark_non_differentiable(moments.misfit, moments.num_rows)
        return moments

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        lengthscale, alpha, scale, *saved = ctx.saved_tensors
        needed: _Needed = ctx.needed
        solution, d = saved[0], len(lengthscale)
        t, k = solution.shape
        parameters = torch.zeros(d + 2, dtype=torch.float64) if needed.slopes else None
        gradients = [
            solution.new_empty(shape) if wanted else None
            for wanted, shape in (
                (needed.points, (t, d)),
                (needed.noise, (t, k)),
                (needed.residual, (t, k)),
                (needed.gram, (t, k, k)),
                (needed.cross, (t, k)),
            )
        ]
        _native.conditionals_gradient(
            *_arrays(*saved[:2], *grad_outputs[:2], *saved[2:], parameters, *gradients), torch.get_num_threads()
        )
        of_lengthscale = of_alpha = of_scale = None
        if parameters is not None:
            of_lengthscale = (-2 * parameters[:d] / lengthscale).to(lengthscale)
            of_alpha = None if alpha is None else parameters[d].reshape(alpha.shape).to(alpha)
            of_scale = parameters[d + 1].reshape(scale.shape).to(scale)
        of_points, *of_values = gradients
        of_points = None if of_points is None else of_points.to(ctx.dtype)
        return None, None, None, of_points, None, None, *of_values, of_lengthscale, of_alpha, of_scale


class _Density(torch.autograd.Function):
    """The gradient is found together with the value, and kept for the backward pass."""

    @staticmethod
    def forward(
        ctx, kind: int, instruction_set: str, slopes: bool, X, y, rows, neighbours, noise, lengthscale, alpha, scale
    ) -> Tensor:
        sums = torch.zeros(X.shape[1] + 4, dtype=torch.float64)
        _native.density(
            kind,
            *_arrays(rows, X, y, lengthscale.reciprocal(), neighbours),
            _alpha(alpha),
            float(scale),
            float(noise),
            slopes,
            sums.numpy(),
            torch.get_num_threads(),
            instruction_set,
        )
        ctx.save_for_backward(sums, noise, lengthscale, alpha, scale)
        return sums[0].clone()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        sums, noise, lengthscale, alpha, scale = ctx.saved_tensors
        gradients = sums[1:] * grad_outputs[0]
        of_squares, of_alpha, of_scale, of_noise = gradients.split([len(lengthscale), 1, 1, 1])
        of_lengthscale = -2 * of_squares / lengthscale
        return (
            *(None,) * 7,
            of_noise.reshape(noise.shape),
            of_lengthscale,
            None if alpha is None else of_alpha.reshape(alpha.shape),
            of_scale.reshape(scale.shape),
        )
