"""Options of the command line beyond the basics: known noise, devices, grid searches, ``python -m cagp``."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import cagp
from cagp import CaGPRegressor
from cagp.cli import main

NUM_ROWS = 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with a column of known noise variances, as CSV."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=NUM_ROWS)
    known = rng.choice([0.001, 0.5], NUM_ROWS)
    y = np.sin(6 * x) + rng.normal(size=NUM_ROWS) * np.sqrt(known)
    folder = tmp_path_factory.mktemp("noisy")
    frame = pd.DataFrame({"x": x, "kind": rng.choice(["a", "b"], NUM_ROWS), "known": known, "y": y})
    frame.to_csv(folder / "noisy.csv", index=False)
    return folder


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.mark.slow
def test_known_noise_reaches_fit_test_rows_predictions_and_reports(folder, tmp_path, capsys):
    table, out = folder / "noisy.csv", tmp_path / "model.cagp"
    common = ["--target", "y", "--noise", "known", "--max-epochs", "5", "--test-fraction", "0"]
    assert run("fit", table, *common, "--out", out, "--quiet") == 0
    frame = pd.read_csv(table)
    model = CaGPRegressor(max_epochs=5).fit(frame[["x", "kind"]], frame["y"], sample_noise=frame["known"])
    loaded = cagp.load(out)
    assert loaded.feature_names_in_.tolist() == ["x", "kind"]
    mean, std = model.predict(frame[["x", "kind"]], return_std=True, sample_noise=frame["known"])
    np.testing.assert_allclose(
        loaded.predict(frame[["x", "kind"]], sample_noise=frame["known"], return_std=True)[1], std, rtol=1e-9
    )
    predictions = tmp_path / "predictions.csv"
    assert run("predict", out, table, "--noise", "known", "--out", predictions, "--quiet") == 0
    written = pd.read_csv(predictions)
    np.testing.assert_allclose(written["y_mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(written["y_std"], std, rtol=1e-9)
    capsys.readouterr()
    report = tmp_path / "report.html"
    assert run("evaluate", out, table, "--noise", "known", "--report", report, "--json", "--quiet") == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["y"]["model"]
    inside = (np.abs(frame["y"] - mean) <= 1.959963984540054 * std).mean()
    assert found["coverage"] == pytest.approx(inside)
    assert f"{100 * inside:.1f}" in report.read_text(encoding="utf-8")
    assert run("evaluate", out, table, "--json", "--quiet") == 0
    shown = capsys.readouterr()
    assert "was fitted with known noise variances" in shown.err
    assert json.loads(shown.out)["metrics"]["y"]["model"]["width"] < found["width"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--noise", "unknown"], 2, "--noise names 'unknown', which the table does not have"),
        (["--noise", "y"], 2, "--noise names the target y"),
        (["--noise", "kind"], 1, "the noise column 'kind' is 'a' at row"),
        (["--device", "abacus"], 1, "device is 'abacus', expected a device of torch"),
    ],
)
def test_wrong_noise_and_devices_are_named(folder, tmp_path, capsys, words, code, message):
    frame = pd.read_csv(folder / "noisy.csv").sort_values("kind")
    frame.to_csv(tmp_path / "table.csv", index=False)
    command = ["fit", tmp_path / "table.csv", "--target", "y", "--max-epochs", "1", "--out", tmp_path / "m.cagp"]
    assert run(*command, *words) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.cagp").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line(folder, tmp_path, capsys):
    out = tmp_path / "m.cagp"
    assert run("fit", folder / "noisy.csv", "--target", "y", "--device", "cuda", "--out", out, "--quiet") == 1
    assert "device is 'cuda', which this computer" in capsys.readouterr().err


def test_a_resumed_fit_must_be_the_same_fit(folder, tmp_path, capsys, monkeypatch):
    from cagp.training import history

    out, append = tmp_path / "m.cagp", history.History.append

    def interrupt(self, step):
        append(self, step)
        if step.number == 3:
            raise KeyboardInterrupt

    command = ["fit", folder / "noisy.csv", "--target", "y", "--method", "exact", "--out", out, "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(history.History, "append", interrupt)
        assert run(*command) == 130
    assert run(*command) == 2
    assert "--resume to continue it" in capsys.readouterr().err
    assert run(*command, "--resume", "--kernel", "rbf") == 1
    assert "belongs to another fit (other data or options)" in capsys.readouterr().err
    assert run(*command, "--resume") == 0
    assert not out.with_name("m.cagp.checkpoints").exists()


def test_python_m_cagp_is_cagp():
    ended = subprocess.run([sys.executable, "-m", "cagp", "--version"], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == f"cagp {cagp.__version__}"


def test_checkpoints_in_a_grid_search(tmp_path):
    from sklearn.model_selection import GridSearchCV

    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = np.sin(X.sum(1))
    model = CaGPRegressor("local", max_epochs=2, checkpoint_dir=tmp_path)
    grid = GridSearchCV(model, {"n_neighbors": [4, 8]}, cv=3, error_score="raise").fit(X, y)
    plain = GridSearchCV(CaGPRegressor("local", max_epochs=2), {"n_neighbors": [4, 8]}, cv=3, error_score="raise").fit(
        X, y
    )
    np.testing.assert_array_equal(grid.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"])
    assert len(list(tmp_path.iterdir())) == 7  # two candidates, three folds, and the best one on all rows


def test_a_folder_that_is_not_there(tmp_path):
    rng = np.random.default_rng(1)
    model = CaGPRegressor("exact", max_epochs=1).fit(rng.normal(size=(20, 1)), rng.normal(size=20))
    with pytest.raises(OSError, match="nodir does not exist; create it first"):
        model.save(tmp_path / "nodir" / "x.cagp")
