"""Posterior and losses against dense formulas of the paper, its lemmas and inequalities, over random problems."""

import math
import warnings
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import KERNELS, Problem, make_prior, random_actions, recipes, well_conditioned
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from cagp import GP, CaGPOpt, ConstantMean, GaussianNoise, KnownNoise, LinearMean, elbo, fit
from cagp.actions import BlockActions, DenseActions, Partition, ordered_blocks
from cagp.kernels import RBF, Constant, Linear, Matern12, Matern32, Matern52, Scale
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
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
    D multiplies that by up to k √n / D."""
    k = p.scale
    return 4 * EPS[p.X.dtype] * k * (1 + k * math.sqrt(len(p.y)) / p.noise.min())


def assert_close(actual: Tensor, expected, relative: float = 1e-10) -> None:
    """The largest error is at most ``relative`` times the largest expected value, or that of 1 where it is smaller."""
    actual, expected = oracle.array(actual), oracle.array(expected)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= relative * max(1.0, np.abs(expected).max())


# --- against the paper's formulas -------------------------------------------------------------------------------------


@given(recipes())
def test_posterior_is_the_dense_formula(recipe):
    p = recipe.build()
    expected = oracle.cagp_posterior(p.prior, p.S, p.X, p.y, p.Z, p.row_noise)
    posterior = condition(p)
    assert_close(posterior.mean(p.Z), expected.mean)
    assert_close(posterior.covariance(p.Z), expected.covariance)
    mean, variance = posterior.predict(p.Z)
    assert_close(mean, expected.mean)
    assert_close(variance, expected.variance)


@given(recipes(dtype=torch.float32, smallest_noise=0.05))
def test_float32_posterior_is_the_dense_formula_to_float32_accuracy(recipe):
    p = recipe.build()
    expected = oracle.cagp_posterior(p.prior, p.S, p.X, p.y, p.Z, p.row_noise)
    mean, variance = condition(p).predict(p.Z)
    assert mean.dtype == variance.dtype == torch.float32
    assert_close(mean, expected.mean, 1e-4)
    assert_close(condition(p).mean(p.Z), expected.mean, 1e-4)
    assert_close(variance, expected.variance, 1e-4)


@given(recipes(square=True))
def test_with_as_many_actions_as_rows_the_posterior_is_the_exact_gp_and_the_elbo_log_p_of_y(recipe):
    p = recipe.build()
    exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    posterior = condition(p)
    assert_close(posterior.mean(p.Z), exact.mean)
    assert_close(posterior.covariance(p.Z), exact.covariance)
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise)
    assert_close(elbo(p.prior, p.actions, *p.data, p.row_noise).value, log_p)
    assert_close(projected_nll(p.prior, p.actions, *p.data, p.row_noise), -log_p)


@given(recipes())
def test_elbo_is_the_expected_log_likelihood_minus_the_kl_of_dense_gaussians(recipe):
    p = recipe.build()
    bound = elbo(p.prior, p.actions, *p.data, p.row_noise)
    expected = oracle.elbo(p.prior, p.S, p.X, p.y, p.row_noise)
    assert_close(bound.expected_log_likelihood, expected.expected_log_likelihood)
    assert_close(bound.kl, expected.kl)
    assert_close(bound.value, expected.value)


@pytest.mark.parametrize("num_actions", [1, 4, 9])
def test_kl_is_torch_distributions_kl_where_the_kernel_matrix_is_well_conditioned(num_actions):
    g = torch.Generator().manual_seed(num_actions)
    X = torch.arange(9.0, dtype=torch.float64)[:, None]
    y = torch.randn(9, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern12(1, 1.5), 2.0), noise=GaussianNoise(0.3))
    actions = random_actions("dense", X, num_actions, g)
    q = CaGPPosterior(prior, project(prior, actions, X, y))
    K = torch.from_numpy(oracle.kernel_matrix(prior.kernel, X, X))
    expected = kl_divergence(
        MultivariateNormal(q.mean(X), q.covariance(X)), MultivariateNormal(torch.zeros(9).to(K), K)
    )
    assert_close(elbo(prior, actions, X, y).kl, expected)


@given(recipes())
def test_projected_loss_is_the_density_of_the_orthonormal_projection(recipe):
    p = recipe.build()
    expected = oracle.projected_nll(p.prior, p.S, p.X, p.y, p.row_noise)
    assert_close(projected_nll(p.prior, p.actions, *p.data, p.row_noise), expected)


@given(recipes(dtype=torch.float32, smallest_noise=0.05))
def test_float32_losses_are_the_dense_formulas_to_float32_accuracy(recipe):
    p = recipe.build()
    bound = elbo(p.prior, p.actions, *p.data, p.row_noise)
    expected = oracle.elbo(p.prior, p.S, p.X, p.y, p.row_noise)
    assert_close(bound.value, expected.value, 2e-5)
    assert_close(bound.kl, expected.kl, 2e-5)
    projected = oracle.projected_nll(p.prior, p.S, p.X, p.y, p.row_noise)
    assert_close(projected_nll(p.prior, p.actions, *p.data, p.row_noise), projected, 2e-5)


@given(recipes())
def test_posterior_is_exact_inference_under_the_modified_likelihood(recipe):  # Lemma S1, noise SᵀDS
    p = recipe.build()
    expected = oracle.modified_likelihood_posterior(p.prior, p.S, p.X, p.y, p.Z, p.row_noise)
    posterior = condition(p)
    assert_close(posterior.mean(p.Z), expected.mean)
    assert_close(posterior.covariance(p.Z), expected.covariance)


@settings(max_examples=8)
@given(recipes(max_rows=6, kernels=("Scale(Matern32)", "Linear + Matern52", "RationalQuadratic * Linear + Constant")))
def test_gradients_of_both_losses_are_finite_differences_in_every_parameter(recipe):
    p = recipe.build()
    actions = DenseActions(p.actions.S, learn=True) if isinstance(p.actions, DenseActions) else p.actions
    for loss in ("elbo", "projected"):
        method = CaGPOpt(p.prior, actions, loss)
        parameters = tuple(method.parameters())
        assert torch.autograd.gradcheck(
            lambda *_, m=method: m.objective(*p.data, p.row_noise), parameters, atol=1e-7, rtol=1e-5
        )


# --- inequalities -----------------------------------------------------------------------------------------------------


@given(recipes())
def test_elbo_never_exceeds_log_p_of_y(recipe):
    p = recipe.build()
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise)
    bound = elbo(p.prior, p.actions, *p.data, p.row_noise).value.item()
    assert bound <= log_p + 1e-10 * max(1.0, abs(log_p))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(data=st.data())
def test_variance_is_never_below_the_exact_one(dtype, data):
    p = data.draw(recipes(dtype=dtype)).build()
    exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    variance = oracle.array(condition(p).variance(p.Z))
    assert (variance >= exact.variance - roundoff(p)).all()
    assert (variance <= np.diag(oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z)) + roundoff(p)).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(data=st.data())
def test_variance_never_grows_when_columns_are_added(dtype, data):
    p = data.draw(recipes(dtype=dtype, actions=("dense",), square=True)).build()
    before = oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z).diagonal()
    for i in sorted({1, len(p.y) // 3, len(p.y) // 2, len(p.y) - 1, len(p.y)} - {0}):
        after = oracle.array(condition(p, DenseActions(p.actions.S[:, :i])).variance(p.Z))
        assert (after <= before + roundoff(p)).all()
        before = after


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(data=st.data())
def test_variance_never_grows_when_blocks_are_cut_in_two(dtype, data):
    p = data.draw(recipes(dtype=dtype, actions=("spatial", "uneven"))).build()
    actions, before = p.actions, oracle.array(condition(p).variance(p.Z))
    while actions.num_actions < len(p.y):
        offsets = actions.offsets
        middles = (offsets[:-1] + offsets[1:] + 1) // 2
        actions = BlockActions(Partition(actions.support, torch.cat([offsets, middles]).unique()), actions.values)
        after = oracle.array(condition(p, actions).variance(p.Z))
        assert (after <= before + roundoff(p)).all()
        before = after
    exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    assert np.abs(before - exact.variance).max() <= roundoff(p)


# --- only the span of S matters ---------------------------------------------------------------------------------------


def assert_same_answers(p: Problem, actions, relative: float = 1e-10) -> None:
    original, changed = condition(p), condition(p, actions)
    assert_close(changed.mean(p.Z), original.mean(p.Z), relative)
    assert_close(changed.covariance(p.Z), original.covariance(p.Z), relative)
    assert_close(losses(p, actions), losses(p), relative)


@pytest.mark.parametrize("factor", [1e-30, -3.0, 1e30])
@settings(max_examples=15)
@given(recipe=recipes(actions=("dense",)))
def test_rescaling_dense_actions_changes_nothing(factor, recipe):
    p = recipe.build()
    factors = torch.linspace(1, 2, p.actions.num_actions, dtype=torch.float64) * factor
    factors[0] = 1.0  # columns of very different size, too
    assert_same_answers(p, DenseActions(p.actions.S * factors))


@pytest.mark.parametrize("factor", [1e-30, -3.0, 1e30])
@settings(max_examples=15)
@given(recipe=recipes(actions=("spatial", "uneven")))
def test_rescaling_block_actions_changes_nothing(factor, recipe):
    p = recipe.build()
    factors = torch.linspace(1, 2, p.actions.num_actions, dtype=torch.float64) * factor
    factors[0] = 1.0
    by_row = factors.repeat_interleave(p.actions.offsets.diff())[p.actions.support.argsort()]
    values = p.actions.values * by_row
    assert_same_answers(p, BlockActions(Partition(p.actions.support, p.actions.offsets), values))


@given(recipes(actions=("dense",)), st.randoms(use_true_random=False))
def test_permuting_dense_actions_changes_nothing(recipe, random):
    p = recipe.build()
    order = random.sample(range(p.actions.num_actions), p.actions.num_actions)
    assert_same_answers(p, DenseActions(p.actions.S[:, order]))


@given(recipes(actions=("uneven",)), st.randoms(use_true_random=False))
def test_permuting_blocks_and_the_rows_within_them_changes_nothing(recipe, random):
    p = recipe.build()
    offsets = p.actions.offsets.tolist()
    blocks = [list(range(a, b)) for a, b in pairwise(offsets)]
    random.shuffle(blocks)
    for block in blocks:
        random.shuffle(block)
    order = torch.tensor([row for block in blocks for row in block])
    sizes = torch.tensor([0] + [len(block) for block in blocks])
    assert_same_answers(p, BlockActions(Partition(p.actions.support[order], sizes.cumsum(0)), p.actions.values))


@given(recipes(actions=("dense",)))
def test_mixing_actions_by_an_invertible_matrix_changes_nothing(recipe):
    p = recipe.build()
    i = p.actions.num_actions
    mix = well_conditioned(i, i, torch.Generator().manual_seed(recipe.seed + 1))
    assert_same_answers(p, DenseActions(p.actions.S @ mix))


@given(recipes(actions=("spatial", "ordered", "uneven")))
def test_block_actions_and_their_dense_matrix_give_the_same_answers(recipe):
    p = recipe.build()
    assert_same_answers(p, DenseActions(torch.from_numpy(p.S)))


# --- worst-case error and information ---------------------------------------------------------------------------------

WELL_CONDITIONED = ("Matern12", "Matern32", "Scale(Matern32)", "Constant * Matern32", "Constant * Constant + Matern12")


def mean_as_a_function_of_targets(p: Problem, x: Tensor) -> np.ndarray:
    """c with mean_i(x) = cᵀy: the posterior mean at ``x`` for every unit vector of targets."""
    units = torch.eye(len(p.y), dtype=p.y.dtype)
    return np.array([condition(p._replace(y=unit)).mean(x[None]).item() for unit in units])


@settings(max_examples=25)
@given(recipes(noises=("one",), oddities=("none",), max_rows=12))
def test_worst_case_error_in_the_unit_ball_of_the_rkhs_is_the_predictive_variance(recipe):  # Theorem S2
    p = recipe._replace(mean="zero").build()
    x = p.Z[0]  # not a training input
    rng = np.random.default_rng(recipe.seed)
    supremum = condition(p).variance(x[None], noise=True).item()

    # The error y(x) - mean(x) is the inner product of y with e = kˢ(·, x) - Σ c_r kˢ(·, x_r): its supremum is ‖e‖².
    e = np.append(-mean_as_a_function_of_targets(p, x), 1.0)
    gram = oracle.noisy_gram(p.prior, torch.cat([p.X, x[None]]))
    assert_close(e @ gram @ e, supremum)

    def squared_error(values: np.ndarray) -> float:
        """For a function with these values at the training inputs and, last, at x."""
        targets = torch.from_numpy(values[: len(p.y)])
        return (values[len(p.y)] - condition(p._replace(y=targets)).mean(x[None]).item()) ** 2

    maximiser = gram @ e / math.sqrt(e @ gram @ e)
    assert_close(squared_error(maximiser), supremum)

    elsewhere = torch.from_numpy(rng.normal(size=(4, recipe.d)))
    gram = oracle.noisy_gram(p.prior, torch.cat([p.X, x[None], elsewhere]))
    for _ in range(5):
        w = rng.normal(size=len(gram))
        unit = gram @ w / math.sqrt(w @ gram @ w)  # values of a random function of norm 1
        assert squared_error(unit) <= supremum * (1 + 1e-10)


def information(p: Problem, actions) -> float:
    """H(f(X)) - H(f(X) | Sᵀy), from the posterior covariance."""
    K = oracle.kernel_matrix(p.prior.kernel, p.X, p.X)
    return oracle.entropy(K) - oracle.entropy(oracle.array(condition(p, actions).covariance(p.X)))


@settings(max_examples=25)
@given(recipes(kernels=WELL_CONDITIONED, noises=("one",), smallest_noise=0.05, oddities=("none",), max_rows=15))
def test_top_eigenvectors_reach_the_most_information_and_no_other_actions_exceed_it(recipe):
    p = recipe.build()
    noise = float(p.noise[0])
    eigenvalues, vectors = np.linalg.eigh(oracle.kernel_matrix(p.prior.kernel, p.X, p.X) + noise * np.eye(recipe.n))
    most = 0.5 * (np.log(eigenvalues[-recipe.i :]).sum() - recipe.i * math.log(noise))
    top = DenseActions(torch.from_numpy(vectors[:, -recipe.i :].copy()))
    assert_close(information(p, top), most, 1e-9)

    g = torch.Generator().manual_seed(recipe.seed)
    others = [random_actions(kind, p.X, recipe.i, g) for kind in ("dense", "dense", "uneven")]
    for actions in (p.actions, *others):
        assert information(p, actions) <= most + 1e-9 * max(1.0, most)


@settings(max_examples=20)
@given(recipes(kernels=WELL_CONDITIONED, smallest_noise=0.05, oddities=("none",), max_rows=15))
def test_information_in_the_posterior_covariance_is_that_of_the_projected_targets(recipe):
    p = recipe.build()
    assert_close(information(p, p.actions), oracle.mutual_information(p.prior, p.S, p.X, p.row_noise), 1e-9)


# --- edge cases -------------------------------------------------------------------------------------------------------


def plain_problem(n: int, d: int, i: int, *, kernel="Scale(Matern32)", noise=0.1, seed=0, mean="zero") -> Problem:
    """A problem without oddities, for tests that need a certain shape."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    Z = torch.randn(6, d, generator=g, dtype=torch.float64)
    prior = make_prior(kernel, d, noise, g, mean=mean)
    return Problem(prior, random_actions("spatial", X, i, g), X, y, None, Z)


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


# --- what a posterior answers -----------------------------------------------------------------------------------------


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
