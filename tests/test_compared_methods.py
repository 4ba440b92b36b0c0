"""The exact GP against dense formulas, and all compared methods on odd data, with known noise and with priors."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from problems import recipes
from torch import Tensor

from cagp import CGGP, GP, MAP, SGPR, SVGP, CholeskyGP, ConstantMean, GaussianNoise, KnownNoise, fit
from cagp.kernels import Linear, Matern12, Matern32, Scale
from cagp.methods import LogNormal, compared

ROUGH = ("Matern12", "Matern32", "Scale(Matern32)", "Constant * Matern32")  # k(Z, Z) well conditioned


def assert_close(actual, expected, relative: float = 1e-8) -> None:
    """The largest error is at most ``relative`` times the largest expected value, or that of 1 where it is smaller."""
    actual, expected = oracle.array(actual), oracle.array(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * max(1.0, np.abs(expected).max())


def data(n: int = 60, d: int = 2, seed: int = 0, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and known noise variances."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X.sum(1)) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    row_noise = 0.05 + 0.2 * torch.rand(n, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype), row_noise.to(dtype)


def prior_of(d: int = 2, noise: float = 0.1) -> GP:
    return GP(Scale(Matern32(d, [0.8 + 0.3 * k for k in range(d)]), 1.4), ConstantMean(0.3), GaussianNoise(noise))


def loss(method, *data) -> float:
    with torch.no_grad():
        return float(method.objective(*data))


def gradients(method, *data) -> list[Tensor]:
    parameters = [p for p in method.parameters() if p.requires_grad]
    return list(torch.autograd.grad(method.objective(*data), parameters))


def assert_gradient_is_the_slope(method, *data, relative: float = 1e-6) -> None:
    """The gradient along a random direction is a central difference of the objective."""
    g = torch.Generator().manual_seed(5)
    parameters = [p for p in method.parameters() if p.requires_grad]
    directions = [torch.randn(p.shape, generator=g, dtype=torch.float64) for p in parameters]
    slope = sum(float((a * b).sum()) for a, b in zip(gradients(method, *data), directions, strict=True))
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            for p, direction in zip(parameters, directions, strict=True):
                p += step * direction
            values.append(loss(method, *data))
            for p, direction in zip(parameters, directions, strict=True):
                p -= step * direction
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=relative, abs=1e-8)
    assert abs(slope) > 1e-3


# --- the exact GP -----------------------------------------------------------------------------------------------------


@given(recipes())
def test_cholesky_is_the_exact_gp(recipe):
    p = recipe.build()
    method = CholeskyGP(p.prior)
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise)
    assert_close(method.objective(p.X, p.y, p.row_noise), -log_p / len(p.y), 1e-10)
    expected = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    posterior = method.condition(p.X, p.y, p.row_noise)
    assert_close(posterior.mean(p.Z), expected.mean, 1e-10)
    assert_close(posterior.covariance(p.Z), expected.covariance, 1e-10)
    assert_close(posterior.predict(p.Z).variance, expected.variance, 1e-10)


@given(recipes(dtype=torch.float32, smallest_noise=0.1))
def test_cholesky_in_float32_is_the_exact_gp_to_float32_accuracy(recipe):
    p = recipe.build()
    method = CholeskyGP(p.prior)
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise)
    assert_close(method.objective(p.X, p.y, p.row_noise), -log_p / len(p.y), 1e-6)
    expected = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    prediction = method.condition(p.X, p.y, p.row_noise).predict(p.Z)
    assert_close(prediction.mean, expected.mean, 1e-6)
    assert_close(prediction.variance, expected.variance, 1e-6)


@pytest.mark.parametrize("known", [False, True])
def test_the_gradient_of_cholesky_is_the_slope(known):
    X, y, row_noise = data(30)
    assert_gradient_is_the_slope(CholeskyGP(prior_of()), X, y, row_noise if known else None)


def test_cholesky_refuses_more_rows_than_the_memory_holds_and_says_how_many_it_could(monkeypatch):
    X, y, _ = data(50)
    monkeypatch.setattr(compared, "available_memory", lambda: compared.memory_needed(40))
    with pytest.raises(MemoryError, match=r"for 50 rows.*enough for about 40 rows"):
        CholeskyGP(prior_of()).objective(X, y)
    with pytest.raises(MemoryError, match="CaGPOpt, SGPR, SVGP; or CGGP"):
        CholeskyGP(prior_of()).condition(X, y)
    monkeypatch.setattr(compared, "available_memory", lambda: None)  # a machine that does not say
    assert math.isfinite(loss(CholeskyGP(prior_of()), X, y))


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("oddity", ["duplicate rows", "constant column", "one row"])
def test_odd_data_are_no_trouble(oddity, dtype):
    X, y, row_noise = data(30, dtype=dtype)
    if oddity == "duplicate rows":
        X = X[:6].repeat(5, 1)
    elif oddity == "constant column":
        X[:, 1] = 3.7
    else:
        X, y, row_noise = X[:1], y[:1], row_noise[:1]
    exact = oracle.exact_posterior(prior_of(), X, y, X, row_noise)
    tolerance = 1e-5 if dtype == torch.float64 else 2e-3
    sparse = SVGP(prior_of(), X)
    sparse.natural_step(X, y, row_noise)
    for method in (
        CholeskyGP(prior_of()),
        SGPR(prior_of(), X),
        sparse,
        CGGP(prior_of(), tolerance=1e-6),
    ):
        prediction = method.condition(X, y, row_noise).predict(X)
        assert prediction.mean.dtype == dtype
        assert_close(prediction.mean, exact.mean, tolerance)
        assert_close(prediction.variance, exact.variance, tolerance)
        assert all(bool(torch.isfinite(g).all()) for g in gradients(method, X, y, row_noise))


@pytest.mark.parametrize("make", [CholeskyGP, CGGP, lambda p: SGPR(p, data(5)[0]), lambda p: SVGP(p, data(5)[0])])
def test_known_noise_and_priors_on_hyperparameters_work_with_every_method(make):
    X, y, row_noise = data(40)
    method = make(GP(Scale(Matern12(2)) + Linear(2), noise=KnownNoise()))
    with pytest.raises(ValueError, match="row_noise is missing"):
        method.objective(X, y)
    wrapped = MAP(method, outputscale=LogNormal(0.0, 1.0))
    result = fit(wrapped, X, y, row_noise, num_steps=4, lr=0.05)
    assert result.steps[-1].loss < result.steps[0].loss
    assert not result.failures
