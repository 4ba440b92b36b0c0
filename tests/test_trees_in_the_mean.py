"""Regressors whose prior mean is boosted trees: what they predict, store, say, and keep of an interrupted fit."""

import json
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
import torch
from cli_problems import houses
from test_estimator_files import assert_same
from test_estimators import SMALL, task_of, used_by

import cagp
from cagp import CaGPRegressor, limits, trees
from cagp.cli import main
from cagp.estimators.units import Units
from cagp.recipes import auto
from cagp.recipes.table import RECIPES, recipe_for
from cagp.recipes.task import RESIDUAL_START
from cagp.report.page import number
from cagp.training import PRESETS, Settings, history
from cagp.trees import fit_trees

every_method = pytest.mark.parametrize("method", RECIPES)


def step_and_wave(num_rows: int = 80, num_targets: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A step that trees find and a wave that they do not, far from zero and in odd units."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 3))
    signs = np.where(X[:, 0] > 0, 1.0, -1.0)
    y = np.stack([2 * signs + 0.3 * np.sin(3 * X[:, 1] + j) for j in range(num_targets)], 1)
    return X, 50 + 7 * (y + 0.05 * rng.normal(size=y.shape))


def regressor(method: str = "local", **choices) -> CaGPRegressor:
    """A quick one; for "auto" with one kernel, so that few rows are exact inference."""
    if method == "auto":
        choices = {"kernel": "matern32", **choices}
    return CaGPRegressor(method, **{"max_epochs": 2, "mean": "trees", **used_by(method, **SMALL), **choices})


def standard(X, y, noise=None) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Targets and known noise in standard units, with the units."""
    mean, std = y.mean(0), y.std(0, ddof=1)
    return (y - mean) / std, None if noise is None else noise / std**2, mean, std


# ---- what is predicted ----


@pytest.mark.thinned(2)
@every_method
@pytest.mark.parametrize("known_noise", [False, True])
def test_the_process_learns_what_the_trees_leave(method, known_noise):
    """The same as the method without a mean on the residuals, plus the mean of the trees."""
    X, y = step_and_wave(num_targets=2)
    noise = np.random.default_rng(1).uniform(0.1, 1.0, y.shape) if known_noise else None
    model = regressor(method, random_state=3).fit(X, y, sample_noise=noise)
    targets, variances, mean, std = standard(X, y, noise)
    found = fit_trees(X, targets, variances, seed=3)
    assert found.trees.texts == model.trees_.texts

    recipe = recipe_for("exact" if method == "auto" else method, used_by(method, **SMALL) if method != "auto" else {})
    units, rows = Units.learn(X, y, noise)
    plain = regressor(method, mean="zero", random_state=3)
    task = task_of(plain, recipe, units, rows)
    rest = torch.from_numpy(targets - found.mean).to(task.y)
    fitted = recipe.train(
        replace(task.with_targets(rest, task.row_noise), start=RESIDUAL_START)
    )  # residuals of trees are rough
    Z, _ = step_and_wave(11, seed=5)
    points = torch.from_numpy((Z - X.mean(0)) / X.std(0, ddof=1))
    prior_mean = found.trees.mean(Z)
    predicted, deviation = model.predict(Z, return_std=True)
    for j, posterior in enumerate(fitted.posteriors):
        answer = posterior.predict(points.to(posterior.X), noise=True)
        expected = (answer.mean.double().numpy() + prior_mean[:, j]) * std[j] + mean[j]
        np.testing.assert_allclose(predicted[:, j], expected, rtol=1e-9)
        np.testing.assert_allclose(deviation[:, j], answer.variance.double().sqrt().numpy() * std[j], rtol=1e-7)
    np.testing.assert_allclose(model.prior_mean(Z), prior_mean * std + mean, rtol=1e-12)


def matern32(X, Z, lengthscale, outputscale):
    r = np.sqrt(3) * np.sqrt(np.square((X[:, None] - Z[None]) / lengthscale).sum(-1))
    return outputscale * (1 + r) * np.exp(-r)


def dense(model, X, residual, Z) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of new observations in standard units, by the textbook's formulas."""
    prior = model.posteriors_[0].prior
    lengthscale, outputscale, noise = (
        values.detach().double().numpy()
        for values in (prior.kernel.kernel.lengthscale, prior.kernel.outputscale, prior.noise.noise)
    )
    X, Z = ((values - X.mean(0)) / X.std(0, ddof=1) for values in (X, Z))
    K = matern32(X, X, lengthscale, outputscale) + noise * np.eye(len(X))
    cross = matern32(Z, X, lengthscale, outputscale)
    variance = outputscale - np.einsum("ij,ji->i", cross, np.linalg.solve(K, cross.T)) + noise
    return cross @ np.linalg.solve(K, residual), variance


def test_exact_inference_by_hand():
    X, y = step_and_wave()
    y = y[:, 0]
    model = regressor("exact", kernel="matern32").fit(X, y)
    targets, _, mean, std = standard(X, y)
    found = fit_trees(X, targets[:, None])
    Z, new = step_and_wave(20, seed=2)
    expected, variance = dense(model, X, targets - found.mean[:, 0], Z)
    expected = mean + std * (expected + found.trees.mean(Z)[:, 0])
    predicted, deviation = model.predict(Z, return_std=True)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)
    np.testing.assert_allclose(deviation, std * np.sqrt(variance), rtol=1e-7)

    normal = NormalDist()
    quantiles = model.predict_quantiles(Z, [0.1, 0.5, 0.9])
    for k, level in enumerate((0.1, 0.5, 0.9)):
        np.testing.assert_allclose(quantiles[:, k], predicted + deviation * normal.inv_cdf(level), rtol=1e-9)
    low, high = model.predict_interval(Z, 0.8)
    np.testing.assert_allclose([low, high], [quantiles[:, 0], quantiles[:, 2]], rtol=1e-12)
    density = [normal.pdf(z) / s for z, s in zip((new[:, 0] - predicted) / deviation, deviation, strict=True)]
    np.testing.assert_allclose(model.log_predictive_density(Z, new[:, 0]), np.log(density), rtol=1e-7)
    covariance = model.predict(Z, return_cov=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), deviation, rtol=1e-7)
    parts = model.predict(Z, return_components=True)[1]
    np.testing.assert_allclose(parts["noise"] + parts["latent"] + parts["computational"], deviation**2, rtol=1e-7)
    draws = model.sample_y(Z, 4000, random_state=1)
    np.testing.assert_allclose(draws.mean(1), predicted, atol=6 * deviation.max() / 4000**0.5)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.15 * deviation.max() ** 2)
    residual = np.abs(new[:, 0] - predicted) / deviation
    scores = model.predict_interval(Z, 0.5, method="conformal", calibration=(Z, new[:, 0]))
    factor = np.sort(residual)[int(np.ceil(0.5 * 21)) - 1]
    np.testing.assert_allclose(scores[1] - predicted, factor * deviation, rtol=1e-6)


@pytest.mark.thinned(4)
@every_method
def test_the_variance_is_never_below_the_exact_one_where_that_is_promised(method):
    """The prior mean is a fixed function: the exact variance is that of the kernel and the noise alone."""
    X, y = step_and_wave()
    Z, _ = step_and_wave(20, seed=2)
    choices = {"local_scale": None} if "local_scale" in RECIPES[method].values else {}
    model = regressor(method, kernel="matern32", **choices).fit(X, y)
    assert model.posteriors_[0].never_below_exact == ("never below" in model.guarantee_)
    _, variance = dense(model, X, np.zeros(len(X)), Z)
    found = model.predict(Z, return_std=True)[1][:, 0] / y.std(ddof=1)
    if model.posteriors_[0].never_below_exact:
        assert (found**2 >= variance * (1 - 1e-5)).all()
    else:
        assert method in ("sgpr", "svgp", "cggp")


def test_answers_in_float32_and_tensors():
    X, y = step_and_wave()
    model = regressor().fit(torch.from_numpy(X), torch.from_numpy(y[:, 0].astype(np.float32)))
    found = model.prior_mean(torch.from_numpy(X[:5]))
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, regressor().fit(X, y[:, 0]).prior_mean(X[:5]), rtol=1e-4)


def test_without_trees_the_prior_mean_is_that_of_the_targets():
    X, y = step_and_wave()
    model = regressor(mean="zero").fit(X, y[:, 0])
    assert model.trees_ is None
    np.testing.assert_allclose(model.prior_mean(X[:3]), y.mean())


def test_targets_on_a_log_scale():
    X, y = step_and_wave()
    y = np.exp(y[:, 0] / 20)
    model, of_log = regressor(target="log").fit(X, y), regressor(target="identity").fit(X, np.log(y))
    assert model.trees_.texts == of_log.trees_.texts
    mean, std = of_log.predict(X[:9], return_std=True)
    np.testing.assert_allclose(model.predict(X[:9]), np.exp(mean + std**2 / 2), rtol=1e-9)
    np.testing.assert_allclose(model.predict_quantiles(X[:9], 0.5), np.exp(mean), rtol=1e-9)
    np.testing.assert_allclose(model.prior_mean(X[:9]), np.exp(of_log.prior_mean(X[:9])), rtol=1e-9)


def test_targets_that_are_missing_here_and_there_have_trees_of_their_own_rows():
    X, y = step_and_wave(num_targets=2)
    y[:30, 0], y[60:, 1] = np.nan, np.nan
    noise = np.random.default_rng(1).uniform(0.1, 1.0, y.shape)
    model = regressor().fit(X, y, sample_noise=noise)
    for j, rows in enumerate((slice(30, 80), slice(0, 60))):
        targets, variances, mean, std = standard(X[rows], y[rows, j], noise[rows, j])
        found = fit_trees(X[rows], targets[:, None], variances[:, None])
        assert found.trees.texts[0] == model.trees_.texts[j]
        np.testing.assert_allclose(model.prior_mean(X)[:, j], found.trees.mean(X)[:, 0] * std + mean, rtol=1e-12)


@pytest.mark.slow
def test_one_target_with_trees_and_one_without(monkeypatch, tmp_path):
    """A target whose choice is the mean zero stands beside one whose choice is trees; a warm start keeps both."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(320, 8))
    steps = (X > 0) @ np.array([3.0, -2, 2, -1, 1, 1, -1, 2]) + 2.0 * ((X[:, 0] > 0) ^ (X[:, 1] > 0))
    y = np.stack([np.sin(X[:, 0]) + 0.01 * rng.normal(size=320), steps + 0.1 * rng.normal(size=320)], 1)
    y[:3, 0], y[3:6, 1] = np.nan, np.nan
    model = CaGPRegressor(max_epochs=15, kernel="matern32", warm_start=True).fit(X, y)
    assert [bool(texts) for texts in model.trees_.texts] == [False, True]
    np.testing.assert_allclose(model.prior_mean(X)[:, 0], np.nanmean(y[:, 0]))
    assert_same(model, cagp.load(model.save(tmp_path / "model.cagp")), X[:4])
    monkeypatch.setattr(auto.Search, "best", lambda *_: pytest.fail("the choice is made already"))
    again = model.set_params(max_epochs=1).fit(X, y)
    assert [bool(texts) for texts in again.trees_.texts] == [False, True]


def test_levels_that_are_new_take_the_mean_over_known_ones_of_the_trees_as_well():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=90), "kind": rng.choice(["a", "b", "c"], 90)})
    y = 5.0 * (frame["kind"] == "b") + frame["x"] + 0.1 * rng.normal(size=90)
    model = regressor("exact").fit(frame, y)
    new = frame[:4].assign(kind="d")
    known = np.stack([model.prior_mean(new.assign(kind=kind)) for kind in "abc"])
    assert np.ptp(known, axis=0).min() > 1
    np.testing.assert_allclose(model.prior_mean(new), known.mean(0), rtol=1e-9)
    means = np.stack([model.predict(new.assign(kind=kind)) for kind in "abc"])
    np.testing.assert_allclose(model.predict(new), means.mean(0), rtol=1e-9)
    total = sum(model.predict(new, return_components=True)[1][part] for part in ("noise", "latent", "computational"))
    np.testing.assert_allclose(total, model.predict(new, return_std=True)[1] ** 2, rtol=1e-9)
    assert (total > means.var(0)).all()
    np.testing.assert_allclose(np.diag(model.predict(new, return_cov=True)[1]), total, rtol=1e-9)


# ---- files, commands, reports ----


@pytest.mark.thinned(2)
@every_method
def test_a_loaded_model_answers_with_the_same_bits(method, tmp_path):
    X, y = step_and_wave(num_targets=2)
    model = regressor(method).fit(X, y)
    loaded = cagp.load(model.save(tmp_path / "model.cagp"))
    assert loaded.trees_.texts == model.trees_.texts
    assert_same(model, loaded, X[:6] + 0.1)
    np.testing.assert_array_equal(model.prior_mean(X), loaded.prior_mean(X))
    assert loaded.save(tmp_path / "again.cagp").read_bytes() == (tmp_path / "model.cagp").read_bytes()


def test_trees_of_another_number_of_targets_are_refused(tmp_path, monkeypatch):
    X, y = step_and_wave()
    model = regressor().fit(X, y)
    model.fitted_ = replace(model.fitted, trees=trees.Trees([*model.trees_.texts, ()]))
    with pytest.raises(ValueError, match="the model has trees for 2 targets and"):
        cagp.load(model.save(tmp_path / "model.cagp"))


def test_the_command_line(tmp_path, capsys):
    houses().to_csv(tmp_path / "houses.csv", index=False)
    out = str(tmp_path / "model.cagp")
    fit = ["fit", str(tmp_path / "houses.csv"), "--target", "price", "--drop", "id", "rent", "--max-epochs", "3"]
    fit += ["--test-fraction", "0"]
    assert main([*fit, "--mean", "trees", "--method", "local", "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["info", out]) == 0
    assert "Prior mean: boosted trees; the Gaussian process models the residuals." in capsys.readouterr().out
    assert main(["info", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == "trees"
    frame = houses().drop(columns=["id", "rent", "price"])
    expected = regressor(max_epochs=3, n_neighbors="auto").fit(
        pd.read_csv(tmp_path / "houses.csv").drop(columns=["id", "rent", "price"]), houses()["price"]
    )
    np.testing.assert_allclose(cagp.load(out).prior_mean(frame), expected.prior_mean(frame), rtol=1e-6)
    assert main([*fit, "--mean", "zero", "--method", "local", "--out", out, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["info", out]) == 0
    assert "Prior mean: zero, in standard units." in capsys.readouterr().out


@pytest.mark.slow
def test_the_report_says_what_trees_and_process_explain(tmp_path):
    X, y = step_and_wave(num_targets=2)
    model = regressor("exact", max_epochs=5).fit(X, y)
    Z, new = step_and_wave(30, num_targets=2, seed=4)
    page = model.report(Z, new, tmp_path / "report.html").read_text()
    start = page.index("Trees alone")
    rows = page[start : page.index("</table>", start)]
    for j in range(2):
        constant = np.sqrt(np.square(new[:, j] - y[:, j].mean()).mean())
        alone = np.sqrt(np.square(new[:, j] - model.prior_mean(Z)[:, j]).mean())
        both = np.sqrt(np.square(new[:, j] - model.predict(Z)[:, j]).mean())
        for value in (constant, alone, both):
            assert f">{number(value)}<" in rows, (j, value)


def test_the_fit_report_says_what_the_trees_explain():
    X, y = step_and_wave()
    model = regressor().fit(X, y[:, 0])
    targets, *_ = standard(X, y)
    found = fit_trees(X, targets)
    share = 1 - np.square(targets - found.mean).sum() / np.square(targets).sum()
    assert f"they explain {share:.1%} of the variance" in model.fit_report_
    assert f"The prior mean is {found.trees.num_trees[0]} boosted trees" in model.fit_report_


# ---- fits that are interrupted ----


class Killed(BaseException):
    """What ends a process from outside."""


def killed_at(step: int, of_folder: str, monkeypatch) -> None:
    """Kill the fit after this step of the first fit whose folder has these letters."""
    append = history.History.append

    def kill(self, found):
        append(self, found)
        if found.number == step and of_folder in str(self.path):
            raise Killed

    monkeypatch.setattr(history.History, "append", kill)


def quick_auto(monkeypatch, **changes) -> None:
    """Local inference and a short race for small tables."""
    monkeypatch.setattr(limits, "EXACT_ROWS", 50)
    monkeypatch.setitem(PRESETS, "default", Settings(checkpoint_steps=2))
    short = {"first_steps": 4, "more_steps": 4, "other_steps": 4, "last_steps": 4}
    effort = auto.EFFORTS["default"]._replace(**{**short, "kernels": ("matern12",), "validation_rows": 30, **changes})
    monkeypatch.setitem(auto.EFFORTS, "default", effort)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("folder", "step"),
    [
        ("try-matern32-zero", 3),
        ("try-matern32-trees", 3),
        ("try-matern32-trees", 33),  # after neighbours were looked up again
        ("try-matern12", 3),
        ("ordered", 3),
    ],
)
@pytest.mark.parametrize("screen_rows", [10_000, 100])
def test_a_killed_auto_fit_resumes_to_the_same_bits(folder, step, screen_rows, monkeypatch, tmp_path):
    X, y = step_and_wave(200)
    quick_auto(monkeypatch, screen_rows=screen_rows, more_steps=36)
    choices = {"n_neighbors": 4, "n_actions": 8}
    untouched = CaGPRegressor(**choices).fit(X, y)
    model = CaGPRegressor(**choices, checkpoint_dir=tmp_path)
    with monkeypatch.context() as patch:
        killed_at(step, folder, patch)
        with pytest.raises(Killed):
            model.fit(X, y)
    stored = list(tmp_path.rglob("trees-*.cagp"))
    assert len(stored) == (folder != "try-matern32-zero")
    if stored and screen_rows > 200:  # all trees that are needed are there
        monkeypatch.setattr(trees, "fit_trees", lambda *_, **__: pytest.fail("these trees are stored"))
    model.fit(X, y)
    assert_same(model, untouched, X[:5])
    told = [[{k: v for k, v in trial.items() if k != "seconds"} for trial in m.choices_] for m in (model, untouched)]
    assert told[0] == told[1]


@pytest.mark.thinned(2)
@every_method
def test_stored_trees_are_used_again(method, monkeypatch, tmp_path):
    X, y = step_and_wave()
    untouched = regressor(method).fit(X, y)
    model = regressor(method, checkpoint_dir=tmp_path).fit(X, y)
    monkeypatch.setattr(trees, "fit_trees", lambda *_, **__: pytest.fail("these trees are stored"))
    assert_same(model.fit(X, y), untouched, X[:5])
    with pytest.raises(BaseException, match="these trees are stored"):
        model.fit(X, 2 * y + X[:, :1])  # other targets have other trees


def test_damaged_stored_trees_are_refused(tmp_path):
    X, y = step_and_wave()
    model = regressor(checkpoint_dir=tmp_path).fit(X, y)
    (path,) = tmp_path.rglob("trees-*.cagp")
    path.write_bytes(path.read_bytes()[:-5] + b"wrong")
    with pytest.raises(ValueError, match="cannot be read"):
        model.fit(X, y)


def test_unfinished_trees_are_not_kept(tmp_path, monkeypatch):
    X, y = step_and_wave()
    model = regressor("exact", checkpoint_dir=tmp_path, max_time=1e-6).fit(X, y)
    assert "The time limit ended them early." in model.fit_report_
    assert not list(tmp_path.rglob("trees-*.cagp"))


def test_a_warm_start_keeps_the_mean(monkeypatch):
    """What "auto" chose, trees or zero, is not chosen again."""
    X, y = step_and_wave(200)
    quick_auto(monkeypatch)
    for mean, expected in (("trees", True), ("zero", False)):
        model = CaGPRegressor(max_epochs=2, n_neighbors=4, n_actions=8, mean=mean, warm_start=True).fit(X, y)
        model.set_params(mean="auto").fit(X, y)
        assert (model.trees_ is not None) is expected
        assert all(("on trees" in trial["model"]) is expected for trial in model.choices_)
    # Without a warm start, and with a kernel object, nothing is kept.
    model.set_params(warm_start=False, kernel=model.posteriors_[0].prior.kernel).fit(X, y)
    assert {"on trees" in trial["model"] for trial in model.choices_} == {True, False}
