"""Classes on the command line: fit, predict, evaluate and info agree with the classifier; options that do not apply."""

import json

import numpy as np
import pandas as pd
import pytest

from cagp import CaGPClassifier, load
from cagp.cli.app import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"east": rng.normal(size=120), "soil": rng.choice(["clay", "sand"], 120)})
    odds = 2 * frame["east"] + np.where(frame["soil"] == "clay", 1.0, -1.0)
    frame["plant"] = np.where(rng.random(120) < 1 / (1 + np.exp(-odds)), "clover", "daisy")
    frame.loc[5, "plant"] = None
    frame.to_csv(tmp_path / "plants.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIT = ["fit", "plants.csv", "--target", "plant", "--method", "local", "--n-neighbors", "8", "--max-epochs", "3"]


def test_fit_predict_evaluate_and_info(folder, capsys):
    assert main([*FIT, "--classify", "--out", "plants.cagp", "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert (record["rows"], record["rows_without_target"], record["train_rows"], record["test_rows"]) == (
        120,
        1,
        107,
        12,
    )
    assert record["classes"] == ["clover", "daisy"]
    assert "Left out 1 row without a label." in printed.err
    assert not (folder / "plants.cagp.checkpoints").exists()
    model = load("plants.cagp")
    assert isinstance(model, CaGPClassifier)

    assert main(["predict", "plants.cagp", "plants.csv", "--out", "out.csv", "--keep", "plant", "--quiet"]) == 0
    table, out = pd.read_csv("plants.csv"), pd.read_csv("out.csv")
    assert list(out.columns) == ["plant", "plant_class", "plant_p_clover", "plant_p_daisy"]
    probabilities = model.predict_proba(table[["east", "soil"]])
    np.testing.assert_allclose(out[["plant_p_clover", "plant_p_daisy"]], probabilities, rtol=1e-12)
    np.testing.assert_array_equal(out["plant_class"], model.predict(table[["east", "soil"]]))

    capsys.readouterr()
    assert main(["evaluate", "plants.cagp", "plants.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = table["plant"].notna()
    assert (found["rows"], found["rows_without_target"]) == (120, 1)
    right = model.scores(table.loc[known, ["east", "soil"]], table.loc[known, "plant"])
    assert found["metrics"]["log_loss"] == pytest.approx(right.log_loss)

    assert main(["info", "plants.cagp"]) == 0
    words = capsys.readouterr().out
    assert "plant: 2 classes, clover, daisy" in words
    assert "Bernoulli with the logistic link" in words
    assert "Given the sites" in words


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "for classes use CaGPClassifier, or cagp fit --classify"),
        (["--classify", "--noise", "east"], "--noise cannot be used with --classify"),
        (["--classify", "--objective", "loo"], "--objective cannot be used with --classify"),
        (["--classify", "--method", "svgp"], "with --classify it is one of auto, exact"),
        (["--classify", "--local-scale", "5"], "--local-scale cannot be used with --classify"),
        (["--classify", "--target", "plant", "soil"], "--classify takes one"),
    ],
)
def test_what_does_not_apply_is_refused(folder, capsys, more, words):
    assert main([*FIT, *more]) != 0
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not (folder / "model.cagp").exists()
    assert not (folder / "model.cagp.checkpoints").exists()


def test_the_report_is_on_the_test_rows(folder, capsys):
    assert main([*FIT, "--classify", "--report", "page.html"]) == 0
    assert "Wrote page.html." in capsys.readouterr().out
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "is tested on 12 rows" in page
    assert "clover" in page


def test_evaluate_measures_the_rows_that_fit_held_out(folder, capsys):
    split = ["--split", "time:east", "--test-fraction", "0.2"]
    assert main([*FIT, "--likelihood", "probit", *split, "--out", "plants.cagp", "--json"]) == 0
    held_out = json.loads(capsys.readouterr().out)
    assert (held_out["likelihood"], held_out["classes"]) == ("probit", ["clover", "daisy"])
    assert main(["evaluate", "plants.cagp", "plants.csv", *split, "--report", "page.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == held_out["test_rows"]
    assert found["metrics"] == pytest.approx(held_out["metrics"])
    assert "is tested on" in (folder / "page.html").read_text(encoding="utf-8")


def test_quantiles_and_columns_are_for_regression(folder, capsys):
    assert main([*FIT, "--classify", "--out", "plants.cagp", "--quiet"]) == 0
    assert main(["predict", "plants.cagp", "plants.csv", "--quantiles", "0.5"]) != 0
    assert "is a classifier" in capsys.readouterr().err
    assert main(["evaluate", "plants.cagp", "plants.csv", "--noise", "east"]) != 0
    assert "cannot be used with a classifier" in capsys.readouterr().err
