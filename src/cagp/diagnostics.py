"""How much of the data the actions see, and where the uncertainty of a prediction comes from.

Everything here is float64 and records no gradient.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_matrix, check_new_inputs
from cagp.dataset import Data, inputs_of
from cagp.engine import BlockWeights, kernel_product
from cagp.iterative import top_eigenvectors
from cagp.limits import EXACT_ROWS
from cagp.linalg import JitterWarning, conjugate_gradients, safe_cholesky
from cagp.methods import CaGPLocal, CholeskyGP
from cagp.notices import collected
from cagp.posteriors import AveragedPosterior, CaGPPosterior, LocalPosterior, Posterior
from cagp.prior import KnownNoise
from cagp.projection import Projection
from cagp.system import Solver, System

# ---- subspaces ----


@torch.no_grad()
def principal_angles(A: Float[Tensor, "n p"], B: Float[Tensor, "n q"]) -> Float[Tensor, " r"]:
    """The r = min(p, q) angles between the spans of two matrices, in radians, smallest first. Time O(n (p + q)²).

    Large angles are computed from their cosines and small ones from their sines (Björck and Golub), both to full
    precision; ``scipy.linalg.subspace_angles`` is exact to 1e-11 for small ones.
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
        raise ValueError(f"the columns of {name} are linearly dependent; remove the redundant ones.")
    return Q


def action_matrix(actions: Actions) -> Float[Tensor, "n i"]:
    """S as a matrix with unit columns, zero outside the support."""
    W = actions.weights(torch.float64)
    W = W.dense() if isinstance(W, BlockWeights) else W
    S = torch.zeros(actions.num_rows, actions.num_actions, dtype=torch.float64, device=W.device)
    S[actions.support] = W.detach()
    return S


class Alignment(NamedTuple):
    """How close i actions are to the i leading eigenvectors, which carry the most information about the function."""

    angles: Float[Tensor, " i"]  # the principal angles, smallest first
    distance: float  # their norm, the Grassmann distance
    information: float  # the mutual information of the actions, as a share of that of the eigenvectors


@torch.no_grad()
def eigenspace_alignment(system: System, S: Float[Tensor, "n i"]) -> Alignment:
    """Compare the span of S with the i leading eigenvectors of K̂ (those of K s = λ D s if the noise differs by row).

    Time O(n³), or that of ``top_eigenvectors`` for more than 2,000 rows.
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
    """I(f(X); Sᵀy) = ½ (log|SᵀK̂S| - log|SᵀDS|) in nats: what the actions tell about the function. Time O(i³)."""
    log_det = 2 * projection.chol.diagonal().log().sum()
    return 0.5 * (log_det - _log_det(projection.SDS, "SᵀDS"))


@torch.no_grad()
def posterior_entropy(
    posterior: Posterior, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
) -> Float[Tensor, ""]:
    """H = ½ (log|Σ| + t log 2πe) in nats. Σ is the covariance of the function at X, or of new targets with ``noise``.

    Without noise, Σ is often singular to working precision. A JitterWarning then says that the result is an upper
    bound. Time O(t³).
    """
    covariance = posterior.covariance(X, noise=noise, row_noise=row_noise).double()
    return 0.5 * (_log_det(covariance, "the posterior covariance") + X.shape[0] * math.log(2 * math.pi * math.e))


def _log_det(A: Tensor, name: str) -> Tensor:
    return 2 * safe_cholesky(A, name).diagonal().log().sum()


# ---- whether shared actions fit the problem ----

FIT_ROWS = 500
LARGE_SHARE = 0.25
"""Shared actions do not fit a problem where at least this share of the variance was not computed; a heuristic."""


class ActionFit(NamedTuple):
    """How well shared actions suit the problem, at training rows."""

    spacing: float  # the median distance of a block to the next one, in lengthscales; NaN if the kernel has none
    computational_share: float  # of the predictive variance: at least this much was not computed, and is not noise

    @property
    def advice(self) -> str | None:
        """What was found and what to do, in words; None where shared actions fit."""
        if self.computational_share < LARGE_SHARE:
            return None
        apart = "" if math.isnan(self.spacing) else f"blocks of rows are {self.spacing:.2g} lengthscales apart, and "
        return (
            f"Shared actions do not fit this problem: {apart}at least {self.computational_share:.0%} of the variance "
            'of predictions was not computed, and is neither noise nor lack of data. Use method="local" or "hybrid", '
            "or more actions (n_actions)."
        )


@torch.no_grad()
def action_fit(
    posterior: CaGPPosterior,
    X: Float[Tensor, "n d"] | Data,
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    num_rows: int = FIT_ROWS,
    seed: int = 0,
) -> ActionFit:
    """Whether block-sparse actions, shared by all test points, suit the problem.

    The exact posterior has seen each training row, so that its variance there is at most k D / (k + D), with k the
    prior variance and D the noise. What the posterior's own variance has beyond that was not computed.

    Use hyperparameters that do not depend on the actions, e.g. those of CaGP-Local. The ELBO adapts them to the
    actions: what these cannot resolve becomes noise.

    Args:
        X: training rows, with their ``row_noise``.
        num_rows: rows to look at, at most, drawn with ``seed``.

    Time O(i² d) and that of ``num_rows`` predictions.
    """
    if not isinstance(posterior, CaGPPosterior) or not isinstance(posterior.W, BlockWeights):
        raise TypeError("posterior must be a CaGPPosterior with block-sparse actions, e.g. of CaGPOpt.")
    X = inputs_of(X, posterior.X)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(X), (num_rows,), generator=generator) if len(X) > num_rows else torch.arange(len(X))
    rows = rows.to(X.device)
    inputs, prior = X[rows], posterior.prior
    noise = prior.noise_variance(inputs, None if row_noise is None else row_noise[rows])
    before, after = prior.kernel.diag(inputs.double()), posterior.variance(inputs).double()
    share = (after - before * noise / (before + noise)).clamp_min(0) / (after + noise)
    return ActionFit(_block_spacing(posterior, posterior.W), float(share.mean()))


def _block_spacing(posterior: CaGPPosterior, W: BlockWeights) -> float:
    """The median over the blocks of the distance to the nearest other one, between their means, in lengthscales."""
    lengthscale = posterior.prior.kernel.lengthscales(posterior.X.shape[1])
    if lengthscale is None or W.num_columns == 1:
        return math.nan
    equal = W._replace(values=torch.ones_like(W.values))
    centres = equal.project(posterior.X / lengthscale.to(posterior.X)) / W.sizes[:, None]
    distances = torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return float(distances.fill_diagonal_(math.inf).amin(1).median())


# ---- where the variance comes from ----

NEIGHBOURS = 256
"""Beyond ``EXACT_ROWS`` rows, the posterior given this many nearest rows is the reference: its variance is a bound."""

Kind = Literal["exact", "estimate", "unknown"]

KINDS: tuple[Kind, ...] = ("unknown", "estimate", "exact")
"""What is known of the computational part, the least first; an estimate is one from below."""


class Split(NamedTuple):
    """The variance of the function at each test point, as a sum of two parts."""

    latent: Float[Tensor, " t"]  # of the exact posterior: more data would lower it
    computational: Float[Tensor, " t"]  # what was not computed: zero with a full budget; NaN if unknown
    error_bound: Float[Tensor, " t"]  # ``computational`` may be too small by up to this, ``latent`` too large
    num_iterations: int = 0  # of conjugate gradients; 0 if there were none


class Components(NamedTuple):
    """The variance of a new observation at each test point, as a sum of three parts; see ``Split``."""

    noise: Float[Tensor, " t"]  # of the targets about the function: neither data nor computation lower it
    latent: Float[Tensor, " t"]
    computational: Float[Tensor, " t"]
    error_bound: Float[Tensor, " t"]
    num_iterations: int


class Reference(NamedTuple):
    """What takes the place of the exact posterior, at the same hyperparameters, to find the computational part."""

    kind: Kind
    split: Callable[[Posterior, Tensor, Tensor | None], Split]  # of a posterior, at test points, with its scale there


@torch.no_grad()
def variance_components(
    posterior: Posterior, reference: Reference, X: Float[Tensor, "t d"], row_noise: Float[Tensor, " t"] | None = None
) -> Components:
    """The predictive variance at the rows of ``X`` as noise + latent + computational part, in float64.

    Args:
        reference: from ``reference_for``, at a bounded cost, or from ``exact_reference``, exact for any number of rows.
        row_noise: known noise variances of the rows of ``X``.
    """
    noise, scale = posterior.prior.noise_variance(X, row_noise), posterior.scale(X)
    if scale is not None:  # it multiplies the learned noise, not what is known of each row
        learned = posterior.prior.noise.learned(X)
        noise = scale * noise if row_noise is None else noise + (scale - 1) * learned
    return Components(noise, *reference.split(posterior, X, scale))


@torch.no_grad()
def reference_for(posterior: Posterior, row_noise: Float[Tensor, " m"] | None, num_rows: int) -> Reference:
    """A reference at a bounded cost: the exact posterior up to ``EXACT_ROWS`` rows, else one given the nearest rows.

    Args:
        row_noise: known noise variances of the rows that the posterior holds.
        num_rows: the number of rows it was conditioned on; it may hold only some of them.
    """
    if isinstance(posterior, AveragedPosterior):
        references = [reference_for(part, row_noise, num_rows) for part in posterior.components]
        kinds: list[Kind] = [reference.kind for reference in references]
        return Reference(min(kinds, key=KINDS.index), partial(_average, references))
    if not isinstance(posterior, CaGPPosterior | LocalPosterior):
        return Reference("unknown", partial(_alone, math.nan))
    if isinstance(posterior, CaGPPosterior) and posterior.num_actions == num_rows:
        return Reference("exact", partial(_alone, 0.0))
    if row_noise is None and isinstance(posterior.prior.noise, KnownNoise):  # that of sites, which only some keep
        return Reference("unknown", partial(_alone, math.nan))
    held, targets = posterior.X, posterior.X.new_zeros(len(posterior.X))  # a variance does not depend on targets
    if len(held) == num_rows <= EXACT_ROWS:
        with collected(JitterWarning) as jitter:
            exact = CholeskyGP(posterior.prior).condition(held, targets, row_noise)
        # Jitter acts as additional noise: the variance is then an upper bound.
        return Reference("estimate" if jitter else "exact", partial(_beside, exact, not jitter))
    k = min(NEIGHBOURS, len(held))
    nearest = CaGPLocal(posterior.prior).condition(held, targets, row_noise, num_neighbours=k)
    return Reference("estimate", partial(_beside, nearest, False))


def _alone(computational: float, posterior: Posterior, X: Tensor, scale: Tensor | None) -> Split:
    """The split by a posterior itself, which is exact, or of which nothing else is known."""
    variance = posterior.variance(X).double()
    nothing = torch.full_like(variance, computational)
    return Split(variance, nothing, nothing)


def _beside(other: Posterior, is_exact: bool, posterior: Posterior, X: Tensor, scale: Tensor | None) -> Split:
    """The split by another posterior, whose variance is that of the exact one or an upper bound of it."""
    variance, latent = posterior.variance(X).double(), other.variance(X).double()
    latent = torch.minimum(variance, latent if scale is None else scale * latent)  # both are upper bounds
    # All that is known of the exact variance beyond its bound is that it is not negative.
    return Split(latent, variance - latent, torch.zeros_like(latent) if is_exact else latent)


def _average(references: list[Reference], posterior: Posterior, X: Tensor, scale: Tensor | None) -> Split:
    """The split of an average: its parts are averages of those of its components."""
    assert isinstance(posterior, AveragedPosterior)
    pairs = zip(references, posterior.components, strict=True)
    splits = [reference.split(component, X, component.scale(X)) for reference, component in pairs]
    squares = posterior.pooled(X).squares
    *parts, num_iterations = zip(*splits, strict=True)
    return Split(*((squares * torch.stack(part)).sum(0) for part in parts), num_iterations=sum(num_iterations))


@torch.no_grad()
def exact_reference(
    posterior: CaGPPosterior,
    X_train: Float[Tensor, "n d"],
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    support: Int[Tensor, " m"] | None = None,
    dense_up_to: int = EXACT_ROWS,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    precondition_rank: int = 100,
) -> Reference:
    """The exact posterior for any number of rows, by a Cholesky factor of K̂ or by conjugate gradients.

    With b = k(X_train, x) and u = Cb, the exact posterior explains more of the variance than this one by

        bᵀK̂⁻¹b - bᵀu = uᵀr + rᵀK̂⁻¹r,    r = b - K̂u,

    where uᵀr is zero except for round-off. Nothing is subtracted, so small parts are exact to their own digits.
    Conjugate gradients give rᵀK̂⁻¹r from below: with K̂w ≈ r and e = r - K̂w it is rᵀw + eᵀw + eᵀK̂⁻¹e. The last term is
    left out. Its bound eᵀD⁻¹e, which holds because K̂ - D is positive semi-definite, is the ``error_bound``.

    Args:
        X_train: all training inputs, with their ``row_noise``.
        support: which of them the posterior holds, ``actions.support``; None for all, in their order.
        dense_up_to: the number of training rows up to which K̂ is factorised.
        tolerance: the relative residual of conjugate gradients, for more rows.
        precondition_rank: the rank of their preconditioner, a pivoted Cholesky factor.

    For t test points: time O(n³ + n² t), or O(n² (d + t)) for every iteration; memory O(n² + n t), or O(n (t + rank)).
    """
    rows = torch.arange(X_train.shape[0], device=X_train.device) if support is None else support
    if not torch.equal(X_train[rows], posterior.X):
        raise ValueError(
            f"the posterior holds {posterior.X.shape[0]} inputs, which are not those of X_train ({X_train.shape[0]} "
            "rows) at the support; pass the training inputs, and support=method.actions.support for CaGP-Opt."
        )
    variances = None if row_noise is None else row_noise.double()
    system = System(posterior.prior, X_train.double(), variances, max_bytes=posterior.max_bytes)
    if system.num_rows <= dense_up_to:
        factor = safe_cholesky(system.kernel_matrix() + torch.diag(system.noise), "K̂")

        def solve(R: Tensor) -> tuple[Tensor, Tensor, int]:
            """rᵀK̂⁻¹r of each column r, by how much it may be too small, and the number of iterations."""
            values = torch.linalg.solve_triangular(factor, R, upper=False).square().sum(0)
            return values, torch.zeros_like(values), 0
    else:
        solver = Solver(system, min(precondition_rank, system.num_rows), tolerance, max_iterations)
        options = {"precondition": solver.precondition, "tolerance": tolerance, "max_iterations": max_iterations}

        def solve(R: Tensor) -> tuple[Tensor, Tensor, int]:
            result = conjugate_gradients(system.products, R, **options)
            E = R - system.products(result.solution)
            bound = (E.square() / system.noise[:, None]).sum(0)
            return ((R + E) * result.solution).sum(0), bound, result.num_iterations

    def split(posterior: Posterior, X: Tensor, _: Tensor | None) -> Split:
        if not isinstance(posterior, CaGPPosterior):
            raise TypeError(f"posterior is a {type(posterior).__name__}, expected the CaGPPosterior of the reference.")
        prior, T, chol = posterior.prior, X.double(), posterior.chol
        check_new_inputs(T, system.X)
        W = posterior.W
        W = W._replace(values=W.values.double()) if isinstance(W, BlockWeights) else W.double()
        KW = kernel_product(prior.kernel, T, system.X[rows], W, max_bytes=posterior.max_bytes)
        root = torch.linalg.solve_triangular(chol, KW.mT, upper=False)
        variance = prior.kernel.diag(T).double() - root.square().sum(0)

        V = torch.cholesky_solve(KW.mT, chol)
        U = torch.zeros(system.num_rows, T.shape[0], dtype=torch.float64, device=T.device)
        U[rows] = W.values[:, None] * V[W.columns()] if isinstance(W, BlockWeights) else W @ V
        R = system.columns(T) - system.products(U)
        squares, error_bound, num_iterations = solve(R)
        computational = (U * R).sum(0) + squares
        return Split(variance - computational, computational, error_bound, num_iterations)

    return Reference("exact", split)
