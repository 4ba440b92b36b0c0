"""Posterior and losses against dense formulas of the paper, its lemmas and inequalities, over random problems."""

import math
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_problems import assert_close, condition, losses, roundoff
from problems import Problem, random_actions, recipes, well_conditioned
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from cagp import GP, CaGPOpt, GaussianNoise, elbo
from cagp.actions import BlockActions, DenseActions, Partition
from cagp.kernels import Matern12, Scale
from cagp.losses import projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.projection import project

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
    assert_close(mean, expected.mean, 1e-5)
    assert_close(condition(p).mean(p.Z), expected.mean, 1e-5)
    assert_close(variance, expected.variance, 1e-5)


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
    assert_close(bound.value, expected.value, 2e-6)
    assert_close(bound.kl, expected.kl, 2e-6)
    projected = oracle.projected_nll(p.prior, p.S, p.X, p.y, p.row_noise)
    assert_close(projected_nll(p.prior, p.actions, *p.data, p.row_noise), projected, 2e-6)


@given(recipes())
def test_posterior_is_exact_inference_under_the_modified_likelihood(recipe):  # Lemma S1, noise SᵀDS
    p = recipe.build()
    expected = oracle.modified_likelihood_posterior(p.prior, p.S, p.X, p.y, p.Z, p.row_noise)
    posterior = condition(p)
    assert_close(posterior.mean(p.Z), expected.mean)
    assert_close(posterior.covariance(p.Z), expected.covariance)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(data=st.data())
def test_elbo_never_exceeds_log_p_of_y(dtype, data):
    p = data.draw(recipes(dtype=dtype)).build()
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@given(data=st.data())
def test_variance_never_grows_when_columns_are_added(dtype, data):
    p = data.draw(recipes(dtype=dtype, actions=("dense",), square=True)).build()
    before = oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z).diagonal()
    for i in sorted({1, len(p.y) // 3, len(p.y) // 2, len(p.y) - 1, len(p.y)} - {0}):
        after = oracle.array(condition(p, DenseActions(p.actions.S[:, :i])).variance(p.Z))
        assert (after <= before + roundoff(p)).all()
        before = after


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e-30, -3.0, 1e30])
@settings(max_examples=15)
@given(recipe=recipes(actions=("dense",)))
def test_rescaling_dense_actions_changes_nothing(factor, recipe):
    p = recipe.build()
    factors = torch.linspace(1, 2, p.actions.num_actions, dtype=torch.float64) * factor
    factors[0] = 1.0  # columns of very different size, too
    assert_same_answers(p, DenseActions(p.actions.S * factors))


@pytest.mark.slow
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


@pytest.mark.slow
@given(recipes(actions=("dense",)), st.randoms(use_true_random=False))
def test_permuting_dense_actions_changes_nothing(recipe, random):
    p = recipe.build()
    order = random.sample(range(p.actions.num_actions), p.actions.num_actions)
    assert_same_answers(p, DenseActions(p.actions.S[:, order]))


@pytest.mark.slow
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


@pytest.mark.slow
@given(recipes(actions=("dense",)))
def test_mixing_actions_by_an_invertible_matrix_changes_nothing(recipe):
    p = recipe.build()
    i = p.actions.num_actions
    mix = well_conditioned(i, i, torch.Generator().manual_seed(recipe.seed + 1))
    assert_same_answers(p, DenseActions(p.actions.S @ mix))


@pytest.mark.slow
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


@pytest.mark.slow
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
