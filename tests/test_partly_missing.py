"""Several targets, each known in rows of its own."""

import json

import numpy as np
import pandas as pd
import pytest
from cli_problems import houses

import cagp
from cagp import CaGPRegressor, ExactGPRegressor
from cagp.cli import main


def table(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two targets, of which 30 rows have both, 25 the first, 30 the second, and 5 neither."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    Y = np.stack([np.sin(2 * X[:, 0]), 50 + 10 * X[:, 1]], 1) + 0.1 * rng.normal(size=(n, 2)) * [1, 10]
    Y[:30, 0] = np.nan
    Y[30:55, 1] = np.nan
    Y[55:60] = np.nan
    return X, Y


def rows_of(Y: np.ndarray, j: int) -> np.ndarray:
    return np.flatnonzero(~np.isnan(Y[:, j]))


@pytest.mark.parametrize("method", ["exact", "local"])
def test_each_target_is_that_of_a_fit_to_its_own_rows(method):
    X, Y = table()
    options = {"max_epochs": 15, "kernel": "matern52"} | ({"n_neighbors": 8} if method == "local" else {})
    model = CaGPRegressor(method, **options).fit(X, Y)
    assert model.n_rows_ == 85
    assert model.target_rows_ == [55, 60]
    assert "Left out 5 of 90 rows, whose targets are all missing." in model.fit_report_
    assert "Target y0, alone on the 55 of 85 rows that have it:" in model.fit_report_
    assert "Target y1, alone on the 60 of 85 rows that have it:" in model.fit_report_
    assert model.methods_ == [method, method]
    Z = X[:7] + 0.1
    mean, std = model.predict(Z, return_std=True)
    parts = model.predict(Z, return_components=True)[1]
    # A fit to a target alone scales inputs by its own rows: the same up to what optimisers leave open.
    for j in range(2):
        own = rows_of(Y, j)
        alone = CaGPRegressor(method, **options).fit(X[own], Y[own, j])
        expected = alone.predict(Z, return_std=True)
        np.testing.assert_allclose(mean[:, j], expected[0], rtol=0, atol=0.15 * Y[own, j].std())
        np.testing.assert_allclose(std[:, j], expected[1], rtol=0.25)
        assert model.fit_results_[j].best_value == pytest.approx(alone.fit_result_.best_value, abs=0.05)
    total = parts["noise"] + parts["latent"] + parts["computational"]
    np.testing.assert_allclose(total, std**2, rtol=1e-6)
    assert parts["computational_kind"] == "exact"
    assert model.fit_result_ is model.fit_results_[0]
    assert len(model.fit_results_) == 2


@pytest.mark.slow
def test_what_was_tried_is_told_of_every_target(tmp_path):
    X, Y = table()
    model = CaGPRegressor(max_epochs=3, mean="zero").fit(X, Y)
    tried = {name: [t for t in model.choices_ if t["target"] == name] for name in ("y0", "y1")}
    assert len(tried["y0"]) + len(tried["y1"]) == len(model.choices_)
    for name, trials in tried.items():
        assert trials[0]["outcome"] == "first"
        assert len(trials) > 1
        for trial in trials:  # on the lines of the fit report that are about this target
            own = model.fit_report_.split(f"Target {name}, alone")[1].split("Target y")[0]
            assert f"{trial['model']}: negative log density {trial['nll']:.3f}" in own
        assert f"{name}: Chose exact inference" in model.choice_
    page = model.report(X[60:], Y[60:], tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(">y1<") >= len(tried["y1"])  # a cell of each row of the table
    again = cagp.load(model.save(tmp_path / "model.cagp"))
    assert (again.choices_, again.choice_) == (model.choices_, model.choice_)
    together = CaGPRegressor(max_epochs=3, mean="zero").fit(X[60:], Y[60:])
    assert {trial["target"] for trial in together.choices_} == {None}
    single = CaGPRegressor(max_epochs=3, mean="zero").fit(X[60:], Y[60:, 0])
    assert {trial["target"] for trial in single.choices_} == set(single.target_names_)


def test_own_rows_with_the_scale_of_all_rows_are_a_fit_alone_to_the_last_bit():
    """Where the rows of a target have the inputs' overall mean and spread, the two fits are the same computation."""
    rng = np.random.default_rng(1)
    half = rng.normal(size=(40, 2))
    X = np.concatenate([half, half])
    Y = np.full((80, 2), np.nan)
    Y[:40, 0] = np.sin(half[:, 0])
    Y[40:, 1] = np.cos(half[:, 1])
    model = ExactGPRegressor(max_epochs=10, target="identity").fit(X, Y)
    std = X.std(0, ddof=1) / half.std(0, ddof=1)  # 80 rows instead of 40: the same up to the correction by one
    np.testing.assert_allclose(std, np.sqrt((80 / 79) / (40 / 39)), rtol=1e-12)
    for j, rows in enumerate((slice(0, 40), slice(40, 80))):
        alone = ExactGPRegressor(max_epochs=10, target="identity").fit(X[rows], Y[rows, j])
        np.testing.assert_allclose(model.predict(half[:5])[:, j], alone.predict(half[:5]), rtol=0, atol=5e-3)


@pytest.mark.slow
def test_known_noise_saving_and_the_report(tmp_path):
    X, Y = table()
    noise = np.linspace(0.01, 0.2, len(X))
    model = CaGPRegressor("local", n_neighbors=8, max_epochs=5).fit(X, Y, sample_noise=noise)
    np.testing.assert_allclose(
        model.fitted.row_noise[1].numpy() * float(model.scaler_.target_std[1]) ** 2, noise[rows_of(Y, 1)], rtol=1e-12
    )
    model.save(tmp_path / "model.cagp")
    again = cagp.load(tmp_path / "model.cagp")
    assert again.target_rows_ == model.target_rows_
    assert again.fit_results_ == model.fit_results_
    assert again.methods_ == model.methods_
    for left, right in zip(
        model.predict(X, return_std=True, sample_noise=noise),
        again.predict(X, return_std=True, sample_noise=noise),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)
    page = model.report(X, Y, tmp_path / "report.html", sample_noise=noise).read_text()
    assert "tested on 30 rows that were used in training" in page
    disjoint = Y.copy()
    disjoint[60:, 0] = np.nan
    with pytest.raises(ValueError, match="y_test has no row with all of its targets"):
        model.report(X, disjoint, tmp_path / "report.html")


def test_a_warm_start_begins_where_each_target_ended():
    X, Y = table()
    model = CaGPRegressor("exact", max_epochs=30, warm_start=True).fit(X, Y)
    first = [result.best_value for result in model.fit_results_]
    model.fit(X, Y)
    starts = [result.steps[0].loss for result in model.fit_results_]
    np.testing.assert_allclose(starts, first, atol=1e-3)


def test_max_time_is_for_all_targets_together():
    X, Y = table()
    model = CaGPRegressor("local", n_neighbors=8, max_time=1.0).fit(X, Y)
    assert sum(result.seconds for result in model.fit_results_) < 1.3


def test_the_command_line_uses_every_row_with_a_target(tmp_path, capsys):
    frame = houses()
    frame.loc[:19, "price"] = np.nan
    frame.loc[40:69, "rent"] = np.nan
    frame.loc[15:19, "rent"] = np.nan
    frame.to_csv(tmp_path / "houses.csv", index=False)
    command = ["fit", str(tmp_path / "houses.csv"), "--target", "price", "rent", "--drop", "id", "--max-epochs", "3"]
    assert main([*command, "--out", str(tmp_path / "m.cagp"), "--json", "--quiet"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rows_without_target"] == 5
    assert record["train_rows"] + record["test_rows"] == 115
    assert set(record["metrics"]) == {"price", "rent"}
    assert main(["info", str(tmp_path / "m.cagp")]) == 0
    shown = capsys.readouterr().out
    model = cagp.load(tmp_path / "m.cagp")
    assert f"price ({model.target_rows_[0]} rows): mean" in shown
    assert "It holds all of them" in shown
    assert main(["evaluate", str(tmp_path / "m.cagp"), str(tmp_path / "houses.csv"), "--quiet", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["rows"], record["rows_without_target"]) == (120, 5)
    known = frame["rent"].notna().to_numpy()
    mean = model.predict(frame.assign(built=pd.to_datetime(frame["built"]))[["area", "city", "built"]])[known, 1]
    rmse = np.sqrt(((frame["rent"].to_numpy()[known] - mean) ** 2).mean())
    assert record["metrics"]["rent"]["model"]["rmse"] == pytest.approx(rmse, rel=1e-9)


def test_a_target_without_test_rows_has_no_scores(tmp_path, capsys):
    frame = houses()
    frame.to_csv(tmp_path / "houses.csv", index=False)
    command = ["fit", str(tmp_path / "houses.csv"), "--target", "price", "rent", "--drop", "id", "--max-epochs", "2"]
    assert main([*command, "--out", str(tmp_path / "m.cagp"), "--quiet"]) == 0
    frame.assign(rent=np.nan).to_csv(tmp_path / "new.csv", index=False)
    assert main(["evaluate", str(tmp_path / "m.cagp"), str(tmp_path / "new.csv"), "--json"]) == 0
    captured = capsys.readouterr()
    assert "no test row has this target" in captured.err
    assert json.loads(captured.out)["metrics"]["rent"] == {"model": None, "constant": None}
