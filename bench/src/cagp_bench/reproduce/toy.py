"""Data drawn from a Gaussian process, whose hyperparameters are therefore known, and priors to learn them with."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cagp.kernels import Matern32, Scale
from cagp.methods import CholeskyGP, Method
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise
from cagp.training import FitResult, Settings, fit
from cagp_bench.reproduce.experiment import generator

START = math.log(2)
"""Where GPyTorch's lengthscales, outputscale and noise variance start, hence the paper's."""

NOISE_FLOOR = 1e-4
"""GPyTorch's smallest noise variance."""


class Truth(NamedTuple):
    """The hyperparameters that data are drawn with."""

    lengthscale: float
    outputscale: float
    noise: float  # variance

    def prior(self, num_dims: int) -> GP:
        """The process itself."""
        noise = GaussianNoise(self.noise, min(NOISE_FLOOR, self.noise / 2))
        return GP(Scale(Matern32(num_dims, self.lengthscale), self.outputscale), noise=noise)


def draw(truth: Truth, X: Tensor, seed: int) -> Tensor:
    """Noisy targets at the rows of ``X``: one draw of the process. Time O(n³)."""
    prior = truth.prior(X.shape[1])
    with torch.no_grad():
        covariance = prior.kernel(X, X) + truth.noise * torch.eye(len(X), dtype=X.dtype)
        root = torch.linalg.cholesky(covariance)
    return root @ torch.randn(len(X), generator=generator(seed, 1), dtype=X.dtype)


def new_prior(num_dims: int, start: float = START, noise_floor: float = NOISE_FLOOR) -> GP:
    """The paper's prior at its starting values: zero mean, Matérn 3/2 with a lengthscale per input, outputscale."""
    return GP(Scale(Matern32(num_dims, start), start), noise=GaussianNoise(start, noise_floor))


def trained(method: Method, X: Tensor, y: Tensor, settings: Settings, **options) -> FitResult:
    """``fit``; Ctrl-C is an interruption of everything, not the end of this fit."""
    result = fit(method, X, y, settings=settings, **options)
    if result.interrupted:
        raise KeyboardInterrupt
    if not result.steps:
        raise ArithmeticError(result.reason)
    return result


def exact(prior: GP, X: Tensor, y: Tensor) -> Posterior:
    """The exact posterior at the hyperparameters of a prior."""
    return CholeskyGP(prior).condition(X, y)


def noise_of(prior: GP) -> float:
    """The learned noise variance."""
    assert isinstance(prior.noise, GaussianNoise)
    return float(prior.noise.noise.detach())
