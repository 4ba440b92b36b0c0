"""``cagp bench presets``: every way to train, on the same rows and for the same time."""

import json

import numpy as np
import pytest
import torch

from cagp.cli import main
from cagp.training import PRESETS
from cagp_bench import presets
from cagp_bench.protocol import rows_by_purpose


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    np.savez(tmp_path / "waves.npz", X=X, y=np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300))
    return tmp_path / "waves.npz"


def test_every_preset_is_trained_for_its_time_and_drawn(table, tmp_path, capsys):
    out = tmp_path / "curves.png"
    arguments = ["bench", "presets", str(table), "--rows", "200", "--n-actions", "10", "--out", str(out)]
    assert main([*arguments, "--max-time", "0.3s", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["preset"] for r in records] == ["default", "rate 0.01", "paper-adam", "paper-lbfgs"]
    assert [r["blocks"] for r in records] == ["spatial", "spatial", "ordered", "ordered"]
    assert [r["dtype"] for r in records] == ["float32"] * 3 + ["float64"]
    for record in records:
        assert (record["n"], record["d"], record["i"]) == (162, 2, 10)
        assert len(record["losses"]) == record["steps"]
        assert record["losses"][-1][0] <= record["fit_s"]
        assert record["nll"] == record["nlls"][-1][1]
        assert record["lowest_nll"] == min(nll for _, nll in record["nlls"])
        seconds = [s for s, _ in record["nlls"]]
        assert seconds == sorted(seconds)
    # Blocks differ, hyperparameters start alike: the same data, and float64 is close to float32.
    first = {r["preset"]: r["losses"][0][1] for r in records}
    assert first["default"] == first["rate 0.01"]
    assert first["paper-adam"] == pytest.approx(first["paper-lbfgs"], rel=1e-3)
    assert first["default"] != first["paper-adam"]
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_preset_that_fails_is_a_row_and_an_exit_code(table, tmp_path, monkeypatch, capsys):
    out = tmp_path / "curves.png"
    arguments = ["bench", "presets", str(table), "--out", str(out), "--max-time", "0.1s"]
    assert main([*arguments, "--n-actions", "1000"]) == 1
    assert "failed: ValueError: num_actions is 1000" in capsys.readouterr().out
    assert not out.exists()
    monkeypatch.setattr(presets, "CANDIDATES", (presets.CANDIDATES[0], presets.CANDIDATES[1]._replace(blocks="round")))
    assert main([*arguments, "--n-actions", "8"]) == 1
    printed = capsys.readouterr().out
    assert "failed: " in printed
    assert f"Picture: {out}" in printed.replace("\n", "")
    assert out.exists()


def test_the_candidates_are_the_presets_and_a_slow_rate():
    by_name = {candidate.name: candidate.settings for candidate in presets.CANDIDATES}
    assert {name: by_name[name] for name in PRESETS} == PRESETS
    assert by_name["rate 0.01"] == PRESETS["default"].with_changes(lr=0.01)


def test_the_picture_has_two_panels_with_a_labelled_line_for_each_record():
    points = [(1.0, 3.0), (2.0, 1.0), (4.0, 1.5)]
    records = [{"preset": name, "losses": points, "nlls": points[1:]} for name in ("one", "other")]
    left, right = presets.draw(records, "title").axes
    for ax, expected in ((left, points), (right, points[1:])):
        lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
        assert [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines] == [expected] * 2
        assert [text.get_text() for text in ax.texts] == ["one", "other"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("loss (nats per row)", "validation NLL (nats per row)")


def test_rows_have_one_purpose_each():
    rows = rows_by_purpose(1000, 3)
    assert [len(part) for part in rows] == [810, 90, 100]
    assert torch.equal(torch.cat(tuple(rows)).sort().values, torch.arange(1000))
