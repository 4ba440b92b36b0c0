"""Counts and outliers on the command line and in reports: what is printed agrees with the regressor."""

import json

import numpy as np
import pandas as pd
import pytest

from cagp import CaGPRegressor, load
from cagp.cli.app import main
from cagp.report.subject import subject_of
from cagp.report.targets import targets_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"east": rng.normal(size=150), "soil": rng.choice(["clay", "sand"], 150)})
    frame["hours"] = rng.uniform(0.5, 4, 150)
    rate = np.exp(1 + np.sin(frame["east"]) + (frame["soil"] == "clay"))
    frame["birds"] = rng.poisson(frame["hours"] * rate).astype(float)
    frame["weight"] = 10 + frame["east"] + 0.1 * rng.normal(size=150)
    frame.loc[::12, "weight"] += 50
    frame.loc[5, "birds"] = None
    frame.to_csv(tmp_path / "birds.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ["--method", "local", "--n-neighbors", "8", "--max-epochs", "4", "--drop", "weight"]
FIT = ["fit", "birds.csv", "--target", "birds", *SMALL]


@pytest.mark.slow
def test_counts_from_fit_to_report(folder, capsys):
    options = ["--likelihood", "negative_binomial", "--exposure", "hours"]
    assert main([*FIT, *options, "--out", "birds.cagp", "--json", "--report", "fit.html"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["likelihood"], record["exposure"], record["method"]) == ("negative_binomial", "hours", "local")
    assert record["rows_without_target"] == 1
    model, table = load("birds.cagp"), pd.read_csv("birds.csv")
    inputs = table[["east", "soil", "hours"]]
    assert isinstance(model, CaGPRegressor)

    columns = ["--columns", "mean", "lower", "upper", "--quantiles", "0.1"]
    assert main(["predict", "birds.cagp", "birds.csv", "--out", "out.csv", *columns, "--quiet"]) == 0
    out = pd.read_csv("out.csv")
    assert (out.dtypes[["birds_lower", "birds_upper", "birds_q0.1"]] == np.int64).all()
    np.testing.assert_allclose(out["birds_mean"], model.predict(inputs), rtol=1e-12)
    low, high = model.predict_interval(inputs)
    np.testing.assert_array_equal(out[["birds_lower", "birds_upper"]], np.stack([low, high], 1))

    capsys.readouterr()
    assert main(["evaluate", "birds.cagp", "birds.csv", "--json", "--report", "page.html"]) == 0
    printed = capsys.readouterr()
    known = table["birds"].notna()
    right = model.predictive(inputs[known]).scores(0, table.loc[known, "birds"].to_numpy())
    found = json.loads(printed.out)["metrics"]["birds"]
    assert found["model"]["nll"] == pytest.approx(right.nll)
    assert found["model"]["nll"] < found["constant"]["nll"]
    assert "with the inputs of" not in printed.err
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "Hanging rootogram of birds" in page
    assert "randomised probability integral transform" in page
    assert "predicted counts of" in page
    assert "Hanging rootogram" in (folder / "fit.html").read_text(encoding="utf-8")

    assert main(["info", "birds.cagp"]) == 0
    words = capsys.readouterr().out
    assert "likelihood: negative binomial with the log link" in words
    assert "exposure: hours" in words
    assert "Given the sites" in words
    assert "hours  " not in words.split("Lengthscales")[1].split("The fit")[0]


@pytest.mark.slow
def test_outliers_from_fit_to_report(folder, capsys):
    fit = ["fit", "birds.csv", "--target", "weight", "--drop", "birds", "--max-epochs", "10", "--out", "w.cagp"]
    assert main([*fit, "--likelihood", "student_t", "--report", "w.html"]) == 0
    assert "the median and the median absolute deviation of the training rows" in capsys.readouterr().out
    page = (folder / "w.html").read_text(encoding="utf-8")
    assert "Median absolute error" in page
    assert "rootogram" not in page
    assert main(["info", "w.cagp"]) == 0
    words = capsys.readouterr().out
    assert "degrees of freedom" in words
    assert "median 1" in words


def test_expected_and_observed_numbers_of_counts_are_all_rows(folder):
    table = pd.read_csv("birds.csv").dropna()
    model = CaGPRegressor("exact", likelihood="poisson", exposure="hours", max_epochs=5)
    model.fit(table[["east", "hours"]], table["birds"])
    (target,) = targets_of(subject_of(model, table[["east", "hours"]], table["birds"]))
    shares = target.counts
    assert shares is not None
    assert shares.observed.sum() == len(table)
    assert 0.9 * len(table) < shares.expected.sum() <= len(table) + 1e-6
    y = table["birds"].to_numpy()
    assert shares.observed[0] == ((y >= 0) & (y < shares.width)).sum()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--exposure", "hours"], "--exposure is for counts"),
        (["--likelihood", "poisson", "--classify"], "--classify cannot be used with --likelihood poisson"),
        (["--likelihood", "poisson", "--noise", "hours"], "--noise cannot be used"),
        (["--likelihood", "poisson", "--copies", "once"], "--copies cannot be used"),
        (["--likelihood", "poisson", "--target-transform", "log"], "--target-transform cannot be used"),
        (["--likelihood", "poisson", "--local-scale", "4"], "--local-scale cannot be used"),
        (["--likelihood", "poisson", "--exposure", "days"], "--exposure names 'days'"),
        (["--likelihood", "poisson", "--exposure", "soil"], "the exposure, column 'soil', holds levels"),
        (["--likelihood", "student_t", "--exposure", "hours"], "--exposure is for counts"),
    ],
)
def test_options_that_do_not_apply_are_refused(folder, capsys, more, words):
    assert main([*FIT, *more]) != 0
    assert words in " ".join(capsys.readouterr().err.split())


def test_methods_and_intervals_that_do_not_apply_are_refused(folder, capsys):
    assert main(["fit", "birds.csv", "--target", "birds", "--likelihood", "poisson", "--method", "sgpr"]) == 2
    assert main(["fit", "birds.csv", "--target", "birds", "weight", "--likelihood", "poisson"]) == 2
    assert main([*FIT, "--likelihood", "poisson", "--out", "b.cagp", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["predict", "b.cagp", "birds.csv", "--interval", "conformal"]) == 2
    assert "conformal intervals are for Gaussian noise" in capsys.readouterr().err
    table = pd.read_csv("birds.csv").assign(birds=0.5)
    table.to_csv("half.csv", index=False)
    assert main(["fit", "half.csv", "--target", "birds", "--likelihood", "poisson", "--quiet"]) == 1
    assert "values that are no counts (first 0.5)" in capsys.readouterr().err
