"""``cagp bench tables``: what is compared is what it says, numbers are right, and a long suite resumes."""

import importlib.util
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from cagp import CaGPRegressor, metrics
from cagp.cli import main
from cagp.data import Encoder, split
from cagp_bench import contenders, peers, table_quality
from cagp_bench.all_peers import ALL_PEERS
from cagp_bench.choices import CONTENDERS
from cagp_bench.contenders import Answers, answers_of, quantile_crps, scores_of
from cagp_bench.record_files import append_record, read_records
from cagp_bench.summaries import summarize, summary_text, verdicts
from cagp_bench.table_quality import Run, load_frame, measure, measure_alone


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    np.savez(tmp_path / "waves.npz", X=X, y=40 + 7 * (np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300)))
    return tmp_path / "waves.npz"


@pytest.fixture
def houses(tmp_path):
    """A table with text, a date, an integer and missing targets."""
    rng = np.random.default_rng(1)
    area, town = rng.uniform(30, 150, size=400), rng.choice(["Ulm", "Bonn", "Jena"], size=400)
    price = 3.0 * area + 40 * (town == "Bonn") + rng.normal(size=400)
    sold = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(900, size=400), unit="D")
    frame = pd.DataFrame({"area": area, "town": town, "sold": sold, "rooms": rng.integers(1, 6, 400), "price": price})
    frame.loc[::20, "price"] = np.nan
    frame.to_csv(tmp_path / "houses.csv", index=False)
    return tmp_path / "houses.csv"


def run(table, method, seed=0, target="y", rows=None):
    return Run(str(table), target, rows, method, seed)


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'cagp-bench[peers]'")


PACKAGES = {"hist": "sklearn", "hist-quantiles": "sklearn", "sklearn-gp": "sklearn"}
PEERS = [pytest.param(name, marks=needs(PACKAGES.get(name, name))) for name in peers.PEERS]


# ---- contenders ----


@pytest.mark.slow
@pytest.mark.parametrize("method", ["default", "local"])
def test_our_methods_learn_a_table_and_their_record_is_complete(table, method):
    record = measure(run(table, method))
    assert "error" not in record
    assert (record["n"], record["d"], record["num_test"]) == (270, 2, 30)
    assert record["rmse"] < 0.3  # of targets with standard deviation 1
    assert 0.8 <= record["coverage"] <= 1
    assert record["fit_s"] > record["predict_s"] > 0
    assert record["peak_bytes"] >= record["imports_bytes"] > 0
    assert record["fitted"] == ("local" if method == "local" else "exact")
    json.dumps(record)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["default", *PEERS])
def test_text_dates_and_missing_targets_reach_every_contender(houses, method):
    asked = run(houses, method, target="price")
    # GPBoost has threads and warnings that stay in a process of its own.
    record = measure_alone(asked, "5min") if method == "gpboost" else measure(asked)
    assert "error" not in record
    assert (record["n"], record["num_test"], record["d"]) == (342, 38, 4)
    assert record["rmse"] < 0.15  # without towns it would be 0.18 or more, without areas 0.98
    assert 0.6 <= record["coverage"] <= 1
    # The variance is that of new targets, whose noise has a standard deviation of 1 of about 104.
    assert record["width"] > 2 * 1.96 * 0.7 / 104
    assert record[{"default": "cagp", **PACKAGES}.get(method, method)]  # the version


@needs("lightgbm")
def test_the_variance_of_lightgbm_is_its_error_on_validation_rows():
    """Trees cannot tell anything about pure noise, so that error is the variance of the targets."""
    rng = np.random.default_rng(0)
    X, y = pd.DataFrame(rng.normal(size=(2000, 3))), 10 * rng.normal(size=2000)
    outcome = peers.lightgbm_outcome(X, y, X[:5], 0)
    validation = y[split(2000, 0.1, 0).test.numpy()]
    assert outcome.prediction.variance.tolist() == pytest.approx([np.mean(validation**2)] * 5, rel=0.03)
    assert outcome.prediction.mean.abs().max() < 5
    assert outcome.details["trees"] == outcome.details["tuned"][str(outcome.details["leaves"])]["trees"]


@needs("lightgbm")
def test_lightgbm_takes_columns_of_any_name():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(300, 2)), columns=["Jitter:RAP", 'a, [b] "c"'])
    outcome = peers.lightgbm_outcome(X, X.iloc[:, 0].to_numpy(), X[:5], 0)
    assert outcome.prediction.mean.numpy() == pytest.approx(X.iloc[:5, 0], abs=0.05)


@needs("catboost")
def test_catboost_learns_where_the_noise_is():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(2000, 1))
    y = np.where(X[:, 0] < 0.5, 0.1, 2.0) * rng.normal(size=2000)
    outcome = peers.catboost_outcome(pd.DataFrame(X), y, pd.DataFrame([[0.25], [0.75]]), 0)
    assert outcome.prediction.variance.sqrt().tolist() == pytest.approx([0.1, 2.0], rel=0.3)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("lightgbm", "catboost")])
def test_boosting_ends_at_its_limit_of_time_with_fewer_trees(name):
    """A smooth function without noise: validation rows would go on for thousands of trees."""
    X = pd.DataFrame(np.random.default_rng(0).uniform(size=(2000, 3)))
    y = np.sin(8 * X).sum(axis=1).to_numpy()
    outcome = ALL_PEERS[name].outcome(X, y, X[:5], 0, seconds=0.2)
    assert {size["trees"] < peers.MAX_TREES / 2 for size in outcome.details["tuned"].values()} == {True}
    assert 1 <= outcome.details["trees"] == outcome.details["tuned"][_size(outcome.details)]["trees"]


def _size(details):
    return str(details.get("leaves", details.get("depth")))


def test_what_cannot_end_in_time_refuses_a_limit(table):
    record = measure(run(table, "hist")._replace(fit_time="3s"))
    assert "hist cannot end its fit after 3s: give no limit, or take one of default, local" in record["error"]


def test_trees_get_categories_of_the_training_rows_and_days():
    X = pd.DataFrame({"town": ["Ulm", "Bonn"], "day": pd.to_datetime(["1970-01-03", "1971-01-01"]), "rooms": [1, 2]})
    X["wait"] = pd.to_timedelta(["36h", "0h"])
    new = X.assign(town=["Jena", "Ulm"])
    train, test = peers.for_trees(X, new)
    assert train["town"].cat.categories.tolist() == ["Bonn", "Ulm"]
    assert test["town"].cat.codes.tolist() == [-1, 1]  # no level of the training rows is missing
    numbers = ["day", "rooms", "wait"]
    assert np.array_equal(train[numbers].to_numpy(), Encoder.fit_transform(X[numbers])[1])


@pytest.mark.parametrize("name", ["gpboost", "catboost", "lightgbm"])
def test_a_missing_peer_is_a_record_that_says_what_to_install(table, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    record = measure(run(table, name))
    assert record["error"] == f"ImportError: {name} is not installed: pip install 'cagp-bench[peers]'"


def test_every_contender_can_be_fitted():
    """The list of names and the functions behind them agree."""
    assert {name for name, c in CONTENDERS.items() if c.options is None} == set(ALL_PEERS)
    with pytest.raises(ValueError, match="method is 'xgboost', expected one of default, local"):
        answers_of("xgboost", pd.DataFrame(), np.zeros(0), pd.DataFrame(), np.zeros(0), 0)


@pytest.mark.slow
def test_what_was_tried_is_recorded_where_a_model_says_it(table, monkeypatch):
    class Telling(CaGPRegressor):
        choices_ = ["local: 0.3 nats", ("trees", 0.1)]

    assert "Matern 3/2" in measure(run(table, "default"))["choices"][0]
    monkeypatch.setattr(contenders, "CaGPRegressor", Telling)
    assert measure(run(table, "default"))["choices"] == ["local: 0.3 nats", "('trees', 0.1)"]


# ---- scores ----


def test_metrics_are_those_of_test_rows_in_standard_units(table, monkeypatch):
    def known(name, X, y, X_test, y_test, seed, fit_time):
        mean, std = np.full(len(X_test), 43.0), np.full(len(X_test), 9.0)
        return Answers(mean, std, stats.norm.logpdf(y_test, 43.0, 9.0), None, 1.5, 0.25, {})

    monkeypatch.setattr(table_quality, "answers_of", known)
    record = measure(run(table, "default", seed=3))
    y, rows = np.load(table)["y"], split(300, 0.1, 3)
    unit = y[rows.train.numpy()].std(ddof=1)
    y = y[rows.test.numpy()]
    assert record["rmse"] == pytest.approx(np.sqrt(np.mean((y - 43) ** 2)) / unit, rel=1e-12)
    assert record["nll"] == pytest.approx(-stats.norm.logpdf(y / unit, 43 / unit, 9 / unit).mean(), rel=1e-12)
    assert record["width"] == pytest.approx(2 * 1.959963985 * 9 / unit, rel=1e-9)
    assert (record["fit_s"], record["predict_s"], record["gaussian"]) == (1.5, 0.25, True)


def lognormal(num_rows=500):
    """Targets, and predictions with the right means and spreads."""
    rng = np.random.default_rng(0)
    center, spread = rng.normal(size=num_rows), 0.5
    law = stats.lognorm(s=spread, scale=np.exp(center))
    y = law.rvs(random_state=1)
    quantiles = np.stack([law.ppf(level) for level in contenders._levels()], axis=1)
    return y, center, spread, Answers(law.mean(), law.std(), law.logpdf(y), quantiles, 1.0, 1.0, {})


def test_predictions_that_are_not_gaussian_are_scored_by_their_density_and_quantiles():
    y, center, spread, answers = lognormal()
    found, gaussian = scores_of(answers, y, 2.0), scores_of(answers._replace(quantiles=None), y, 2.0)
    density = stats.lognorm(s=spread, scale=np.exp(center) / 2).logpdf(y / 2)
    assert found.nll == pytest.approx(-density.mean(), rel=1e-12)
    assert found.nll < gaussian.nll - 0.1
    inside = np.abs(np.log(y) - center) <= stats.norm.ppf(0.975) * spread
    assert found.coverage == pytest.approx(inside.mean(), abs=0.003)
    # The CRPS of a lognormal distribution in closed form (Baran and Lerch, 2015).
    w, phi = (np.log(y) - center) / spread, stats.norm.cdf
    crps = y * (2 * phi(w) - 1) - 2 * np.exp(center + spread**2 / 2) * (
        phi(w - spread) + phi(spread / math.sqrt(2)) - 1
    )
    assert found.crps == pytest.approx(crps.mean() / 2, rel=2e-3)
    assert found.rmse == gaussian.rmse


def test_the_crps_of_quantiles_agrees_with_the_closed_form_for_gaussians():
    rng = np.random.default_rng(0)
    y, mean, std = rng.normal(size=400), rng.normal(size=400), rng.uniform(0.2, 2, size=400)
    quantiles = mean[:, None] + std[:, None] * stats.norm.ppf(contenders._levels())
    exact = metrics.crps(*(torch.from_numpy(values) for values in (y, mean, std**2)))
    assert quantile_crps(y, quantiles) == pytest.approx(exact, rel=1e-3)


def test_a_target_on_a_log_scale_is_scored_by_its_density_and_quantiles():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(300, 2)), columns=["a", "b"])
    y = np.exp(np.sin(5 * X["a"].to_numpy()) + 0.3 * rng.normal(size=300))
    options = {"method": "local", "target": "log", "max_epochs": 20}
    answers = contenders._regressor(options, X[:200], y[:200], X[200:], y[200:])
    model = CaGPRegressor(**options).fit(X[:200], y[:200])
    mean, std = model.predict(X[200:], return_std=True)
    np.testing.assert_allclose(answers.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(answers.std, std, rtol=1e-12)
    np.testing.assert_allclose(answers.log_density, model.log_predictive_density(X[200:], y[200:]), rtol=1e-12)
    median = np.array([np.interp(0.5, contenders._levels(), row) for row in answers.quantiles])
    np.testing.assert_allclose(median, model.predict_quantiles(X[200:], 0.5), rtol=1e-4)
    assert contenders._regressor({**options, "target": "identity"}, X, y, X, y).quantiles is None


# ---- tables ----


def test_some_rows_are_the_same_random_ones_each_time(houses):
    (X, y), (every, targets) = load_frame(houses, "price", 50), load_frame(houses, "price")
    assert (len(y), len(targets)) == (50, 380)
    assert "price" not in X
    pd.testing.assert_frame_equal(X, load_frame(houses, "price", 50)[0])
    places = [np.flatnonzero(targets == value).item() for value in y]
    assert places != list(range(50))
    pd.testing.assert_frame_equal(X, every.iloc[places].reset_index(drop=True))
    with pytest.raises(ValueError, match="has no column 'y' to predict; name one with --target: area, town"):
        load_frame(houses, "y")


# ---- records ----


@pytest.fixture
def measured(monkeypatch):
    """Runs that are recorded and not carried out; seed 9 takes too long."""
    runs = []

    def record(run, max_time):
        runs.append(run)
        values = {"nll": -1.0 + run.seed, "rmse": 0.5, "crps": 0.25, "coverage": 0.95}
        values |= {"fit_s": 2.0, "predict_s": 1.0, "peak_bytes": 10**9}
        result = {"error": f"killed at the time limit ({max_time})"} if run.seed == 9 else values
        names = {"table": "waves", "settings": contenders.settings_of(run.method), "max_time": max_time}
        return {**run._asdict(), **names, **result}

    monkeypatch.setattr(table_quality, "measure_alone", record)
    return runs


def test_a_suite_resumes_where_it_was_killed(table, measured, tmp_path, capsys):
    file = tmp_path / "runs.jsonl"
    command = ["bench", "tables", str(table), "--methods", "default", "lightgbm", "--records", str(file), "--json"]
    assert main([*command, "--seeds", "0", "1"]) == 0
    assert [(r.method, r.seed) for r in measured] == [(m, s) for s in (0, 1) for m in ("default", "lightgbm")]
    assert [json.loads(line)["seed"] for line in file.read_text().splitlines()] == [0, 0, 1, 1]
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])  # killed in the middle of the last record
    measured.clear()
    capsys.readouterr()
    assert main([*command, "--seeds", "0", "1", "2"]) == 0
    assert [(r.method, r.seed) for r in measured] == [("lightgbm", 1), ("default", 2), ("lightgbm", 2)]
    assert file.read_bytes().startswith(whole)
    printed = capsys.readouterr()
    assert "bench: 3 of 6 runs are in" in printed.err
    assert [(r["method"], r["seed"]) for r in json.loads(printed.out)["records"]] == [
        (m, s) for s in (0, 1, 2) for m in ("default", "lightgbm")
    ]


def test_other_rows_and_other_settings_are_other_runs(table, measured, tmp_path, monkeypatch):
    command = ["bench", "tables", str(table), "--records", str(tmp_path / "runs.jsonl"), "--methods", "local"]
    assert main(command) == main(command) == 0
    assert len(measured) == 1
    assert main([*command, "--rows", "100"]) == 0
    assert len(measured) == 2
    changed = CONTENDERS["local"]._replace(options={"method": "local", "n_neighbors": 64})
    monkeypatch.setitem(CONTENDERS, "local", changed)
    assert main(command) == 0
    assert len(measured) == 3


def test_a_run_that_failed_is_repeated_only_with_more_time(table, measured, tmp_path, capsys):
    command = ["bench", "tables", str(table), "--records", str(tmp_path / "runs.jsonl"), "--methods", "default"]
    command += ["--seeds", "9", "--max-time"]
    assert main([*command, "10min"]) == main([*command, "10min"]) == main([*command, "5min"]) == 1
    assert len(measured) == 1
    assert "failed: waves, seed 9, default failed: killed at the time limit (10min)" in capsys.readouterr().out
    assert main([*command, "1h"]) == 1
    assert len(measured) == 2


def test_a_file_of_records_can_be_shown_alone(table, measured, tmp_path, capsys):
    file = tmp_path / "runs.jsonl"
    assert (
        main(["bench", "tables", str(table), "--records", str(file), "--methods", "default", "--seeds", "0", "2"]) == 0
    )
    first = capsys.readouterr().out
    assert main(["bench", "tables", "--records", str(file)]) == 0
    assert capsys.readouterr().out == first
    assert len(measured) == 2
    assert "0.0 ± 1.0" in first  # the mean of -1 and 1, and its standard error


def test_an_interrupt_keeps_what_was_measured(table, measured, tmp_path, monkeypatch, capsys):
    record = table_quality.measure_alone

    def interrupted(run, max_time):
        if run.seed == 1:
            raise KeyboardInterrupt
        return record(run, max_time)

    monkeypatch.setattr(table_quality, "measure_alone", interrupted)
    command = ["bench", "tables", str(table), "--records", str(tmp_path / "runs.jsonl"), "--methods", "default"]
    assert main([*command, "--seeds", "0", "1", "--json"]) == 130
    assert [r["seed"] for r in json.loads(capsys.readouterr().out)["records"]] == [0]
    assert [r["seed"] for r in read_records(tmp_path / "runs.jsonl")] == [0]


def test_a_file_that_holds_something_else_is_an_error_and_stays(table, measured, tmp_path, capsys):
    file = tmp_path / "notes.txt"
    file.write_text("to do\nlist\n")
    assert main(["bench", "tables", str(table), "--records", str(file)]) == 1
    assert "line 1 of" in capsys.readouterr().err
    assert file.read_text() == "to do\nlist\n"
    assert not measured


def test_records_survive_the_file(tmp_path):
    records = [{"table": "Ähre", "nll": -1.25, "r2": None}, {"list": [1, 2]}]
    for record in records:
        append_record(tmp_path / "new.jsonl", record)
    assert read_records(tmp_path / "new.jsonl") == records


def test_wrong_usage_is_told_before_anything_runs(table, measured, tmp_path, capsys):
    assert main(["bench", "tables"]) == 2
    assert "name tables to fit, or --records FILE" in capsys.readouterr().err
    assert main(["bench", "tables", "--records", str(tmp_path / "absent.jsonl")]) == 1
    with pytest.raises(SystemExit) as stop:
        main(["bench", "tables", str(table), "--max-time", "soon"])
    assert stop.value.code == 2
    assert "expected a positive time" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    assert main(["bench", "tables", str(table), str(tmp_path / "other" / "waves.npz")]) == 1
    assert "have the same name" in capsys.readouterr().err
    assert not measured


@pytest.mark.slow
def test_a_table_that_cannot_be_read_is_a_row_of_a_real_process(table, capsys):
    missing = table.with_name("missing.npz")
    assert main(["bench", "tables", str(missing), "--methods", "default"]) == 1
    printed = capsys.readouterr().out
    assert "failed: missing, seed 0, default failed: FileNotFoundError" in printed
    assert "0 of 1" in printed


# ---- the summary ----


def scored(table, method, seed, nll, rmse=0.5, rows=None):
    scores = {"nll": nll, "rmse": rmse, "crps": 0.1, "coverage": 0.9}
    times = {"fit_s": 1.0, "predict_s": 0.5, "peak_bytes": 5e8}
    return {"table": table, "rows": rows, "method": method, "seed": seed, **scores, **times}


def test_the_summary_has_means_and_paired_differences_with_standard_errors():
    ours, theirs = np.array([0.1, 0.7, 0.4]), np.array([0.15, 0.72, 0.5, 9.0])
    records = [scored("bike", "default", seed, nll) for seed, nll in enumerate(ours)]
    records += [scored("bike", "lightgbm", seed, nll) for seed, nll in enumerate(theirs)]
    records.append({"table": "bike", "method": "default", "seed": 3, "error": "no"})
    default, other = summarize(records)
    assert default.means["nll"].value == pytest.approx(ours.mean())
    assert default.means["nll"].error == pytest.approx(stats.sem(ours))
    assert (default.num_failed, default.differences) == (1, {})
    assert other.means["nll"].value == pytest.approx(theirs.mean())
    gains = theirs[:3] - ours  # of the splits that both have
    assert other.differences["nll"].value == pytest.approx(gains.mean())
    assert other.differences["nll"].error == pytest.approx(stats.sem(gains))
    assert other.means["seconds"].value == 1.5
    json.dumps([default.as_record(), other.as_record()])


def test_the_verdict_is_best_or_level_within_one_standard_error():
    records = []
    for seed in range(4):
        wobble = 0.1 * (-1) ** seed
        records.append(scored("bike", "default", seed, 0.0))
        records.append(scored("bike", "local", seed, wobble - 0.05))  # ahead by less than its standard error
        records.append(scored("protein", "default", seed, 0.0, rows=1000))
        records.append(scored("protein", "catboost", seed, wobble - 0.06, rows=1000))  # by more
        records.append(scored("protein", "lightgbm", seed, 1.0, rmse=0.4, rows=1000))
    nll, rmse, crps = verdicts(summarize(records))
    assert stats.sem([0.1, -0.1, 0.1, -0.1]) == pytest.approx(0.0577, abs=1e-4)
    assert nll.endswith("on 1 of 2 tables; behind on protein:1000 (catboost).")
    assert rmse.endswith("on 1 of 2 tables; behind on protein:1000 (lightgbm).")
    assert crps.endswith("on 2 of 2 tables.")


def test_the_summary_fits_a_terminal_and_hides_nothing():
    names = ("parkinsons_telemonitoring", "bike")
    records = [
        scored(n, m, s, -0.12345 * (s + 1) + len(m) / 100)
        for n in names
        for m in ("default", "gpboost")
        for s in (0, 1)
    ]
    records.append({"table": "bike", "method": "catboost", "seed": 0, "error": "no"})
    text = summary_text(summarize(records), 80)
    assert max(map(len, text.splitlines())) <= 80
    for shown in ("failed", "0 of 1", "90.0 ± 0.0 %", "1.5", "500", "minus default", *names):
        assert shown in text


def test_one_split_has_no_standard_errors():
    text = summary_text(summarize([scored("bike", "default", 0, -1.5), scored("bike", "gpboost", 0, -1.25)]), 100)
    assert "±" not in text
    assert "+0.25" in text


def test_the_fit_time_limits_our_regressors_and_sets_runs_apart(monkeypatch, table):
    given = []

    def stopped(**options):
        given.append(options)
        raise InterruptedError

    monkeypatch.setattr("cagp_bench.contenders.CaGPRegressor", stopped)
    limited = run(table, method="opt")._replace(fit_time="3s")
    assert "InterruptedError" in measure(limited)["error"]
    assert given == [{"method": "opt", "max_time": "3s"}]
    assert table_quality._key(limited) != table_quality._key(run(table, method="opt"))
