"""Regressors for counts and for numbers with outliers: their answers are of the observation, whatever the method."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from sklearn.base import clone
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from cagp import CaGPRegressor, load
from cagp.estimators.predictive import Baseline, Observations
from cagp.estimators.target_kinds import REGRESSION
from cagp.likelihoods import NegativeBinomial, Poisson, StudentT
from cagp.metrics import LEVEL
from cagp.recipes import SITES_GUARANTEE
from cagp.saved_summary import saved_summary
from cagp.sites import WithLikelihood
from cagp.storage import load_state, save_state

OPTIONS = {
    "exact": {},
    "local": {"n_neighbors": 8},
    "hybrid": {"n_neighbors": 8, "n_actions": 8},
    "opt": {"n_actions": 16},
    "cg": {"n_actions": 8},
}
COUNTS = ("poisson", "negative_binomial")


def counts(num_rows: int = 160, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, hours = rng.normal(size=(num_rows, 2)), rng.uniform(0.2, 5, num_rows)
    y = rng.poisson(hours * np.exp(1 + np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]))
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "hours": hours}), y


def numbers(num_rows: int = 160, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 2))
    clean = 500 + 30 * np.sin(1.5 * X[:, 0]) + 10 * X[:, 1] + rng.normal(size=num_rows)
    y = clean.copy()
    y[::10] += rng.choice([-1, 1], len(y[::10])) * 1000
    return X, y, clean


def quick(method: str = "local", **choices) -> CaGPRegressor:
    return CaGPRegressor(method, max_epochs=8, mean="zero", **OPTIONS[method], **choices)


@pytest.mark.thinned(18)
@parametrize_with_checks([quick("local", likelihood="student_t")])
def test_scikit_learn_contract(estimator, check, annotations_off):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


# ---- every method ----


@pytest.mark.thinned(2)
@pytest.mark.parametrize("likelihood", COUNTS)
@pytest.mark.parametrize("method", OPTIONS)
def test_every_method_learns_counts_and_is_saved_to_the_bit(method, likelihood, tmp_path):
    X, y = counts()
    model = CaGPRegressor(method, likelihood=likelihood, exposure="hours", max_epochs=20, **OPTIONS[method])
    model.fit(X[:110], y[:110])
    assert model.method_ == method
    assert model.guarantee_ == SITES_GUARANTEE
    assert model.guarantee_ in model.fit_report_
    found = model.predictive(X[110:])
    baseline = Baseline.of(
        torch.from_numpy(y[:110]).double(), Poisson(), torch.from_numpy(np.log(X.hours[:110].to_numpy()))
    )
    location = baseline.location + np.log(X.hours[110:].to_numpy())[:, None]
    constant = Observations(location, np.zeros_like(location), baseline.likelihood)
    test = y[110:].astype(float)
    assert found.scores(0, test).nll < constant.scores(0, test).nll - 0.2
    assert found.scores(0, test).rmse < 0.7 * constant.scores(0, test).rmse

    path = model.save(tmp_path / "model.cagp")
    again = load(path)
    for one, other in zip(again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.sample_y(X[:5], 3), model.sample_y(X[:5], 3))
    np.testing.assert_array_equal(again.predict_quantiles(X), model.predict_quantiles(X))
    assert again.fit_report_ == model.fit_report_
    summary = saved_summary(path)
    assert (summary["likelihood"], summary["exposure"]) == (likelihood, "hours")
    assert summary["guarantee"] == SITES_GUARANTEE
    assert set(summary["likelihood_parameters"]) == ({"dispersion"} if likelihood != "poisson" else set())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", OPTIONS)
def test_gross_errors_hardly_move_students_t(method, tmp_path):
    X, y, clean = numbers()
    options = {"max_epochs": 30, **OPTIONS[method]}
    model = CaGPRegressor(method, likelihood="student_t", **options).fit(X[:110], y[:110])
    error = np.sqrt(np.mean((model.predict(X[110:]) - clean[110:]) ** 2))
    gaussian = CaGPRegressor(method, **options).fit(X[:110], y[:110])
    assert error < 12
    assert error < 0.2 * np.sqrt(np.mean((gaussian.predict(X[110:]) - clean[110:]) ** 2))
    again = load(model.save(tmp_path / "model.cagp"))
    np.testing.assert_array_equal(again.predict_quantiles(X), model.predict_quantiles(X))
    assert float(model.noise_std_[0]) == pytest.approx(float(model.noise_std(X)[0]))


def test_the_default_is_gaussian_and_the_same_to_the_bit():
    X, _, clean = numbers(60)
    plain, named = (CaGPRegressor("exact", max_epochs=5, **more) for more in ({}, {"likelihood": "gaussian"}))
    one, other = plain.fit(X, clean).predict(X, return_std=True), named.fit(X, clean).predict(X, return_std=True)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
    assert named.likelihood_ is None
    named.set_params(likelihood="student_t").fit(X, clean)
    assert isinstance(named.likelihood_, StudentT)
    again = named.set_params(likelihood="gaussian").fit(X, clean)
    np.testing.assert_array_equal(again.predict(X), plain.predict(X))


def test_auto_is_exact_for_few_rows_and_compares_means_for_many():
    X, y = counts()
    assert CaGPRegressor(likelihood="poisson", max_epochs=2).fit(X, y).method_ == "exact"
    X, y = counts(1200)
    model = CaGPRegressor(likelihood="poisson", exposure="hours", max_epochs=1).fit(X, y)
    assert model.method_ == "local"
    assert model.choice_ is not None
    assert "negative log density" in model.choice_
    assert "held-out rows" in model.fit_report_


def test_trees_in_the_mean_know_the_exposure():
    X, y = counts(400)
    model = CaGPRegressor("local", likelihood="poisson", exposure="hours", mean="trees", max_epochs=3).fit(X, y)
    assert model.trees_ is not None
    assert model.offset_ == 0.0
    twice = X.assign(hours=2 * X.hours)
    np.testing.assert_allclose(model.prior_mean(twice), 2 * model.prior_mean(X), rtol=1e-12)
    np.testing.assert_allclose(model.predict(twice), 2 * model.predict(X), rtol=1e-12)
    assert stats.spearmanr(model.prior_mean(X), model.predict(X)).statistic > 0.9


def test_trees_of_numbers_do_not_follow_outliers():
    X, y, clean = numbers(400)
    model = CaGPRegressor("local", likelihood="student_t", mean="trees", max_epochs=3).fit(X, y)
    assert np.sqrt(np.mean((model.prior_mean(X) - clean) ** 2)) < 30


# ---- distributions, against brute force ----

CASES = [(-1.0, 0.01), (0.5, 1.0), (3.0, 0.5), (5.5, 1e-6), (4.0, 0.04)]


def given_f(likelihood: Poisson | NegativeBinomial, f: np.ndarray):
    if isinstance(likelihood, Poisson):
        return stats.poisson(np.exp(f))
    r = 1 / float(likelihood.dispersion.detach())
    return stats.nbinom(r, r / (r + np.exp(f)))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("made", [Poisson(), NegativeBinomial(0.2), NegativeBinomial(1.5)])
@pytest.mark.parametrize(("mean", "variance"), CASES)
def test_distributions_of_counts_are_sums_of_probabilities(made, mean, variance):
    k, f = np.arange(6000), np.linspace(-9, 9, 361) * np.sqrt(variance) + mean
    weights = stats.norm.pdf(f, mean, np.sqrt(variance))
    pmf = sum(w * given_f(made, at).pmf(k) for w, at in zip(weights / weights.sum(), f, strict=True))
    cdf = np.cumsum(pmf)
    found = Observations(np.full((len(k), 1), mean), np.full((len(k), 1), variance), made)
    np.testing.assert_allclose(found.cdf(k[:, None].astype(float))[:, 0], cdf, atol=1e-6)
    one = found.take(slice(0, 3))
    for p in (0.025, 0.3, 0.5, 0.975):
        assert one.quantiles([p])[0, 0, 0] == np.searchsorted(cdf, p)
    average = (k * pmf).sum()
    assert one.mean()[0, 0] == pytest.approx(average, rel=1e-5)
    assert one.std()[0, 0] == pytest.approx(np.sqrt(((k - average) ** 2 * pmf).sum()), rel=2e-3)
    y = np.array([0.0, 4.0, 60.0])
    likely = pmf[y.astype(int)] > 1e-12  # beyond, the grid of the sum is too coarse
    np.testing.assert_allclose(one.log_density(y[:, None])[likely, 0], np.log(pmf[y.astype(int)])[likely], atol=1e-5)
    ranked = [((cdf - (k >= value)) ** 2).sum() for value in y]
    np.testing.assert_allclose(one.row_scores(0, y).crps, ranked, rtol=7e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("df", [2.3, 5.0, 80.0])
def test_distributions_of_numbers_are_integrals(df):
    made, unit = StudentT(scale=0.4, df=df), 7.0
    found = Observations(np.array([[0.3]]), np.array([[0.2]]), made, 100.0, unit)
    f = np.linspace(-9, 9, 2001) * np.sqrt(0.2) + 0.3
    weights = stats.norm.pdf(f, 0.3, np.sqrt(0.2))
    away = np.linspace(0, 3000, 20_001)  # in units of the target
    rows = Observations(np.full((len(away), 1), 0.3), np.full((len(away), 1), 0.2), made, 100.0, unit)
    for y in (80.0, 102.0, 120.0):
        right = (weights * stats.t.cdf((y - 100) / unit, df, f, 0.4)).sum() / weights.sum()
        assert found.cdf(np.array([[y]]))[0, 0] == pytest.approx(right, abs=1e-8)
        density = (weights * stats.t.pdf((y - 100) / unit, df, f, 0.4)).sum() / weights.sum() / unit
        assert found.log_density(np.array([[y]]))[0, 0] == pytest.approx(np.log(density), abs=1e-7)
        below, above = rows.cdf(y - away[:, None])[:, 0], 1 - rows.cdf(y + away[:, None])[:, 0]
        crps = integrate.simpson(below**2 + above**2, x=away)
        assert float(found.row_scores(0, np.array([y])).crps[0]) == pytest.approx(crps, rel=1e-5)
    for p in (0.01, 0.5, 0.9):
        assert found.cdf(found.quantiles([p])[:, :, 0])[0, 0] == pytest.approx(p, abs=1e-9)
    assert found.mean()[0, 0] == pytest.approx(100 + unit * 0.3)
    assert found.std()[0, 0] == pytest.approx(unit * np.sqrt(0.2 + 0.16 * df / (df - 2)), rel=1e-6)


def test_answers_agree_with_each_other():
    X, y = counts(300)
    model = quick("exact", likelihood="negative_binomial", exposure="hours").fit(X, y)
    some = X[:40]
    mean, std = model.predict(some, return_std=True)
    draws = model.sample_y(some, 20_000, random_state=1)
    assert draws.dtype == np.int64
    assert draws.min() >= 0
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * (std / np.sqrt(20_000)).max())
    np.testing.assert_allclose(draws.std(1), std, rtol=0.06)
    low, high = model.predict_interval(some, level=0.8)
    assert low.dtype == high.dtype == np.int64
    inside = ((draws >= low[:, None]) & (draws <= high[:, None])).mean(1)
    assert (inside > 0.79).all()
    assert (model.predict_quantiles(some, 0.1) == low).all()
    covariance = model.predict(some, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=1e-6)
    np.testing.assert_allclose(np.cov(draws)[0, 1:4], covariance[0, 1:4], atol=6 * std[0] * std[1:4].max() / 141)
    parts = model.predict(some, return_components=True)[1]
    assert parts["computational_kind"] == "exact"
    np.testing.assert_allclose(sum(parts[name] for name in ("noise", "latent", "computational")), std**2, rtol=1e-6)
    function = model.predict(some, return_std=True, noise=False)
    np.testing.assert_allclose(function[0], mean, rtol=1e-9)
    assert (function[1] < std).all()
    density = model.log_predictive_density(some, y[:40])
    assert np.mean(density) == pytest.approx(-model.predictive(some).scores(0, y[:40].astype(float)).nll)


def test_places_of_counts_are_uniform_and_intervals_hold_at_least_their_share():
    X, y = counts(700, seed=3)
    model = quick("local", likelihood="poisson", exposure="hours").fit(X[:400], y[:400])
    places = model.predictive(X[400:]).pit(y[400:, None].astype(float))[:, 0]
    assert stats.kstest(places, "uniform").pvalue > 1e-3
    assert model.calibration(X[400:], y[400:]).error < 0.05
    assert model.predictive(X[400:]).scores(0, y[400:].astype(float)).coverage > LEVEL - 0.03


def test_an_exposure_scales_the_mean_and_is_not_an_input():
    X, y = counts(200)
    model = quick("exact", likelihood="poisson", exposure="hours").fit(X, y)
    assert model.feature_names_out_.tolist() == ["a", "b"]
    assert model.n_features_in_ == 3
    longer = X.assign(hours=3 * X.hours)
    np.testing.assert_allclose(model.predict(longer), 3 * model.predict(X), rtol=1e-12)
    by_position = quick("exact", likelihood="poisson", exposure=2).fit(X.to_numpy(), y)
    np.testing.assert_array_equal(by_position.predict(X.to_numpy()), model.predict(X))


def test_levels_that_fit_has_not_seen_are_predicted_with_wider_distributions():
    X, y = counts(200)
    X["site"] = np.where(np.arange(200) % 3 == 0, "north", "south")
    y = np.where(X.site == "north", 4 * y, y)
    model = quick("exact", likelihood="poisson", exposure="hours").fit(X, y)
    known, new = model.predict(X[:9], return_std=True), model.predict(X[:9].assign(site="east"), return_std=True)
    assert (new[1] > known[1].min()).all()
    assert np.isfinite(new[0]).all()
    assert model.sample_y(X[:9].assign(site="east"), 2).shape == (9, 2)


def test_a_killed_fit_resumes_to_the_bit(tmp_path, monkeypatch):
    X, y = counts()
    options = {"likelihood": "negative_binomial", "exposure": "hours", "checkpoint_dir": tmp_path, **OPTIONS["local"]}
    whole = CaGPRegressor("local", max_epochs=12, **{**options, "checkpoint_dir": None}).fit(X, y)
    before_step = WithLikelihood.before_step

    def dies(self, data, coming):
        if coming.step == 7:
            raise KeyError("killed")
        return before_step(self, data, coming)

    monkeypatch.setattr(WithLikelihood, "before_step", dies)
    with pytest.raises(KeyError, match="killed"):
        CaGPRegressor("local", max_epochs=12, **options).fit(X, y)
    monkeypatch.setattr(WithLikelihood, "before_step", before_step)
    resumed = CaGPRegressor("local", max_epochs=12, **options).fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    assert resumed.fit_results_[0].steps[-1].loss == whole.fit_results_[0].steps[-1].loss


# ---- bad input ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"likelihood": "gamma"}, "expected one of gaussian, poisson, negative_binomial, student_t"),
        ({"likelihood": "poisson", "local_scale": 8.0}, "local_scale is 8.0, which is for likelihood='gaussian' alone"),
        ({"likelihood": "poisson", "target": "log"}, "target is 'log', which is for"),
        ({"likelihood": "poisson", "copies": "once"}, "copies is 'once'"),
        ({"likelihood": "poisson", "effort": "fast"}, "effort is 'fast'"),
        ({"likelihood": "poisson", "shards": True}, "shards is True"),
        ({"likelihood": "poisson", "warm_start": True}, "warm_start is True"),
        ({"likelihood": "poisson", "n_inducing": 7}, "n_inducing is 7"),
        ({"likelihood": "poisson", "method": "sgpr"}, "with likelihood='poisson' expected one of auto, exact"),
        ({"likelihood": "poisson", "method": "exact", "n_actions": 4}, "does not use it"),
        ({"likelihood": "student_t", "exposure": "hours"}, "for likelihood='poisson' or 'negative_binomial' alone"),
        ({"exposure": "hours"}, "'negative_binomial' alone; with 'gaussian', leave it out"),
        ({"likelihood": "poisson", "exposure": "days"}, "which X does not have; its columns are"),
        ({"likelihood": "poisson", "exposure": "place"}, "holds levels"),
    ],
)
def test_options_that_do_not_apply_are_errors(options, words):
    X, y = counts(20)
    X["place"] = ["here", "there"] * 10
    with pytest.raises(ValueError, match=re.escape(words)):
        CaGPRegressor(**options).fit(X, y)


def test_wrong_targets_and_exposures_are_refused():
    X, y = counts(30)
    model = quick("exact", likelihood="poisson", exposure="hours")
    with pytest.raises(ValueError, match=r"1 values that are no counts \(first -2\)"):
        model.fit(X, np.where(np.arange(30) == 4, -2, y))
    with pytest.raises(ValueError, match=r"no counts \(first 0.5\)"):
        model.fit(X, np.where(np.arange(30) == 4, 0.5, y))
    with pytest.raises(ValueError, match="infinity"):
        model.fit(X, np.where(np.arange(30) == 4, np.inf, y))
    for wrong in (0.0, -1.0, np.nan):
        bad = X.assign(hours=np.where(np.arange(30) == 7, wrong, X.hours))
        with pytest.raises(ValueError, match=r"'hours', has 1 values that are not positive numbers \(first .* row 7"):
            model.fit(bad, y)
    with pytest.raises(ValueError, match="2 targets"), pytest.warns(DataConversionWarning):
        model.fit(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match="sample_noise"):
        model.fit(X, y, sample_noise=np.ones(30))
    with pytest.raises(ValueError, match="no column besides the exposure"):
        model.fit(X[["hours"]], y)
    with pytest.raises(ValueError, match="positions of columns from 0 to 2"):
        clone(model).set_params(exposure=3).fit(X.to_numpy(), y)
    model.fit(X, y)
    with pytest.raises(ValueError, match=r"not positive numbers \(first 0 at row 2"):
        model.predict(X.assign(hours=np.where(np.arange(30) == 2, 0.0, X.hours)))
    with pytest.raises(ValueError, match="yet now missing:\n- hours"):
        model.predict(X[["a", "b"]])
    with pytest.raises(ValueError, match="conformal"):
        model.predict_interval(X, method="conformal")
    with pytest.raises(ValueError, match="sample_noise"):
        model.predict(X, sample_noise=np.ones(30))
    assert model.log_predictive_density(X[:2], [0.5, -1.0]).tolist() == [-np.inf, -np.inf]


def test_rows_without_a_count_are_left_out_and_the_report_says_so():
    X, y = counts(60)
    y = y.astype(float)
    y[[3, 8]] = np.nan
    model = quick("exact", likelihood="poisson", exposure="hours").fit(X, y)
    assert model.n_rows_ == 58
    assert "Left out 2 of 60 rows" in model.fit_report_


def test_counts_that_are_all_zero_are_learned():
    X, _ = counts(40)
    model = quick("exact", likelihood="poisson").fit(X, np.zeros(40))
    assert (model.predict(X) < 0.2).all()
    assert (model.predict_quantiles(X, 0.5) == 0).all()


def test_targets_of_which_half_are_equal_are_learned():
    X, y, _ = numbers(60)
    y[:40] = 7.0
    for values in (y, np.full(60, 7.0)):
        model = quick("exact", likelihood="student_t").fit(X, values)
        assert np.isfinite(model.predict(X, return_std=True)).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("name", "student_t"),
        ("offsets", [float("nan")]),
        ("offsets", ["1"]),
        ("offsets", []),
        ("labels", {}),
        ("parameters", {}),
        ("parameters", {"raw_dispersion": torch.tensor(1e9).double()}),
        ("parameters", {"raw_dispersion": torch.tensor([0.1, 0.2]).double()}),
        ("baseline", {"location": 1.0, "dispersion": -1.0}),
        ("baseline", {"location": None, "dispersion": None}),
    ],
)
def test_damaged_likelihoods_are_refused(place, value, tmp_path):
    X, y = counts(30)
    path = quick("exact", likelihood="negative_binomial").fit(X, y).save(tmp_path / "model.cagp")
    state = load_state(path, "cagp model", 1)
    state["likelihood"][place] = value
    save_state(path, state, "cagp model", 1)
    with pytest.raises(ValueError, match="as cagp stores it"):
        load(path)
    state["likelihood"] = None
    save_state(path, state, "cagp model", 1)
    with pytest.raises(ValueError, match="as cagp stores it"):
        load(path)


def test_the_names_are_those_of_the_registry():
    assert set(REGRESSION) == {"gaussian", "student_t", "poisson", "negative_binomial"}
