"""Many small conditionals at once: each question is answered from a few rows of its own."""

from itertools import repeat
from typing import NamedTuple

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

TORCH_ENTRIES = 2**18
"""In torch on a CPU: as many questions at a time as have this many entries in their matrices stay in the cache."""


class LocalMoments(NamedTuple):
    """What the rows of each question say about it; k(x, x) - explained is its variance."""

    mean: Float[Tensor, " t"]  # cᵀC⁻¹r
    explained: Float[Tensor, " t"]  # cᵀC⁻¹c
    misfit: Float[Tensor, " t"]  # rᵀC⁻¹r
    num_rows: Float[Tensor, " t"]  # rows that count: what misfit is the sum of squares of


def local_moments(
    kernel: Kernel,
    questions: Float[Tensor, "t d"],
    X: Float[Tensor, "n d"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, "t k"] | Float[Tensor, ""],
    residual: Float[Tensor, "t k"] | Float[Tensor, " n"],
    gram: Float[Tensor, "t k k"] | None = None,
    cross: Float[Tensor, "t k"] | None = None,
    *,
    backend: Backend = "auto",
) -> LocalMoments:
    """Moments of every question x with its rows N, C = k(N, N) + diag(noise) - gram, c = k(N, x) - cross.

    Rows that the rows before them determine already (duplicates without noise) are left out. Mean and explained are
    differentiable once, in the kernel's parameters, ``questions``, ``noise``, ``residual``, ``gram`` and ``cross``, not
    in ``X``.

    Args:
        neighbours: rows of ``X`` for each question; -1 for none.
        noise: the noise variance of each neighbour, or one for all.
        residual: target minus mean of each neighbour; or of each row of ``X``, which need not be gathered then.
        gram, cross: what other actions explain already (see the hybrid posterior); in the compiled path, too.

    Time O(t k² (d + k)), memory O(t (k + d)) compiled, O(t k²) in torch.
    """
    compiled = _compiled(kernel, X, backend)
    if residual.ndim == 1 and (compiled is None or residual.requires_grad):
        residual = residual[neighbours.clamp_min(0)]
    values = [None if v is None else v.to(X) for v in (noise.expand(neighbours.shape), residual, gram, cross)]
    if compiled is None:
        return _torch_moments(kernel, questions, X, neighbours, *values)
    kind, *parameters = compiled
    arguments = (questions, X.detach(), neighbours, *values, *parameters)
    needed = _Needed(*(torch.is_grad_enabled() and v is not None and v.requires_grad for v in arguments))
    return LocalMoments(*_Native.apply(kind, needed, *arguments))


def local_density(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, ""],
    *,
    backend: Backend = "auto",
) -> Float[Tensor, ""] | None:
    """-Σ log p(y_r | y_N) over ``rows``, N the neighbours of r, with prior mean zero and one noise variance for all.

    Compiled alone: value and gradient in one sweep, without the moments of each row; None where that does not apply.
    Differentiable once, in the kernel's parameters and ``noise``. Time O(t k² (d + k)), memory O(k² + k d) a thread.
    """
    compiled = None if X.requires_grad or y.requires_grad else _compiled(kernel, X, backend)
    if compiled is None:
        return None
    kind, *parameters = compiled
    slopes = torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in (noise, *parameters))
    return _Density.apply(kind, slopes, X, y, rows, neighbours, noise, *parameters)


# ---- compiled ----


class _Compiled(NamedTuple):
    """A kernel as the compiled code takes it: scale times one of the stationary ones."""

    kind: int
    lengthscale: Tensor
    alpha: Tensor | None
    scale: Tensor


def _compiled(kernel: Kernel, X: Tensor, backend: Backend) -> _Compiled | None:
    """None where the torch path is to be taken."""
    if backend not in ("auto", "native", "torch"):
        raise ValueError(f'backend is {backend!r}, expected "auto", "native" or "torch".')
    if backend == "torch":
        return None
    (coefficient, part), *others = linear_parts(kernel)
    reason = "the kernel is a sum" if others else not_native(part, X)
    if backend == "native" and reason is not None:
        raise ValueError(f'backend is "native", but {reason}; use backend="auto" or "torch".')
    if reason is not None:
        return None
    assert isinstance(part, Stationary)
    scale = torch.ones((), dtype=torch.float64) if coefficient is None else coefficient
    return _Compiled(native.KINDS[type(part)], part.lengthscale, native.alpha_of(part), scale)


class _Needed(NamedTuple):
    """Which arguments are differentiated in, in the order in which ``_Native`` takes them."""

    questions: bool
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
        return self.questions or self.lengthscale or self.alpha or self.scale


class _Native(torch.autograd.Function):
    """Of all that a forward pass computes, gradients need C⁻¹r, C⁻¹c and each question's slopes in the parameters."""

    @staticmethod
    def forward(
        ctx,
        kind: int,
        needed: _Needed,
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
    ) -> LocalMoments:
        (t, k), d = neighbours.shape, X.shape[1]
        moments = LocalMoments(*(X.new_empty(t) for _ in LocalMoments._fields))
        solutions = [X.new_empty(t, k) if any(needed) else None for _ in range(2)]
        of_parameters = X.new_empty(t, 2, d + 2) if needed.slopes else None
        of_questions = X.new_empty(t, 2, d) if needed.questions else None
        saved = (*solutions, of_parameters, of_questions)
        native.module().local(
            kind,
            *native.arrays(questions, X, lengthscale.reciprocal().to(X), neighbours),
            native.number_of(alpha),
            float(scale),
            noise.detach().numpy(),
            *native.arrays(residual, gram, cross, *moments, *saved),
            torch.get_num_threads(),
        )
        ctx.needed = needed
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
                (needed.questions, (t, d)),
                (needed.noise, (t, k)),
                (needed.residual, (t, k)),
                (needed.gram, (t, k, k)),
                (needed.cross, (t, k)),
            )
        ]
        native.module().local_gradient(
            *native.arrays(*saved[:2], *grad_outputs[:2], *saved[2:], parameters, *gradients), torch.get_num_threads()
        )
        of_lengthscale = of_alpha = of_scale = None
        if parameters is not None:
            of_lengthscale = (-2 * parameters[:d] / lengthscale).to(lengthscale)
            of_alpha = None if alpha is None else parameters[d].reshape(alpha.shape).to(alpha)
            of_scale = parameters[d + 1].reshape(scale.shape).to(scale)
        of_questions, *of_values = gradients
        return None, None, of_questions, None, None, *of_values, of_lengthscale, of_alpha, of_scale


class _Density(torch.autograd.Function):
    """The gradient is found with the value, and waits."""

    @staticmethod
    def forward(ctx, kind: int, slopes: bool, X, y, rows, neighbours, noise, lengthscale, alpha, scale) -> Tensor:
        sums = torch.zeros(X.shape[1] + 4, dtype=torch.float64)
        native.module().local_density(
            kind,
            *native.arrays(rows, X, y, lengthscale.reciprocal().to(X), neighbours),
            native.number_of(alpha),
            float(scale),
            float(noise),
            slopes,
            sums.numpy(),
            torch.get_num_threads(),
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
            *(None,) * 6,
            of_noise.reshape(noise.shape),
            of_lengthscale,
            None if alpha is None else of_alpha.reshape(alpha.shape),
            of_scale.reshape(scale.shape),
        )


# ---- torch: any kernel, any device ----


def _torch_moments(kernel: Kernel, questions, X, neighbours, *values) -> LocalMoments:
    """On a CPU in tiles; elsewhere all questions at once, which is what keeps such a device busy."""
    t, k = neighbours.shape
    rows = max(1, TORCH_ENTRIES // k**2) if X.device.type == "cpu" else t
    if t <= rows:
        return _torch_tile(kernel, questions, X, neighbours, *values)
    arguments = (questions, neighbours, *values)
    parts = [repeat(None) if value is None else value.split(rows) for value in arguments]
    tiles = [_torch_tile(kernel, asked, X, near, *tile) for asked, near, *tile in zip(*parts, strict=False)]
    return LocalMoments(*(torch.cat(moments) for moments in zip(*tiles, strict=True)))


def _torch_tile(kernel: Kernel, questions, X, neighbours, noise, residual, gram, cross) -> LocalMoments:
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
    return LocalMoments(*_Conditional.apply(C, c, torch.where(present, residual, 0.0), smallest, present.to(X.dtype)))


class _Conditional(torch.autograd.Function):
    """The moments; with a = C⁻¹r, b = C⁻¹c and cotangents g, h of mean and explained:

    ∂c = g a + 2h b,    ∂r = g b,    ∂C = -(g (a bᵀ + b aᵀ) / 2 + h b bᵀ).
    """

    @staticmethod
    def forward(ctx, C: Tensor, c: Tensor, r: Tensor, smallest: Tensor, present: Tensor) -> LocalMoments:
        L, kept = _cholesky_without_negligible(C, smallest)
        right = torch.stack([r, c], dim=-1) * kept[:, :, None]
        a, b = torch.cholesky_solve(right, L).unbind(-1)
        a, b = a * kept, b * kept
        ctx.save_for_backward(a, b)
        moments = LocalMoments((c * a).sum(-1), (c * b).sum(-1), (r * a).sum(-1), (kept * present).sum(-1))
        ctx.mark_non_differentiable(moments.misfit, moments.num_rows)
        return moments

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        a, b = ctx.saved_tensors
        g, h = (grad[:, None] for grad in grad_outputs[:2])
        half = (g / 2 * a + h * b)[:, :, None] * b[:, None, :]
        grad_C = -(half + (g / 2 * b)[:, :, None] * a[:, None, :])
        return grad_C, g * a + 2 * h * b, g * b, None, None


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
