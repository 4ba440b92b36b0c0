"""The command line as a process of its own: killed and resumed, read by a pipe that closes, and its memory."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

import cagp
from cagp.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
PATIENCE = 300  # seconds for what takes a few, on a busy machine


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("waves") / "waves.csv"
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(size=(300, 4)), columns=list("abcd"))
    frame["y"] = np.sin(6 * frame["a"]) + frame["b"] + 0.1 * rng.normal(size=300)
    frame.to_csv(path, index=False)
    return path


def start(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", "cagp", *map(str, arguments)], env=ENVIRONMENT, **options)


@pytest.mark.slow
def test_a_fit_killed_at_once_goes_on_to_the_same_model(table, tmp_path):
    options = ["fit", table, "--target", "y", "--method", "opt", "--n-actions", "48", "--max-epochs", "200", "--quiet"]
    assert main([*map(str, options), "--out", str(tmp_path / "whole.cagp")]) == 0

    killed = tmp_path / "killed.cagp"
    folder = tmp_path / "killed.cagp.checkpoints"
    process = start(*options, "--out", killed)
    try:
        end = time.monotonic() + PATIENCE
        # A checkpoint comes after 50 steps.
        while not any(h.read_bytes().count(b"\n") > 60 for h in folder.glob("*/opt/history.jsonl")):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < end
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    assert not killed.exists()
    assert main([*map(str, options), "--out", str(killed)]) == 2  # not without being told to
    assert main([*map(str, options), "--out", str(killed), "--resume"]) == 0
    questions = pd.read_csv(table)[list("abcd")]
    whole, resumed = cagp.load(tmp_path / "whole.cagp"), cagp.load(killed)
    np.testing.assert_array_equal(
        resumed.predict(questions, return_std=True), whole.predict(questions, return_std=True)
    )
    assert len(resumed.fit_result_.steps) == len(whole.fit_result_.steps) == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed.cagp", "whole.cagp"]


@pytest.fixture(scope="module")
def model(table):
    path = table.with_name("model.cagp")
    assert main(["fit", str(table), "--target", "y", "--max-epochs", "2", "--out", str(path), "--quiet"]) == 0
    return path


@pytest.mark.slow
def test_a_pipe_that_closes_ends_predictions_quietly(table, model, tmp_path):
    many = tmp_path / "many.csv"
    pd.concat([pd.read_csv(table)] * 40).to_csv(many, index=False)  # more than a pipe holds
    process = start(
        "predict", model, many, "--out", "-", "--rows-at-a-time", "500", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"y_mean,y_std,y_lower,y_upper\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(PATIENCE) == 0


MEASURE = """
import sys
from cagp.cli import main
from cagp.memory import peak_memory

model, small, large, out = sys.argv[1:]
for table in (small, large):
    assert main(["predict", model, table, "--out", out, "--rows-at-a-time", "4096", "--quiet"]) == 0
    print(peak_memory())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc")
def test_predictions_of_four_times_the_rows_take_no_more_memory(model, tmp_path):
    paths = {50_000: tmp_path / "small.npz", 200_000: tmp_path / "large.npz"}
    for num_rows, path in paths.items():
        values = np.random.default_rng(0).uniform(size=num_rows)
        np.savez(path, **dict.fromkeys([*"abcd", *(f"ignored{j}" for j in range(60))], values))
    arguments = [sys.executable, "-c", MEASURE, model, *paths.values(), tmp_path / "out.parquet"]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    small, large = map(int, done.stdout.split())
    # Held whole, the further rows would take 77 MB; memory that waits for Python to collect it varies by 20 MB.
    assert large - small < 40e6
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 200_000
