"""Targets that are fitted as logarithms, against scipy's lognormal distribution and simulation."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from report_models import predictive_of
from scipy import stats
from scipy.integrate import quad
from sklearn.compose import TransformedTargetRegressor

import cagp
from cagp import CaGPRegressor, ExactGPRegressor, metrics
from cagp.cli import main
from cagp.data.transforms import TRANSFORMS
from cagp.estimators.predictive import Predictive
from cagp.recipes.table import TARGET
from cagp.recipes.target_scale import may_take_log
from cagp.saved_summary import saved_summary


def table(n: int = 150, seed: int = 0, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """A positive function with multiplicative noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, 100 * np.exp(np.sin(2 * X[:, 0]) + 0.8 * X[:, 1] + noise * rng.normal(size=n))


@pytest.fixture(scope="module")
def pair():
    """A model of log y, and the same model of y on a log scale."""
    X, y = table()
    options = {"max_epochs": 20}
    return ExactGPRegressor(**options, target="identity").fit(X, np.log(y)), ExactGPRegressor(
        **options, target="log"
    ).fit(X, y)


Z = np.random.default_rng(5).uniform(-2.5, 2.5, size=(9, 2))


@pytest.mark.parametrize("noise", [True, False])
def test_answers_are_those_of_the_lognormal_distribution(pair, noise):
    normal, log = pair
    assert log.target_transforms_ == ("log",)
    location, scale = normal.predict(Z, return_std=True, noise=noise)
    expected = stats.lognorm(scale, scale=np.exp(location))
    mean, std = log.predict(Z, return_std=True, noise=noise)
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-10)
    np.testing.assert_allclose(log.predict(Z, noise=noise), expected.mean(), rtol=1e-10)
    np.testing.assert_allclose(std, expected.std(), rtol=1e-10)
    levels = [0.01, 0.3, 0.5, 0.975]
    quantiles = log.predict_quantiles(Z, levels, noise=noise)
    for k, level in enumerate(levels):
        np.testing.assert_allclose(quantiles[:, k], expected.ppf(level), rtol=1e-9)
    for end, level in zip(log.predict_interval(Z, 0.8, noise=noise), (0.1, 0.9), strict=True):
        np.testing.assert_allclose(end, expected.ppf(level), rtol=1e-9)


def test_log_density_and_calibration(pair):
    normal, log = pair
    X, y = table(200, seed=3)
    location, scale = normal.predict(X, return_std=True)
    np.testing.assert_allclose(
        log.log_predictive_density(X, y), stats.lognorm(scale, scale=np.exp(location)).logpdf(y), rtol=1e-9
    )
    np.testing.assert_array_equal(log.calibration(X, y).coverage, normal.calibration(X, np.log(y)).coverage)
    assert log.log_predictive_density(X[:1], [-1.0])[0] == -np.inf


def test_draws_and_their_joint_covariance(pair):
    normal, log = pair
    close = Z[0] + 0.2 * np.random.default_rng(0).normal(size=(3, 2))
    draws, logs = (model.sample_y(close, 60_000, random_state=1) for model in (log, normal))
    np.testing.assert_allclose(draws, np.exp(logs), rtol=1e-9)
    mean, covariance = log.predict(close, return_cov=True)
    np.testing.assert_allclose(mean, draws.mean(1), rtol=0.01)
    np.testing.assert_allclose(covariance, np.cov(draws), rtol=0.08)
    np.testing.assert_allclose(np.diag(covariance), log.predict(close, return_std=True)[1] ** 2, rtol=1e-8)


def test_parts_of_the_variance_are_those_of_the_law_of_total_variance():
    """log y = a + b + e: what knowing a, then b, then e removes from the variance of y, by simulation."""
    parts = {"computational": np.array([0.05]), "latent": np.array([0.1]), "noise": np.array([0.2])}
    total = sum(parts.values())
    log = TRANSFORMS["log"]
    found = log.variance_parts(log.mean(np.array([0.7]), np.sqrt(total)), parts)
    np.testing.assert_allclose(sum(found.values()), log.std(np.array([0.7]), np.sqrt(total)) ** 2, rtol=1e-12)
    rng = np.random.default_rng(0)
    a = 0.7 + np.sqrt(0.05) * rng.normal(size=1_000_000)
    b = np.sqrt(0.1) * rng.normal(size=len(a))
    given_a, given_b = np.exp(a + 0.15), np.exp(a + b + 0.1)  # E[y | a], E[y | a, b]
    assert found["computational"][0] == pytest.approx(given_a.var(), rel=0.01)
    assert found["latent"][0] == pytest.approx(given_b.var() - given_a.var(), rel=0.01)
    unknown = log.variance_parts(np.ones(1), {**parts, "computational": np.array([np.nan])})
    assert np.isnan(unknown["computational"][0])
    assert np.isfinite(unknown["latent"][0])


@pytest.mark.parametrize("method", ["exact", "opt", "sgpr", "local"])
def test_parts_of_the_variance_of_a_model_add_up(method):
    X, y = table(80)
    model = CaGPRegressor(method, max_epochs=5, target="log").fit(X, y)
    mean, parts = model.predict(Z, return_components=True)
    same, std = model.predict(Z, return_std=True)
    np.testing.assert_allclose(mean, same, rtol=1e-9)
    computational = np.nan_to_num(parts["computational"])
    np.testing.assert_allclose(parts["noise"] + parts["latent"] + computational, std**2, rtol=1e-6)
    np.testing.assert_allclose(model.noise_std(Z) ** 2, parts["noise"], rtol=1e-6)


# ---- scores ----


def test_scores_of_lognormal_predictions():
    rng = np.random.default_rng(1)
    location, scale = rng.normal(size=6), rng.uniform(0.1, 1.5, size=6)
    y = np.exp(location + scale * rng.normal(size=6))
    found = metrics.lognormal_row_scores(*map(torch.from_numpy, (y, location, scale**2)))
    expected = stats.lognorm(scale, scale=np.exp(location))
    np.testing.assert_allclose(found.nll, -expected.logpdf(y), rtol=1e-10)
    np.testing.assert_allclose(found.error, y - expected.mean(), rtol=1e-10)
    low, high = expected.ppf(0.025), expected.ppf(0.975)
    np.testing.assert_allclose(found.width, high - low, rtol=1e-10)
    np.testing.assert_array_equal(found.inside, (low <= y) & (y <= high))
    for j in range(6):  # CRPS = ∫ (F(t) - 1{t ≥ y})² dt
        one = stats.lognorm(scale[j], scale=np.exp(location[j]))
        below = quad(lambda t, one=one: one.cdf(t) ** 2, 0, y[j], limit=200)[0]
        above = quad(lambda t, one=one: one.sf(t) ** 2, y[j], np.inf, limit=200)[0]
        assert float(found.crps[j]) == pytest.approx(below + above, rel=1e-6)


def test_a_target_that_is_not_positive_has_density_zero_and_a_finite_crps():
    found = metrics.lognormal_row_scores(*(torch.tensor([value], dtype=torch.float64) for value in (-2.0, 0.3, 0.25)))
    assert found.nll.item() == np.inf
    assert not found.inside.item()
    one = stats.lognorm(0.5, scale=np.exp(0.3))
    expected = 2.0 + quad(lambda t: one.sf(t) ** 2, 0, np.inf)[0]
    assert found.crps.item() == pytest.approx(expected, rel=1e-8)


def test_scores_do_not_depend_on_the_unit_but_by_it():
    rng = np.random.default_rng(2)
    location, scale = rng.normal(size=(50, 2)), rng.uniform(0.2, 0.9, size=(50, 2))
    y = np.stack([location[:, 0] + scale[:, 0], np.exp(location[:, 1] + 0.4)], 1)
    transforms = TRANSFORMS["identity"], TRANSFORMS["log"]
    one = Predictive(location, scale, transforms)
    unit = 1e-200
    tiny = Predictive(
        np.stack([location[:, 0] * unit, location[:, 1] + np.log(unit)], 1),
        np.stack([scale[:, 0] * unit, scale[:, 1]], 1),
        transforms,
    )
    for j in range(2):
        left, right = one.scores(j, y[:, j]).in_unit(unit), tiny.scores(j, y[:, j] * unit)
        np.testing.assert_allclose(right, left, rtol=1e-9)
    again = predictive_of(one.mean(), one.std(), ["identity", "log"])
    np.testing.assert_allclose(again.location, location, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(again.scale, scale, rtol=1e-9)


# ---- the choice ----


def test_users_can_choose_every_scale():
    assert set(re.findall(r'"(\w+)"', TARGET.expected)) == {"auto", *TRANSFORMS}


@pytest.mark.slow
def test_the_logarithm_is_chosen_where_the_noise_is_multiplicative():
    X, y = table(400)
    model = CaGPRegressor(max_epochs=3).fit(X, y)
    assert model.target_transforms_ == ("log",)
    assert "y is fitted on a log scale: predictions are lognormal (negative log density of 80 held-out" in (
        model.fit_report_
    )
    assert CaGPRegressor(max_epochs=3).fit(X, y).fit_report_.count("log scale") == 1


def test_a_skewed_target_with_additive_noise_stays_as_it_is():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, size=(400, 2))
    y = 1 + np.exp(X[:, 0] + 0.2 * X[:, 1]) + 0.2 * rng.normal(size=400)
    assert may_take_log(y)
    model = CaGPRegressor(max_epochs=3).fit(X, y)
    assert model.target_transforms_ == ("identity",)
    assert "y is positive and skewed, but is fitted as it is: its logarithm gains too little" in model.fit_report_


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "y",
    [
        np.random.default_rng(0).normal(10, 1, size=200),  # symmetric
        np.append(np.exp(np.random.default_rng(0).normal(size=199)), 0.0),  # not positive
        np.full(200, 3.0),
        np.random.default_rng(0).uniform(1, 2, size=200) ** 2,  # skewed a little
    ],
)
def test_nothing_is_tried_where_there_is_no_reason(y):
    assert not may_take_log(y)
    X = np.random.default_rng(1).normal(size=(200, 2))
    model = CaGPRegressor(max_epochs=2).fit(X, y)
    assert model.target_transforms_ == ("identity",)
    assert "log" not in model.fit_report_.replace("log density", "")


@pytest.mark.slow
def test_every_target_is_decided_for_itself_and_missing_values_do_not_disturb():
    X, y = table(300)
    frame = pd.DataFrame({"price": y, "size": X[:, 0] + X[:, 1]})
    model = CaGPRegressor(max_epochs=2).fit(X, frame)
    assert model.target_transforms_ == ("log", "identity")
    frame.loc[:40, "size"] = np.nan
    frame.loc[100:130, "price"] = np.nan
    partly = CaGPRegressor(max_epochs=2).fit(X, frame)
    assert partly.target_transforms_ == ("log", "identity")
    mean, std = partly.predict(X, return_std=True)
    assert (mean[:, 0] > 0).all()
    assert np.isfinite(std).all()
    known = frame["size"].notna().to_numpy()
    assert np.corrcoef(mean[known, 1], frame["size"][known])[0, 1] > 0.9
    assert np.corrcoef(np.log(mean[131:, 0]), np.log(y[131:]))[0, 1] > 0.8


def test_a_short_max_time_leaves_no_time_for_trials():
    X, y = table(200)
    model = CaGPRegressor(max_epochs=2, max_time=5.0).fit(X, y)
    assert model.target_transforms_ == ("identity",)
    assert "max_time leaves no time to try its logarithm" in model.fit_report_


def test_what_cannot_be_a_log_target_is_an_error():
    X, y = table(50)
    y[[7, 9]] = -1.5, 0.0
    y[3] = np.nan
    with pytest.raises(ValueError, match=r'target is "log", but y has 2 values .* \(first -1.5 at row 7\)'):
        CaGPRegressor(target="log").fit(X, y)
    with pytest.raises(ValueError, match=r"target is 'sqrt', expected \"auto\", \"identity\" or \"log\""):
        CaGPRegressor(target="sqrt").fit(X, y)
    X, y = table(150)
    with pytest.raises(ValueError, match=r"sample_noise is in squared units of y.*sample_noise / y\*\*2"):
        CaGPRegressor(target="log").fit(X, y, sample_noise=np.ones(150))
    model = CaGPRegressor(max_epochs=2).fit(X, y, sample_noise=np.ones(150))
    assert model.target_transforms_ == ("identity",)  # known noise is of y as it is
    model = CaGPRegressor(max_epochs=2, target="log").fit(X, y)
    with pytest.raises(ValueError, match="sample_noise is in squared units of y"):
        model.predict(X, return_std=True, sample_noise=np.ones(150))


# ---- files, reports, the command line ----


def test_files_keep_the_scale(tmp_path, pair):
    _, log = pair
    X, _ = table(40, seed=8)
    log.save(tmp_path / "log.cagp")
    again = cagp.load(tmp_path / "log.cagp")
    assert again.target_transforms_ == ("log",)
    np.testing.assert_array_equal(again.predict(X), log.predict(X))
    assert again.guarantee_ == log.guarantee_ == saved_summary(tmp_path / "log.cagp")["guarantee"]
    assert "On the scale of the fit, the variance is never below" in log.fit_report_


def test_float32_targets_that_overflow_are_infinite():
    X = np.linspace(0, 1, 40)[:, None]
    y = np.exp(np.linspace(-80, 80, 40)).astype(np.float32)
    model = ExactGPRegressor(target="log", max_epochs=3).fit(X, y)
    found = model.predict([[0.5], [30.0]])
    assert found.dtype == np.float32
    assert np.isinf(found[1])
    assert np.isfinite(model.predict_quantiles([[30.0]], 0.5)).all()


@pytest.mark.slow
def test_the_command_line_scores_log_targets_in_their_unit(tmp_path, capsys):
    X, y = table(160)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "price": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    new, y_new = table(60, seed=4)
    test = pd.DataFrame({"a": new[:, 0], "b": new[:, 1], "price": y_new})
    test.to_csv(tmp_path / "new.csv", index=False)
    out = str(tmp_path / "m.cagp")
    fit = ["fit", str(tmp_path / "t.csv"), "--target", "price", "--out", out, "--max-epochs", "5", "--quiet", "--json"]
    assert main([*fit, "--target-transform", "log"]) == 0
    assert json.loads(capsys.readouterr().out)["target_transforms"] == ["log"]
    report = str(tmp_path / "report.html")
    assert main(["evaluate", out, str(tmp_path / "new.csv"), "--json", "--report", report]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["metrics"]["price"]
    assert "price: fitted on a log scale, and so is the constant prediction" in captured.err
    model = cagp.load(out)
    inputs = test[["a", "b"]]
    assert found["model"]["nll"] == pytest.approx(-model.log_predictive_density(inputs, y_new).mean(), rel=1e-9)
    assert found["model"]["rmse"] == pytest.approx(np.sqrt(((model.predict(inputs) - y_new) ** 2).mean()), rel=1e-9)
    low, high = model.predict_interval(inputs)
    assert found["model"]["coverage"] == pytest.approx(((low <= y_new) & (y_new <= high)).mean())
    assert found["model"]["width"] == pytest.approx((high - low).mean(), rel=1e-9)
    trained = np.log(y)
    constant = stats.lognorm(trained.std(ddof=1), scale=np.exp(trained.mean()))
    assert found["constant"]["nll"] == pytest.approx(-constant.logpdf(y_new).mean(), abs=0.1)  # a tenth is held out
    page = (tmp_path / "report.html").read_text()
    assert f"{found['model']['coverage'] * 100:.1f}" in page
    assert main(["info", out]) == 0
    assert "price: on a log scale, mean" in capsys.readouterr().out
    assert main(["predict", out, str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv"), "--quiet"]) == 0
    written = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(written["price_mean"], model.predict(inputs), rtol=1e-9)
    np.testing.assert_allclose(written["price_lower"], low, rtol=1e-9)
    np.testing.assert_allclose(written["price_upper"], high, rtol=1e-9)


def test_the_report_scores_log_targets_in_their_unit(tmp_path, pair):
    _, log = pair
    from cagp.report.subject import subject_of
    from cagp.report.targets import targets_of

    X, y = table(100, seed=6)
    subject = subject_of(log, X, y)
    (target,) = targets_of(subject)
    assert target.scores.nll == pytest.approx(-log.log_predictive_density(X, y).mean(), rel=1e-6)
    low, high = log.predict_interval(X)
    np.testing.assert_allclose(target.interval, (low, high), rtol=1e-6)
    assert target.scores.coverage == ((low <= y) & (y <= high)).mean()
    location, scale = subject.predicted.location[:, 0], subject.predicted.scale[:, 0]
    np.testing.assert_allclose(target.z, (np.log(y) - location) / scale)


# ---- scikit-learn's own way ----


def test_transformed_target_regressor_gives_medians_and_refuses_error_bars():
    """It transforms what predict returns: right for the median alone. It cannot transform two arrays."""
    X, y = table(100)
    wrapped = TransformedTargetRegressor(ExactGPRegressor(max_epochs=5), func=np.log, inverse_func=np.exp).fit(X, y)
    log = ExactGPRegressor(max_epochs=5, target="log").fit(X, y)
    np.testing.assert_allclose(wrapped.predict(Z), log.predict_quantiles(Z, 0.5), rtol=1e-8)
    with pytest.raises(AttributeError):
        wrapped.predict(Z, return_std=True)
    ends = np.exp(wrapped.regressor_.predict_interval(Z, 0.9))
    np.testing.assert_allclose(ends, log.predict_interval(Z, 0.9), rtol=1e-8)
