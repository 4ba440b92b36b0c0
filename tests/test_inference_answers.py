"""What a posterior answers: covariances, noise, samples and gradients."""

import math
import warnings

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from inference_problems import assert_close, condition, plain_problem
from problems import KERNELS, recipes

from cagp import GP, CaGPOpt, GaussianNoise, KnownNoise, elbo, fit
from cagp.actions import BlockActions, DenseActions
from cagp.kernels import RBF
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.projection import project


@given(recipes())
def test_covariance_between_two_sets_is_a_block_of_the_joint_covariance(recipe):
    p = recipe.build()
    posterior = condition(p)
    joint = oracle.cagp_posterior(p.prior, p.S, p.X, p.y, torch.cat([p.Z, p.X]), p.row_noise).covariance
    num_new = len(p.Z)
    assert_close(posterior.covariance(p.Z, p.X), joint[:num_new, num_new:])
    assert_close(posterior.covariance(p.X, p.Z), joint[num_new:, :num_new])
    assert_close(posterior.variance(p.Z), posterior.covariance(p.Z).diagonal())


@given(recipes())
def test_noise_adds_its_variance_to_the_diagonal(recipe):
    p = recipe.build()
    posterior = condition(p)
    new_noise = None if p.row_noise is None else torch.linspace(0.1, 2, len(p.Z), dtype=p.Z.dtype)
    D = oracle.noise_vector(p.prior.noise, len(p.Z), new_noise)
    dense = oracle.cagp_posterior(p.prior, p.S, p.X, p.y, p.Z, p.row_noise)
    assert_close(posterior.variance(p.Z, noise=True, row_noise=new_noise), dense.variance + D)
    assert_close(posterior.covariance(p.Z, noise=True, row_noise=new_noise), dense.covariance + np.diag(D))
    assert_close(posterior.predict(p.Z, noise=True, row_noise=new_noise).mean, dense.mean)


def test_noise_between_two_sets_and_row_noise_without_noise_are_errors():
    p = plain_problem(10, 2, 4)
    posterior = condition(p)
    with pytest.raises(ValueError, match="noise=True needs Z=None"):
        posterior.covariance(p.Z, p.Z, noise=True)
    row_noise = torch.ones(len(p.Z), dtype=torch.float64)
    for ask in (posterior.predict, posterior.variance, posterior.covariance):
        with pytest.raises(ValueError, match="row_noise was given without noise=True"):
            ask(p.Z, row_noise=row_noise)


@pytest.mark.parametrize("kernel", ["Scale(Matern32)", "Matern12 * RBF", "Linear + Matern52"])
def test_small_memory_budgets_change_nothing(kernel):
    p = plain_problem(33, 3, 9, kernel=kernel)
    p = p._replace(Z=torch.cat([p.Z, p.X]))
    for actions in (p.actions, DenseActions(torch.from_numpy(p.S))):
        whole = condition(p, actions)
        tiled = CaGPPosterior(p.prior, project(p.prior, actions, *p.data, max_bytes=1), max_bytes=1)
        assert_close(tiled.mean(p.Z), whole.mean(p.Z), 1e-13)
        assert_close(tiled.covariance(p.Z), whole.covariance(p.Z), 1e-13)
        for a, b in zip(tiled.predict(p.Z, noise=True), whole.predict(p.Z, noise=True), strict=True):
            assert_close(a, b, 1e-13)
        assert_close(elbo(p.prior, actions, *p.data, max_bytes=1).value, elbo(p.prior, actions, *p.data).value, 1e-13)
        small, large = (projected_nll(p.prior, actions, *p.data, max_bytes=b) for b in (1, 2**28))
        assert_close(small, large, 1e-13)


@pytest.mark.parametrize("kernel", ["Scale(Matern32)", "Linear + Matern52", "Matern12 * RBF"])
def test_answers_are_differentiable_in_the_inputs(kernel):
    p = plain_problem(9, 2, 4, kernel=kernel)
    posterior = condition(p)
    Z = p.Z.clone().requires_grad_()
    for ask in (posterior.mean, posterior.variance, posterior.covariance):
        assert torch.autograd.gradcheck(ask, (Z,), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_posterior_carries_no_gradients_of_the_parameters(kernel):
    p = plain_problem(9, 2, 4, kernel=kernel, mean="linear")
    posterior = condition(p)
    assert not posterior.mean(p.Z).requires_grad
    assert not posterior.variance(p.Z, noise=True).requires_grad
    assert not posterior.covariance(p.Z).requires_grad


def test_further_training_leaves_a_posterior_alone():
    p = plain_problem(20, 2, 5, mean="linear")
    method = CaGPOpt(p.prior, p.actions)
    posterior = method.condition(*p.data)
    mean, covariance = posterior.mean(p.Z).clone(), posterior.covariance(p.Z).clone()
    before = {name: parameter.detach().clone() for name, parameter in method.named_parameters()}
    fit(method, *p.data, num_steps=3, lr=0.3)
    assert all(not torch.equal(parameter, before[name]) for name, parameter in method.named_parameters())
    assert float((method.condition(*p.data).mean(p.Z) - mean).abs().max()) > 1e-3
    p.X.zero_()  # nor does it share memory with the data
    p.y.zero_()
    assert torch.equal(posterior.mean(p.Z), mean)
    assert torch.equal(posterior.covariance(p.Z), covariance)


@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_the_posterior_mean_and_covariance(noise):
    p = plain_problem(12, 2, 5, mean="constant")
    posterior = condition(p)
    num_samples = 40_000
    samples = posterior.sample(p.Z, num_samples, noise=noise, generator=torch.Generator().manual_seed(1))
    covariance = posterior.covariance(p.Z, noise=noise)
    variance = covariance.diagonal()
    error = (samples.mean(0) - posterior.mean(p.Z)) / (variance / num_samples).sqrt()
    assert float(error.abs().max()) < 4.5  # standard errors
    spread = torch.sqrt((torch.outer(variance, variance) + covariance.square()) / num_samples)
    assert float(((torch.cov(samples.T) - covariance) / spread).abs().max()) < 4.5


def test_samples_repeat_with_the_generator_and_leave_the_global_one_alone():
    p = plain_problem(12, 2, 5)
    posterior = condition(p)
    state = torch.get_rng_state()
    first, again, other = (posterior.sample(p.Z, 3, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


def test_samples_take_the_noise_of_each_row():
    p = plain_problem(12, 2, 5)
    row_noise = torch.linspace(1, 9, len(p.Z), dtype=torch.float64)
    posterior = condition(p._replace(prior=GP(p.prior.kernel, noise=KnownNoise()), row_noise=p.y.new_full((12,), 0.1)))
    g = torch.Generator().manual_seed(0)
    samples = posterior.sample(p.Z, 20_000, noise=True, row_noise=row_noise, generator=g)
    expected = posterior.variance(p.Z, noise=True, row_noise=row_noise)
    assert float(((samples.var(0) - expected) / expected).abs().max()) < 4.5 * math.sqrt(2 / 20_000)


def test_a_smooth_posterior_can_be_sampled_in_float32():
    X = torch.linspace(0, 1, 30)[:, None]
    prior = GP(RBF(1), noise=GaussianNoise(1e-2))
    posterior = CaGPPosterior(prior, project(prior, BlockActions.from_data(X, 10), X, torch.sin(6 * X[:, 0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # a jitter is announced, and fine
        samples = posterior.sample(X, 2_000, generator=torch.Generator().manual_seed(0))
    mean, variance = posterior.predict(X)
    assert float(((samples.mean(0) - mean) / variance.sqrt()).abs().max()) < 5 / math.sqrt(2_000) + 0.01
    assert float((samples.std(0) / variance.sqrt() - 1).abs().max()) < 0.1


@pytest.mark.parametrize("kernel", ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic"])
def test_hyperparameters_that_diverged_are_an_error_and_not_a_finite_loss(kernel):
    p = plain_problem(10, 2, 4, kernel=kernel)
    with torch.no_grad():
        p.prior.kernel.raw_lengthscale.fill_(torch.nan)
    with pytest.raises(NotPositiveDefiniteError, match="hyperparameters that diverged"):
        elbo(p.prior, p.actions, *p.data)


def test_known_noise_has_no_parameter_and_needs_its_rows():
    p = plain_problem(10, 2, 4)
    prior = GP(p.prior.kernel, noise=KnownNoise())
    assert [name for name, _ in prior.noise.named_parameters()] == []
    with pytest.raises(ValueError, match="row_noise is missing"):
        project(prior, p.actions, *p.data)
    with pytest.raises(ValueError, match="row_noise has zeros"):
        project(prior, p.actions, *p.data, torch.zeros(10, dtype=torch.float64))


def test_noise_floor_is_a_lower_limit():
    noise = GaussianNoise(0.5, noise_floor=0.1)
    with torch.no_grad():
        noise.raw_noise.fill_(-1e3)
    assert noise.noise.item() == 0.1
    with pytest.raises(ValueError, match=r"noise is 0\.05, expected finite values above 0\.1"):
        noise.noise = 0.05
