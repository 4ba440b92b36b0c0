"""Data drawn from Gaussian processes with known hyperparameters, as in the paper's experiments on generated data."""

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.data import Dataset
from cagp.kernels import Matern32, Scale
from cagp.linalg import safe_cholesky
from cagp.prior import GP, GaussianNoise

PLACEMENT_ROWS = 500
"""The rows of the paper's experiment on where inducing points go."""

GAP = (0.25, 0.75)
"""Where the data of ``gap_data`` are sparse."""


def matern32_prior(
    num_dims: int, lengthscale: float = 0.25, outputscale: float = 1.0, noise: float = 0.01, noise_floor: float = 1e-6
) -> GP:
    """A zero-mean process with a Matérn 3/2 kernel; ``noise`` is a variance."""
    return GP(Scale(Matern32(num_dims, lengthscale), outputscale), noise=GaussianNoise(noise, noise_floor))


def draw_targets(prior: GP, X: Float[Tensor, "n d"], seed: int = 0) -> Float[Tensor, " n"]:
    """Targets y ~ Normal(m(X), K̂) of a process at some rows, float64, the same for the same seed. Time O(n³)."""
    inputs = X.double()
    with torch.no_grad():
        covariance = prior.kernel(inputs, inputs) + torch.diag(prior.noise(inputs, None))
        root = safe_cholesky(covariance, "the covariance of the targets")
        white = torch.randn(len(X), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return prior.mean(inputs) + root @ white


def uniform_data(num_dims: int, num_rows: int = PLACEMENT_ROWS, seed: int = 0, prior: GP | None = None) -> Dataset:
    """Rows uniform in the unit cube, targets of a Matérn 3/2 process with white noise.

    The paper's data for inducing points in 1 to 25 dimensions; it does not state the hyperparameters, so those of
    ``matern32_prior`` stand for them.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_rows, num_dims, generator=generator, dtype=torch.float64)
    names = tuple(f"x{j}" for j in range(num_dims))
    return Dataset(X, draw_targets(prior or matern32_prior(num_dims), X, seed + 1), (*names, "y"))


def gap_data(num_rows: int = 100, num_inside: int = 2, seed: int = 0, prior: GP | None = None) -> Dataset:
    """One input in [0, 1] with few rows in ``GAP``: data like those of the paper's first figure, sparse in the middle.

    Args:
        num_inside: how many of the rows are in the gap.
    """
    if not 0 <= num_inside < num_rows:
        raise ValueError(f"num_inside is {num_inside}, expected fewer than the {num_rows} rows.")
    generator = torch.Generator().manual_seed(seed)
    low, high = GAP
    inside = low + (high - low) * torch.rand(num_inside, generator=generator, dtype=torch.float64)
    outside = (1 - high + low) * torch.rand(num_rows - num_inside, generator=generator, dtype=torch.float64)
    outside = torch.where(outside < low, outside, outside + (high - low))
    X = torch.cat([outside, inside]).sort().values[:, None]
    return Dataset(X, draw_targets(prior or matern32_prior(1, 0.1), X, seed + 1), ("x", "y"))
