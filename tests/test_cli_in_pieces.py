"""``cagp fit`` on tables in pieces."""

import json

import numpy as np
import pandas as pd
import pytest

from cagp import load
from cagp.cli import main, sources

RNG = np.random.default_rng(0)
N = 900
FRAME = pd.DataFrame({"a": RNG.uniform(size=N), "kind": RNG.choice(["x", "y", "z"], N), "id": np.arange(N)})
FRAME["y"] = np.sin(9 * FRAME["a"]) + (FRAME["kind"] == "y") + 0.1 * RNG.normal(size=N)
FRAME.loc[::50, "y"] = np.nan
OPTIONS = ("--target", "y", "--drop", "id", "--method", "local", "--max-epochs", "5", "--json")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(N), 3)):
        FRAME.iloc[rows].to_parquet(tmp_path / "parts" / f"part-{number}.parquet")
    return tmp_path


def fitted(capsys, *words):
    assert main(["fit", *words]) == 0
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_a_pattern_is_fitted_in_pieces_and_a_folder_is_predicted(folder, capsys):
    record, words = fitted(capsys, "parts/*.parquet", *OPTIONS)
    assert "The table is 3 files, which are read in pieces." in words
    assert words.index("Planned peak") < words.index("steps")  # before training
    assert record["in_pieces"]
    assert record["rows_beside"]
    assert record["rows"] == N
    assert record["train_rows"] + record["test_rows"] + record["rows_without_target"] == N
    assert record["metrics"]["y"]["model"]["rmse"] < 0.3 * record["metrics"]["y"]["constant"]["rmse"]
    model = load("model.cagp")
    assert main(["predict", "model.cagp", "parts", "--out", "p.parquet", "--quiet"]) == 0
    expected = model.predict(FRAME[["a", "kind"]])
    np.testing.assert_allclose(pd.read_parquet("p.parquet")["y_mean"], expected, rtol=1e-6)
    assert main(["info", "model.cagp"]) == 0
    assert "model.cagp.rows" in capsys.readouterr().out


def test_a_file_beyond_the_limit_is_fitted_in_pieces(folder, capsys, monkeypatch):
    FRAME.to_csv("table.csv", index=False)
    record, _ = fitted(capsys, "table.csv", *OPTIONS)
    assert not record["in_pieces"]
    monkeypatch.setattr(sources, "LEAST_BYTES", 0)
    monkeypatch.setattr(sources, "default_memory_limit", lambda: 10_000)
    record, words = fitted(capsys, "table.csv", *OPTIONS)
    assert record["in_pieces"]
    assert "The table would take about" in words
    assert main(["fit", "table.csv", *OPTIONS[:-1], "--max-memory", "100kB"]) == 1
    assert "max_memory is 100" in capsys.readouterr().err
    assert not (folder / "model.cagp.checkpoints").exists()
    record, _ = fitted(capsys, "table.csv", "--target", "y", "--drop", "id", "--method", "exact", "--json")
    assert not record["in_pieces"]  # it needs all rows at once


def test_a_damaged_part_ends_the_command_and_leaves_no_model(folder, capsys):
    part = folder / "parts" / "part-1.parquet"
    part.write_bytes(part.read_bytes()[:-30])
    assert main(["fit", "parts", *OPTIONS]) == 1
    assert "part-1.parquet cannot be read as a Parquet file" in capsys.readouterr().err
    assert not (folder / "model.cagp").exists()
