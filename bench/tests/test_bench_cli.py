"""``cagp bench``: records that machines can read, failures that are rows, and exit codes that scripts can use."""

import contextlib
import io
import json

import numpy as np
import pytest

from cagp.cli import main
from cagp.engine import TORCH
from cagp_bench import engine as bench_engine
from cagp_bench import step as bench_step

SUITES = ["engine", "step", "run", "presets", "local"]


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2)).astype(np.float32)
    y = (np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=200)).astype(np.float32)
    path = tmp_path / "waves.npz"
    np.savez(path, X=X, y=y)
    return path


def test_bench_engine_compares_backends_in_one_run(monkeypatch, capsys):
    monkeypatch.setattr(bench_engine, "NUM_COLUMNS", 64)
    monkeypatch.setattr(bench_engine, "NUM_BLOCKS", 8)
    monkeypatch.setattr(bench_engine, "NUM_ROWS", {"native": 64, "torch": 64})
    monkeypatch.setattr(bench_engine, "DIMENSIONS", (3,))
    monkeypatch.setattr(bench_engine, "_torch_compile", lambda *_: bench_engine._engine(TORCH, 1, 3))
    monkeypatch.setattr(bench_engine.importlib.util, "find_spec", lambda _: None)
    assert main(["bench", "engine", "--repeats", "1", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert "torch" in {record["backend"] for record in records}
    for record in records:
        assert record["d"] == 3
        assert record["forward_per_s"] > 0
        assert record["backward_per_s"] > 0


def test_bench_step_measures_time_and_memory(monkeypatch):
    monkeypatch.setattr(bench_step, "NUM_ACTIONS", 8)
    record = bench_step.measure(num_rows=64, repeats=1)
    assert record["n"] == 64
    assert record["forward_s"] > 0
    assert record["step_s"] > 0
    assert 0 <= record["peak_bytes"] < 1e9


@pytest.mark.slow
def test_bench_minibatches_scores_every_choice(table, capsys):
    options = ["--n-actions", "6", "12", "--support", "0", "4", "--batch", "0", "40", "--seconds", "0.2", "--json"]
    assert main(["bench", "minibatches", str(table), *options]) == 0
    records = json.loads(capsys.readouterr().out)
    cases = {(r["i"], r["support"], r["batch"]) for r in records}
    assert cases == {(i, s, b) for i in (6, 12) for s, b in ((0, 0), (4, 0), (4, 40))}
    assert all(r["rmse"] < 1.2 for r in records)
    assert main(["bench", "minibatches", "missing.npz", "--json"]) == 1
    assert "missing.npz" in json.loads(capsys.readouterr().out)[0]["error"]


@pytest.mark.parametrize("command", ["bench", "reproduce", *(f"bench {suite}" for suite in SUITES)])
def test_help_fits_into_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(shown):
        main([*command.split(), "--help"])
    assert stop.value.code == 0
    assert [line for line in shown.getvalue().splitlines() if len(line) > 80] == []


def test_wrong_usage_is_exit_code_two(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "run"])
    assert exit_.value.code == 2
    assert "the following arguments are required: SUITE" in capsys.readouterr().err
