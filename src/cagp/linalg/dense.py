"""Small dense matrices: a Cholesky that says what it did, and moments of rows through it."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_first_order
from cagp.notices import warn

JITTERS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TILE_ROWS = 2048


class JitterWarning(UserWarning):
    """A matrix was not positive definite to working precision, and a relative jitter was added to its diagonal."""


class NotPositiveDefiniteError(ValueError):
    """A matrix stayed indefinite with the largest jitter allowed."""


def safe_cholesky(A: Float[Tensor, "i i"], name: str = "matrix") -> Float[Tensor, "i i"]:
    """Lower Cholesky factor of ``A``, or of A + jitter · diag(A) where ``A`` fails, with a warning that says so.

    The jitter is relative to each diagonal element, so that rescaling rows and columns changes nothing. It grows
    tenfold from 1e-12 to 1e-6; beyond that NotPositiveDefiniteError is raised.
    """
    L, info = torch.linalg.cholesky_ex(A)
    if not bool(info) and bool(torch.isfinite(L.diagonal()).all()):
        return L
    diagonal, num_wrong = A.diagonal(), int((~torch.isfinite(A)).sum())
    for jitter in JITTERS if num_wrong == 0 and bool((diagonal > 0).all()) else ():
        L, info = torch.linalg.cholesky_ex(A + jitter * torch.diag(diagonal))
        if not bool(info):
            words = f"{name} is not positive definite to working precision: added {jitter:.0e} times its diagonal."
            warn(words, JitterWarning, stacklevel=2)
            return L
    found = f"{num_wrong} of its values are NaN or infinite"
    if num_wrong == 0:
        found = "its diagonal runs from {:.3g} to {:.3g}".format(*diagonal.detach().aminmax())
    raise NotPositiveDefiniteError(
        f"{name} ({A.shape[0]} x {A.shape[0]}) is not positive definite, not even with {JITTERS[-1]:.0e} times its "
        f"diagonal added; {found}. Probable causes and remedies: (1) actions that are zero or linearly dependent: use "
        "fewer, or start them from scratch; (2) noise too small for float32 kernels: raise its floor or pass float64 "
        "data; (3) inputs or targets on extreme scales: standardise them; (4) a kernel of your own that is not "
        "positive semi-definite; (5) hyperparameters that diverged: lower the learning rate."
    )


def _tiles(K: Tensor) -> Iterator[slice]:
    """The rows of a matrix, some at a time, so that no float64 copy of it is ever held."""
    return (slice(start, start + TILE_ROWS) for start in range(0, K.shape[0], TILE_ROWS))


def _whitened(chol: Tensor, K: Tensor) -> Tensor:
    """L⁻¹a in float64, a column for each row a of a tile."""
    return torch.linalg.solve_triangular(chol, K.to(chol.dtype).mT, upper=False)


class RowMoments(NamedTuple):
    """What each row of KS contributes to mean and variance."""

    mean: Float[Tensor, " n"]  # KS v
    explained: Float[Tensor, " n"]  # diag(KS (LLᵀ)⁻¹ SK)


def row_moments(KS: Float[Tensor, "n i"], chol: Float[Tensor, "i i"], weights: Float[Tensor, " i"]) -> RowMoments:
    """KS v and diag(KS (LLᵀ)⁻¹ SK) in float64, for L = ``chol`` and v = ``weights``.

    Time O(n i²), memory O(tile) besides KS in its own dtype.
    """
    return RowMoments(*_RowMoments.apply(KS, chol, weights))


class _RowMoments(torch.autograd.Function):
    """A tile of rows at a time, forward and backward.

    With a row a, u = L⁻¹a, mean = aᵀv, explained = uᵀu and their cotangents g, h:
        ∂a = g v + 2h L⁻ᵀu,    ∂v = Σ g a,    ∂L = -2 tril(L⁻ᵀ Σ h u uᵀ).
    """

    @staticmethod
    def forward(ctx, KS: Tensor, chol: Tensor, weights: Tensor):
        ctx.save_for_backward(KS, chol, weights)
        mean = KS.new_empty(KS.shape[0], dtype=chol.dtype)
        explained = torch.empty_like(mean)
        for rows in _tiles(KS):
            A = KS[rows].to(chol.dtype)
            mean[rows] = A @ weights
            explained[rows] = _whitened(chol, A).square().sum(0)
        return mean, explained

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        KS, chol, weights = ctx.saved_tensors
        grad_mean, grad_explained = grad_outputs
        grad_KS = torch.empty_like(KS) if ctx.needs_input_grad[0] else None
        grad_weights, outer = torch.zeros_like(weights), torch.zeros_like(chol)
        for rows in _tiles(KS):
            A, g, h = KS[rows].to(chol.dtype), grad_mean[rows], grad_explained[rows]
            U = _whitened(chol, A)
            grad_weights += A.mT @ g
            Uh = U * h
            outer.addmm_(Uh, U.mT)
            if grad_KS is not None:
                solved = torch.linalg.solve_triangular(chol.mT, Uh, upper=True)
                grad_KS[rows] = torch.outer(g, weights).add_(solved.mT, alpha=2).to(KS.dtype)
        grad_chol = -2 * torch.linalg.solve_triangular(chol.mT, outer, upper=True).tril()
        return grad_KS, grad_chol, grad_weights


class WhitenedGram(NamedTuple):
    """Sums over rows a of a matrix, seen as u = L⁻¹a and weighted with d."""

    gram: Float[Tensor, "m m"]  # Σ d u uᵀ
    targets: Float[Tensor, " m"]  # Σ d t u


def whitened_gram(
    KZ: Float[Tensor, "n m"], chol: Float[Tensor, "m m"], weights: Float[Tensor, " n"], targets: Float[Tensor, " n"]
) -> WhitenedGram:
    """Σ d u uᵀ and Σ d t u in float64 over the rows a of ``KZ``, u = L⁻¹a, d = ``weights``, t = ``targets``.

    Whitening each row before the sum keeps the digits that L⁻¹(Σ d a aᵀ)L⁻ᵀ would lose where LLᵀ is nearly singular.
    Time O(n m²), memory O(tile) besides KZ in its own dtype.
    """
    return WhitenedGram(*_WhitenedGram.apply(KZ, chol, weights, targets))


class _WhitenedGram(torch.autograd.Function):
    """A tile of rows at a time, forward and backward, as ``_RowMoments``.

    With the cotangents P of the gram (its symmetric part ½(P + Pᵀ) counts) and g of the targets:
        ∂u = d ((P + Pᵀ)u + t g),   ∂a = L⁻ᵀ∂u,   ∂L = -tril(L⁻ᵀ Σ ∂u uᵀ),   ∂d = uᵀPu + t gᵀu,   ∂t = d gᵀu.
    """

    @staticmethod
    def forward(ctx, KZ: Tensor, chol: Tensor, weights: Tensor, targets: Tensor):
        ctx.save_for_backward(KZ, chol, weights, targets)
        gram, projected = torch.zeros_like(chol), torch.zeros_like(chol[0])
        for rows in _tiles(KZ):
            U = _whitened(chol, KZ[rows])
            Ud = U * weights[rows]
            gram.addmm_(Ud, U.mT)
            projected += Ud @ targets[rows]
        return (gram + gram.mT) / 2, projected

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        KZ, chol, weights, targets = ctx.saved_tensors
        grad_gram, g = grad_outputs
        P = grad_gram + grad_gram.mT
        grad_KZ = torch.empty_like(KZ) if ctx.needs_input_grad[0] else None
        grad_weights, grad_targets, outer = torch.empty_like(weights), torch.empty_like(targets), torch.zeros_like(chol)
        for rows in _tiles(KZ):
            U = _whitened(chol, KZ[rows])
            d, t, PU, gU = weights[rows], targets[rows], P @ U, g @ U
            grad_weights[rows] = (U * PU).sum(0) / 2 + t * gU
            grad_targets[rows] = d * gU
            grad_U = PU.add_(torch.outer(g, t)).mul_(d)
            outer.addmm_(grad_U, U.mT)
            if grad_KZ is not None:
                grad_KZ[rows] = torch.linalg.solve_triangular(chol.mT, grad_U, upper=True).mT.to(KZ.dtype)
        grad_chol = -torch.linalg.solve_triangular(chol.mT, outer, upper=True).tril()
        return grad_KZ, grad_chol, grad_weights, grad_targets
