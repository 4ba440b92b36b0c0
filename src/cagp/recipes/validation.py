"""Validation rows: how they are held out, and how exact inference predicts each row from the others."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.engine import precise_product
from cagp.linalg import NotPositiveDefiniteError, safe_cholesky
from cagp.prior import GP
from cagp.recipes.task import Task

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000


class Parts(NamedTuple):
    """A task in two: rows to learn from, and validation rows."""

    rows: Tensor  # of the whole task, those of ``train``
    train: Task
    held_out: Task
    held_rows: Tensor  # of the whole task, those of ``held_out``


def hold_out(task: Task, most_rows: int = VALIDATION_ROWS, share: float = VALIDATION_SHARE) -> Parts:
    """A tenth of the rows, at most ``most_rows``, by the rule and the seed of the task.

    Where a group, or the rows of one time, are more than ``most_rows``, some of them are validation rows and none is
    learned from.
    """
    n, device = task.num_rows, task.X.device
    train, test = task.rule.split(n, min(share, most_rows / n), task.seed)
    if len(test) > most_rows and task.rule.kind != "random":
        test = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(task.seed))[:most_rows]]
    train, test = train.to(device), test.to(device)
    return Parts(train, task.rows(train), task.rows(test), test)


@torch.no_grad()
def leave_out(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    group: Int[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of each target given all others, or given those of other groups; of a new observation.

    With P = (K + noise)⁻¹ and w = P(y - m), the targets of a group B given all others have the mean y_B - P_BB⁻¹ w_B
    and the covariance P_BB⁻¹; a row alone has yᵣ - wᵣ / Pᵣᵣ and 1 / Pᵣᵣ. A matrix that cannot be factorised predicts
    with infinite variance. Time O(n³), memory O(n²).
    """
    K = precise_product(prior.kernel, X, X)
    K = K.diagonal_scatter(K.diagonal() + prior.noise_variance(X, row_noise))
    residual = y.double() - prior.mean(X.double())
    try:
        precision = torch.cholesky_inverse(safe_cholesky(K, "K̂"))
        weights = precision @ residual
        if group is None:
            variance = 1 / precision.diagonal()
            return y.double() - weights * variance, variance
        mean, variance = torch.empty_like(residual), torch.empty_like(residual)
        for value in group.unique():
            rows = (group == value).nonzero()[:, 0]
            covariance = torch.cholesky_inverse(
                safe_cholesky(precision[rows[:, None], rows], "the precision of a group")
            )
            mean[rows] = y[rows].double() - covariance @ weights[rows]
            variance[rows] = covariance.diagonal()
        return mean, variance
    except NotPositiveDefiniteError:
        return torch.zeros_like(residual), torch.full_like(residual, torch.inf)
