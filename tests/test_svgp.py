"""SVGP against dense formulas, SGPR and finite differences, with minibatches and natural steps."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import recipes
from test_compared_methods import ROUGH, assert_close, assert_gradient_is_the_slope, data, loss, prior_of
from torch import Tensor

from cagp import GP, SGPR, SVGP, CaGPOpt, GaussianNoise, fit, start_from_data
from cagp.actions import DenseActions
from cagp.dataset import Data
from cagp.kernels import RBF, Matern32, Scale
from cagp.posteriors import CaGPPosterior, InducingPosterior
from cagp.training import Batch


def with_random_q(method: SVGP, seed: int = 0) -> oracle.Gaussian:
    """Give the method a random q; return it as a distribution of u."""
    g = torch.Generator().manual_seed(seed)
    m = len(method.whitened_mean)
    with torch.no_grad():
        method.whitened_mean.copy_(torch.randn(m, generator=g))
        method.whitened_root.copy_(torch.randn(m, m, generator=g).double() / m + 0.7 * torch.eye(m))
    Z = method.inducing_points().detach()
    R = oracle.array(method.whitened_root.triu())
    L = np.linalg.cholesky(oracle.kernel_matrix(method.prior.kernel, Z, Z))
    mean = oracle.mean_vector(method.prior.mean, Z) + L @ oracle.array(method.whitened_mean)
    return oracle.Gaussian(mean, L @ R @ R.T @ L.T)


@given(recipes(kernels=ROUGH, oddities=("none",)), st.integers(1, 12))
def test_svgp_is_the_uncollapsed_bound_and_posterior_of_any_q(recipe, m):
    p = recipe.build()
    method = SVGP(p.prior, p.X[:m] + 0.05)
    q = with_random_q(method, recipe.seed)
    Z = method.inducing_points().detach()
    expected = oracle.uncollapsed_bound(p.prior, Z, q, p.X, p.y, p.row_noise)
    terms = method.terms(Data(p.X, p.y, p.row_noise), Batch())
    assert_close(terms["negative_log_likelihood"], -expected.expected_log_likelihood / len(p.y))
    assert_close(terms["kl"], expected.kl / len(p.y))
    f = oracle.inducing_posterior(p.prior, Z, q, p.Z)
    posterior = method.condition(p.X, p.y, p.row_noise)
    assert_close(posterior.mean(p.Z), f.mean)
    assert_close(posterior.covariance(p.Z), f.covariance)


@pytest.mark.slow
@given(recipes(), st.integers(1, 40))
def test_one_natural_step_from_anywhere_reaches_the_optimum_which_is_sgpr(recipe, m):
    p = recipe.build()
    given, Z = (p.X, p.y, p.row_noise), p.X[:m]
    svgp, sgpr = SVGP(p.prior, Z), SGPR(p.prior, Z)
    with torch.no_grad():  # some other q
        svgp.whitened_mean.copy_(torch.linspace(-1, 2, len(Z)))
        svgp.whitened_root.mul_(0.3)
    assert loss(svgp, *given) > loss(sgpr, *given)
    svgp.natural_step(*given)
    assert_close(svgp.objective(*given), sgpr.objective(*given))
    ours, theirs = svgp.condition(*given), sgpr.condition(*given)
    assert_close(ours.mean(p.Z), theirs.mean(p.Z))
    assert_close(ours.covariance(p.Z), theirs.covariance(p.Z))
    assert_close(ours.predict(p.Z).variance, theirs.predict(p.Z).variance)


def test_a_natural_step_is_the_natural_gradient_by_automatic_differentiation():
    """θ - rate ∂loss/∂η, the derivative taken through w = η₁, RRᵀ = η₂ - η₁η₁ᵀ as autograd sees the loss."""
    X, y, row_noise = data(40)
    method = SVGP(prior_of(), X[:4])
    with_random_q(method)
    R = method.whitened_root.detach().triu()
    covariance, w = R @ R.mT, method.whitened_mean.detach().clone()
    eta = [w.clone().requires_grad_(), (covariance + torch.outer(w, w)).requires_grad_()]

    def bound(first: Tensor, second: Tensor) -> Tensor:
        s = method.inducing_points.see(method.prior, Data(X, y, row_noise), 2**30)
        sigma = second - torch.outer(first, first)
        errors = -2 * first @ s.targets + first @ s.gram @ first
        kl = 0.5 * (sigma.trace() + first @ first - torch.logdet(sigma))
        return 0.5 * (errors + (s.gram * sigma).sum()) + kl

    slopes = torch.autograd.grad(bound(*eta), eta)
    precision, rate = torch.linalg.inv(covariance), 0.3
    natural_mean = precision @ w - rate * slopes[0]
    minus_half_precision = -0.5 * precision - rate * (slopes[1] + slopes[1].mT) / 2
    method.natural_step(X, y, row_noise, rate=rate)
    expected = torch.linalg.inv(-2 * minus_half_precision)
    R = method.whitened_root.detach()
    assert_close(R @ R.mT, expected, 1e-10)
    assert_close(method.whitened_mean, expected @ natural_mean, 1e-10)
    assert torch.equal(R, R.triu())


def test_joint_gradients_reach_the_optimum_too():
    X, y, row_noise = data(60)
    prior = prior_of(noise=0.5).requires_grad_(False)
    svgp, sgpr = SVGP(prior, X[:5], gradient="joint", batch_size=60), SGPR(prior, X[:5])
    svgp.inducing_points.requires_grad_(False)
    fit(svgp, X, y, row_noise, optimizer="lbfgs", num_steps=60)
    assert_close(svgp.objective(X, y, row_noise), sgpr.objective(X, y, row_noise), 1e-8)
    assert_close(svgp.condition(X, y).mean(X), sgpr.condition(X, y, row_noise).mean(X), 1e-3)


@pytest.mark.parametrize("gradient", ["natural", "joint"])
def test_the_gradient_of_svgp_is_the_slope(gradient):
    X, y, row_noise = data(30)
    method = SVGP(prior_of(), X[:4], gradient=gradient)
    with_random_q(method)
    assert_gradient_is_the_slope(method, X, y, row_noise)


def test_the_minibatch_objective_is_unbiased_and_depends_on_seed_and_step_alone():
    X, y, row_noise = data(12)
    method = SVGP(prior_of(), X[:3], gradient="joint", batch_size=4)
    with_random_q(method)
    full = loss(method, X, y, row_noise)  # all rows
    values = []
    for step in range(400):
        rows = method.rows(step, 12).drawn
        assert len(set(rows.tolist())) == 4
        values.append(method.objective(X, y, row_noise, rows=rows).item())
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - full) < 4 * error
    assert error < 0.2 * abs(full)
    other = SVGP(prior_of(), X[:3], gradient="joint", batch_size=4)
    other.load_state_dict(method.state_dict())
    assert other.objective(X, y, row_noise, rows=other.rows(17, 12).drawn).item() == values[17]
    another_seed = SVGP(prior_of(), X[:3], batch_size=4, seed=1)
    assert another_seed.rows(17, 12).drawn.tolist() != other.rows(17, 12).drawn.tolist()


def test_many_rows_are_drawn_without_a_permutation_of_them():
    X = torch.zeros(2000, 1, dtype=torch.float64)
    method = SVGP(GP(RBF(1)), X[:1], batch_size=8)
    rows = method.rows(3, 2000).drawn
    assert rows.shape == (8,)
    assert 0 <= int(rows.min()) <= int(rows.max()) < 2000
    drawn = torch.cat([method.rows(step, 2000).drawn for step in range(500)])
    counts = torch.bincount(drawn // 20, minlength=100).double()  # of 4,000 rows, 40 for each hundredth of the data
    assert float(((counts - 40).square() / 40).sum()) < 99 + 5 * math.sqrt(2 * 99)  # chi squared


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["natural", "joint"])
def test_svgp_learns_from_minibatches_and_resumes_bit_for_bit(gradient, tmp_path):
    X, y, _ = data(300, seed=2)

    def method() -> SVGP:
        prior = start_from_data(GP(Scale(RBF(2))), X, y)
        return SVGP.from_data(prior, X, 15, gradient=gradient, batch_size=64, seed=4)

    class StopError(Exception):
        pass

    def stop(step):
        if step.number == 30:
            raise StopError

    changes = {"num_steps": 60, "lr": 0.1, "checkpoint_steps": 10}
    whole, parts = method(), method()
    start = loss(whole, X, y)
    result = fit(whole, X, y, **changes)
    assert not result.failures
    assert "64 a step" in str(result)
    with pytest.raises(StopError):
        fit(parts, X, y, callback=stop, checkpoint_dir=tmp_path, **changes)
    resumed = method()
    fit(resumed, X, y, checkpoint_dir=tmp_path, **changes)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    whole._step = None  # all rows
    assert loss(whole, X, y) < start - 0.3


def test_a_fit_takes_one_natural_step_per_step_and_the_objective_alone_takes_none():
    X, y, _ = data(40)
    prior = prior_of().requires_grad_(False)
    method, by_hand = (SVGP(prior, X[:6], batch_size=40, natural_rate=0.25) for _ in range(2))
    fit(method, X, y, num_steps=3, lr=0.0)
    for _ in range(3):
        by_hand.natural_step(X, y, rate=0.25)
    assert_close(method.whitened_mean, by_hand.whitened_mean, 1e-12)
    before = method.whitened_mean.clone()
    method.objective(X, y)
    method.condition(X, y)
    assert torch.equal(method.whitened_mean, before)


def test_the_variance_misses_what_inducing_points_do_not_explain():  # Theorem "worst case error of SVGP's variance"
    """SVGP's predictive variance is a sum of two worst-case errors, and neither is that of its mean.

    The first is over the unit ball of the approximate kernel Q + noise, the second that of interpolating f(Z). Over the
    unit ball of k + noise its mean errs by more at the inducing points; the variance of CaGP is that error for its own.
    """
    g = torch.Generator().manual_seed(2)
    X = torch.randn(25, 2, generator=g, dtype=torch.float64)
    Z = torch.randn(5, 2, generator=g, dtype=torch.float64)
    new = torch.cat([torch.randn(4, 2, generator=g, dtype=torch.float64), Z])
    prior = GP(Scale(Matern32(2, 0.8), 1.3), noise=GaussianNoise(0.1))
    K, Q = (
        oracle.kernel_matrix(prior.kernel, torch.cat([X, new]), torch.cat([X, new])),
        oracle.inducing_kernel(prior, Z, torch.cat([X, new]), torch.cat([X, new])),
    )

    def svgp(y: Tensor) -> InducingPosterior:
        method = SVGP(prior, Z)
        method.natural_step(X, y)  # the best q
        return method.condition(X, y)

    def cagp(y: Tensor) -> CaGPPosterior:
        return CaGPOpt(prior, DenseActions(prior.kernel(X, Z).detach())).condition(X, y)

    def errors(posterior, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The largest squared error at each new input over the unit ball of kernel + noise, and c with mean = c y."""
        units = torch.eye(25, dtype=torch.float64)
        c = np.stack([posterior(unit).mean(new).numpy() for unit in units], 1)
        found = []
        for r, weights in enumerate(c):
            points = [*range(25), 25 + r]
            gram = kernel[np.ix_(points, points)] + 0.1 * np.eye(26)
            e = np.append(-weights, 1.0)  # y(x) - mean(x) is the inner product of y with Σ e k(., points)
            largest = gram @ e / math.sqrt(e @ gram @ e)  # the values of the function of norm 1 that reaches it
            mean = posterior(torch.from_numpy(largest[:25])).mean(new[r : r + 1]).item()
            assert (largest[25] - mean) ** 2 == pytest.approx(e @ gram @ e, rel=1e-6)
            found.append(e @ gram @ e)
        return np.array(found), c

    stated = svgp(torch.zeros(25, dtype=torch.float64)).variance(new, noise=True).numpy()
    over_Q, c = errors(svgp, Q)
    interpolation = np.diag(K - Q)[25:]
    np.testing.assert_allclose(over_Q + interpolation, stated, rtol=1e-6)
    true, _ = errors(svgp, K)
    np.testing.assert_allclose(interpolation[4:], 0, atol=1e-9)  # at the inducing points
    missed = np.einsum("tr,rs,ts->t", c, (K - Q)[:25, :25], c)[4:]
    np.testing.assert_allclose(true[4:] - stated[4:], missed, rtol=1e-5)
    assert (missed > 0.02 * stated[4:]).all()
    ours = cagp(torch.zeros(25, dtype=torch.float64)).variance(new, noise=True).numpy()
    np.testing.assert_allclose(errors(cagp, K)[0], ours, rtol=1e-6)
    assert (ours <= true + 1e-9).all()
