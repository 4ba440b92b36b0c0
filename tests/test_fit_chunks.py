"""Fits to tables in pieces: the model is that of the table in memory, and the memory is planned and kept."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from cagp import CaGPRegressor, dataset
from cagp.data import open_chunks
from cagp.dataset import column_statistics, gathered, mapped_tensor

RNG = np.random.default_rng(0)
N = 600


def table(n=N):
    """Numbers, levels, dates, missing values, and a target that depends on them."""
    a, kind = RNG.uniform(size=n), RNG.choice(["low", "mid", "high"], n)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(RNG.integers(0, 400, n), unit="D")
    b = np.where(RNG.random(n) < 0.1, np.nan, RNG.normal(size=n))
    y = np.sin(8 * a) + (kind == "high") + 0.3 * np.nan_to_num(b) + 0.1 * RNG.normal(size=n)
    return pd.DataFrame({"a": a, "b": b, "kind": kind, "day": days, "y": y})


FRAME = table()
SETTINGS = {"method": "local", "max_epochs": 10, "dtype": "float32", "mean": "zero", "n_neighbors": 16}


def in_pieces(frame, count):
    """The pieces of a frame."""
    return [frame.iloc[part] for part in np.array_split(np.arange(len(frame)), count)]


def answers(model, frame=FRAME):
    """Means and deviations."""
    return np.stack(model.predict(frame.drop(columns="y"), return_std=True))


@pytest.fixture(scope="module")
def in_memory():
    return CaGPRegressor(**SETTINGS).fit(FRAME.drop(columns="y"), FRAME["y"])


# ---- the same model ----


@pytest.mark.parametrize("count", [1, 7])
def test_the_model_is_that_of_the_table_in_memory(in_memory, count):
    model = CaGPRegressor(**SETTINGS).fit(open_chunks(in_pieces(FRAME, count), "y"))
    assert model.encoder_.state() == in_memory.encoder_.state()
    assert list(model.feature_names_in_) == list(in_memory.feature_names_in_)
    assert model.n_rows_ == N
    if count == 1:
        np.testing.assert_array_equal(answers(model), answers(in_memory))
    else:  # means and deviations differ by round-off, and with them the last bit of some rows
        np.testing.assert_allclose(answers(model), answers(in_memory), atol=1e-3)
    words = model.fit_report_
    for expected in ("in pieces: 600 rows", "Planned peak", "'b' in"):
        assert expected in words
    assert "Missing values" in in_memory.fit_report_


def test_files_arrays_and_auto(tmp_path, in_memory):
    for number, part in enumerate(in_pieces(FRAME, 3)):
        part.to_parquet(tmp_path / f"part-{number}.parquet")
    model = CaGPRegressor(**SETTINGS).fit(open_chunks(f"{tmp_path}/*.parquet", "y"))
    np.testing.assert_allclose(answers(model), answers(in_memory), atol=1e-3)
    FRAME.to_csv(tmp_path / "table.csv", index=False)
    model = CaGPRegressor(**SETTINGS).fit(open_chunks(tmp_path / "table.csv", "y", rows=100))
    np.testing.assert_allclose(answers(model), answers(in_memory), atol=1e-3)

    X, y = RNG.uniform(size=(2500, 2)), RNG.normal(size=2500)
    fast = {"effort": "fast", "max_epochs": 3, "dtype": "float32", "mean": "zero", "n_actions": 1}
    whole = CaGPRegressor(**fast).fit(X, y)
    parts = CaGPRegressor(**fast).fit(open_chunks((X, y)))
    assert parts.method_ == "local"
    if whole.method_ == "local":
        np.testing.assert_array_equal(parts.predict(X[:50]), whole.predict(X[:50]))


def test_quantiles_of_columns_come_from_the_rows_that_a_table_in_memory_takes(monkeypatch):
    monkeypatch.setattr("cagp.data.column_values.QUANTILE_ROWS", 40)
    whole = CaGPRegressor(**SETTINGS).fit(FRAME.drop(columns="y"), FRAME["y"])
    parts = CaGPRegressor(**SETTINGS).fit(open_chunks(in_pieces(FRAME, 7), "y"))
    assert parts.encoder_.state() == whole.encoder_.state()


def test_text_among_the_numbers_of_a_csv_file(tmp_path):
    n = 300
    codes = np.where(np.arange(n) < 200, RNG.integers(1, 4, n).astype(str), RNG.choice(["1", "x"], n))
    frame = pd.DataFrame({"code": codes, "a": RNG.uniform(size=n), "y": RNG.normal(size=n)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    model = CaGPRegressor(**SETTINGS).fit(open_chunks(tmp_path / "t.csv", "y", rows=50))
    assert list(model.feature_names_out_) == ["code=1", "code=2", "code=3", "code=x", "a"]


@pytest.mark.slow
def test_rows_without_a_target_known_noise_and_logarithms():
    X, noise = RNG.uniform(size=(N, 2)), RNG.uniform(0.01, 0.1, size=N)
    y = np.sin(6 * X[:, 0]) + RNG.normal(size=N) * np.sqrt(noise)
    y[RNG.random(N) < 0.2] = np.nan
    pieces = [(X[:250], y[:250], noise[:250]), (X[250:], y[250:], noise[250:])]
    whole = CaGPRegressor(**SETTINGS).fit(X, y, noise)
    parts = CaGPRegressor(**SETTINGS).fit(open_chunks(pieces))
    np.testing.assert_allclose(parts.predict(X[:50]), whole.predict(X[:50]), atol=1e-3)
    assert f"Left out {np.isnan(y).sum()} of 600 rows" in parts.fit_report_

    positive = np.exp(np.sin(6 * X) @ np.array([1.0, 2.0]))[:, None] ** [1.0, 0.5]
    for target, y in (("log", positive), ("auto", positive[:, 0])):
        whole = CaGPRegressor(**SETTINGS, target=target).fit(X, y)
        parts = CaGPRegressor(**SETTINGS, target=target).fit(open_chunks((X, y)))
        assert parts.target_transforms_ == whole.target_transforms_
        np.testing.assert_array_equal(parts.predict(X[:50]), whole.predict(X[:50]))
    with pytest.raises(ValueError, match="not positive"):
        CaGPRegressor(**SETTINGS, target="log").fit(open_chunks((X, -positive)))


def test_what_needs_the_table_in_memory_is_refused():
    chunks = open_chunks(in_pieces(FRAME, 2), "y")
    with pytest.raises(ValueError, match='method "exact" needs the whole table'):
        CaGPRegressor(method="exact").fit(chunks)
    with pytest.raises(ValueError, match='mean="trees" needs the whole table'):
        CaGPRegressor(method="local", mean="trees").fit(chunks)
    with pytest.raises(ValueError, match="y is given beside a table in pieces"):
        CaGPRegressor(method="local").fit(chunks, FRAME["y"])
    with pytest.raises(ValueError, match="requires y to be passed"):
        CaGPRegressor(method="local").fit(FRAME)
    with pytest.raises(ValueError, match="give it with the pieces"):
        CaGPRegressor(method="local").fit(chunks, sample_noise=np.ones(N))
    two = FRAME.assign(z=FRAME["y"].where(FRAME["a"] > 0.5))
    with pytest.raises(ValueError, match="some targets but not all"):
        CaGPRegressor(method="local").fit(open_chunks([two], ["y", "z"]))


def test_a_table_that_changes_between_passes_is_an_error():
    calls = []

    def pieces():
        calls.append(1)
        return iter(in_pieces(FRAME, 2)[: 2 if len(calls) == 1 else 1])

    with pytest.raises(ValueError, match="changed while it was read"):
        CaGPRegressor(**SETTINGS).fit(open_chunks(pieces, "y"))


# ---- memory and disk ----


def test_a_plan_beyond_the_limit_is_refused(tmp_path):
    with pytest.raises(
        MemoryError, match=r"needs .* of memory \(.* for the index of the rows.*max_memory is 1\.0 MB\. Raise"
    ):
        CaGPRegressor(**SETTINGS, max_memory="1MB").fit(open_chunks([FRAME], "y"))


def test_no_room_on_the_disk_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="has no room for"):
        mapped_tensor(tmp_path, (2**60,), torch.float32)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(OSError, match=r"the rows need .* on disk"):
        CaGPRegressor(**SETTINGS, checkpoint_dir=tmp_path).fit(open_chunks([FRAME], "y"))


def test_files_of_rows_leave_nothing_behind(tmp_path):
    model = CaGPRegressor(**SETTINGS, checkpoint_dir=tmp_path).fit(open_chunks([FRAME], "y"))
    assert all(path.is_dir() for path in tmp_path.iterdir())  # of checkpoints
    again = CaGPRegressor(**SETTINGS, checkpoint_dir=tmp_path).fit(open_chunks([FRAME], "y"))
    np.testing.assert_array_equal(answers(again), answers(model))


def test_parts_of_mapped_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "ROWS_AT_ONCE", 7)
    for shape in ((50, 3), (50,), (50, 1)):
        values = torch.randn(shape)
        rows = torch.randperm(50)[:40]
        torch.testing.assert_close(gathered(values, rows, tmp_path), values[rows], rtol=0, atol=0)
    columns = torch.randn(2, 50).mT
    found = gathered(columns, rows, tmp_path)
    torch.testing.assert_close(found, columns[rows], rtol=0, atol=0)
    assert found[:, 1].is_contiguous()
    X = 5 + torch.randn(50, 3)
    found = column_statistics(X)
    torch.testing.assert_close(found.mean, X.double().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.variance, X.double().var(0, correction=0), rtol=1e-12, atol=0)


MEASURED = """
import sys, threading, time
from pathlib import Path

import numpy as np

from cagp import CaGPRegressor
from cagp.data import open_chunks
from cagp.estimators import pieces

peak, plans, libraries = [0], [], []

def resident(kind):
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(kind)).split()[1]) * 1024

def watch():
    while True:
        peak[0] = max(peak[0], resident("RssAnon"))
        time.sleep(0.005)

def remembered(*arguments):
    plans.append(plan(*arguments))
    libraries.append(resident("RssFile"))
    return plans[-1]

plan, pieces._plan = pieces._plan, remembered
X, y = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2], mmap_mode="r")
threading.Thread(target=watch, daemon=True).start()
model = CaGPRegressor(method="local", max_epochs=1, max_time=1, local_scale=None).fit(open_chunks((X, y)))
model.predict(X[:5_000], return_std=True)
print(peak[0] + libraries[0], sum(plans[0].values()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the memory of a process as Linux tells it")
def test_the_measured_peak_is_not_above_the_plan(tmp_path):
    n = 500_000
    X = RNG.uniform(size=(n, 3)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.sin(9 * X[:, 0]) + X[:, 1])
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "X.npy"), str(tmp_path / "y.npy")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    measured, planned = map(int, found.stdout.split()[-2:])
    assert measured <= planned
    assert planned < 3 * measured  # and the plan is not far off: most of both is the program
