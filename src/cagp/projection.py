"""The data seen through the actions: computed once, shared by posterior and losses."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_data
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product
from cagp.linalg import safe_cholesky
from cagp.prior import GP


class Projection(NamedTuple):
    """What the posterior and both losses need of the support. Derivations: docs/derivations.md."""

    X: Float[Tensor, "m d"]  # inputs of the support
    W: Float[Tensor, "m i"] | BlockWeights  # S on the support, unit columns
    KS: Float[Tensor, "m i"]  # k(X, X) W
    SKS: Float[Tensor, "i i"]  # float64, as everything below
    SDS: Float[Tensor, "i i"]
    chol: Float[Tensor, "i i"]  # LLᵀ = SKS + SDS
    targets: Float[Tensor, " i"]  # Sᵀ(y - m(X))
    weights: Float[Tensor, " i"]  # ṽ = (LLᵀ)⁻¹ Sᵀ(y - m(X)), the projected representer weights


def project(
    prior: GP,
    actions: Actions,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    *,
    check: bool = True,
) -> Projection:
    """Lines 2 to 5 of Algorithm S2 (batch version). Time O(m² d + m i + i³), memory O(m i).

    Args:
        check: False if ``check_projection`` has seen these data.
    """
    if check:
        check_projection(prior, actions, X, y, row_noise)
    rows = actions.support
    X_support, W = X[rows], actions.weights(X.dtype)
    residual = (y[rows] - prior.mean(X_support)).double()
    noise = prior.noise(X, row_noise)[rows]

    KS = kernel_product(prior.kernel, X_support, X_support, W, max_bytes=max_bytes)
    SKS = _symmetric(_left(W, KS))
    SDS = noise_gram(W, noise)
    targets = _left(W, residual[:, None])[:, 0]
    chol = safe_cholesky(SKS + SDS, "SᵀK̂S")
    weights = torch.cholesky_solve(targets[:, None], chol)[:, 0]
    return Projection(X_support, W, KS, SKS, SDS, chol, targets, weights)


def check_projection(prior: GP, actions: Actions, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
    """Raise ValueError unless the data fit together, and suit the prior's noise and the actions. Time O(n d)."""
    check_data(X, y, row_noise)
    prior.noise.check(row_noise)
    if actions.num_rows != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows, the actions were made for {actions.num_rows}; make them from X.")


def _left(W: Tensor | BlockWeights, F: Tensor) -> Tensor:
    """WᵀF in float64."""
    return W.project(F) if isinstance(W, BlockWeights) else W.double().mT @ F.double()


def noise_gram(W: Tensor | BlockWeights, noise: Tensor) -> Tensor:
    """SᵀDS: diagonal for blocks, whose columns share no row."""
    if isinstance(W, BlockWeights):
        return torch.diag(W._replace(values=W.values.double().square()).project(noise[:, None])[:, 0])
    S = W.double()
    return S.mT @ (noise[:, None] * S)


def _symmetric(A: Tensor) -> Tensor:
    return (A + A.mT) / 2
