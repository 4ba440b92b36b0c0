"""Likelihoods against scipy's densities, finite differences and adaptive quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from cagp.likelihood_registry import LIKELIHOODS, likelihoods_of
from cagp.likelihoods import Likelihood, Logit, NegativeBinomial, Poisson, Probit, StudentT, likelihood_class
from cagp.likelihoods.base import LEAST_PRECISION

TARGETS = {"classes": [0.0, 1.0, 1.0, 0.0], "counts": [0.0, 1.0, 7.0, 60.0], "numbers": [-1.3, 0.0, 0.4, 9.0]}
MEAN, VARIANCE = torch.tensor([-1.2, 0.3, 2.0, 3.5]).double(), torch.tensor([0.5, 2.0, 0.05, 1.0]).double()


def made(name: str) -> tuple[Likelihood, Tensor]:
    return likelihood_class(name)(), torch.tensor(TARGETS[LIKELIHOODS[name].targets]).double()


def scipy_log_density(likelihood: Likelihood, y: float, f: np.ndarray) -> np.ndarray:
    if isinstance(likelihood, Logit):
        return stats.logistic.logcdf(f if y else -f)
    if isinstance(likelihood, Probit):
        return stats.norm.logcdf(f if y else -f)
    if isinstance(likelihood, Poisson):
        return stats.poisson.logpmf(y, np.exp(f))
    if isinstance(likelihood, NegativeBinomial):
        r = 1 / float(likelihood.dispersion.detach())
        return stats.nbinom.logpmf(y, r, r / (r + np.exp(f)))
    assert isinstance(likelihood, StudentT)
    return stats.t.logpdf(y, float(likelihood.df.detach()), loc=f, scale=float(likelihood.scale.detach()))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_log_densities_are_those_of_scipy(name):
    likelihood, targets = made(name)
    f = np.linspace(-6, 6, 25)
    for y in targets.tolist():
        found = likelihood.log_density(torch.full((25,), y).double(), torch.from_numpy(f)).detach().numpy()
        np.testing.assert_allclose(found, scipy_log_density(likelihood, y, f), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_slopes_are_finite_differences(name):
    likelihood, y = made(name)
    h = 1e-4
    below, at, above = (likelihood.log_density(y, MEAN + s).detach() for s in (-h, 0.0, h))
    found = likelihood.slopes(y, MEAN)
    torch.testing.assert_close(found.first, (above - below) / (2 * h), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.second, (above - 2 * at + below) / h**2, rtol=1e-4, atol=1e-5)
    by_autograd = Likelihood.slopes(likelihood, y, MEAN)
    for one, other in zip(found, by_autograd, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def expected(of, m: float, v: float) -> float:
    """E[g(f)], f ~ Normal(m, v), by Simpson's rule on a grid that is far finer than anything in the integrand."""
    f = np.linspace(m - 12 * math.sqrt(v), m + 12 * math.sqrt(v), 40_001)
    return float(integrate.simpson(of(f) * stats.norm.pdf(f, m, math.sqrt(v)), x=f))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_expectations_are_those_of_a_fine_grid(name):
    likelihood, targets = made(name)
    site = Likelihood.site(likelihood, targets, MEAN, VARIANCE)
    log_density = likelihood.expected_log_density(targets, MEAN, VARIANCE).detach()
    predictive = likelihood.log_predictive(targets, MEAN, VARIANCE)
    for j, (y, m, v) in enumerate(zip(targets.tolist(), MEAN.tolist(), VARIANCE.tolist(), strict=True)):

        def density(f, y=y):
            return np.exp(scipy_log_density(likelihood, y, f))

        def slope(f, y=y, order=0):
            return likelihood.slopes(torch.full(f.shape, y).double(), torch.from_numpy(f))[order].numpy()

        assert float(predictive[j]) == pytest.approx(math.log(expected(density, m, v)), abs=1e-7)
        right = expected(lambda f, y=y: scipy_log_density(likelihood, y, f), m, v)
        tolerance = 1e-3 if name == "student_t" else 1e-7  # a scale far below the deviation is not smooth on the nodes
        assert float(log_density[j]) == pytest.approx(right, rel=tolerance)
        assert float(site.slope[j]) == pytest.approx(expected(slope, m, v), rel=10 * tolerance)
        curvature = -expected(lambda f, slope=slope: slope(f, order=1), m, v)
        assert float(site.precision[j]) == pytest.approx(max(curvature, LEAST_PRECISION), rel=100 * tolerance, abs=1e-9)
        if isinstance(likelihood, Poisson):
            closed = likelihood.site(targets, MEAN, VARIANCE)
            assert float(closed.precision[j]) == pytest.approx(curvature, rel=1e-8)


def test_wide_distributions_are_integrated_as_well():
    y, m, v = torch.ones(3).double(), torch.tensor([0.0, 3.0, -5.0]).double(), torch.full((3,), 16.0).double()
    found = Logit().log_predictive(y, m, v)
    for j in range(3):
        right = expected(lambda f: stats.logistic.cdf(f), float(m[j]), 16.0)
        assert float(found[j]) == pytest.approx(math.log(right), abs=1e-7)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_variance_the_predictive_density_is_that_of_the_mean(name):
    likelihood, targets = made(name)
    right = likelihood.log_density(targets, MEAN).detach()
    for tiny in (0.0, 1e-30, 1e-14):
        found = likelihood.log_predictive(targets, MEAN, torch.full_like(MEAN, tiny))
        torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-9)


def test_weights_of_outliers_fall_and_stay_positive():
    likelihood, zero = StudentT(scale=0.5, df=4.0), torch.zeros(5).double()
    y = torch.tensor([0.0, 1.0, 3.0, 10.0, 1e6]).double()
    slope, precision = likelihood.site(y, zero, zero)
    assert bool((precision > 0).all())
    assert bool((precision.diff() < 0).all())
    torch.testing.assert_close(slope, likelihood.slopes(y, zero).first, rtol=1e-9, atol=0)  # Newton's mean is a mode
    assert float(likelihood.slopes(y, zero).second[2]) > 0  # where the log density bends upwards


def test_samples_have_the_predicted_moments():
    generator = torch.Generator().manual_seed(1)
    m, v = torch.tensor([0.4]).double(), torch.tensor([0.3]).double()
    for name in LIKELIHOODS:
        likelihood, _ = made(name)
        f = m + v.sqrt() * torch.randn(400_000, generator=generator).double()
        draws, moments = likelihood.sample(f, generator), likelihood.predictive_moments(m, v)
        assert float(draws.mean()) == pytest.approx(float(moments.mean), abs=0.01)
        assert float(draws.var()) == pytest.approx(float(moments.variance), rel=0.05)
        if LIKELIHOODS[name].targets != "numbers":
            assert torch.equal(draws, draws.round())
            assert bool((draws >= 0).all())


@pytest.mark.parametrize("name", [n for n in LIKELIHOODS if n != "student_t"])
def test_the_constant_is_the_most_likely_one(name):
    likelihood, y = made(name)
    y = torch.cat([y, y[-2:]])
    c = likelihood.constant(y)
    total = [float(likelihood.log_density(y, torch.full_like(y, c + s)).detach().sum()) for s in (-0.01, 0.0, 0.01)]
    assert total[1] > max(total[0], total[2])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("logit", 2.0, "other than 0 and 1"),
        ("poisson", -1.0, "no counts"),
        ("negative_binomial", 0.5, "no counts"),
        ("poisson", math.nan, "no counts"),
        ("student_t", math.inf, "NaN or infinite"),
    ],
)
def test_targets_that_are_impossible_are_refused(name, value, words):
    likelihood, y = made(name)
    likelihood.check(y)
    with pytest.raises(ValueError, match=words):
        likelihood.check(torch.cat([y, torch.tensor([value])]))


def test_the_registry_names_every_class():
    assert likelihoods_of("classes") == ("logit", "probit")
    for name, entry in LIKELIHOODS.items():
        assert likelihood_class(name).__name__ == entry.class_name
    with pytest.raises(ValueError, match=r"expected one of logit, probit"):
        likelihood_class("gamma")
