"""Training losses of the paper, as sums over all rows (divide by n to compare data sets), or estimates of them."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, precise_product
from cagp.engine.tiles import recomputed
from cagp.linalg import row_moments, safe_cholesky
from cagp.prior import GP
from cagp.projection import Projection, check_projection, noise_gram, project, support_product
from cagp.training.trainable import check_rows


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
        check: False if ``cagp.projection.check_projection`` has seen these data.
    """
    if check:
        check_projection(prior, actions, X, y, row_noise)
        check_rows(rows, X.shape[0])
    n, KS = X.shape[0], None
    # Where every row carries weight, its row of KS serves twice: in SᵀKS, and in the data term.
    if rows is None and len(actions.support) == n and n * actions.num_actions * 8 <= max_bytes:
        rows, KS = actions.support, support_product(prior, actions, X, max_bytes)
    p = project(prior, actions, X, y, row_noise, max_bytes, KS=KS, check=False)
    rows = torch.arange(n, device=X.device) if rows is None else rows
    if KS is None:
        expected = _streamed_log_likelihood(prior, p, X, y, row_noise, rows, max_bytes)
    else:
        expected = _expected_log_likelihood(prior, p, X[rows], y[rows], _take(row_noise, rows), KS)
    expected, kl = (n / len(rows)) * expected, _kl(p)
    return Elbo(expected - kl, expected, kl)


def _streamed_log_likelihood(
    prior: GP, p: Projection, X: Tensor, y: Tensor, row_noise: Tensor | None, rows: Tensor, max_bytes: int
) -> Tensor:
    """Σ_r E_q[log Normal(y_r; f_r, D_r)] over ``rows``, in tiles whose KS and its gradient fit into ``max_bytes``."""

    def of_tile(tile: Tensor) -> Tensor:
        inputs = X[tile]
        KS = precise_product(prior.kernel, inputs, p.X, p.W, max_bytes=max_bytes)
        return _expected_log_likelihood(prior, p, inputs, y[tile], _take(row_noise, tile), KS)

    tiles = rows.split(max(1, max_bytes // (2 * len(p.chol) * 8)))
    if len(tiles) == 1:
        return of_tile(rows)
    return torch.stack([recomputed(of_tile, tile) for tile in tiles]).sum()


def _expected_log_likelihood(
    prior: GP, p: Projection, X: Tensor, y: Tensor, row_noise: Tensor | None, KS: Tensor
) -> Tensor:
    """Σ_r E_q[log Normal(y_r; f_r, D_r)] over the given rows."""
    mean, explained = row_moments(KS, p.chol, p.weights)
    error = y.double() - prior.mean(X.double()) - mean
    variance = prior.kernel.diag(X.double()) - explained
    noise = prior.noise(X, row_noise)
    return -0.5 * ((error.square() + variance) / noise + torch.log(2 * math.pi * noise)).sum()


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

    Args:
        check: False if ``cagp.projection.check_projection`` has seen these data.
    """
    p = project(prior, actions, X, y, row_noise, max_bytes, check=check)
    ones = torch.ones(p.X.shape[0], dtype=torch.float64, device=p.X.device)
    gram = safe_cholesky(noise_gram(p.W, ones), "SᵀS")
    quadratic = p.targets @ p.weights
    i = actions.num_actions
    return 0.5 * (quadratic + _log_det(p.chol) - _log_det(gram) + i * math.log(2 * math.pi))


def _log_det(chol: Tensor) -> Tensor:
    return 2 * chol.diagonal().log().sum()


def _take(row_noise: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if row_noise is None else row_noise[rows]
