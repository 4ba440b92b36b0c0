"""What the regressors answer, against dense float64 formulas in the units of the user."""

import numpy as np
import oracle
import pytest
import torch
from scipy import stats
from test_estimators import REGRESSORS, every_regressor, quick, table, used_by

from cagp import GP, CaGPRegressor, CGGPRegressor, CholeskyGP, ExactGPRegressor, GaussianNoise
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt, MultiTarget
from cagp.training import Coming

Gaussian = oracle.Gaussian


def dense(model, X, y, Z, sample_noise=None, noise_of_z=0.0, target: int = 0) -> Gaussian:
    """New observations at ``Z`` by the exact GP with the model's hyperparameters, everything else done anew."""
    center, scale, middle, unit = X.mean(0), X.std(0, ddof=1), y.mean(), y.std(ddof=1)
    known = None if sample_noise is None else sample_noise / unit**2
    prior = model.posteriors_[target].prior
    f = oracle.exact_posterior(prior, (X - center) / scale, (y - middle) / unit, (Z - center) / scale, known)
    noise = np.full(len(Z), float(oracle.array(prior.noise.noise)) * unit**2) + noise_of_z
    return Gaussian(middle + unit * f.mean, unit**2 * f.covariance + np.diag(noise))


def check_exact(model, answer: Gaussian, Z, tolerance: float = 1e-8, **choices) -> None:
    scale = np.sqrt(answer.variance)
    for mean in (model.predict(Z), model.predict(Z, return_std=True)[0]):
        assert (np.abs(mean - answer.mean) < tolerance * scale).all()
    np.testing.assert_allclose(model.predict(Z, return_std=True, **choices)[1], scale, rtol=tolerance)
    covariance = model.predict(Z, return_cov=True, **choices)[1]
    np.testing.assert_allclose(covariance / scale / scale[:, None], answer.covariance / scale / scale[:, None], 0, 1e-7)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("unit", [1.0, 1e60, 1e-60])
@pytest.mark.parametrize("kernel", ["matern12", "matern32", "matern52", "rbf", "rational_quadratic"])
def test_exact_answers_are_the_dense_ones(kernel, unit):
    X, y = table(30, 3)
    X, y = X * [1e80, 1e-80, 3.0] + [0, 0, 1e3], unit * (y + 5)
    Z = np.concatenate([X[:3], X[:5] * 1.05])
    model = ExactGPRegressor(kernel, max_epochs=5).fit(X, y)
    check_exact(model, dense(model, X, y, Z), Z)


def test_known_noise_of_rows_and_of_questions():
    X, y = table(30)
    Z, noise_of_z = X[:6] + 0.1, np.linspace(0, 2, 6)
    noise = np.where(np.arange(30) % 2, 4.0, 1e-4)
    for unit in (1.0, 1e-40):
        known, asked = noise * unit**2, noise_of_z * unit**2
        model = quick().fit(X, unit * y, sample_noise=known)
        answer = dense(model, X, unit * y, Z, known, asked)
        check_exact(model, answer, Z, sample_noise=asked)
        parts = model.predict(Z, return_components=True, sample_noise=asked)[1]
        np.testing.assert_allclose(sum(parts[name] for name in ("noise", "latent", "computational")), answer.variance)
        lower, upper = model.predict_interval(Z, 0.9, sample_noise=asked)
        np.testing.assert_allclose(
            np.stack([lower, upper]), stats.norm.interval(0.9, answer.mean, answer.variance**0.5), rtol=1e-7
        )
        density = model.log_predictive_density(Z, unit * y[:6], sample_noise=asked)
        np.testing.assert_allclose(density, stats.norm.logpdf(unit * y[:6], answer.mean, answer.variance**0.5))
    # Rows that are known to be noisy count less.
    plain = quick().fit(X, y)
    noisy, clean = noise > 1, noise < 1
    error = np.abs(model.predict(X) / unit - y) - np.abs(plain.predict(X) - y)
    assert error[noisy].mean() > 0 > error[clean].mean()


@pytest.mark.thinned(2)
@every_regressor
def test_known_noise_reaches_every_method(regressor):
    X, y = table(40)
    one, zero = np.ones(40), np.zeros(40)
    plain = regressor(max_epochs=2).fit(X, y)
    np.testing.assert_allclose(regressor(max_epochs=2).fit(X, y, sample_noise=zero).predict(X), plain.predict(X))
    outlier = np.where(np.arange(40) == 7, 1e6, 1e-3)
    shifted = y + 50 * (np.arange(40) == 7)
    model = regressor(max_epochs=2, kernel=Scale(Matern32(2))).fit(X, shifted, sample_noise=outlier * shifted.var())
    assert abs(model.predict(X[7:8])[0]) < 10  # else it would be dragged towards 50
    std = plain.predict(X, return_std=True)[1]
    with_noise = plain.predict(X, return_std=True, sample_noise=one)[1]
    np.testing.assert_allclose(with_noise**2, std**2 + 1, rtol=1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["exact", "opt", "cg", "local", "hybrid", "SGPR", "SVGP", "CGGP"])
@pytest.mark.parametrize("unit", [1e100, 1e-100])
def test_answers_do_not_depend_on_units(name, unit):
    X, y = table(40)
    model = REGRESSORS[name](max_epochs=3).fit(X, y)
    scaled = X * [unit, 1 / unit] + [3 * unit, -2 / unit]
    other = REGRESSORS[name](max_epochs=3).fit(scaled, unit * (y - 4))
    mean, std = model.predict(X, return_std=True)
    other_mean, other_std = other.predict(scaled, return_std=True)
    np.testing.assert_allclose(other_mean / unit + 4, mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(other_std / unit, std, rtol=1e-6)
    np.testing.assert_allclose(other.predict_interval(scaled)[0] / unit + 4, model.predict_interval(X)[0], 1e-6, 1e-7)
    np.testing.assert_allclose(other.noise_std_ / unit, model.noise_std_, rtol=1e-6)
    np.testing.assert_allclose(other.lengthscales_, model.lengthscales_, rtol=1e-6)
    np.testing.assert_allclose(
        other.log_predictive_density(scaled, unit * (y - 4)),
        model.log_predictive_density(X, y) - np.log(unit),
        rtol=1e-6,
        atol=1e-6,
    )
    assert other.calibration(scaled, unit * (y - 4)).error == pytest.approx(model.calibration(X, y).error, abs=0.02)


def test_units_whose_squares_vanish():
    X, y = table(30)
    model, tiny = quick().fit(X, y), quick().fit(X, 1e-180 * y, sample_noise=np.zeros(30))
    std = tiny.predict(X, return_std=True)[1]
    np.testing.assert_allclose(std / 1e-180, model.predict(X, return_std=True)[1], rtol=1e-6)
    np.testing.assert_allclose(
        tiny.log_predictive_density(X, 1e-180 * y), model.log_predictive_density(X, y) + 180 * np.log(10), rtol=1e-6
    )


# ---- where the variance comes from ----


@pytest.mark.thinned(4)
@every_regressor
@pytest.mark.parametrize("with_noise", [False, True])
def test_components_add_up_and_are_those_of_the_exact_posterior(regressor, with_noise):
    X, y = table(40)
    noise = np.linspace(0.01, 0.5, 40) if with_noise else None
    Z = np.concatenate([X[:5], X[:5] + 0.3])
    model = regressor(max_epochs=3)
    if isinstance(model, CaGPRegressor):  # with a local scale they are those of another prior at each row
        model.set_params(**used_by(model.method, local_scale=None))
    model.fit(X, y, sample_noise=noise)
    mean, parts = model.predict(Z, return_components=True)
    std = model.predict(Z, return_std=True)[1]
    np.testing.assert_array_equal(mean, model.predict(Z))
    total = parts["noise"] + parts["latent"] + np.nan_to_num(parts["computational"])
    np.testing.assert_allclose(total, std**2, rtol=1e-9)
    np.testing.assert_allclose(parts["noise"], model.noise_std_[0] ** 2, rtol=1e-12)
    if model.method_ in ("sgpr", "svgp", "cggp"):
        assert parts["computational_kind"] == "unknown"
        assert np.isnan(parts["computational"]).all()
        return
    assert parts["computational_kind"] == "exact"
    exact = dense(model, X, y, Z, noise).variance - model.noise_std_[0] ** 2
    np.testing.assert_allclose(parts["latent"], exact, rtol=1e-6, atol=1e-9)
    assert (parts["computational"] >= 0).all()
    if model.method_ in ("opt", "cg", "hybrid"):  # eight actions do not see everything
        assert parts["computational"].max() > 1e-4


@pytest.mark.parametrize("method", ["opt", "local", "hybrid"])
def test_components_beyond_what_can_be_exact_are_bounds(method, monkeypatch):
    X, y = table(60)
    model = CaGPRegressor(method, **used_by(method, n_actions=8, n_neighbors=4), max_epochs=3).fit(X, y)
    Z = X[:10] + 0.2
    exact = model.predict(Z, return_components=True)[1]
    monkeypatch.setattr("cagp.diagnostics.EXACT_ROWS", 50)
    monkeypatch.setattr("cagp.diagnostics.NEIGHBOURS", 16)
    bound = model.predict(Z, return_components=True)[1]
    assert bound["computational_kind"] == "estimate"
    assert (bound["latent"] >= exact["latent"] - 1e-9).all()
    assert bound["computational"].max() > 0
    np.testing.assert_allclose(bound["latent"] + bound["computational"], exact["latent"] + exact["computational"])


@pytest.mark.parametrize("method", ["opt", "cg", "local", "hybrid"])
def test_a_budget_of_all_rows_is_exact(method):
    X, y = table(25)
    Z = X[:6] + 0.2
    noise = np.linspace(0.01, 0.3, 25)
    options = used_by(method, n_actions=25, n_neighbors=25)
    model = CaGPRegressor(method, **options, max_epochs=3).fit(X, y, sample_noise=noise)
    answer = dense(model, X, y, Z, noise)
    check_exact(model, answer, Z, tolerance=1e-5)
    assert model.method_ == method


def test_conjugate_gradients_come_close_to_the_dense_answer():
    X, y = table(40)
    model = CGGPRegressor(max_epochs=2).fit(X, y)
    check_exact(model, dense(model, X, y, X[:5]), X[:5], tolerance=1e-3)


def test_predictions_of_many_rows_come_in_tiles(monkeypatch):
    X, y = table(60)
    model = CaGPRegressor("hybrid", n_actions=8, n_neighbors=4, max_epochs=2).fit(X, np.stack([y, -2 * y], 1))
    whole = model.predict(X), *model.predict(X, return_std=True), model.predict(X, return_components=True)[1]["latent"]
    monkeypatch.setattr("cagp.estimators.units.PREDICT_ROWS", 7)
    tiles = model.predict(X), *model.predict(X, return_std=True), model.predict(X, return_components=True)[1]["latent"]
    for one, other in zip(whole, tiles, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_tiles_are_by_place_where_that_costs_less_and_answers_stay_with_their_rows(monkeypatch):
    X, y = table(60)
    noise = np.linspace(0.1, 0.9, 60)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    model = CaGPRegressor("hybrid", n_actions=8, n_neighbors=4, max_epochs=2).fit(X, y)
    whole = (*model.predict(X, return_std=True, sample_noise=noise), model.noise_std(X))
    monkeypatch.setattr("cagp.estimators.units.PREDICT_ROWS", 7)
    tiles = (*model.predict(X, return_std=True, sample_noise=noise), model.noise_std(X))
    for one, other in zip(whole, tiles, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    points = model.fitted.points(X)
    rows = [rows for rows, _ in model.units_.tiles(points, model.posteriors_[0])]
    assert sorted(np.concatenate(rows)) == list(range(60))
    assert len(rows) == 9
    spread = np.mean([np.linalg.norm(X[part] - X[part].mean(0), axis=1).mean() for part in rows])
    assert spread < 0.8 * np.linalg.norm(X - X.mean(0), axis=1).mean()


# ---- what follows from mean and deviation ----


@pytest.mark.parametrize("name", ["exact", "hybrid", "SGPR"])
def test_intervals_quantiles_and_densities_are_those_of_a_normal_distribution(name):
    X, y = table(60)
    model = REGRESSORS[name](max_epochs=3).fit(X[:40], y[:40])
    Z, observed = X[40:], y[40:]
    mean, std = model.predict(Z, return_std=True)
    normal = stats.norm(mean, std)
    np.testing.assert_allclose(np.stack(model.predict_interval(Z, 0.8)), normal.interval(0.8), rtol=1e-9)
    quantiles = [0.01, 0.3, 0.5, 0.999]
    expected = stats.norm.ppf(np.array(quantiles), mean[:, None], std[:, None])
    np.testing.assert_allclose(model.predict_quantiles(Z, quantiles), expected, rtol=1e-9)
    np.testing.assert_allclose(model.log_predictive_density(Z, observed), normal.logpdf(observed), rtol=1e-9)
    found = model.calibration(Z, observed, levels=[0.5, 0.9])
    inside = [np.mean((observed >= lower) & (observed <= upper)) for lower, upper in map(normal.interval, (0.5, 0.9))]
    np.testing.assert_allclose(found.coverage, inside)
    assert found.error == pytest.approx(np.abs(np.array(inside) - [0.5, 0.9]).mean())
    assert len(model.calibration(Z, observed).levels) == 19
    wide = model.calibration(Z, observed, levels=[0.5], sample_noise=np.full(20, 1e6))
    assert wide.coverage[0] == 1.0


@pytest.mark.parametrize("name", ["exact", "opt", "hybrid", "SVGP", "CGGP"])
def test_draws_have_the_joint_moments(name):
    X, y = table(30)
    model = REGRESSORS[name](max_epochs=3).fit(X, 100 + 7 * y)
    Z = np.concatenate([X[:2], X[:2] + 0.05])
    mean, covariance = model.predict(Z, return_cov=True)
    draws = model.sample_y(Z, 40_000, random_state=1)
    assert draws.shape == (4, 40_000)
    error = np.sqrt(np.diag(covariance) / 40_000)
    if name != "hybrid":  # whose joint answers use more rows than those of each row alone
        assert (np.abs(draws.mean(1) - mean) < 5 * error).all()
    spread = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(np.cov(draws) / spread, covariance / spread, atol=5 * np.sqrt(2 / 40_000))


def test_intervals_hold_what_they_promise_on_data_from_the_model():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 1))
    K = np.exp(-(np.abs(X - X.T) ** 2) / 0.5)
    y = np.linalg.cholesky(K + 1e-6 * np.eye(400)) @ rng.normal(size=400) + 0.3 * rng.normal(size=400)
    model = ExactGPRegressor("rbf", max_epochs=30).fit(X[:200], y[:200])
    assert model.calibration(X[200:], y[200:], levels=[0.9]).coverage[0] == pytest.approx(0.9, abs=0.06)
    assert model.noise_std_[0] == pytest.approx(0.3, rel=0.15)


# ---- several targets ----


def test_several_targets_share_a_kernel_and_have_their_own_noise():
    rng = np.random.default_rng(3)
    X, y = table(40)
    Y = np.column_stack([y, 1e3 * (y + 0.7 * rng.normal(size=40)), 1e-5 * np.cos(X[:, 0])])
    Z, noise = X[:6] + 0.1, np.linspace(0.1, 0.4, 40)
    model = ExactGPRegressor(max_epochs=10).fit(X, Y, sample_noise=noise[:, None] * Y.var(0))
    states = [posterior.prior.kernel.state_dict() for posterior in model.posteriors_]
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in states[0])
    assert len(set((model.noise_std_ / Y.std(0)).round(6))) == 3
    mean, covariance = model.predict(Z, return_cov=True)
    std = model.predict(Z, return_std=True)[1]
    parts = model.predict(Z, return_components=True)[1]
    quantiles, draws = model.predict_quantiles(Z, [0.2]), model.sample_y(Z, 3)
    assert mean.shape == std.shape == parts["latent"].shape == (6, 3)
    assert covariance.shape == (6, 6, 3)
    assert quantiles.shape == (6, 3, 1)
    assert draws.shape == (6, 3, 3)
    assert model.log_predictive_density(Z, Y[:6]).shape == (6, 3)
    for j in range(3):
        answer = dense(model, X, Y[:, j], Z, noise * Y[:, j].var(), target=j)
        scale = np.sqrt(answer.variance)
        np.testing.assert_allclose(mean[:, j] / scale, answer.mean / scale, rtol=1e-7)
        np.testing.assert_allclose(std[:, j], scale, rtol=1e-7)
        np.testing.assert_allclose(covariance[..., j] / scale**2, answer.covariance / scale**2, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(parts["latent"][:, j] + parts["noise"][:, j], scale**2, rtol=1e-7)
        np.testing.assert_allclose(quantiles[:, j, 0], stats.norm.ppf(0.2, answer.mean, scale), rtol=1e-6)
    assert "3 targets share one kernel" in model.fit_report_


@pytest.mark.thinned(2)
@every_regressor
def test_a_target_and_its_copies_are_one(regressor):
    X, y = table(40)
    one = regressor(max_epochs=3).fit(X, y)
    exact = one.method_ == "exact"  # L-BFGS takes another path where a noise has half of the gradient, to the same end
    if exact:
        one = regressor(max_epochs=60).fit(X, y)
    two = regressor(max_epochs=60 if exact else 3).fit(X, np.column_stack([y, 10 * y + 1]))
    mean, std = one.predict(X, return_std=True)
    means, stds = two.predict(X, return_std=True)
    tolerance = 2e-2 if exact else 1e-6
    np.testing.assert_allclose(means, np.column_stack([mean, 10 * mean + 1]), rtol=0, atol=10 * tolerance)
    np.testing.assert_allclose(stds, np.column_stack([std, 10 * std]), rtol=tolerance)


def test_the_loss_of_several_targets_is_the_mean_of_theirs():
    X, y = table(20)
    kernel = Scale(Matern32(2, [0.8, 1.1]), 1.3)
    priors = [GP(kernel, noise=GaussianNoise(noise)) for noise in (0.1, 0.4)]
    method = MultiTarget([CholeskyGP(prior) for prior in priors])
    Y, noise = np.column_stack([y, y**2]), np.random.default_rng(0).uniform(0.1, 1, (20, 2))
    expected = -np.mean(
        [oracle.log_marginal_likelihood(prior, X, Y[:, j], noise[:, j]) for j, prior in enumerate(priors)]
    )
    data = map(torch.from_numpy, (X, Y, noise))
    assert method.objective(*data).item() == pytest.approx(expected / 20, rel=1e-9)
    # Each parameter once: the kernel's two, and two noises.
    assert [len(group.parameters) for group in method.parameter_groups().values()] == [4]
    assert set(method.hyperparameters()) >= {"noise.noise", "noise.noise of target 1"}
    with pytest.raises(ValueError, match="expected 2 columns"):
        method.objective(torch.from_numpy(X), torch.from_numpy(Y[:, :1]))
    with pytest.raises(ValueError, match="methods is empty"):
        MultiTarget([])


def test_shared_blocks_are_cut_once_for_all_targets():
    X, y = table(40)
    X, Y = torch.from_numpy(X), torch.from_numpy(np.column_stack([y, -y]))
    kernel = Scale(Matern32(2, [0.5, 2.0]))
    first = CaGPOpt.from_data(GP(kernel), X, 8)
    both = MultiTarget([first, CaGPOpt(GP(kernel), first.actions, reblock_at=first.reblock_at)])
    alone = CaGPOpt.from_data(GP(Scale(Matern32(2, [0.5, 2.0]))), X, 8)
    for step in (0, 20, 50):
        coming, data = Coming(step, step / 60, False, None, None), Data(X, Y)
        assert both.before_step(data, coming).event == alone.before_step(data.column(0), coming).event
        assert torch.equal(first.actions.support, alone.actions.support)
        assert torch.equal(first.actions.values, alone.actions.values)
    assert len(both.parameter_groups()["actions"].parameters) == 1
    assert len(both.condition(X, Y)) == 2
