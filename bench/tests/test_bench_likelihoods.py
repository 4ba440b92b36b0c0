"""``cagp bench counts``, ``outliers`` and ``classes``: every contender is measured, failures are rows."""

import json

import numpy as np
import pandas as pd
import pytest

from cagp.cli import main
from cagp_bench import boosted_trees, likelihood_quality
from cagp_bench.record_files import read_records


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Counts of birds, and where a plant grows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"east": rng.normal(size=150), "clay": rng.choice([0.0, 1.0], 150)})
    frame["hours"] = rng.uniform(0.5, 4, 150)
    frame["log"] = np.log(rng.poisson(frame["hours"] * np.exp(1 + np.sin(frame["east"]) + frame["clay"])) + 1.0)
    frame.to_csv(tmp_path / "logs.csv", index=False)
    odds = 2 * frame["east"] + 2 * frame["clay"] - 1
    frame["plant"] = np.where(rng.random(150) < 1 / (1 + np.exp(-odds)), "clover", "daisy")
    frame[["east", "clay", "plant"]].to_csv(tmp_path / "plants.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bench_counts_and_outliers_keep_records(folder, capsys, monkeypatch):
    monkeypatch.setattr(boosted_trees, "MAX_TREES", 20)
    for name in ("negative-binomial", "student-t", "gaussian"):
        monkeypatch.setitem(likelihood_quality.OWN, name, {**likelihood_quality.OWN[name], "max_epochs": 3})
    counts = ["bench", "counts", "logs.csv", "--target", "log", "--logarithms", "--records", "counts.jsonl"]
    assert main([*counts, "--methods", "negative-binomial", "lightgbm", "hist"]) == 0
    records = read_records(folder / "counts.jsonl")
    assert [record["method"] for record in records] == ["negative-binomial", "lightgbm", "hist"]
    assert all(np.isfinite(record["nll"]) and record["deviance"] > 0 for record in records)
    assert records[1]["nll"] <= records[1]["nll_poisson"] + 0.5
    outliers = ["bench", "outliers", "logs.csv", "--target", "log", "--rows", "100", "--records", "outliers.jsonl"]
    assert main(outliers) == 0
    records = read_records(folder / "outliers.jsonl")
    assert [(record["share"], record["method"]) for record in records] == [
        (share, method) for share in (0.0, 0.1) for method in ("gaussian", "student-t")
    ]
    assert "NLL" in capsys.readouterr().out


def test_gross_errors_replace_the_share_that_was_asked_for():
    y = np.random.default_rng(0).normal(size=1000)
    wrong = likelihood_quality.with_gross_errors(y, 0.1, seed=3)
    changed = wrong != y
    assert changed.sum() == 100
    assert 8 < wrong[changed].std() < 12
    np.testing.assert_array_equal(likelihood_quality.with_gross_errors(y, 0.0, seed=3), y)


@pytest.mark.slow
def test_bench_classes_measures_all_contenders(folder, capsys):
    command = ["bench", "classes", "plants.csv", "no.csv", "--target", "plant", "--methods", "lightgbm", "hist"]
    assert main([*command, "--json"]) == 1
    records = json.loads(capsys.readouterr().out)
    assert [record["method"] for record in records] == ["lightgbm", "hist"] * 2
    assert all(0 < record["log_loss"] < 1 for record in records[:2])
    assert all("error" in record for record in records[2:])
