"""One row, duplicates, other units, rows without an action and real data: posterior and losses are still right."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inference_problems import assert_close, condition, losses, plain_problem, roundoff
from problems import KERNELS, Problem, recipes

from cagp import GP, ConstantMean, GaussianNoise, LinearMean, elbo
from cagp.actions import BlockActions, DenseActions, Partition, ordered_blocks
from cagp.kernels import RBF, Constant, Linear, Matern32, Matern52, Scale
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.projection import project

# --- edge cases -------------------------------------------------------------------------------------------------------


def test_one_row_one_action_is_the_scalar_formula():
    X, y, x = (torch.tensor(v, dtype=torch.float64) for v in ([[0.3]], [2.0], [[1.1]]))
    prior = GP(Scale(RBF(1, 0.5), 1.5), ConstantMean(0.25), GaussianNoise(0.2))
    posterior = CaGPPosterior(prior, project(prior, BlockActions.from_data(X, 1), X, y))
    k = 1.5 * math.exp(-0.5 * (0.8 / 0.5) ** 2)
    mean, variance = posterior.predict(x)
    assert_close(mean, [0.25 + k / 1.7 * 1.75], 1e-14)
    assert_close(variance, [1.5 - k**2 / 1.7], 1e-14)
    log_p = -0.5 * (1.75**2 / 1.7 + math.log(2 * math.pi * 1.7))
    assert_close(elbo(prior, BlockActions.from_data(X, 1), X, y).value, log_p, 1e-14)


def test_one_dense_action_is_inference_on_one_number():
    p = plain_problem(7, 2, 1)
    s = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, 1.0, -1.0], dtype=torch.float64)
    K, cross = (oracle.kernel_matrix(p.prior.kernel, A, p.X) for A in (p.X, p.Z))
    s_, g = s.numpy(), s.numpy() @ (K + 0.1 * np.eye(7)) @ s.numpy()
    posterior = condition(p, DenseActions(s[:, None]))
    assert_close(posterior.mean(p.Z), cross @ s_ * (s_ @ p.y.numpy()) / g)
    assert_close(
        posterior.variance(p.Z), oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z).diagonal() - (cross @ s_) ** 2 / g
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("n", "i"), [(10, 3), (10, 7), (11, 10), (37, 8)])
def test_every_row_counts_when_the_number_of_rows_is_no_multiple_of_the_actions(n, i):
    p = plain_problem(n, 2, i)
    assert sorted(p.actions.support.tolist()) == list(range(n))
    for row in range(n):
        y = p.y.clone()
        y[row] += 1.0
        changed = condition(p._replace(y=y))
        expected = oracle.cagp_posterior(p.prior, p.S, p.X, y, p.Z)
        assert_close(changed.mean(p.Z), expected.mean)
        assert float((changed.mean(p.Z) - condition(p).mean(p.Z)).abs().max()) > 0


@pytest.mark.parametrize("kernel", ["RBF", "Matern12", "Scale(Matern32)"])
def test_duplicate_rows_count_as_repeated_measurements(kernel):
    p = plain_problem(8, 2, 8, kernel=kernel, noise=0.2)
    twice = p._replace(X=p.X.repeat(2, 1), y=torch.cat([p.y + 0.3, p.y - 0.3]))
    posterior = condition(twice, BlockActions(ordered_blocks(16, 16), dtype=torch.float64))
    half = p._replace(prior=GP(p.prior.kernel, noise=GaussianNoise(0.1)))  # two measurements: half the noise variance
    assert_close(posterior.mean(p.Z), condition(half).mean(p.Z))
    assert_close(posterior.covariance(p.Z), condition(half).covariance(p.Z))


@pytest.mark.parametrize("kernel", ["RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic"])
def test_a_constant_column_changes_nothing_however_large(kernel):
    p = plain_problem(12, 3, 5, kernel=kernel)
    scales = torch.cat([p.prior.kernel.lengthscale.detach(), torch.tensor([0.01], dtype=torch.float64)])
    wide = GP(KERNELS[kernel](4, scales), noise=GaussianNoise(0.1))
    column = torch.full((20, 1), 12345.0, dtype=torch.float64)
    q = p._replace(prior=wide, X=torch.cat([p.X, column[:12]], 1), Z=torch.cat([p.Z, column[: len(p.Z)]], 1))
    assert_close(condition(q).mean(q.Z), condition(p).mean(p.Z))
    assert_close(condition(q).covariance(q.Z), condition(p).covariance(p.Z))
    assert_close(losses(q), losses(p))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_units_of_the_inputs_do_not_matter(factor, dtype):
    p = plain_problem(20, 3, 6)
    lengthscale = p.prior.kernel.kernel.lengthscale.detach()
    outputscale = p.prior.kernel.outputscale.item()
    prior = GP(Scale(Matern32(3, lengthscale * factor), outputscale), noise=GaussianNoise(0.1))
    actions = BlockActions(Partition(p.actions.support, p.actions.offsets), p.actions.values.detach().to(dtype))
    q = Problem(prior, actions, (p.X * factor).to(dtype), p.y.to(dtype), None, (p.Z * factor).to(dtype))
    relative = 1e-10 if dtype == torch.float64 else 1e-5
    assert_close(condition(q).mean(q.Z), condition(p).mean(p.Z), relative)
    assert_close(condition(q).covariance(q.Z), condition(p).covariance(p.Z), relative)
    assert_close(losses(q), losses(p), relative)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1e-8, 1e8])
def test_units_of_the_targets_scale_the_answers(factor, dtype):
    p = plain_problem(20, 3, 6)
    kernel = Scale(p.prior.kernel.kernel, p.prior.kernel.outputscale.item() * factor**2)
    prior = GP(kernel, noise=GaussianNoise(0.1 * factor**2, noise_floor=0.0))
    actions = BlockActions(Partition(p.actions.support, p.actions.offsets), p.actions.values.detach().to(dtype))
    q = Problem(prior, actions, p.X.to(dtype), (p.y * factor).to(dtype), None, p.Z.to(dtype))
    relative = 1e-10 if dtype == torch.float64 else 1e-5
    assert_close(condition(q).mean(q.Z).double() / factor, condition(p).mean(p.Z), relative)
    assert_close(condition(q).covariance(q.Z).double() / factor**2, condition(p).covariance(p.Z), relative)
    bound, bound_q = (elbo(r.prior, r.actions, *r.data).value for r in (p, q))
    assert_close(bound_q, bound - 20 * math.log(factor), relative)
    nll, nll_q = (projected_nll(r.prior, r.actions, *r.data) for r in (p, q))
    assert_close(nll_q, nll + 6 * math.log(factor), relative)


@pytest.mark.slow
@given(recipes(actions=("spatial",)), st.integers(1, 4))
def test_rows_outside_the_support_count_in_the_elbo_and_not_in_the_posterior(recipe, support_size):
    p = recipe.build()
    g = torch.Generator().manual_seed(recipe.seed)
    actions = BlockActions.from_data(
        p.X, recipe.i, start="random", support_size=min(support_size, recipe.n), generator=g
    )
    S = oracle.action_matrix(actions)
    expected = oracle.elbo(p.prior, S, p.X, p.y, p.row_noise)
    bound = elbo(p.prior, actions, *p.data, p.row_noise)
    assert_close(bound.expected_log_likelihood, expected.expected_log_likelihood)
    assert_close(bound.kl, expected.kl)
    nll = projected_nll(p.prior, actions, *p.data, p.row_noise)
    assert_close(nll, oracle.projected_nll(p.prior, S, p.X, p.y, p.row_noise))
    posterior = condition(p, actions)
    dense = oracle.cagp_posterior(p.prior, S, p.X, p.y, p.Z, p.row_noise)
    assert_close(posterior.mean(p.Z), dense.mean)
    assert_close(posterior.covariance(p.Z), dense.covariance)
    outside = torch.ones(recipe.n, dtype=torch.bool)
    outside[actions.support] = False
    assert_close(condition(p._replace(y=p.y + 5 * outside), actions).mean(p.Z), dense.mean)


@pytest.mark.parametrize("mean", [ConstantMean(3.0), LinearMean(2)], ids=["constant", "linear"])
def test_a_mean_function_shifts_targets_and_answers_alike(mean):
    p = plain_problem(15, 2, 5)
    if isinstance(mean, LinearMean):
        with torch.no_grad():
            mean.slope.copy_(torch.tensor([1.5, -2.0]))
            mean.constant.fill_(0.7)
    shifted = p._replace(prior=GP(p.prior.kernel, mean, p.prior.noise), y=p.y + mean(p.X).detach())
    assert_close(condition(shifted).mean(p.Z), condition(p).mean(p.Z) + mean(p.Z).detach())
    assert_close(condition(shifted).covariance(p.Z), condition(p).covariance(p.Z))
    assert_close(losses(shifted), losses(p))


def test_far_from_the_data_the_posterior_is_the_prior():
    p = plain_problem(15, 2, 5, mean="linear")
    far = p.Z + 1e4
    mean, variance = condition(p).predict(far)
    assert_close(mean, oracle.mean_vector(p.prior.mean, far), 1e-15)
    assert_close(variance, np.full(len(far), p.prior.kernel.outputscale.item()), 1e-15)


# --- real data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bike", "keggu", "protein"])  # 71 % of the rows of keggu are duplicates
def test_on_real_data_the_variance_shrinks_to_the_exact_one_from_above(real_data, name):
    X, y = real_data(name, 260)
    X, Z, y = X[:200], X[200:], y[:200]
    d = X.shape[1]
    prior = GP(Scale(Matern32(d, d**0.5), 1.0) + Constant(0.5), noise=GaussianNoise(0.05))
    exact = oracle.exact_posterior(prior, X, y, Z)
    log_p = oracle.log_marginal_likelihood(prior, X, y)
    gaps = []
    for i in (7, 50, 200):
        p = Problem(prior, BlockActions.from_data(X, i), X, y, None, Z)
        variance = oracle.array(condition(p).variance(Z))
        assert (variance >= exact.variance - roundoff(p)).all()
        assert elbo(prior, p.actions, X, y).value.item() <= log_p + 1e-8
        gaps.append((variance - exact.variance).max())
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-10


@pytest.mark.parametrize("name", ["bike", "keggu"])
def test_on_real_data_float32_agrees_with_the_dense_formula(real_data, name):
    X, y = (t.float() for t in real_data(name, 330))
    X, Z, y = X[:300], X[300:], y[:300]
    d = X.shape[1]
    prior = GP(Scale(Matern52(d, d**0.5), 1.3) + Linear(d, 0.1), noise=GaussianNoise(0.05))
    p = Problem(prior, BlockActions.from_data(X, 37), X, y, None, Z)
    expected = oracle.cagp_posterior(prior, p.S, X, y, Z)
    mean, variance = condition(p).predict(Z)
    assert_close(mean, expected.mean, 1e-4)
    assert_close(variance, expected.variance, 1e-4)
    assert_close(elbo(prior, p.actions, X, y).value, oracle.elbo(prior, p.S, X, y).value, 1e-4)
