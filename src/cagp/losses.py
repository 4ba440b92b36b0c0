"""Training losses of the paper, as sums over all rows (divide by n to compare data sets)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import Actions
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product
from cagp.linalg import row_moments, safe_cholesky
from cagp.prior import GP
from cagp.projection import Projection, noise_gram, project


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
    check: bool = True,
) -> Elbo:
    """Evidence lower bound of the CaGP posterior; log p(y) when S is square (eq. ELBO training loss, explicit form).

    Time O(n m d + n i²), memory O(n i).

    Args:
        check: False if ``cagp.projection.check_projection`` has seen these data.
    """
    p = project(prior, actions, X, y, row_noise, max_bytes, check=check)
    # The data term is a sum over rows, and rows in the support have their KS already.
    rows = actions.support
    expected = _expected_log_likelihood(prior, p, X[rows], y[rows], _take(row_noise, rows), p.KS)
    rest = _complement(rows, X.shape[0])
    if len(rest):
        KS = kernel_product(prior.kernel, X[rest], p.X, p.W, max_bytes=max_bytes)
        expected = expected + _expected_log_likelihood(prior, p, X[rest], y[rest], _take(row_noise, rest), KS)
    kl = _kl(p)
    return Elbo(expected - kl, expected, kl)


def _expected_log_likelihood(
    prior: GP, p: Projection, X: Tensor, y: Tensor, row_noise: Tensor | None, KS: Tensor
) -> Tensor:
    """Σ_r E_q[log Normal(y_r; f_r, D_r)] over the given rows."""
    mean, explained = row_moments(KS, p.chol, p.weights)
    error = (y - prior.mean(X)).double() - mean
    variance = prior.kernel.diag(X).double() - explained
    noise = prior.noise(X, row_noise)
    return -0.5 * ((error.square() + variance) / noise + torch.log(2 * math.pi * noise)).sum()


def _kl(p: Projection) -> Tensor:
    """KL(q(f) ‖ p(f)) = ½ (ṽᵀSᵀKSṽ - tr(G⁻¹SᵀKS) + log|G| - log|SᵀDS|), G = SᵀK̂S: only i x i."""
    mahalanobis = p.weights @ p.SKS @ p.weights
    trace = torch.cholesky_solve(p.SKS, p.chol).trace()
    return 0.5 * (mahalanobis - trace + _log_det(p.chol) - _log_det(safe_cholesky(p.SDS, "SᵀDS")))


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


def _complement(rows: Tensor, num_rows: int) -> Tensor:
    """The row numbers below ``num_rows`` that are not in ``rows``."""
    outside = torch.ones(num_rows, dtype=torch.bool, device=rows.device)
    outside[rows] = False
    return outside.nonzero()[:, 0]
