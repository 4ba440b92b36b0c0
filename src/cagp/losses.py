"""Training losses of the paper, as sums over all rows (divide by n to compare data sets), or estimates of them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, precise_product, recomputed
from cagp.linalg import row_moments, safe_cholesky
from cagp.prior import GP
from cagp.projection import Projection, check_projection, noise_gram, project, support_product
from cagp.training.trainable import check_rows

_Data = tuple[Tensor, Tensor, Tensor | None]  # X, y and row_noise


class Elbo(NamedTuple):
    """The evidence lower bound E_q[log p(y | f)] - KL(q ‖ p) and its two terms."""

    value: Float[Tensor, ""]
    expected_log_likelihood: Float[Tensor, ""]
    kl: Float[Tensor, ""]


def elbo(
    prior: GP,
    actions: Actions,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    rows: Int[Tensor, " b"] | None = None,
    check: bool = True,
) -> Elbo:
    """Evidence lower bound of the CaGP posterior; log p(y) when S is square (eq. ELBO training loss, explicit form).

    The data term is a sum over rows, computed in tiles that are not kept; the rest comes from the support of S alone.
    Time O((m + b) m d + b i² + i³) for b rows, memory O(m d + i²) and ``max_bytes``: nothing depends on n.

    Args:
        rows: the rows to estimate the data term from, scaled to all rows; unbiased if they are drawn uniformly. None
            for all rows.
    """
    seen = _Rows(prior, actions, (X, y, row_noise), rows, max_bytes, copies=1, check=check)
    expected = seen.sum(lambda tile: _expected_log_likelihood(seen.projection, tile))
    kl = _kl(seen.projection)
    return Elbo(expected - kl, expected, kl)


class _Tile(NamedTuple):
    """Some rows of a sum."""

    rows: Int[Tensor, " t"]
    residual: Float[Tensor, " t"]  # y - m(X)
    variance: Float[Tensor, " t"]  # of the function, before any data
    noise: Float[Tensor, " t"]
    KS: Float[Tensor, "t i"]


class _Rows:
    """The rows of a sum, and the projection of the data.

    KS at the rows serves twice, in SᵀKS and in the sum, if all rows carry weight and count, and ``copies`` of it fit
    into ``max_bytes``.
    """

    def __init__(
        self, prior: GP, actions: Actions, data: _Data, rows: Tensor | None, max_bytes: int, copies: int, check: bool
    ):
        X, n = data[0], len(data[0])
        if check:
            check_projection(prior, actions, *data)
            check_rows(rows, n)
        self.prior, self.data, self.max_bytes, self.copies, self.KS = prior, data, max_bytes, copies, None
        if rows is None and len(actions.support) == n and n * actions.num_actions * 8 * copies <= max_bytes:
            rows, self.KS = actions.support, support_product(prior, actions, X, max_bytes)
        self.projection = project(prior, actions, *data, max_bytes, KS=self.KS, check=False)
        self.rows = torch.arange(n, device=X.device) if rows is None else rows

    def sum(self, term: Callable[[_Tile], Tensor]) -> Tensor:
        """Σ term, scaled to all rows, in tiles: ``copies`` of KS and its gradient fit into ``max_bytes``."""
        (X, y, row_noise), kernel, p = self.data, self.prior.kernel, self.projection

        def of_tile(rows: Tensor, KS: Tensor | None = None) -> Tensor:
            inputs = X[rows]
            KS = precise_product(kernel, inputs, p.X, p.W, max_bytes=self.max_bytes) if KS is None else KS
            residual = y[rows].double() - self.prior.mean(inputs.double())
            noise = self.prior.noise.of_rows(X, rows, row_noise)
            return term(_Tile(rows, residual, kernel.diag(inputs.double()), noise, KS))

        tiles = self.rows.split(max(1, self.max_bytes // (2 * self.copies * len(p.chol) * 8)))
        if self.KS is not None or len(tiles) == 1:
            total = of_tile(self.rows, self.KS)
        else:
            total = torch.stack([recomputed(of_tile, tile) for tile in tiles]).sum()
        return (len(X) / len(self.rows)) * total


def _expected_log_likelihood(p: Projection, t: _Tile) -> Tensor:
    """Σ_r E_q[log Normal(y_r; f_r, D_r)] over the given rows."""
    mean, explained = row_moments(t.KS, p.chol, p.weights)
    squares = (t.residual - mean).square() + (t.variance - explained)
    return -0.5 * (squares / t.noise + torch.log(2 * math.pi * t.noise)).sum()


def _kl(p: Projection) -> Tensor:
    """KL(q(f) ‖ p(f)) = ½ (ṽᵀSᵀKSṽ - tr(G⁻¹SᵀKS) + log|G| - log|SᵀDS|), G = SᵀK̂S: only i x i."""
    mahalanobis = p.weights @ p.SKS @ p.weights
    trace = torch.cholesky_solve(p.SKS, p.chol).trace()
    # The columns of blocks share no row: SᵀDS is diagonal.
    diagonal = isinstance(p.W, BlockWeights)
    noise = p.SDS.diagonal().log().sum() if diagonal else _log_det(safe_cholesky(p.SDS, "SᵀDS"))
    return 0.5 * (mahalanobis - trace + _log_det(p.chol) - noise)


def projected_nll(
    prior: GP,
    actions: Actions,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    check: bool = True,
) -> Float[Tensor, ""]:
    """-log p(S'ᵀy), S' = S with orthonormal columns (eq. projected-data log marginal likelihood).

    It sees the data in the span of S alone, and overestimates the noise; the ELBO does not.
    """
    p = project(prior, actions, X, y, row_noise, max_bytes, check=check)
    ones = torch.ones(p.X.shape[0], dtype=torch.float64, device=p.X.device)
    gram = safe_cholesky(noise_gram(p.W, ones), "SᵀS")
    quadratic = p.targets @ p.weights
    i = actions.num_actions
    return 0.5 * (quadratic + _log_det(p.chol) - _log_det(gram) + i * math.log(2 * math.pi))


def leave_one_out_nll(
    prior: GP,
    actions: Actions,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    rows: Int[Tensor, " b"] | None = None,
    check: bool = True,
) -> Float[Tensor, ""]:
    """-Σ_r log p(y_r | S₋ᵀy), S₋ = S with row r set to zero: each target predicted from projections without it.

    Closed form for all rows from one factorisation (docs/derivations.md, "Leave-one-out"). Like the ELBO, a sum over
    rows, at its time and memory: O((m + b) m d + b i² + i³). The actions stay as they are: where they were learned from
    the targets, or depend on them, a row still has an influence on its own prediction.

    Args:
        rows: the rows to estimate the sum from, scaled to all rows; None for all rows.
    """
    seen = _Rows(prior, actions, (X, y, row_noise), rows, max_bytes, copies=3, check=check)
    places = torch.full((X.shape[0],), -1, device=X.device)
    places[actions.support] = torch.arange(len(actions.support), device=X.device)
    inverse = torch.cholesky_inverse(seen.projection.chol)
    return seen.sum(lambda tile: _left_out(seen.projection, inverse, tile, places[tile.rows]))


OBSERVED = 1e-12
"""A target is one of the projections if no more than this share of its variance is left when all are known."""


def _left_out(p: Projection, inverse: Tensor, t: _Tile, places: Tensor) -> Tensor:
    """-Σ log Normal(y_r; LOO mean, LOO variance) of the rows at these places of the support (-1: not in it).

    With s = row r of S, a = (KS)_r, g = a + D_r s and G = SᵀK̂S: δ = K̂_rr - gᵀG⁻¹g is the variance of y_r given all
    projections, ρ - μ its error. The precision and error of y_r given the projections without it are
        1/V = sᵀG⁻¹s + c²δ,   e = V (sᵀṽ + c(ρ - μ)),   c = (1 - sᵀG⁻¹g) / δ.
    If y_r is itself a projection, δ = 0 and c counts as zero.
    """
    mean, explained = row_moments(t.KS, p.chol, p.weights)
    s_inverse, own, fitted = _own_row(p, inverse, places)  # G⁻¹s, sᵀG⁻¹s, sᵀṽ
    shared = (s_inverse * t.KS).sum(1)  # sᵀG⁻¹a
    left = t.variance + t.noise - (explained + 2 * t.noise * shared + t.noise.square() * own)  # δ
    least = OBSERVED * (t.variance + t.noise).detach()
    observed = (left.detach() <= least) & (own.detach() > 0)
    left = torch.maximum(left, least)  # round-off can take all of it
    c = torch.where(observed, 0.0, (1 - shared - t.noise * own) / left)
    precision = own + c.square() * left
    error = (fitted + c * (t.residual - mean - t.noise * fitted)) / precision
    return 0.5 * (error.square() * precision - precision.log() + math.log(2 * math.pi)).sum()


def _own_row(p: Projection, inverse: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """G⁻¹s, sᵀG⁻¹s and sᵀṽ for the row s of S at each place; zeros for rows that carry no weight."""
    inside = places >= 0
    if not isinstance(p.W, BlockWeights):
        s = torch.where(inside[:, None], p.W[places].double(), 0.0)
        s_inverse = s @ inverse
        return s_inverse, (s * s_inverse).sum(1), s @ p.weights
    s, column = torch.where(inside, p.W.values[places].double(), 0.0), p.W.columns()[places]
    return s[:, None] * inverse[column], s.square() * inverse.diagonal()[column], s * p.weights[column]


def _log_det(chol: Tensor) -> Tensor:
    return 2 * chol.diagonal().log().sum()
