"""``cagp fit`` and ``cagp predict`` in several processes, as torchrun starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from processes import run_together, started_together, wait_for

from cagp import load
from cagp.cli import main
from cagp.launch import LAUNCHED

FIT = ["--target", "y", "--method", "local", "--max-epochs", "8"]
SECONDS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a model fitted by one process, and one fitted by two processes of torchrun."""
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=400)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_parquet(folder / "table.parquet")
    assert main(["fit", str(folder / "table.parquet"), *FIT, "--out", str(folder / "one.cagp"), "--quiet"]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cagp"]
    command = [*torchrun, "fit", str(folder / "table.parquet"), *FIT, "--out", str(folder / "two.cagp")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "fit.txt").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_only_the_first_process_prints_and_writes(folder):
    words = (folder / "fit.txt").read_text()
    for once in ("2 processes shared the rows of each step.", "Fitted in ", "Saved ", "On 40 test rows"):
        assert words.count(once) == 1, words
    assert sorted(path.name for path in folder.glob("two*")) == ["two.cagp"]


@pytest.mark.slow
def test_predictions_are_those_of_one_process_in_order(folder):
    paths = {name: folder / f"{name}.csv" for name in ("one", "alone", "together")}
    table, model = str(folder / "table.parquet"), str(folder / "two.cagp")
    options = ["--columns", "mean", "std", "upper", "--quantiles", "0.1", "--keep", "a"]
    options += ["--rows-at-a-time", "90", "--quiet"]  # five pieces: the last turn is not full
    assert main(["predict", model, table, "--out", str(paths["alone"]), *options]) == 0
    assert main(["predict", str(folder / "one.cagp"), table, "--out", str(paths["one"]), *options]) == 0
    ended = run_together(2, ["-m", "cagp", "predict", model, table, "--out", str(paths["together"]), *options], SECONDS)
    assert [process.code for process in ended] == [0, 0], ended
    assert [process.output for process in ended] == ["", ""]
    assert paths["together"].read_bytes() == paths["alone"].read_bytes()
    pd.testing.assert_frame_equal(pd.read_csv(paths["alone"]), pd.read_csv(paths["one"]), rtol=1e-6)


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_command_and_leaves_the_checkpoint(folder, capsys):
    out = folder / "killed.cagp"
    command = ["fit", str(folder / "table.parquet"), *FIT[:-1], "1000000", "--out", str(out), "--quiet"]
    with started_together(2, ["-m", "cagp", *command]) as processes:
        until = time.monotonic() + SECONDS
        while not list(folder.glob("killed.cagp.checkpoints/**/checkpoint.safetensors")):
            assert time.monotonic() < until
            assert processes[0].poll() is None
            time.sleep(0.1)
        os.kill(processes[1].pid, signal.SIGKILL)
        first, _ = wait_for(processes, 60)
    assert first.code == 1
    assert first.output.startswith("cagp: another process of this computation has ended or cannot be reached")
    assert "resumes on any number of processes" in first.output
    assert len(first.output.splitlines()) == 1
    assert not out.exists()
    assert main(command) == 2
    assert "with --resume to continue it" in capsys.readouterr().err


def launched(monkeypatch, rank: str) -> None:
    for name, value in zip(LAUNCHED, (rank, "2", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)


def test_other_commands_run_in_one_process(folder, monkeypatch, capsys):
    launched(monkeypatch, "0")
    assert main(["info", str(folder / "one.cagp")]) == 2
    assert "only cagp fit and cagp predict share their work" in capsys.readouterr().err
    launched(monkeypatch, "1")  # the first process has said it
    assert main(["info", str(folder / "one.cagp")]) == 2
    assert capsys.readouterr().err == ""


# ---- the choice of a model, and tables in pieces ----


def torchrun(size: int, *words: str) -> str:
    """What ``cagp WORDS`` prints in so many processes of torchrun."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "-m", "cagp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*start, *words], env=environment, capture_output=True, text=True, timeout=2 * SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A table of 3,000 rows in three files."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "parts").mkdir()
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(3000, 2))
    y = np.sin(12 * X[:, 0]) * np.cos(9 * X[:, 1]) + 0.1 * rng.normal(size=3000)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    frame.to_parquet(folder / "table.parquet")
    for number, rows in enumerate(np.array_split(np.arange(3000), 3)):
        frame.iloc[rows].to_parquet(folder / "parts" / f"part-{number}.parquet")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "options"),
    [("table.parquet", ["--method", "auto", "--max-epochs", "2", "--mean", "zero"]), ("parts", FIT[2:])],
    ids=["auto", "in pieces"],
)
def test_two_processes_choose_and_predict_as_one(parts, capsys, table, options):
    words = ["fit", str(parts / table), "--target", "y", *options, "--json", "--quiet"]
    capsys.readouterr()
    assert main([*words, "--out", str(parts / f"{table}.one")]) == 0
    one = json.loads(capsys.readouterr().out)
    two = json.loads(torchrun(2, *words, "--out", str(parts / f"{table}.two")))
    assert two["method"] == one["method"]
    assert [(t["model"], t["outcome"]) for t in two["tried"]] == [(t["model"], t["outcome"]) for t in one["tried"]]
    if table == "table.parquet":
        assert len(one["tried"]) > 3
        assert two["choice"].split("(")[0] == one["choice"].split("(")[0]
    X = pd.read_parquet(parts / "table.parquet")[["a", "b"]][:200]
    answers = [np.stack(load(parts / f"{table}.{name}").predict(X, return_std=True)) for name in ("one", "two")]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--shards"]], ids=["in pieces", "in regions"])
def test_a_folder_is_fitted_and_predicted_in_order(parts, options):
    model, outs = str(parts / f"model{len(options)}"), [str(parts / f"p{len(options)}-{size}.csv") for size in (1, 2)]
    words = torchrun(2, "fit", str(parts / "parts"), *FIT, *options, "--out", model)
    assert "On 300 test rows" in words
    predict = ["predict", model, str(parts / "parts"), "--rows-at-a-time", "450", "--keep", "a", "--quiet"]
    assert main([*predict, "--out", outs[0]]) == 0
    torchrun(2, *predict, "--out", outs[1])
    found = [Path(out).read_bytes() for out in outs]
    assert found[0] == found[1]
    frame = pd.read_parquet(parts / "table.parquet")
    read = pd.read_csv(outs[0])
    np.testing.assert_array_equal(read["a"], frame["a"])
    assert np.std(read["y_mean"] - frame["y"]) < 0.2
