"""``cagp bench scale`` and ``cagp bench disk``: small runs, and the truth of the generated table."""

import json

import numpy as np
import pandas as pd
import pytest

from cagp.bench import table_on_disk
from cagp.cli import main


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
