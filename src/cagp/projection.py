"""The data seen through the actions: computed once, shared by posterior and losses."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import Actions
from cagp.checks import check_data
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, precise_product, recomputed
from cagp.kernels import Kernel
from cagp.linalg import safe_cholesky
from cagp.prior import GP


class Projection(NamedTuple):
    """What the posterior and both losses need of the support. Derivations: docs/derivations.md."""

    X: Float[Tensor, "m d"]  # inputs of the support
    W: Float[Tensor, "m i"] | BlockWeights  # S on the support, unit columns
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
    KS: Float[Tensor, "m i"] | None = None,
    check: bool = True,
) -> Projection:
    """Lines 2 to 5 of Algorithm S2 (batch version). Time O(m² d + m i + i³), memory O(m d + i² + tile).

    Args:
        KS: ``support_product`` of the same arguments, where it is needed elsewhere too; None to compute SᵀKS in tiles
            that are not kept.
        check: False if ``check_projection`` has seen these data; so also in ``cagp.losses``.
    """
    if check:
        check_projection(prior, actions, X, y, row_noise)
    rows = actions.support
    X_support, W = X[rows], actions.weights(X.dtype)
    residual = y[rows].double() - prior.mean(X_support.double())
    noise = prior.noise.of_rows(X, rows, row_noise)

    SKS = _gram(prior.kernel, X_support, W, max_bytes) if KS is None else _symmetric(_left(W, KS))
    SDS = noise_gram(W, noise)
    targets = _left(W, residual[:, None])[:, 0]
    chol = safe_cholesky(SKS + SDS, "SᵀK̂S")
    weights = torch.cholesky_solve(targets[:, None], chol)[:, 0]
    return Projection(X_support, W, SKS, SDS, chol, targets, weights)


def support_product(
    prior: GP, actions: Actions, X: Float[Tensor, "n d"], max_bytes: int = DEFAULT_MAX_BYTES
) -> Float[Tensor, "m i"]:
    """KS at the rows of the support, in their order, float64."""
    inputs = X[actions.support]
    return precise_product(prior.kernel, inputs, inputs, actions.weights(X.dtype), max_bytes=max_bytes)


def check_projection(prior: GP, actions: Actions, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
    """Raise ValueError unless the data fit together, and suit the prior's noise and the actions. Time O(n d)."""
    check_data(X, y, row_noise)
    prior.noise.check(row_noise)
    check_actions(actions, X)


def check_actions(actions: Actions, X: Tensor) -> None:
    """Raise ValueError unless the actions were made for as many rows as ``X`` has."""
    if actions.num_rows != X.shape[0]:
        raise ValueError(f"X has {X.shape[0]} rows, the actions were made for {actions.num_rows}; make them from X.")


def _gram(kernel: Kernel, X: Tensor, W: Tensor | BlockWeights, max_bytes: int) -> Tensor:
    """WᵀK(X, X)W; for blocks from tiles of K(X, X)W, each with the columns from its first block on."""
    if not isinstance(W, BlockWeights) or len(groups := _groups(W, max_bytes)) == 1:
        return _symmetric(_left(W, precise_product(kernel, X, X, W, max_bytes=max_bytes)))
    strips = []
    for first, last in groups:
        begin, end = int(W.offsets[first]), int(W.offsets[last])
        rest = W.blocks(first, W.num_columns)

        def strip(left: Tensor, right: Tensor, begin=begin, end=end, first=first, last=last, rest=rest) -> Tensor:
            KS = precise_product(kernel, X[begin:end], X[begin:], rest._replace(values=right), max_bytes=max_bytes)
            return W.blocks(first, last)._replace(values=left).project(KS)

        found = recomputed(strip, W.values[begin:end], rest.values)
        strips.append(torch.nn.functional.pad(found, (first, 0)))
    upper = torch.cat(strips).triu()
    return upper + upper.triu(1).mT


def _groups(W: BlockWeights, max_bytes: int) -> list[tuple[int, int]]:
    """Consecutive blocks, first and one past the last, whose rows of KS and of its gradient fit into ``max_bytes``."""
    most_rows = max_bytes // (2 * W.num_columns * 8)
    groups, first, rows = [], 0, 0
    for block, size in enumerate(W.sizes.tolist()):
        if rows + size > most_rows and block > first:
            groups.append((first, block))
            first, rows = block, 0
        rows += size
    return [*groups, (first, W.num_columns)]


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
