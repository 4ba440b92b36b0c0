"""Tables as they come, through regressors and commands: gaps, unknown levels, codes, dates and numbers as text."""

import json

import numpy as np
import pandas as pd
import pytest
from cli_problems import houses, usage_error
from sklearn.model_selection import cross_val_predict
from test_estimators import REGRESSORS, every_regressor, quick

import cagp
from cagp import CaGPRegressor, ExactGPRegressor
from cagp.cli import main
from cagp.data import read_table, split
from cagp.estimators import units
from cagp.saved_summary import saved_summary


def rough(num_rows: int = 120, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Gaps in every kind of column, codes, many levels, dates and numbers as text."""
    rng = np.random.default_rng(seed)
    size, code = rng.uniform(0, 9, num_rows), rng.integers(1, 5, num_rows)
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, num_rows), unit="D")
    frame = pd.DataFrame(
        {
            "size": size,
            "code": code,
            "kind": rng.choice(["a", "b", "c"], num_rows),
            "town": [f"town {j}" for j in (rng.exponential(8, num_rows)).astype(int)],
            "day": day.strftime("%d.%m.%Y"),
            "rate": [f"{v:.2f}".replace(".", ",") for v in rng.normal(size=num_rows)],
        }
    )
    y = np.sin(size) + (code == 2) + (frame["kind"] == "b") + 0.1 * rng.normal(size=num_rows)
    for name in ("size", "kind", "day", "rate"):
        frame[name] = frame[name].mask(rng.random(num_rows) < 0.1)
    return frame, y.rename("y")


@pytest.mark.thinned(3)
@every_regressor
def test_every_regressor_takes_them_and_comes_back_from_a_file(regressor, tmp_path):
    X, y = rough()
    y[::10] = np.nan
    model = regressor(max_epochs=2, categories=("code",)).fit(X, y)
    assert "Missing values: 'size' in " in model.fit_report_
    assert "code=2" in model.feature_names_out_
    assert "day is missing" in model.feature_names_out_
    assert model.__sklearn_tags__().input_tags.allow_nan
    new = rough(30, seed=1)[0].assign(kind="unknown")
    mean, std = model.predict(new, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    loaded = cagp.load(model.save(tmp_path / "model.cagp"))
    assert loaded.categories == ("code",)
    for one, other in zip(loaded.predict(new, return_std=True), (mean, std), strict=True):
        np.testing.assert_array_equal(one, other)
    inputs = saved_summary(tmp_path / "model.cagp")["inputs"]
    assert [column["kind"] for column in inputs] == ["number", "levels", "levels", "levels", "datetime", "number"]
    assert inputs[4]["format"] == "day.month.year"


@pytest.mark.parametrize("name", ["exact", "local"])
def test_answers_do_not_depend_on_the_pieces(name, monkeypatch):
    X, y = rough(200)
    model = REGRESSORS[name](max_epochs=2, categories=["code"]).fit(X, y)
    new = rough(50, seed=2)[0].assign(kind="unknown")
    whole = model.predict(new, return_std=True)
    monkeypatch.setattr(units, "PREDICT_ROWS", 7)
    for one, other in zip(model.predict(new, return_std=True), whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_gap_is_the_training_mean_and_a_mark_in_standard_units():
    """The model is that of a table which was filled and marked by hand."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    X[rng.random(60) < 0.3, 1] = np.nan
    gap = np.isnan(X[:, 1])
    y[gap] += 3.0
    model = ExactGPRegressor(max_epochs=10).fit(X, y)
    by_hand = np.column_stack([X[:, 0], np.where(gap, np.nanmean(X[:, 1]), X[:, 1]), gap])
    Z = model.posteriors_[0].X.numpy()
    expected = (by_hand - by_hand.mean(0)) / by_hand.std(0, ddof=1)
    expected[:, 1] = (by_hand[:, 1] - np.nanmean(X[:, 1])) / np.nanstd(X[:, 1], ddof=1)
    np.testing.assert_allclose(Z, expected, atol=1e-12)
    # New rows are filled with the mean of fit, whatever else is predicted with them.
    new = np.array([[0.3, np.nan], [0.3, 50.0]])
    np.testing.assert_allclose(model.predict(new)[:1], model.predict(new[:1]), rtol=1e-12)
    assert abs(model.predict(new[:1])[0] - y[gap].mean()) < abs(model.predict(new[:1])[0] - y[~gap].mean())


def by_level(levels: int, seed: int = 4) -> tuple[pd.DataFrame, pd.Series]:
    """A curve that is shifted by the level of each row."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"x": rng.uniform(0, 5, 150), "kind": [f"k{j:02}" for j in rng.integers(0, levels, 150)]})
    shift = rng.normal(size=levels)[X["kind"].str[1:].astype(int)]
    return X, pd.Series(np.sin(X["x"]) + shift + 0.1 * rng.normal(size=150))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("levels", [2, 3, 30])
@pytest.mark.parametrize("name", ["exact", "local", "opt"])
def test_an_unknown_level_is_one_of_the_known_ones(name, levels):
    """Every answer is that of a mixture of the answers for known levels, by hand."""
    X, y = by_level(levels)
    model = REGRESSORS[name](max_epochs=20).fit(X, y)
    grid = pd.DataFrame({"x": np.linspace(0.5, 4.5, 9)})
    chosen = [name.removeprefix("kind=") for name in model.feature_names_out_ if name.startswith("kind=")]
    if levels == 2:
        chosen = ["k00", "k01"]
    if levels == 30:  # those with an input of their own, and one of the others
        assert chosen.pop() == "other levels"
        chosen.append(next(level for level in sorted(X["kind"].unique()) if level not in chosen))
    k = len(chosen)
    known = [model.predict(grid.assign(kind=level), return_std=True) for level in chosen]
    means, stds = (np.array(part) for part in zip(*known, strict=True))
    mixed = grid.assign(kind="new")
    mean, std = model.predict(mixed, return_std=True)
    np.testing.assert_allclose(mean, means.mean(0), rtol=1e-6)
    variance = (stds**2).mean(0) + means.var(0, ddof=1) * (1 + 1 / k)
    np.testing.assert_allclose(std**2, variance, rtol=1e-6)
    assert (std**2 > (stds**2).mean(0)).all()
    assert levels == 30 or (std > stds.max(0)).all()  # of 30, some have few rows
    np.testing.assert_allclose(model.predict(mixed), mean, rtol=1e-6)

    covariance = model.predict(mixed, return_cov=True)[1]
    if name != "local":  # whose joint answers have more neighbours than those of single rows
        np.testing.assert_allclose(np.diagonal(covariance), variance, rtol=1e-6)
    assert np.linalg.eigvalsh(covariance).min() > 0
    parts = model.predict(mixed, return_components=True)[1]
    total = parts["noise"] + parts["latent"] + np.nan_to_num(parts["computational"])
    np.testing.assert_allclose(total, variance, rtol=1e-6)
    known_noise = np.linspace(0.0, 1.0, 9)
    wider = model.predict(mixed, return_std=True, sample_noise=known_noise)[1]
    np.testing.assert_allclose(wider**2, variance + known_noise, rtol=1e-6)
    draws = model.sample_y(mixed, 2000)
    assert draws.shape == (9, 2000)
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * std.max() / np.sqrt(2000))
    spread = (stds**2).mean(0) + means.var(0)
    np.testing.assert_allclose(draws.std(1), np.sqrt(spread), rtol=0.1)

    # Rows with known levels are not touched by others beside them.
    both = pd.concat([mixed, grid.assign(kind=chosen[0])], ignore_index=True)
    np.testing.assert_allclose(model.predict(both, return_std=True)[1], [*std, *stds[0]], rtol=1e-6)


@pytest.mark.slow
def test_error_bars_of_unknown_levels_hold():
    """Levels are drawn from one distribution: intervals for new ones hold about as often as they should."""
    inside = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        shifts, kinds = rng.normal(size=18), rng.integers(0, 12, 150)
        x = rng.uniform(0, 5, 150)
        X = pd.DataFrame({"x": x, "kind": [f"k{j:02}" for j in kinds]})
        model = ExactGPRegressor(max_epochs=20).fit(X, np.sin(x) + shifts[kinds] + 0.1 * rng.normal(size=150))
        new = rng.uniform(0, 5, 6)
        lower, upper = model.predict_interval(pd.DataFrame({"x": new, "kind": "new"}), 0.9)
        y = np.sin(new) + shifts[12:] + 0.1 * rng.normal(size=6)
        inside += list((lower < y) & (y < upper))
    assert 0.75 < np.mean(inside) <= 1  # 48 rows: 0.9 ± 0.13


def test_two_unknown_levels_of_one_row():
    rng = np.random.default_rng(5)
    X = pd.DataFrame({"a": rng.choice(["p", "q"], 120), "b": rng.choice(["u", "v", "w"], 120)})
    y = 3.0 * (X["a"] == "q") + 2.0 * (X["b"] == "w") + 0.1 * rng.normal(size=120)
    model = ExactGPRegressor(max_epochs=10).fit(X, y)
    mean, std = model.predict(pd.DataFrame({"a": ["?"], "b": ["?"]}), return_std=True)
    pairs = pd.DataFrame([(a, b) for a in "pq" for b in "uvw"], columns=["a", "b"])
    means, stds = model.predict(pairs, return_std=True)
    np.testing.assert_allclose(mean, means.mean(), rtol=1e-6)
    np.testing.assert_allclose(std**2, (stds**2).mean() + means.var(ddof=1) * 7 / 6, rtol=1e-6)


def test_a_single_level_says_nothing_about_others():
    X, y = by_level(1)
    model = ExactGPRegressor(max_epochs=10).fit(X, y)
    known, unknown = (model.predict(X[:9].assign(kind=kind), return_std=True)[1] for kind in ("k00", "new"))
    assert (unknown > 2 * known).all()


def test_rows_without_a_target_leave_nothing_behind():
    X, y = rough(80)
    X, y = X[["size", "kind"]].fillna({"size": 1.0, "kind": "a"}), y.copy()
    X.loc[0, "size"], X.loc[1, "kind"] = np.nan, "rare"
    y[[0, 1]] = np.nan
    model = quick().fit(X, y)
    assert model.feature_names_out_.tolist() == ["size", "kind=a", "kind=b", "kind=c"]
    assert "Missing values" not in model.fit_report_
    assert model.encoder_.num_missing(model.encoder_.codes(X)) == {"size": 1}


def test_levels_that_a_fold_lacks_are_predicted():
    X, y = rough(60)
    X = X[["size", "kind"]].fillna({"kind": "a"})
    X.loc[7, "kind"] = "once"
    assert np.isfinite(cross_val_predict(quick(), X, y, cv=6)).all()


def test_categories_that_are_wrong_are_told_at_fit():
    X, y = rough(30)
    with pytest.raises(ValueError, match="categories names column 'zip', which X does not have"):
        quick(categories=["zip"]).fit(X, y)
    with pytest.raises(ValueError, match="expected positions of columns from 0 to 1"):
        quick(categories=["x0"]).fit(X[["size", "code"]].fillna(0).to_numpy(), y)
    model = quick(categories=[1]).fit(X[["size", "code"]].to_numpy(), y)
    assert model.feature_names_out_.tolist() == ["x0", "x0 is missing", "x1=1", "x1=2", "x1=3", "x1=4"]


@pytest.mark.slow
def test_reports_of_rough_tables(tmp_path):
    X, y = rough()
    model = quick(categories=["code"]).fit(X, y)
    text = model.report(*rough(60, seed=5), tmp_path / "report.html").read_text(encoding="utf-8")
    for name in X.columns:
        assert name in text


# ---- the command line ----


@pytest.fixture
def german(tmp_path):
    """A CSV file as spreadsheets of some countries write it, with gaps."""
    frame = houses()
    rng = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "zip": [f"{j:05}" for j in rng.integers(1000, 1030, len(frame))],
            "area": frame["area"].map("{:.1f}".format).str.replace(".", ","),
            "city": frame["city"].mask(rng.random(len(frame)) < 0.2),
            "built": frame["built"].dt.strftime("%d.%m.%Y"),
            "noise": ["0,5"] * len(frame),
            "price": frame["price"].map("{:.2f}".format).str.replace(".", ","),
        }
    )
    table["area"] = table["area"].mask(rng.random(len(frame)) < 0.2)
    table.to_csv(tmp_path / "table.csv", sep=";", index=False)
    return tmp_path, table


@pytest.mark.slow
def test_fit_predict_and_evaluate_a_rough_file(german, capsys):
    folder, table = german
    path, out = str(folder / "table.csv"), str(folder / "m.cagp")
    command = ["fit", path, "--target", "price", "--max-epochs", "5", "--out", out, "--noise", "noise"]
    assert main([*command, "--categories", "zip", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["train_rows"], record["test_rows"]) == (108, 12)
    assert "Missing values: 'area' in " in record["fit_report"]
    model = cagp.load(out)
    assert model.encoder_.text_names == ("zip", "area", "city")
    assert any(name.startswith("zip=01") for name in model.feature_names_out_)

    new = table.copy()
    new.loc[3, "city"], new.loc[[4, 5], "zip"] = "Rome", "99999"
    new.to_csv(folder / "new.csv", sep=";", index=False)
    for pieces in ("1000", "7"):
        out_path = folder / f"out{pieces}.csv"
        assert main(["predict", out, str(folder / "new.csv"), "--out", str(out_path), "--rows-at-a-time", pieces]) == 0
        warned = capsys.readouterr().err
        assert "cagp: warning: 2 rows of column 'zip' have levels that no training row had" in warned
        assert "cagp: warning: 1 row of column 'city' has a level that no training row had" in warned
    whole, parts = (read_table(folder / f"out{pieces}.csv") for pieces in ("1000", "7"))
    np.testing.assert_allclose(whole, parts, rtol=1e-9)
    numbers = new.assign(area=pd.to_numeric(new["area"].str.replace(",", ".")))[["zip", "area", "city", "built"]]
    np.testing.assert_allclose(whole["price_mean"], model.predict(numbers), rtol=1e-12)

    report = folder / "report.html"
    command = ["evaluate", out, path, "--noise", "noise", "--json", "--rows-at-a-time", "50"]
    assert main([*command, "--report", str(report)]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["price"]["model"]["r2"] > 0.5
    assert report.exists()

    assert main(["info", out]) == 0
    said = capsys.readouterr().out
    assert "area: numbers, written as decimal comma; one more input says where it is missing" in said
    assert "built: dates, written as day.month.year, as days since 1970" in said
    assert "a 0/1 input for each of the 20 most frequent, and one for the others" in said


def test_levels_that_only_test_rows_have_are_tested_on(tmp_path, capsys):
    frame = houses().drop(columns=["id", "rent"])
    frame.loc[5, "city"] = "Rome"
    frame.to_csv(tmp_path / "t.csv", index=False)
    seed = next(s for s in range(50) if 5 in split(len(frame), 0.1, s).test.tolist())
    command = ["fit", str(tmp_path / "t.csv"), "--target", "price", "--max-epochs", "2", "--json", "--seed", str(seed)]
    assert main([*command, "--out", str(tmp_path / "m.cagp")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["train_rows"], record["test_rows"]) == (108, 12)
    levels = cagp.load(tmp_path / "m.cagp").encoder_.state()["columns"][1]["levels"]
    assert levels == ["Bonn", "Kiel", "Ulm"]


def test_wrong_categories_are_wrong_usage(tmp_path, capsys):
    houses().to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", str(tmp_path / "t.csv"), "--target", "price", "--drop", "id", "--out", str(tmp_path / "m.cagp")]
    for wrong in ("zip", "price", "id"):
        assert f"--categories names '{wrong}'" in usage_error([*command, "--categories", wrong], capsys)


def test_auto_takes_them():
    X, y = rough(60)
    assert CaGPRegressor(max_epochs=2).fit(X, y).method_ == "exact"
