"""What the experiment on inducing points measures, against loops and dense formulas."""

import math

import numpy as np
import oracle
import torch

from cagp import GP, GaussianNoise, iterate
from cagp.iterative import Stopping, UnitVectors
from cagp.kernels import Matern12, Scale
from cagp_bench.reproduce.inducing_points import distance_to_data, variance_ratio


def test_distance_to_the_nearest_row_in_lengthscales():
    X, Z = torch.randn(59, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).split([50, 9])
    Z[0] = X[17]
    lengthscale = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)
    expected = [min(math.dist(z / lengthscale, x / lengthscale) for x in X) for z in Z]
    for tile_rows in (2, 256):
        found = distance_to_data(Z + 1e6, X + 1e6, lengthscale, tile_rows)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    assert float(distance_to_data(Z, X, lengthscale)[0]) == 0


def test_ratio_of_posterior_to_predictive_variance():
    g = torch.Generator().manual_seed(0)
    X, Z = torch.randn(67, 2, generator=g, dtype=torch.float64).split([60, 7])
    y = torch.sin(2 * X).sum(1)
    prior = GP(Scale(Matern12(2, 0.9), 1.2), noise=GaussianNoise(0.1))
    iteration = iterate(prior, X, y, UnitVectors(), Stopping(10))
    variance = oracle.cagp_posterior(prior, iteration.actions.S, X, y, Z).variance
    np.testing.assert_allclose(variance_ratio(iteration.posterior(), Z).numpy(), variance / (variance + 0.1), atol=1e-9)
    new = 0.02 + 0.3 * torch.rand(7, generator=g, dtype=torch.float64)
    found = variance_ratio(iteration.posterior(), Z, new).numpy()
    np.testing.assert_allclose(found, variance / (variance + 0.1 + new.numpy()), atol=1e-9)
