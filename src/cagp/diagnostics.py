"""What the actions have seen of the data, and where the uncertainty of a prediction comes from.

Everything here is float64 and records no gradient.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_matrix, check_new_inputs
from cagp.engine import BlockWeights, kernel_product
from cagp.iterative import top_eigenvectors
from cagp.linalg import conjugate_gradients, safe_cholesky
from cagp.posteriors import CaGPPosterior, Posterior
from cagp.projection import Projection
from cagp.solver import Solver
from cagp.system import System

# ---- subspaces ----


@torch.no_grad()
def principal_angles(A: Float[Tensor, "n p"], B: Float[Tensor, "n q"]) -> Float[Tensor, " r"]:
    """The r = min(p, q) angles between the spans of two matrices, in radians, smallest first. Time O(n (p + q)²).

    Large angles from their cosines and small ones from their sines (Björck and Golub): both to full precision.
    """
    if A.shape[1] < B.shape[1]:
        A, B = B, A
    Q, R = _orthonormal(A, "A"), _orthonormal(B, "B")
    inner = Q.mT @ R
    cosines = torch.linalg.svdvals(inner).clamp(0, 1)
    sines = torch.linalg.svdvals(R - Q @ inner).clamp(0, 1).flip(0)
    return torch.where(cosines.square() < 0.5, cosines.acos(), sines.asin())


def grassmann_distance(A: Float[Tensor, "n p"], B: Float[Tensor, "n q"]) -> Float[Tensor, ""]:
    """The norm of the principal angles (section "Grassman Distance Between Subspaces"); at most √min(p, q) π/2."""
    return principal_angles(A, B).norm()


def _orthonormal(A: Tensor, name: str) -> Tensor:
    check_matrix(A, name)
    if A.shape[1] > A.shape[0]:
        raise ValueError(f"{name} has shape {tuple(A.shape)}, expected no more columns than rows.")
    A = A.double()
    Q, R = torch.linalg.qr(A / A.norm(dim=0).clamp_min(torch.finfo(A.dtype).tiny))
    if float(R.diagonal().abs().min()) < 1e-12:
        raise ValueError(f"the columns of {name} are linearly dependent; leave out those that add nothing.")
    return Q


def action_matrix(actions: Actions) -> Float[Tensor, "n i"]:
    """S as a matrix with unit columns, zero outside the support."""
    W = actions.weights(torch.float64)
    W = W.dense() if isinstance(W, BlockWeights) else W
    S = torch.zeros(actions.num_rows, actions.num_actions, dtype=torch.float64, device=W.device)
    S[actions.support] = W.detach()
    return S


class Alignment(NamedTuple):
    """How close actions are to as many leading eigenvectors, which tell most about the function."""

    angles: Float[Tensor, " i"]  # the principal angles, smallest first
    distance: float  # their norm, the Grassmann distance
    information: float  # of the mutual information that the eigenvectors have, the share the actions have


@torch.no_grad()
def eigenspace_alignment(system: System, S: Float[Tensor, "n i"]) -> Alignment:
    """The span of S against the space of the i leading eigenvectors of K̂ (of K s = λ D s, with noise by row).

    Time O(n³), or that of ``top_eigenvectors`` beyond 2,000 rows.
    """
    best = top_eigenvectors(system, S.shape[1])
    angles = principal_angles(S, best.vectors)
    Q = _orthonormal(S, "S")
    noise = Q.mT @ (system.noise[:, None] * Q)
    gram = Q.mT @ system.products(Q)
    gained = 0.5 * (_log_det((gram + gram.mT) / 2, "SᵀK̂S") - _log_det(noise, "SᵀDS"))
    largest = 0.5 * best.values.clamp_min(0).log1p().sum()
    return Alignment(angles, float(angles.norm()), float(gained / largest))


# ---- information ----


@torch.no_grad()
def mutual_information(projection: Projection) -> Float[Tensor, ""]:
    """I(f(X); Sᵀy) = ½ (log|SᵀK̂S| - log|SᵀDS|) in nats: how much the actions tell of the function. Time O(i³)."""
    log_det = 2 * projection.chol.diagonal().log().sum()
    return 0.5 * (log_det - _log_det(projection.SDS, "SᵀDS"))


@torch.no_grad()
def posterior_entropy(
    posterior: Posterior,
    X: Float[Tensor, "t d"],
    *,
    noise: bool = False,
    row_noise: Float[Tensor, " t"] | None = None,
) -> Float[Tensor, ""]:
    """H = ½ (log|Σ| + t log 2πe) in nats, Σ the covariance of the function at X, or of new targets with ``noise``.

    Without noise Σ is often singular to working precision: a JitterWarning then says that the number is an upper bound.
    Time O(t³).
    """
    covariance = posterior.covariance(X, noise=noise, row_noise=row_noise).double()
    return 0.5 * (_log_det(covariance, "the posterior covariance") + X.shape[0] * math.log(2 * math.pi * math.e))


def _log_det(A: Tensor, name: str) -> Tensor:
    return 2 * safe_cholesky(A, name).diagonal().log().sum()


# ---- inducing points ----


@torch.no_grad()
def distance_to_data(
    Z: Float[Tensor, "m d"], X: Float[Tensor, "n d"], lengthscale: Float[Tensor, " d"], tile_rows: int = 256
) -> Float[Tensor, " m"]:
    """min_j ‖(z - x_j) / lengthscale‖ for each inducing point z; the paper reports its average. Time O(m n d)."""
    check_matrix(X, "X")
    check_new_inputs(Z, X, "Z")
    # The origin moves to the data, so that no digits are lost far from it.
    origin, lengthscale = X.double().mean(0), lengthscale.to(X.device).double()
    points, rows = ((A.double() - origin) / lengthscale for A in (Z, X))
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cat([torch.cdist(tile, rows, compute_mode=mode).amin(1) for tile in points.split(tile_rows)])


@torch.no_grad()
def variance_ratio(
    posterior: Posterior, X: Float[Tensor, "t d"], row_noise: Float[Tensor, " t"] | None = None
) -> Float[Tensor, " t"]:
    """k_post(x, x) / (k_post(x, x) + D(x)): near zero where a posterior is certain, whatever the noise."""
    with_noise = posterior.variance(X, noise=True, row_noise=row_noise)
    return posterior.variance(X).double() / with_noise.double()


# ---- where the variance comes from ----


class VarianceSplit(NamedTuple):
    """The predictive variance at each test row as a sum of three."""

    noise: Float[Tensor, " t"]  # of the targets about the function: stays, whatever is done
    exact: Float[Tensor, " t"]  # of the exact posterior: more data would lower it
    computational: Float[Tensor, " t"]  # what was not computed: more actions would lower it, to zero at i = n
    error_bound: Float[Tensor, " t"]  # ``computational`` may be too small by up to this, and ``exact`` too large
    num_iterations: int  # of conjugate gradients; 0 where K̂ was factorised


@torch.no_grad()
def split_variance(
    posterior: CaGPPosterior,
    X_train: Float[Tensor, "n d"],
    X: Float[Tensor, "t d"],
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    support: Int[Tensor, " m"] | None = None,
    new_row_noise: Float[Tensor, " t"] | None = None,
    dense_up_to: int = 2000,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    precondition_rank: int = 100,
) -> VarianceSplit:
    """The predictive variance at ``X`` as noise + exact + computational part.

    With b = k(X_train, x) and u = Cb, what the exact posterior explains more than this one is

        bᵀK̂⁻¹b - bᵀu = uᵀr + rᵀK̂⁻¹r,    r = b - K̂u,

    where uᵀr is zero but for round-off. Nothing is subtracted, so small parts are exact to their own digits. Conjugate
    gradients give rᵀK̂⁻¹r from below: with K̂w ≈ r and e = r - K̂w it is rᵀw + eᵀw + eᵀK̂⁻¹e, of which the last term is
    left out and bounded by eᵀD⁻¹e, because K̂ - D is positive semi-definite.

    Args:
        X_train: all training inputs, with their ``row_noise``.
        support: which of them the posterior holds, ``actions.support``; None for all, in their order.
        new_row_noise: known noise variances of the rows of ``X``.
        dense_up_to: number of training rows up to which K̂ is factorised.
        tolerance: relative residual of conjugate gradients beyond.
        precondition_rank: of their preconditioner, a pivoted Cholesky factor.

    Time O(n³ + n² t), or O(n² (d + t)) for every iteration; memory O(n² + n t), or O(n (t + rank)).
    """
    check_new_inputs(X, X_train)
    rows = torch.arange(X_train.shape[0], device=X_train.device) if support is None else support
    if not torch.equal(X_train[rows], posterior.X):
        raise ValueError(
            f"the posterior holds {posterior.X.shape[0]} inputs, which are not those of X_train ({X_train.shape[0]} "
            "rows) at the support; pass the training inputs, and support=method.actions.support for CaGP-Opt."
        )
    prior, T = posterior.prior, X.double()
    system = System(
        prior, X_train.double(), None if row_noise is None else row_noise.double(), max_bytes=posterior.max_bytes
    )
    chol, W = posterior.chol, posterior.W
    W = W._replace(values=W.values.double()) if isinstance(W, BlockWeights) else W.double()
    KW = kernel_product(prior.kernel, T, system.X[rows], W, max_bytes=posterior.max_bytes)
    root = torch.linalg.solve_triangular(chol, KW.mT, upper=False)
    variance = prior.kernel.diag(T).double() - root.square().sum(0)

    V = torch.cholesky_solve(KW.mT, chol)
    U_support = W.values[:, None] * V[W.columns()] if isinstance(W, BlockWeights) else W @ V
    U = torch.zeros(system.num_rows, T.shape[0], dtype=torch.float64, device=T.device)
    U[rows] = U_support
    R = system.columns(T) - system.products(U)
    crossed = (U * R).sum(0)
    if system.num_rows <= dense_up_to:
        factor = safe_cholesky(system.kernel_matrix() + torch.diag(system.noise), "K̂")
        computational = crossed + torch.linalg.solve_triangular(factor, R, upper=False).square().sum(0)
        error_bound, num_iterations = torch.zeros_like(computational), 0
    else:
        solver = Solver(system, min(precondition_rank, system.num_rows))
        result = conjugate_gradients(
            system.products, R, precondition=solver.precondition, tolerance=tolerance, max_iterations=max_iterations
        )
        E = R - system.products(result.solution)
        computational = crossed + ((R + E) * result.solution).sum(0)
        error_bound, num_iterations = (E.square() / system.noise[:, None]).sum(0), result.num_iterations
    noise = prior.noise_variance(X, new_row_noise)
    return VarianceSplit(noise, variance - computational, computational, error_bound, num_iterations)
