"""Posteriors and losses of random problems, and how far round-off may move them."""

import math

import numpy as np
import oracle
import pytest
import torch
from problems import Problem, make_prior, random_actions
from torch import Tensor, nn

from cagp import GP, CaGPOpt, GaussianNoise, elbo
from cagp.actions import ActionRule, ComputedActions
from cagp.kernels import Matern32, Scale
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.prior import ConstantMean
from cagp.projection import project

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def condition(p: Problem, actions=None) -> CaGPPosterior:
    actions = p.actions if actions is None else actions
    return CaGPPosterior(p.prior, project(p.prior, actions, p.X, p.y, p.row_noise))


def losses(p: Problem, actions=None) -> Tensor:
    """Every number the two losses report."""
    actions = p.actions if actions is None else actions
    bound = elbo(p.prior, actions, *p.data, p.row_noise)
    return torch.stack([*bound, projected_nll(p.prior, actions, *p.data, p.row_noise)]).detach()


def roundoff(p: Problem) -> float:
    """Allowed error of a variance: kernel values carry a few eps of their size k, and conditioning on data with noise
    D multiplies that by up to k √n / D. All of that is float64; an answer is rounded to the dtype of the data."""
    k = p.scale
    return 4 * EPS[torch.float64] * k * (1 + k * math.sqrt(len(p.y)) / p.noise.min()) + EPS[p.X.dtype] * k


def assert_close(actual: Tensor, expected, relative: float = 1e-10) -> None:
    """The largest error is at most ``relative`` times the largest expected value, or that of 1 where it is smaller."""
    actual, expected = oracle.array(actual), oracle.array(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * max(1.0, np.abs(expected).max())


def plain_problem(n: int, d: int, i: int, *, kernel="Scale(Matern32)", noise=0.1, seed=0, mean="zero") -> Problem:
    """A problem without oddities, for tests that need a certain shape."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    Z = torch.randn(6, d, generator=g, dtype=torch.float64)
    prior = make_prior(kernel, d, noise, g, mean=mean)
    return Problem(prior, random_actions("spatial", X, i, g), X, y, None, Z)


# --- rules ------------------------------------------------------------------------------------------------------------


def wave(n=40, d=2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, known noise variances and new inputs."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    row_noise = 0.02 + 0.3 * torch.rand(n, generator=g, dtype=torch.float64)
    return X, y, row_noise, torch.randn(6, d, generator=g, dtype=torch.float64)


def wave_prior(kernel=None, noise=None, mean=None) -> GP:
    kernel = Scale(Matern32(2, 0.9), 1.2) if kernel is None else kernel
    return GP(kernel, ConstantMean(0.1) if mean is None else mean, GaussianNoise(0.05) if noise is None else noise)


def assert_gradient_is_the_slope(method: CaGPOpt, value, *data, step: float = 1e-5) -> None:
    """Every derivative of the objective is the slope of ``value()``, an independent computation of it."""
    method.objective(*data).backward()
    for parameter in method.parameters():
        assert parameter.grad is not None
        for entry, slope in zip(parameter.data.view(-1), parameter.grad.view(-1), strict=True):
            with torch.no_grad():
                entry += step
                above = value()
                entry -= 2 * step
                below = value()
                entry += step
            assert float(slope) == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)


class Waves(ActionRule):
    """A rule of a user's own: sines of the inputs with learned frequencies."""

    def __init__(self, frequencies: Tensor):
        super().__init__()
        self.frequencies = nn.Parameter(frequencies)

    @property
    def num_actions(self) -> int:
        return self.frequencies.shape[1]

    def actions(self, prior, X, y, row_noise=None):
        S = torch.sin(X.double() @ self.frequencies)
        return ComputedActions(S / S.detach().norm(dim=0))
