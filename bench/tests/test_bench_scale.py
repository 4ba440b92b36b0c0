"""``cagp bench scale`` and ``cagp bench disk``: small runs, and the truth of the generated table."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.spatial import cKDTree

from cagp.cli import main
from cagp_bench import cluster, table_on_disk


@pytest.mark.slow
def test_a_step_of_each_method_is_measured(capsys):
    assert main(["bench", "scale", "--rows", "3000", "6000", "--n-actions", "16", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(r["method"], r["rows"]) for r in records] == [(m, n) for m in ("local", "opt") for n in (3000, 6000)]
    for record in records:
        assert 0 < record["step_seconds"] < record["prepare_seconds"] + 60
        assert record["imports_bytes"] < record["peak_bytes"]


def test_targets_are_the_function_and_noise_of_the_stated_size():
    X, y, f = table_on_disk.sample(20_000, 3)
    assert X.dtype == y.dtype == np.float32
    assert np.std(y - f) == pytest.approx(table_on_disk.NOISE, rel=0.03)
    assert np.std(f) == pytest.approx(1, rel=0.1)
    near = table_on_disk.sample(20_000, 3)[0]
    assert np.array_equal(near, X)
    assert not np.array_equal(table_on_disk.sample(20_000, 4)[0], X)


@pytest.mark.slow
def test_a_table_in_files_is_made_once_and_predicted_to_its_noise(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(table_on_disk, "PART_ROWS", 8_000)
    table_on_disk.make_table(tmp_path / "t", 20_000)
    parts = sorted((tmp_path / "t").iterdir())
    assert [len(pd.read_parquet(part)) for part in parts] == [8_000, 8_000, 4_000]
    written = [part.stat().st_mtime_ns for part in parts]
    table_on_disk.make_table(tmp_path / "t", 20_000)
    assert [part.stat().st_mtime_ns for part in parts] == written
    monkeypatch.undo()
    options = ["--rows", "60000", "--test-rows", "2000", "--folder", str(tmp_path), "--json"]
    assert main(["bench", "disk", *options]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["n"] == 60_000
    assert record["true_nll"] < record["nll"]  # no model beats the truth
    assert 0.9 < record["coverage"] < 0.99


@pytest.mark.slow
def test_rows_per_second_of_predictions(tmp_path, capsys):
    options = ["--rows", "400", "--test-rows", "700", "--methods", "exact", "local", "--fit-time", "2s", "--json"]
    assert main(["bench", "predict", *options, "--records", str(tmp_path / "r.jsonl")]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(r["method"], r["fitted"], r["predicted_rows"]) for r in records] == [
        ("exact", "exact", 700),
        ("local", "local", 700),
    ]
    for record in records:
        assert record["rows_per_cpu_second"] == pytest.approx(700 / record["predict_cpu_seconds"])
    written = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert written == records


@pytest.mark.slow
def test_many_machines_are_modelled_from_what_is_measured(capsys):
    options = ["--rows", "1000000", "--machines", "8", "--measured-rows", "5000", "--json"]
    assert main(["bench", "cluster", *options]) == 0
    found = {r["what"]: r for r in json.loads(capsys.readouterr().out)}
    assert found["rows of a region"]["value"] == 125_000
    assert found["sums of all processes in a step"]["value"] == 3
    # Two flags; whether each of two processes failed; the same, 16 terms, 3 tensors of 5 parameters.
    assert found["bytes of these sums"]["value"] == 8 * (2 + 2 + 2 + 16 + 3 + 5)
    parts = ("reading Parquet", "exchange of rows", "building trees", "300 steps, computing")
    total = sum(found[name]["value"] for name in (*parts, "300 steps, waiting for sums"))
    assert found["the fit"]["value"] == pytest.approx(total)
    assert {r["source"] for r in found.values()} == {"measured", "given", "modelled"}


def test_the_halo_of_a_cube_holds_the_neighbours_of_its_rows():
    rng = np.random.default_rng(0)
    n = 40_000
    X = rng.uniform(size=(n, 3))
    own = (np.abs(X - 0.5) < 0.25).all(1)
    per_row = n ** (-1 / 3)
    width = cluster.WIDTH * (cluster.NEIGHBOURS / (4 / 3 * np.pi)) ** (1 / 3) * per_row
    near = (np.abs(X - 0.5) < 0.25 + width).all(1) & ~own
    assert cluster.halo_rows(float(own.sum()), 3) == pytest.approx(near.sum(), rel=0.05)
    last = cKDTree(X).query(X[own], cluster.NEIGHBOURS + 1)[0][:, -1]
    assert np.mean(last < width) > 0.99
