"""Iterations that need products with a matrix alone: conjugate gradients, and Cholesky with pivoting."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ROUND_OFF = 1.01
"""The true residual may exceed by this factor the tolerance that its recurrence met."""


class CGResult(NamedTuple):
    """The solution of A x = b for every column b, and how it was reached."""

    solution: Float[Tensor, "n c"]
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
    product: Callable[[Float[Tensor, "n c"]], Float[Tensor, "n c"]],
    B: Float[Tensor, "n c"],
    *,
    precondition: Callable[[Float[Tensor, "n c"]], Float[Tensor, "n c"]] | None = None,
    tolerance: float,
    max_iterations: int,
) -> CGResult:
    """A⁻¹B by preconditioned conjugate gradients in float64, every column on its own.

    A column stops at ‖b - A x‖ <= tolerance ‖b‖, or where A shows itself not positive definite; it is then frozen while
    the others continue. No gradient is recorded.

    Args:
        product: V -> A V for a symmetric positive definite A.
        precondition: V -> M⁻¹V for a symmetric positive definite M close to A. None: M = I.
        max_iterations: of all columns together, with one product with A each; true residuals take a few more products.

    Time: a product and O(n c) per iteration; memory O(n c).
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}, expected a positive number.")
    if max_iterations < 1:
        raise ValueError(f"max_iterations is {max_iterations}, expected at least 1.")
    B = B.double()
    scale = B.norm(dim=0)
    limit = tolerance * scale
    unit = torch.where(scale > 0, scale, 1.0)
    X, R = torch.zeros_like(B), B.clone()
    Z = R if precondition is None else precondition(R).double()
    rho = squared_norms = (R * Z).sum(0)
    P, active = Z.clone(), scale > 0
    broke_down = active & ~(rho > 0)
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
            lost = active & ~ended & ~(rho_next > 0)
            continues = active & ~ended & ~lost
            broke_down = broke_down | lost
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
    return CGResult(
        X,
        residual_norms,
        num_iterations,
        residual_norms <= ROUND_OFF * tolerance,
        broke_down,
        diagonal,
        off_diagonal,
        squared_norms,
    )


class PivotedCholesky(NamedTuple):
    """L with LLᵀ ≈ A, and the trace of the error."""

    L: Float[Tensor, "n r"]
    pivots: Int[Tensor, " r"]  # the rows chosen, in order
    remaining_trace: float  # tr(A - LLᵀ), which bounds every norm of A - LLᵀ
    converged: bool  # the remaining trace is within the tolerance


@torch.no_grad()
def pivoted_cholesky(
    diagonal: Float[Tensor, " n"],
    column_function: Callable[[int], Float[Tensor, " n"]],
    rank: int,
    tolerance: float,
) -> PivotedCholesky:
    """The first ``rank`` steps of Cholesky with the largest remaining diagonal element as pivot, in float64.

    Fewer where tr(A - LLᵀ) <= tolerance · tr(A), or where what remains of the diagonal is round-off.

    Args:
        diagonal: of A, symmetric positive semi-definite.
        column_function: row number -> that column of A.

    Time O(n r²) and r columns of A; memory O(n r).
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance}, expected zero or above.")
    remaining = diagonal.double().clone()
    trace, largest = float(remaining.sum()), float(remaining.max())
    round_off = torch.finfo(torch.float64).eps * len(remaining) * largest
    L = remaining.new_zeros(len(remaining), min(rank, len(remaining)))
    pivots: list[int] = []
    for step in range(L.shape[1]):
        pivot = int(remaining.argmax())
        if float(remaining.sum()) <= tolerance * trace or not float(remaining[pivot]) > round_off:
            break
        known = L[:, :step]
        root = remaining[pivot].sqrt()
        L[:, step] = (column_function(pivot).double() - known @ known[pivot]) / root
        L[pivots, step] = 0.0  # exactly so; round-off must not bring chosen rows back
        L[pivot, step] = root
        remaining = (remaining - L[:, step].square()).clamp_min_(0)
        pivots.append(pivot)
        remaining[pivots] = 0.0
    left = float(remaining.sum())
    chosen = torch.tensor(pivots, dtype=torch.long, device=remaining.device)
    return PivotedCholesky(L[:, : len(pivots)].contiguous(), chosen, left, left <= tolerance * trace)
