"""Linear algebra in float64 that says what it did: dense factorisations, and iterations that return their status."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cagp.checks import check_first_order
from cagp.notices import warn

JITTERS = (1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
TILE_ROWS = 2048
ROUND_OFF = 1.01  # the true residual may exceed by this factor the tolerance that its recurrence met

Columns = Float[Tensor, "n c"]
Operator = Callable[[Columns], Columns]


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
    ends = "its diagonal runs from {:.3g} to {:.3g}".format(*diagonal.detach().aminmax())
    found = f"{num_wrong} of its values are NaN or infinite" if num_wrong else ends
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


def whitened_gram(
    KZ: Float[Tensor, "n m"], chol: Float[Tensor, "m m"], weights: Float[Tensor, " n"], targets: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "m m"], Float[Tensor, " m"]]:
    """Σ d u uᵀ and Σ d t u in float64 over the rows a of ``KZ``, u = L⁻¹a, d = ``weights``, t = ``targets``.

    Whitening each row before the sum keeps the digits that L⁻¹(Σ d a aᵀ)L⁻ᵀ would lose where LLᵀ is nearly singular.
    Time O(n m²), memory O(tile) besides KZ in its own dtype.
    """
    return _WhitenedGram.apply(KZ, chol, weights, targets)


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


# ---- iterations that need products with a matrix alone ----


class CGResult(NamedTuple):
    """The solution of A x = b for every column b, and how it was reached."""

    solution: Columns
    residual_norms: Float[Tensor, " c"]  # ‖b - A x‖ / ‖b‖, computed from the solution, not by recurrence
    num_iterations: int
    converged: Bool[Tensor, " c"]
    broke_down: Bool[Tensor, " c"]  # a direction with pᵀAp <= 0: A or the preconditioner is not positive definite
    # The matrix T that Lanczos' method started at M^-½b finds for M^-½AM^-½ (M = I without preconditioner). Steps after
    # a column has ended are those of an identity matrix, decoupled from the steps before.
    diagonal: Float[Tensor, "k c"]
    off_diagonal: Float[Tensor, "k c"]  # row j couples steps j and j + 1; the last row is zero
    squared_norms: Float[Tensor, " c"]  # bᵀM⁻¹b, what T's first coordinate vector stands for

    def quadrature(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, " c"]:
        """bᵀM^-½ f(M^-½AM^-½) M^-½b of every column by Lanczos quadrature. Time O(c k³), memory O(c k²).

        Exact for polynomials f of degree 2k - 1, and for every f once the iteration has converged to round-off.
        """
        T = torch.diag_embed(self.diagonal.mT)
        if T.shape[-1] > 1:
            beside = self.off_diagonal[:-1].mT
            T = T + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
        values, vectors = torch.linalg.eigh(T)
        return self.squared_norms * (vectors[:, 0].square() * function(values)).sum(-1)


@torch.no_grad()
def conjugate_gradients(
    product: Operator, B: Columns, *, precondition: Operator | None = None, tolerance: float, max_iterations: int
) -> CGResult:
    """A⁻¹B by preconditioned conjugate gradients in float64, every column on its own.

    A column stops at ‖b - A x‖ <= tolerance ‖b‖, or where A shows itself not positive definite; it is then frozen while
    the others continue. No gradient is recorded. Time: a product and O(n c) per iteration; memory O(n c).

    Args:
        product: V -> A V for a symmetric positive definite A.
        precondition: V -> M⁻¹V for a symmetric positive definite M close to A. None: M = I.
        max_iterations: of all columns together, with one product with A each; true residuals take a few more products.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}, expected a positive number.")
    if max_iterations < 1:
        raise ValueError(f"max_iterations is {max_iterations}, expected at least 1.")
    B = B.double()
    scale = B.norm(dim=0)
    limit = tolerance * scale
    unit = torch.where(scale > 0, scale, 1.0)
    X, R, active = torch.zeros_like(B), B.clone(), scale > 0
    Z = R if precondition is None else precondition(R).double()
    P, rho = Z.clone(), (R * Z).sum(0)
    squared_norms, broke_down = rho, active & ~(rho > 0)
    active = active & ~broke_down
    # The coefficients of all steps are in one tensor. A tensor for each step, kept between large ones that come and go,
    # would split the memory of these, and the heap would grow by one of them in every step.
    lanczos, num_steps = B.new_empty(2, min(max_iterations, 64), len(scale)), 0
    carry = torch.zeros_like(scale)  # β/α of the step before
    num_iterations, first = 0, True
    residual_norms = torch.full_like(scale, torch.inf)
    while True:
        while num_iterations < max_iterations and bool(active.any()):
            AP = product(P).double()
            curvature = (P * AP).sum(0)
            broke_down = broke_down | (active & ~(curvature > 0))
            active = active & (curvature > 0)
            alpha = torch.where(active, rho / curvature, 0.0)
            X += alpha * torch.where(active, P, 0.0)
            R -= alpha * torch.where(active, AP, 0.0)
            num_iterations += 1
            ended = R.norm(dim=0) <= limit
            Z = R if precondition is None else precondition(R).double()
            rho_next = (R * Z).sum(0)
            broke_down = broke_down | (active & ~ended & ~(rho_next > 0))
            continues = active & ~ended & (rho_next > 0)
            beta = torch.where(continues, rho_next / rho, 0.0)
            if first:
                if num_steps == lanczos.shape[1]:
                    lanczos = torch.cat([lanczos, torch.empty_like(lanczos)], 1)
                lanczos[0, num_steps] = torch.where(active, 1 / alpha + carry, 1.0)
                lanczos[1, num_steps] = torch.where(continues, beta.sqrt() / alpha, 0.0)
                num_steps += 1
                carry = torch.where(continues, beta / alpha, 0.0)
            P = torch.where(continues, Z + beta * P, 0.0)
            rho, active = rho_next, continues
        # The recurrence of R drifts from B - A X by round-off. Columns that it stopped too early start again from their
        # true residual, as long as that halves it.
        R = B - product(X).double()
        before, residual_norms = residual_norms, R.norm(dim=0) / unit
        active = (residual_norms > ROUND_OFF * tolerance) & (residual_norms < before / 2) & ~broke_down
        if num_iterations == max_iterations or not bool(active.any()):
            break
        R = torch.where(active, R, 0.0)
        Z = R if precondition is None else precondition(R).double()
        P, rho, first = Z.clone(), (R * Z).sum(0), False
    if num_steps == 0:
        lanczos[0, 0], num_steps = 1.0, 1
    diagonal, off_diagonal = lanczos[:, :num_steps].clone()
    off_diagonal[-1] = 0.0  # its other end was never computed
    converged = residual_norms <= ROUND_OFF * tolerance
    return CGResult(X, residual_norms, num_iterations, converged, broke_down, diagonal, off_diagonal, squared_norms)


class PivotedCholesky(NamedTuple):
    """L with LLᵀ ≈ A."""

    L: Float[Tensor, "n r"]
    pivots: Int[Tensor, " r"]  # the rows chosen, in order


@torch.no_grad()
def pivoted_cholesky(
    diagonal: Float[Tensor, " n"], column_function: Callable[[int], Float[Tensor, " n"]], rank: int
) -> PivotedCholesky:
    """The first ``rank`` steps of Cholesky with the largest remaining diagonal element as pivot, in float64.

    Fewer where what remains of the diagonal is round-off. A is symmetric positive semi-definite, given by its
    ``diagonal`` and its columns. Time O(n r²) and r columns of A; memory O(n r).
    """
    remaining = diagonal.double().clone()
    round_off = torch.finfo(torch.float64).eps * len(remaining) * float(remaining.max())
    L = remaining.new_zeros(len(remaining), min(rank, len(remaining)))
    pivots: list[int] = []
    for step in range(L.shape[1]):
        pivot = int(remaining.argmax())
        if not float(remaining[pivot]) > round_off:
            break
        known = L[:, :step]
        root = remaining[pivot].sqrt()
        L[:, step] = (column_function(pivot).double() - known @ known[pivot]) / root
        L[pivots, step] = 0.0  # exactly so; round-off must not bring chosen rows back
        L[pivot, step] = root
        remaining = (remaining - L[:, step].square()).clamp_min_(0)
        pivots.append(pivot)
        remaining[pivots] = 0.0
    chosen = torch.tensor(pivots, dtype=torch.long, device=remaining.device)
    return PivotedCholesky(L[:, : len(pivots)].contiguous(), chosen)
