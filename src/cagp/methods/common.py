"""What the methods of this package share: the losses of actions as named terms, and words about hyperparameters."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.actions import Actions
from cagp.dataset import Data
from cagp.engine import backend_for
from cagp.kernels import Kernel
from cagp.losses import elbo, leave_one_out_nll, projected_nll
from cagp.mapped import column_statistics
from cagp.prior import GP, GaussianNoise

ACTION_RATE = 1.0
"""Adam's learning rate of the weights of actions; docs/training.md has the evidence."""

IDLE, MOST_LISTED = 0.01, 12
IDLE_ELEMENTS = 2**20  # of the rows that are compared at a time

Loss = Literal["elbo", "projected", "loo"]
"""The evidence lower bound (the paper's recommendation), the projected-data marginal likelihood, or each target's
density given the projections without it."""


def check_loss(loss: str) -> None:
    """Raise ValueError unless ``loss`` is one of the three."""
    if loss not in ("elbo", "projected", "loo"):
        raise ValueError(f'loss is {loss!r}, expected "elbo", "projected" or "loo".')


def loss_terms(
    loss: Loss, prior: GP, actions: Actions, data: Data, max_bytes: int, rows: Int[Tensor, " b"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """Terms per row whose sum is the loss of these actions, to be minimised.

    Args:
        rows: the rows to estimate a sum over rows from; None for all rows. The projected-data loss sees none but the
            support.
    """
    if loss == "elbo":
        bound = elbo(prior, actions, *data.tensors, max_bytes, rows=rows, check=False)
        terms = {"negative_log_likelihood": -bound.expected_log_likelihood, "kl": bound.kl}
    elif loss == "loo":
        terms = {"loo_nll": leave_one_out_nll(prior, actions, *data.tensors, max_bytes, rows=rows, check=False)}
    else:
        terms = {"projected_nll": projected_nll(prior, actions, *data.tensors, max_bytes, check=False)}
    return {name: term / data.num_rows for name, term in terms.items()}


def method_findings(words: str, prior: GP, data: Data, names: Sequence[str] | None = None) -> list[str]:
    """One sentence on a method with its backend and dtype, and what a user should know about its hyperparameters.

    Args:
        words: what the sentence begins with.
    """
    dtype = str(data.X.dtype).removeprefix("torch.")
    summary = f"{words}, kernel products by {backend_for(prior.kernel, data.X)}, {dtype}."
    return [summary, *prior_findings(prior, data, names)]


def prior_findings(prior: GP, data: Data, names: Sequence[str] | None = None) -> list[str]:
    """What a user should know about learned hyperparameters: noise at its floor, inputs that hardly matter."""
    found = []
    noise = prior.noise
    if isinstance(noise, GaussianNoise) and noise.noise.item() < 1.1 * noise.noise_floor:
        found.append(
            f"The noise variance sits at its floor ({noise.noise_floor:g}): the data look noise-free to this "
            "model. A lower floor may fit better; it needs float64 data."
        )
    idle = [j if names is None else names[j] for j in idle_inputs(prior.kernel, data.X, data.y)]
    if idle:
        more = len(idle) - MOST_LISTED
        listed = ", ".join(map(str, idle[:MOST_LISTED])) + (f" and {more} more" if more > 0 else "")
        found.append(
            f"{len(idle)} of {data.X.shape[1]} inputs hardly matter to this model (less than {IDLE:.0%} of the "
            f"targets' variance, from end to end): {listed}."
        )
    return found


@torch.no_grad()
def idle_inputs(kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[int]:
    """Columns that vary and hardly matter: from their smallest value to their largest, the prior lets f change little.

    The variance of the change is k(a, a) - 2k(a, b) + k(b, b), a and b the mean row with either value there. Time
    O(d²), memory O(tile).
    """
    low, high = X.amin(0).double(), X.amax(0).double()
    middle, change = column_statistics(X).mean, torch.empty_like(low)
    for columns in torch.arange(len(low), device=X.device).split(max(1, IDLE_ELEMENTS // len(low))):
        A = middle.repeat(len(columns), 1)
        B = A.scatter(1, columns[:, None], high[columns, None])
        A = A.scatter(1, columns[:, None], low[columns, None])
        change[columns] = kernel.diag(A) - 2 * kernel(A[:, None], B[:, None])[:, 0, 0] + kernel.diag(B)
    idle = (change < IDLE * column_statistics(y[:, None]).variance) & (high > low)
    return idle.nonzero()[:, 0].tolist()
