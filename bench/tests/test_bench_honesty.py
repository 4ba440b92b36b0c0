"""``cagp bench honesty``: generated tables have the truth that they state, and places are scored against it."""

import json

import numpy as np
import pytest
from scipy import stats

from cagp.cli import main
from cagp_bench import honesty, situations
from cagp_bench.honesty import Run, measure, pooled
from cagp_bench.situations import SITUATIONS, Drawn, Situation

EVERY = pytest.mark.parametrize("name", list(SITUATIONS))


@EVERY
def test_a_draw_is_whole_and_the_same_each_time(name):
    drawn = SITUATIONS[name].draw(np.random.default_rng(0))
    again = SITUATIONS[name].draw(np.random.default_rng(0))
    other = SITUATIONS[name].draw(np.random.default_rng(1))
    assert len(drawn.X) == len(drawn.y) == len(next(iter(drawn.by.values()), drawn.y))
    sizes = {len(part) for part in (drawn.X_test, drawn.y_test, drawn.truth, drawn.log_density, drawn.place)}
    assert len(sizes) == 1
    assert np.array_equal(drawn.y_test, again.y_test)
    assert not np.array_equal(drawn.y, other.y)
    assert set(drawn.place) == set(other.place)
    assert np.isfinite(drawn.log_density).all()
    assert np.isfinite(drawn.y).all()


@EVERY
def test_targets_vary_around_the_truth(name):
    """The mean of y - E[y | x] is zero: by its standard error, over all test rows of three draws."""
    parts = [SITUATIONS[name].draw(np.random.default_rng(seed)) for seed in range(3)]
    errors = np.concatenate([part.y_test - part.truth for part in parts])
    assert abs(errors.mean()) < 5 * errors.std() / len(errors) ** 0.5 + 1e-9 * np.abs(parts[0].truth).max()


def test_a_gap_has_no_training_rows_and_a_copy_has_one():
    gap = SITUATIONS["gap on a line, 2,500 rows"].draw(np.random.default_rng(0))
    assert np.abs(gap.X).min() >= 1
    assert np.abs(gap.X_test[gap.place == "gap"]).max() < 1
    ten = SITUATIONS["every row ten times"].draw(np.random.default_rng(0))
    _, counts = np.unique(np.column_stack([ten.X, ten.y]), axis=0, return_counts=True)
    assert set(counts) == {10}
    grid = SITUATIONS["areas hidden on a grid"].draw(np.random.default_rng(0))
    distance = np.abs(grid.X_test[grid.place == "inside"][:, None] - grid.X).max(2).min(1)
    assert distance.min() > 1 / 69


class Oracle:
    """Answers with the truth of a table with Gaussian noise of variance 0.01, or wider by a factor."""

    method_, choice_ = "oracle", None
    drawn: Drawn
    factor = 1.0

    def __init__(self, **options):
        assert options == {"copies": "once"}

    def fit(self, X, y):
        return self

    def predict_interval(self, X, noise):
        half = 1.96 * 0.1 * self.factor if noise else 0.01
        return self.drawn.truth - half, self.drawn.truth + half

    def log_predictive_density(self, X, y):
        return stats.norm.logpdf(y, self.drawn.truth, 0.1 * self.factor)


@pytest.mark.parametrize(("factor", "nats", "coverage"), [(1.0, 0.0, 0.95), (2.0, np.log(2) - 0.375, 0.9999)])
def test_the_truth_is_right_in_every_place(factor, nats, coverage, monkeypatch):
    """Twice the standard deviation costs log 2 - 1/2 + 1/8 nats a row."""
    gap = SITUATIONS["gap on a line, 300 rows"]

    def draw(rng):
        Oracle.drawn = gap.draw(rng)
        return Oracle.drawn

    monkeypatch.setattr(Oracle, "factor", factor)
    monkeypatch.setattr(honesty, "CaGPRegressor", Oracle)
    monkeypatch.setitem(SITUATIONS, "gap", Situation("gap", draw, options={"copies": "once"}))
    record = measure(Run("gap", 0, {}))
    assert set(record["places"]) == {"beside data", "gap"}
    for place in record["places"].values():
        assert place["rows"] == situations.PLACE_ROWS
        assert place["behind"] == pytest.approx(nats, abs=0.05)
        assert place["coverage"] == pytest.approx(coverage, abs=0.03)
        assert place["function_coverage"] == 1
    lines = pooled([{**record, "situation": "gap", "seed": 0}])
    assert all("!" in honesty.COLUMNS["function, %"](line) for line in lines)
    assert ["!" in honesty.COLUMNS["coverage, %"](line) for line in lines] == [factor == 2, factor == 2]


@pytest.mark.parametrize("name", ["linear, 50 rows", "constant rate, 50 rows", "a biased coin"])
def test_estimators_are_scored(name):
    record = measure(Run(name, 0, {"max_epochs": 3}))
    assert "error" not in record
    place = record["places"]["all"]
    assert 0 <= place["behind"] < 5
    assert place["behind"] <= place["worst"]
    assert ("predicted" in place) == (record["kind"] == "classes")
    json.dumps(record)


def test_places_of_all_seeds_are_a_line_and_failures_are_shown(monkeypatch, capsys, tmp_path):
    def measured(run, max_time):
        if run.seed == 2:
            return {**run._asdict(), "error": "killed", "max_time": max_time}
        cover = {"rows": 100, "coverage": 0.9 + 0.1 * run.seed, "function_coverage": 0.95, "exact_level": 1.0}
        places = {"here": {**cover, "behind": 0.5, "worst": 49.0 + 2 * run.seed}}
        return {**run._asdict(), "max_time": max_time, "fit_s": 2.0, "places": places}

    monkeypatch.setattr(honesty, "measure_alone", measured)
    monkeypatch.setenv("COLUMNS", "160")
    command = ["bench", "honesty", "--only", "loud", "--seeds", "0", "1", "2", "--set", "method=exact"]
    assert main([*command, "--records", str(tmp_path / "records.jsonl")]) == 1
    printed = capsys.readouterr().out
    assert "95.0 " in printed
    assert "51.0 !" in printed
    assert "failed: killed" in printed
    assert "0 of 1 places have nothing marked; all fits took 4 s." in printed
    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [record["options"] for record in found] == 3 * [{"method": "exact"}]
    assert main(["bench", "honesty", "--only", "quiet pocket"]) == 1
    assert "--only is 'quiet pocket', expected beginnings" in capsys.readouterr().err
