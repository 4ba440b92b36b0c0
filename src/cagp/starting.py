"""Starting values of the hyperparameters from the data, so that training does not begin by finding their scale."""

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.kernels import Cosine, Periodic, Scale, Stationary, with_columns
from cagp.mapped import column_statistics
from cagp.methods import CaGPLocal
from cagp.periodogram import CHANCE, peaks
from cagp.prior import GP, ConstantMean, GaussianNoise, LinearMean
from cagp.training import fit

LENGTHSCALE = 2.0
"""Lengthscales start at this times √d standard deviations of their input; see docs/training.md for the evidence."""

NOISE = 0.3
"""The noise variance starts at this share of the targets' variance."""

LOCAL_STEPS = 100
"""Steps on the nearest neighbours, whose cost hardly depends on n."""


@torch.no_grad()
def start_from_data(prior: GP, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> GP:
    """Set the prior's lengthscales, outputscales, noise and mean to values that suit the data; return the prior.

    Typical distances between points in d dimensions grow with √d, hence so do lengthscales. Inputs that do not vary
    keep their lengthscale. Periods start at the strongest ones of the targets.
    """
    check_data(X, y)
    spread = column_statistics(X).variance.sqrt().cpu()
    variance = float(column_statistics(y[:, None]).variance) or 1.0
    for part, columns in with_columns(prior.kernel, range(X.shape[1])):
        if isinstance(part, Stationary):
            scaled = LENGTHSCALE * len(columns) ** 0.5 * spread[columns]
            part.lengthscale = torch.where(spread[columns] > 0, scaled, part.lengthscale.cpu())
        elif isinstance(part, Scale):
            part.outputscale = variance
        elif isinstance(part, Periodic | Cosine):
            part.period = starting_periods(part, X[:, columns], y)
    for part in prior.modules():
        if isinstance(part, GaussianNoise):
            part.noise = max(NOISE * variance, 2 * part.noise_floor)
        elif isinstance(part, ConstantMean | LinearMean):
            part.constant.fill_(float(y.double().mean()))
    return prior


def starting_periods(
    kernel: Periodic | Cosine, X: Float[Tensor, "n d"], y: Float[Tensor, "n *q"]
) -> Float[Tensor, " d"]:
    """The strongest period of the targets along each column; twice the range of a column where there is none.

    Over half a period a periodic function can take any shape: such a column does not repeat.
    """
    periods = kernel.period.detach().cpu().clone()
    for j, x in enumerate(X.double().cpu().unbind(1)):
        found, span = peaks(x, y), float(x.max() - x.min())
        if found and found[0].by_chance < CHANCE:
            periods[j] = found[0].period * kernel.unit[j]
        elif span > 0:
            periods[j] = 2 * span * kernel.unit[j]
    return periods


def start_from_neighbours(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    num_steps: int = LOCAL_STEPS,
    seed: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> GP:
    """``start_from_data``, then ``num_steps`` of CaGP-Local, which take seconds for any number of rows.

    It finds the inputs that matter and how smooth the function is. The noise that it finds suits many neighbours; a
    method that explains less, with fewer actions or inducing points, needs more of it (``raise_noise``).
    """
    start_from_data(prior, X, y)
    local = CaGPLocal(prior, seed=seed, max_bytes=max_bytes)
    fit(local, X.double(), y.double(), row_noise, num_steps=num_steps)
    return prior
