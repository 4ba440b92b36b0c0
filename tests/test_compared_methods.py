"""CholeskyGP, SGPR, SVGP and CGGP against dense formulas, each other, and finite differences."""

import math
import warnings

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import recipes
from torch import Tensor

from cagp import CGGP, GP, MAP, SGPR, SVGP, CholeskyGP, ConstantMean, GaussianNoise, KnownNoise, fit, start_from_data
from cagp.inducing import InducingPoints, choose_inducing_points, see_through
from cagp.kernels import RBF, Linear, Matern12, Matern32, Scale
from cagp.linalg import whitened_gram
from cagp.methods import LogNormal, cholesky
from cagp.solver import CGWarning, Solver
from cagp.system import System

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
    assert_close(method.objective(p.X, p.y, p.row_noise), -log_p / len(p.y), 1e-4)
    expected = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    prediction = method.condition(p.X, p.y, p.row_noise).predict(p.Z)
    assert_close(prediction.mean, expected.mean, 1e-4)
    assert_close(prediction.variance, expected.variance, 1e-4)


@pytest.mark.parametrize("known", [False, True])
def test_the_gradient_of_cholesky_is_the_slope(known):
    X, y, row_noise = data(30)
    assert_gradient_is_the_slope(CholeskyGP(prior_of()), X, y, row_noise if known else None)


def test_cholesky_refuses_more_rows_than_the_memory_holds_and_says_how_many_it_could(monkeypatch):
    X, y, _ = data(50)
    monkeypatch.setattr(cholesky, "available_memory", lambda: cholesky.memory_needed(40))
    with pytest.raises(MemoryError, match=r"for 50 rows.*enough for about 40 rows"):
        CholeskyGP(prior_of()).objective(X, y)
    with pytest.raises(MemoryError, match="CaGPOpt, SGPR, SVGP; or CGGP"):
        CholeskyGP(prior_of()).condition(X, y)
    monkeypatch.setattr(cholesky, "available_memory", lambda: None)  # a machine that does not say
    assert math.isfinite(loss(CholeskyGP(prior_of()), X, y))


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
    assert choose_inducing_points(prior_of(), X, 20).shape == (6, 2)


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


# --- SVGP -------------------------------------------------------------------------------------------------------------


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
    terms = method.objective_terms(p.X, p.y, p.row_noise)
    assert_close(terms["negative_log_likelihood"], -expected.expected_log_likelihood / len(p.y))
    assert_close(terms["kl"], expected.kl / len(p.y))
    f = oracle.inducing_posterior(p.prior, Z, q, p.Z)
    posterior = method.condition(p.X, p.y, p.row_noise)
    assert_close(posterior.mean(p.Z), f.mean)
    assert_close(posterior.covariance(p.Z), f.covariance)


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
        s = see_through(method.prior, method.inducing_points(), X, y, row_noise)
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
        rows = method.minibatch(step, 12)
        assert len(set(rows.tolist())) == 4
        values.append(method.objective(X, y, row_noise, rows=rows).item())
    error = np.std(values) / math.sqrt(len(values))
    assert abs(np.mean(values) - full) < 4 * error
    assert error < 0.2 * abs(full)
    other = SVGP(prior_of(), X[:3], gradient="joint", batch_size=4)
    other.load_state_dict(method.state_dict())
    assert other.objective(X, y, row_noise, rows=other.minibatch(17, 12)).item() == values[17]
    another_seed = SVGP(prior_of(), X[:3], batch_size=4, seed=1)
    assert another_seed.minibatch(17, 12).tolist() != other.minibatch(17, 12).tolist()


def test_many_rows_are_drawn_without_a_permutation_of_them():
    X = torch.zeros(2000, 1, dtype=torch.float64)
    method = SVGP(GP(RBF(1)), X[:1], batch_size=8)
    rows = method.minibatch(3, 2000)
    assert rows.shape == (8,)
    assert 0 <= int(rows.min()) <= int(rows.max()) < 2000


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


# --- CGGP -------------------------------------------------------------------------------------------------------------


def exact_probes(solver: Solver) -> Tensor:
    """√p I: probes whose mean outer product is the identity."""
    p = sum(solver.L.shape)
    return math.sqrt(p) * torch.eye(p, dtype=torch.float64)


@settings(max_examples=25)
@given(recipes(max_rows=25, smallest_noise=0.05), st.integers(1, 10))
def test_cggp_with_a_full_set_of_probes_is_the_exact_gp_in_value_and_gradient(recipe, rank):
    p = recipe.build()
    given = p.X, p.y, p.row_noise
    method, exact = CGGP(p.prior, tolerance=1e-11, precondition_rank=rank), CholeskyGP(p.prior)
    solver = Solver(System(p.prior, p.X, p.row_noise), rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CGWarning)  # a tolerance at the edge of round-off
        quadratic, log_det = method.estimates(solver, *given, exact_probes(solver))
        total = 0.5 * (quadratic + log_det) / len(p.y) + 0.5 * math.log(2 * math.pi)
        posterior = method.condition(*given)
        prediction, covariance = posterior.predict(p.Z), posterior.covariance(p.Z)
    expected = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    K = oracle.kernel_matrix(p.prior.kernel, p.X, p.X) + np.diag(p.noise)
    assert_close(log_det, np.linalg.slogdet(K)[1])
    assert_close(prediction.mean, expected.mean)
    assert_close(prediction.variance, expected.variance)
    assert_close(covariance, expected.covariance)
    parameters = [q for q in p.prior.parameters() if q.requires_grad]
    if parameters:
        ours = torch.autograd.grad(total, parameters, allow_unused=True)
        theirs = torch.autograd.grad(exact.objective(*given), parameters, allow_unused=True)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b, 1e-6)


def test_cggp_estimates_loss_and_gradient_within_monte_carlo_error():
    X, y, row_noise = data(80)
    exact = CholeskyGP(prior_of())
    expected, slopes = loss(exact, X, y, row_noise), gradients(exact, X, y, row_noise)
    values, estimates = [], []
    for seed in range(20):
        method = CGGP(prior_of(), num_probes=8, precondition_rank=5, seed=seed, tolerance=1e-8)
        values.append(loss(method, X, y, row_noise))
        estimates.append(torch.cat([g.flatten() for g in gradients(method, X, y, row_noise)]))
    error = np.std(values) / math.sqrt(20)
    assert abs(np.mean(values) - expected) < 4 * error
    assert error < 0.01
    estimates, slopes = torch.stack(estimates), torch.cat([g.flatten() for g in slopes])
    assert bool(((estimates.mean(0) - slopes).abs() <= 4 * estimates.std(0) / math.sqrt(20) + 1e-8).all())
    assert float(estimates.std(0).max()) < 0.1


def test_the_probes_are_those_of_the_seed():
    X, y, _ = data(40)
    first, again = (loss(CGGP(prior_of(), seed=3), X, y) for _ in range(2))
    assert first == again
    assert first != loss(CGGP(prior_of(), seed=4, precondition_rank=3), X, y)


def test_cggp_variance_is_never_below_the_exact_one_even_where_the_solves_stop_early():
    X, y, _ = data(80)
    Z = data(20, seed=9)[0]
    prior = prior_of(noise=0.01)
    exact = oracle.exact_posterior(prior, X, y, Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CGWarning)
        posterior = CGGP(prior, max_iterations=3, precondition_rank=2).condition(X, y)
        variance, covariance = posterior.variance(Z), posterior.covariance(Z)
    excess = covariance - torch.from_numpy(exact.covariance)
    assert_close(excess.diagonal(), variance - torch.tensor(exact.variance), 1e-12)
    assert float(excess.diagonal().max()) > 1e-4  # stopped early indeed
    assert float(torch.linalg.eigvalsh((excess + excess.mT) / 2)[0]) > -1e-10


def test_cggp_says_when_and_for_what_conjugate_gradients_did_not_converge():
    X, y, _ = data(80)
    method = CGGP(prior_of(noise=1e-3), max_iterations=2, precondition_rank=2)
    with pytest.warns(CGWarning, match=r"17 of 17 right-hand sides of the loss in 2 iterations.*precondition_rank"):
        method.objective(X, y)
    with pytest.warns(CGWarning, match="1 of 1 representer weights"):
        posterior = method.condition(X, y)
    assert not bool(posterior.representer_status.converged)
    with pytest.warns(CGWarning, match="5 of 5 columns of the variance"):
        posterior.predict(X[:5])
    with pytest.warns(CGWarning, match="columns of the variance"):
        status = posterior.solve(X[:5])
    assert status.num_iterations == 2
    assert not bool(status.converged.any())


def test_cggp_streams_kernels_beyond_its_byte_budget_with_the_same_result():
    X, y, row_noise = data(70)
    Z = data(9, seed=9)[0]
    kept, streamed = CGGP(prior_of(), tolerance=1e-9), CGGP(prior_of(), tolerance=1e-9, max_bytes=5000)
    assert System(prior_of(), X, None, kept.max_bytes).kept
    assert not System(prior_of(), X, None, streamed.max_bytes).kept
    assert_close(kept.objective(X, y, row_noise), streamed.objective(X, y, row_noise), 1e-9)
    a, b = (m.condition(X, y, row_noise).predict(Z) for m in (kept, streamed))
    assert_close(a.mean, b.mean, 1e-7)
    assert_close(a.variance, b.variance, 1e-7)


def test_cggp_and_cholesky_learn_the_same():
    X, y, _ = data(100, seed=3)
    learned = []
    for make in (CholeskyGP, lambda prior: CGGP(prior, num_probes=32, precondition_rank=10)):
        method = make(start_from_data(GP(Scale(Matern32(2))), X, y))
        start = loss(CholeskyGP(method.prior), X, y)
        result = fit(method, X, y, num_steps=40, lr=0.2)
        assert not result.failures
        learned.append(loss(CholeskyGP(method.prior), X, y))
        assert learned[-1] < start - 0.1
    assert learned[1] == pytest.approx(learned[0], abs=0.01)


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
