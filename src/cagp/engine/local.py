"""Many small conditionals at once: each question is answered from a few rows of its own."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_first_order
from cagp.engine import native
from cagp.engine.product import Backend, linear_parts, not_native
from cagp.kernels import Kernel, Stationary

NEGLIGIBLE = 256
"""A row is left out when its variance given the rows before it is below this times round-off of its prior variance; the
same constant as in src/native/local.h."""


class LocalMoments(NamedTuple):
    """What the rows of each question say about it; k(x, x) - explained is its variance."""

    mean: Float[Tensor, " t"]  # cᵀC⁻¹r
    explained: Float[Tensor, " t"]  # cᵀC⁻¹c


def local_moments(
    kernel: Kernel,
    questions: Float[Tensor, "t d"],
    X: Float[Tensor, "n d"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, "t k"],
    residual: Float[Tensor, "t k"],
    gram: Float[Tensor, "t k k"] | None = None,
    cross: Float[Tensor, "t k"] | None = None,
    *,
    backend: Backend = "auto",
) -> LocalMoments:
    """cᵀC⁻¹r and cᵀC⁻¹c for every question x with its rows N, C = k(N, N) + diag(noise) - gram, c = k(N, x) - cross.

    Rows that the rows before them determine already (duplicates without noise) are left out. Differentiable once, in
    the kernel's parameters, ``questions``, ``noise``, ``residual``, ``gram`` and ``cross``, not in ``X``.

    Args:
        neighbours: rows of ``X`` for each question; -1 for none.
        noise: the noise variance of each neighbour.
        residual: target minus mean of each neighbour.
        gram, cross: what other actions explain already (see the hybrid posterior); in the compiled path, too.

    Time O(t k² (d + k)), memory O(t k) compiled, O(t k²) in torch.
    """
    if backend not in ("auto", "native", "torch"):
        raise ValueError(f'backend is {backend!r}, expected "auto", "native" or "torch".')
    values = [None if v is None else v.to(X) for v in (noise, residual, gram, cross)]
    parts = list(linear_parts(kernel))
    coefficient, part = parts[0]
    reason = not_native(part, X) if len(parts) == 1 else "the kernel is a sum"
    if backend == "native" and reason is not None:
        raise ValueError(f'backend is "native", but {reason}; use backend="auto" or "torch".')
    if backend != "torch" and reason is None:
        assert isinstance(part, Stationary)
        return LocalMoments(*_native_moments(part, coefficient, questions, X, neighbours, *values))
    return LocalMoments(*_torch_moments(kernel, questions, X, neighbours, *values))


# ---- compiled ----


def _native_moments(kernel: Stationary, coefficient: Tensor | None, questions, X, neighbours, *values):
    scale = torch.ones((), dtype=torch.float64) if coefficient is None else coefficient
    arguments = (questions, X.detach(), neighbours, *values, kernel.lengthscale, native.alpha_of(kernel), scale)
    differentiated = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in arguments)
    return _Native.apply(native.KINDS[type(kernel)], differentiated, *arguments)


class _Native(torch.autograd.Function):
    """Of all that a forward pass computes, gradients need C⁻¹r and C⁻¹c alone."""

    @staticmethod
    def forward(
        ctx,
        kind: int,
        differentiated: bool,
        questions,
        X,
        neighbours,
        noise,
        residual,
        gram,
        cross,
        lengthscale,
        alpha,
        scale,
    ) -> tuple[Tensor, Tensor]:
        ctx.kind = kind
        first = _arguments(kind, questions, X, neighbours, lengthscale, alpha, scale)
        values = [None if v is None else v.detach().contiguous() for v in (noise, residual, gram, cross)]
        mean, explained = X.new_empty(len(questions)), X.new_empty(len(questions))
        solutions = [X.new_empty(neighbours.shape) if differentiated else None for _ in range(2)]
        native.module().local(*first, *values, mean, explained, *solutions, torch.get_num_threads())
        ctx.save_for_backward(questions, X, neighbours, lengthscale, alpha, scale, *solutions)
        return mean, explained

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        questions, X, neighbours, lengthscale, alpha, scale, *solutions = ctx.saved_tensors
        square = torch.zeros(X.shape[1], dtype=torch.float64)
        grad_alpha, grad_scale = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        t, k = neighbours.shape
        grad_noise, grad_residual = X.new_empty(t, k), X.new_empty(t, k)
        shapes = {2: questions.shape, 7: (t, k, k), 8: (t, k)}  # of questions, gram and cross, by place
        optional = [X.new_empty(shape) if ctx.needs_input_grad[place] else None for place, shape in shapes.items()]
        native.module().local_gradient(
            *_arguments(ctx.kind, questions, X, neighbours, lengthscale, alpha, scale),
            *solutions,
            *(g.contiguous() for g in grad_outputs),
            square,
            grad_alpha,
            grad_scale,
            grad_noise,
            grad_residual,
            *optional,
            torch.get_num_threads(),
        )
        grad_questions, grad_gram, grad_cross = optional
        return (
            None,
            None,
            grad_questions,
            None,
            None,
            grad_noise,
            grad_residual,
            grad_gram,
            grad_cross,
            -2 * square.to(lengthscale) / lengthscale,
            None if alpha is None else grad_alpha.reshape(alpha.shape).to(alpha),
            grad_scale.reshape(scale.shape).to(scale),
        )


def _arguments(kind, questions, X, neighbours, lengthscale, alpha, scale) -> list[Any]:
    """What the compiled functions take first: plain, contiguous tensors and numbers."""
    tensors = (questions, X, (1 / lengthscale).to(X), neighbours)
    plain = [tensor.detach().contiguous() for tensor in tensors]
    return [kind, *plain, native.number_of(alpha), float(scale)]


# ---- torch: any kernel, any device ----


def _torch_moments(kernel: Kernel, questions, X, neighbours, noise, residual, gram, cross):
    present = neighbours >= 0
    both = present[:, :, None] & present[:, None, :]
    near = X.detach()[neighbours.clamp_min(0)]
    K = torch.where(both, kernel(near, near), 0.0)
    c = torch.where(present, kernel(questions[:, None, :], near)[:, 0, :], 0.0)
    C = K + torch.diag_embed(torch.where(present, noise, 1.0))
    smallest = NEGLIGIBLE * torch.finfo(X.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1)
    if gram is not None:
        C = C - torch.where(both, gram, 0.0)
    if cross is not None:
        c = c - torch.where(present, cross, 0.0)
    return _Conditional.apply(C, c, torch.where(present, residual, 0.0), smallest)


class _Conditional(torch.autograd.Function):
    """cᵀC⁻¹r and cᵀC⁻¹c; with a = C⁻¹r, b = C⁻¹c and cotangents g, h:

    ∂c = g a + 2h b,    ∂r = g b,    ∂C = -(g (a bᵀ + b aᵀ) / 2 + h b bᵀ).
    """

    @staticmethod
    def forward(ctx, C: Tensor, c: Tensor, r: Tensor, smallest: Tensor) -> tuple[Tensor, Tensor]:
        L, kept = _cholesky_without_negligible(C, smallest)
        right = torch.stack([r, c], dim=-1) * kept[:, :, None]
        a, b = torch.cholesky_solve(right, L).unbind(-1)
        a, b = a * kept, b * kept
        ctx.save_for_backward(a, b)
        return (c * a).sum(-1), (c * b).sum(-1)

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        a, b = ctx.saved_tensors
        g, h = (grad[:, None] for grad in grad_outputs)
        half = (g / 2 * a + h * b)[:, :, None] * b[:, None, :]
        grad_C = -(half + (g / 2 * b)[:, :, None] * a[:, None, :])
        return grad_C, g * a + 2 * h * b, g * b, None


def _cholesky_without_negligible(C: Tensor, smallest: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the matrices without the rows that the rows before them determine, and which rows were kept.

    In a factor, rows that were left out are those of the identity.
    """
    L, info = torch.linalg.cholesky_ex(C)
    kept = torch.ones_like(smallest)
    bad = (info > 0) | ~(L.diagonal(dim1=-2, dim2=-1).square() > smallest).all(-1)
    if bool(bad.any()):
        L = L.clone()
        L[bad], kept[bad] = _column_by_column(C[bad], smallest[bad])
    return L, kept


def _column_by_column(C: Tensor, smallest: Tensor) -> tuple[Tensor, Tensor]:
    """The same, where there are rows to leave out: those whose pivots are negligible."""
    L, kept = torch.zeros_like(C), torch.zeros_like(smallest)
    for j in range(C.shape[-1]):
        column = C[:, :, j] - (L[:, :, :j] @ L[:, j, :j, None])[:, :, 0]
        pivot = column[:, j]
        keep = pivot > smallest[:, j]
        root = torch.where(keep, pivot, 1.0).sqrt()
        below = torch.arange(C.shape[-1], device=C.device) >= j
        L[:, :, j] = torch.where(keep[:, None] & below, column / root[:, None], 0.0)
        kept[:, j] = keep.to(C.dtype)
    return L * kept[:, :, None] + torch.diag_embed(1 - kept), kept
