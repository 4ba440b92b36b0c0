"""Starting values of the hyperparameters from the data, so that training does not begin by finding their scale."""

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.dataset import Data, column_statistics
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.kernels import StartingData
from cagp.methods import CaGPLocal
from cagp.prior import GP, ConstantMean, GaussianNoise, LinearMean
from cagp.training import fit

NOISE = 0.3
"""The noise variance starts at this share of the targets' variance."""

LOCAL_STEPS = 100
"""Steps on the nearest neighbours, whose cost hardly depends on n."""


@torch.no_grad()
def start_from_data(
    prior: GP,
    X: Float[Tensor, "n d"] | Data,
    y: Float[Tensor, " n"] | None = None,
    *,
    stretch: float = 1.0,
    outputscale: float | None = None,
) -> GP:
    """Set the prior's lengthscales, outputscales, noise and mean to values that suit the data; return the prior.

    Typical distances between points in d dimensions grow with √d, hence so do lengthscales. Inputs that do not vary
    keep their lengthscale. Periods start at the strongest ones of the targets.

    Args:
        stretch: multiplies the lengthscales.
        outputscale: where outputscales start; None for the variance of the targets.
    """
    data = Data.of(X, y)
    spread = column_statistics(data.X).variance.sqrt().cpu()
    variance = float(column_statistics(data.y[:, None]).variance) or 1.0
    prior.kernel.start_from(StartingData(data.X, data.y, spread, variance))
    if stretch != 1.0:
        prior.kernel.stretch(stretch)
    if outputscale is not None:
        prior.kernel.rescale(outputscale)
    for part in prior.modules():
        if isinstance(part, GaussianNoise):
            part.noise = max(NOISE * variance, 2 * part.noise_floor)
        elif isinstance(part, ConstantMean | LinearMean):
            part.constant.fill_(float(data.y.double().mean()))
    return prior


def start_from_neighbours(
    prior: GP,
    X: Float[Tensor, "n d"] | Data,
    y: Float[Tensor, " n"] | None = None,
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
    data = Data.of(X, y, row_noise)
    start_from_data(prior, data)
    local = CaGPLocal(prior, seed=seed, max_bytes=max_bytes)
    fit(local, data.double(), num_steps=num_steps)
    return prior
