"""SGPR and its inducing points against dense formulas, bounds and finite differences."""

import oracle
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import recipes
from test_compared_methods import ROUGH, assert_close, assert_gradient_is_the_slope, data, gradients, loss, prior_of

from cagp import CGGP, GP, SGPR, SVGP, CholeskyGP, fit, start_from_data
from cagp.inducing import InducingPoints, choose_inducing_points
from cagp.kernels import RBF, Scale
from cagp.linalg import whitened_gram

# --- SGPR -------------------------------------------------------------------------------------------------------------


@given(recipes(kernels=ROUGH, oddities=("none",)), st.integers(1, 40))
def test_sgpr_is_titsias_collapsed_bound_and_posterior(recipe, m):
    p = recipe.build()
    Z = p.X[:m] + 0.05
    method = SGPR(p.prior, Z)
    bound = oracle.collapsed_bound(p.prior, Z, p.X, p.y, p.row_noise)
    assert_close(method.objective(p.X, p.y, p.row_noise), -bound / len(p.y))
    q = oracle.best_inducing_values(p.prior, Z, p.X, p.y, p.row_noise)
    expected = oracle.inducing_posterior(p.prior, Z, q, p.Z)
    posterior = method.condition(p.X, p.y, p.row_noise)
    assert_close(posterior.mean(p.Z), expected.mean)
    assert_close(posterior.covariance(p.Z), expected.covariance)
    assert_close(posterior.predict(p.Z).variance, expected.variance)


@pytest.mark.slow
@given(recipes())
def test_sgpr_with_inducing_points_at_all_rows_is_the_exact_gp(recipe):
    p = recipe.build()
    method, exact = SGPR(p.prior, p.X), CholeskyGP(p.prior)
    given = p.X, p.y, p.row_noise
    assert_close(method.objective(*given), exact.objective(*given), 1e-7)
    assert_close(method.condition(*given).mean(p.Z), exact.condition(*given).mean(p.Z), 1e-7)
    assert_close(method.condition(*given).covariance(p.Z), exact.condition(*given).covariance(p.Z), 1e-7)


@given(recipes(dtype=torch.float32, smallest_noise=0.1), st.integers(1, 40))
def test_sgpr_in_float32_stays_below_the_exact_evidence_and_near_float64(recipe, m):
    p = recipe.build()
    Z = p.X[:m]
    double = [None if t is None else t.double() for t in (p.X, p.y, p.row_noise)]
    bound, reference = loss(SGPR(p.prior, Z), p.X, p.y, p.row_noise), loss(SGPR(p.prior, Z), *double)
    assert_close(bound, reference, 1e-3)
    exact = -oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise) / len(p.y)
    assert bound >= exact - 1e-3 * max(1.0, abs(exact))
    ours, theirs = SGPR(p.prior, Z).condition(p.X, p.y, p.row_noise), SGPR(p.prior, Z).condition(*double)
    for a, b in zip(ours.predict(p.Z), theirs.predict(p.Z.double()), strict=True):
        assert a.dtype == torch.float32
        assert_close(a, b, 2e-3)


@given(recipes(), st.integers(1, 40))
def test_the_bounds_never_exceed_log_p_of_y_and_grow_with_nested_inducing_points(recipe, m):
    p = recipe.build()
    log_p = oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise)
    fewer, more = (-len(p.y) * loss(SGPR(p.prior, p.X[:k]), p.X, p.y, p.row_noise) for k in (max(1, m // 2), m))
    slack = 1e-7 * max(1.0, abs(log_p))
    assert more <= log_p + slack
    assert fewer <= more + slack


@pytest.mark.parametrize("known", [False, True])
def test_the_gradient_of_sgpr_reaches_hyperparameters_and_inducing_points_and_is_the_slope(known):
    X, y, row_noise = data(50)
    method = SGPR(prior_of(), X[:7] * 1.1)
    assert_gradient_is_the_slope(method, X, y, row_noise if known else None)
    moved = gradients(method, X, y)[[p is method.inducing_points.points for p in method.parameters()].index(True)]
    assert bool((moved.abs() > 1e-9).all())


def test_whitened_gram_has_its_gradient_over_several_tiles():
    g = torch.Generator().manual_seed(0)
    KZ = torch.randn(4500, 3, generator=g, dtype=torch.float64)
    chol = torch.tensor([[1.0, 0, 0], [0.4, 0.8, 0], [-0.3, 0.2, 1.1]], dtype=torch.float64)
    weights, targets = torch.rand(4500, generator=g).double(), torch.randn(4500, generator=g).double()
    inputs = [t.requires_grad_() for t in (KZ, chol, weights, targets)]
    P, q = torch.randn(3, 3, generator=g).double(), torch.randn(3, generator=g).double()
    ours = whitened_gram(*inputs)
    U = torch.linalg.solve_triangular(chol, KZ.mT, upper=False)
    dense = (U * weights) @ U.mT, (U * weights) @ targets
    for a, b in zip(ours, dense, strict=True):
        assert_close(a, b, 1e-12)
    sums = [(P * gram).sum() + (q * projected).sum() for gram, projected in (ours, dense)]
    for a, b in zip(*(torch.autograd.grad(total, inputs) for total in sums), strict=True):
        assert_close(a, b.tril() if b.shape == (3, 3) else b, 1e-12)


def test_sgpr_learns_hyperparameters_and_inducing_points_with_adam_and_lbfgs():
    X, y, _ = data(120, seed=3)
    for settings_ in ({"num_steps": 40, "lr": 0.1}, {"optimizer": "lbfgs", "num_steps": 15}):
        method = SGPR.from_data(start_from_data(GP(Scale(RBF(2))), X, y), X, 12)
        start, Z = loss(method, X, y), method.inducing_points().detach().clone()
        result = fit(method, X, y, **settings_)
        assert loss(method, X, y) < start - 0.1
        assert not result.failures
        assert float((method.inducing_points().detach() - Z).abs().max()) > 1e-2
        assert "12 inducing points on 120 rows" in str(result)


def test_frozen_inducing_points_stay():
    X, y, _ = data(40)
    method = SGPR.from_data(prior_of(), X, 5)
    method.inducing_points.requires_grad_(False)
    before = method.inducing_points().clone()
    fit(method, X, y, num_steps=3)
    assert torch.equal(method.inducing_points(), before)


# --- choosing inducing points -----------------------------------------------------------------------------------------


def test_greedy_inducing_points_take_the_largest_conditional_variance_in_turn():
    X, _, _ = data(40)
    prior = prior_of()
    Z = choose_inducing_points(prior, X, 8)
    K = torch.from_numpy(oracle.kernel_matrix(prior.kernel, X, X))
    rows = [int((z == X).all(1).nonzero()) for z in Z]
    for step in range(1, 8):
        known = rows[:step]
        remaining = K - K[:, known] @ torch.linalg.solve(K[known][:, known], K[known])
        assert float(remaining[rows[step], rows[step]]) == pytest.approx(float(remaining.diagonal().max()), rel=1e-9)


def test_greedy_inducing_points_skip_duplicates():
    X = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(5, 1)
    chosen = choose_inducing_points(prior_of(), X, 20)
    assert chosen.shape == (6, 2)
    assert torch.equal(chosen.unique(dim=0), X.unique(dim=0))  # each of the six once


def test_kmeans_finds_clusters_in_units_of_the_lengthscale():
    g = torch.Generator().manual_seed(1)
    centres = torch.tensor([[0.0, 0], [1, 0], [0, 1000], [1, 1000]]).double()
    X = centres.repeat(50, 1) + torch.randn(200, 2, generator=g).double() * torch.tensor([0.02, 20.0])
    scale = torch.tensor([0.1, 100.0]).double()
    Z = choose_inducing_points(prior_of(), X, 4, "kmeans", scale, seed=3)
    distance = torch.cdist(centres / scale, Z / scale).amin(1)
    assert float(distance.max()) < 0.2
    again = choose_inducing_points(prior_of(), X, 4, "kmeans", scale, seed=3)
    assert torch.equal(Z, again)


def test_inducing_points_are_those_given_whatever_the_scale_of_their_columns():
    Z = torch.tensor([[1e6, 3.0, -2e-7], [1e6 + 1, 3.0, 5e-7]], dtype=torch.float64)
    assert_close(InducingPoints(Z)(), Z, 1e-15)


@pytest.mark.usefixtures("annotations_off")
def test_choices_that_make_no_sense_are_refused():
    X, y, _ = data(10)
    with pytest.raises(ValueError, match="how is 'random'"):
        choose_inducing_points(prior_of(), X, 2, "random")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="num_inducing is 11"):
        SGPR.from_data(prior_of(), X, 11)
    with pytest.raises(ValueError, match="inducing points have 1"):
        SGPR(prior_of(), X[:, :1]).objective(X, y)
    with pytest.raises(ValueError, match="gradient is 'both'"):
        SVGP(prior_of(), X, gradient="both")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="rate of natural gradients is 0"):
        SVGP(prior_of(), X, natural_rate=0.0)
    with pytest.raises(ValueError, match="batch_size is 0"):
        SVGP(prior_of(), X, batch_size=0)
    with pytest.raises(ValueError, match="tolerance is 0"):
        CGGP(prior_of(), tolerance=0.0)
