"""``cagp bench local``: all variants compute the same, every run is a row, and numbers are what they say."""

import json
import math
import time
from itertools import pairwise

import numpy as np
import oracle
import pytest
import torch
from scipy import stats

from cagp import GP, GaussianNoise, metrics
from cagp.cli import main
from cagp.engine import COMPILED
from cagp.kernels import Matern32, Scale
from cagp_bench import local_speed, neighbour_speed, step
from cagp_bench.records import best_of, score_columns, show


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    np.savez(tmp_path / "waves.npz", X=X, y=40 + 7 * (np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300)))
    return tmp_path / "waves.npz"


# ---- the metric ----


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_interval_width_is_the_mean_distance_of_the_quantiles(level):
    std = torch.tensor([0.1, 2.0, 7.0], dtype=torch.float64)
    lower, upper = (stats.norm.ppf(q, scale=std.numpy()) for q in (0.5 - level / 2, 0.5 + level / 2))
    assert math.isclose(metrics.interval_width(std.square(), level), (upper - lower).mean(), rel_tol=1e-12)
    assert metrics.interval_width(std.square().float()) == metrics.interval_width(std.square().float().double())


# ---- speed ----


def small_problem(monkeypatch, d=3, k=5):
    monkeypatch.setattr(local_speed, "NUM_TRAIN", 80)
    monkeypatch.setattr(local_speed, "BATCH", 20)
    monkeypatch.setattr(local_speed, "SECONDS", 0.0)
    monkeypatch.setattr(local_speed, "NUM_POINTS", {"native": 40, "torch": 30})
    monkeypatch.setattr("cagp.engine.backend.TORCH_ENTRIES", 8 * k**2)  # so that torch works in several tiles
    monkeypatch.setattr(local_speed, "DIMENSIONS", (d,))
    monkeypatch.setattr(local_speed, "NEIGHBOURS", (k,))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_what_is_timed_is_the_exact_answer_from_the_neighbours(monkeypatch, backend):
    if backend == "native" and not COMPILED.instruction_set:
        pytest.skip("no compiled kernels")
    small_problem(monkeypatch)
    problem = local_speed._problem(3, 5)
    prior = GP(Scale(Matern32(3, 1.3), 0.7), noise=GaussianNoise(0.01))
    answers = local_speed.predict_from(prior, problem.X, problem.y, problem.points, problem.neighbours, backend)
    for t in range(len(problem.points)):
        near = problem.neighbours[t]
        mean, covariance = oracle.exact_posterior(prior, problem.X[near], problem.y[near], problem.points[t : t + 1])
        assert answers.mean[t].item() == pytest.approx(mean.item(), abs=1e-9)
        assert answers.variance[t].item() == pytest.approx(covariance.item() + 0.01, abs=1e-9)
    # The minibatch is predicted from other rows alone: a row's own target would make the training step another problem.
    assert not (problem.batch_neighbours == problem.batch[:, None]).any()


def test_speed_has_a_record_for_every_backend_and_says_how_they_compare(monkeypatch, capsys):
    small_problem(monkeypatch)
    monkeypatch.setattr(local_speed, "_variants", lambda: [local_speed.Variant("torch", 1)] * 2)
    assert main(["bench", "local", "--repeats", "1", "--json"]) == 0
    first, last = json.loads(capsys.readouterr().out)
    assert (first["d"], first["k"], first["predict_rows"], first["batch"]) == (3, 5, 30, 20)
    assert "30 rows, not 40" in last["note"]  # what is slower is measured on fewer rows, and says so
    assert "predict_per_torch" not in last
    compiled = {"backend": "native", "predict_per_s": 50.0, "train_per_s": 30.0}
    slower = {"backend": "torch", "predict_per_s": 5.0, "train_per_s": 10.0}
    assert local_speed._ratios(compiled, slower) == {"predict_per_torch": 10.0, "train_per_torch": 3.0}
    assert local_speed._ratios(compiled, {"backend": "torch", "error": "no"}) == {}


def test_the_fastest_call_of_all_turns_counts(monkeypatch, capsys):
    small_problem(monkeypatch)
    times = iter([(0.5, 0.2), (0.25, 0.4), (1.0, 1.0)])
    monkeypatch.setattr(local_speed, "_seconds", lambda *_: next(times))
    monkeypatch.setattr(local_speed, "_variants", lambda: [local_speed.Variant("torch", 1)])
    assert main(["bench", "local", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["predict_per_s"], record["train_per_s"]) == (30 / 0.25, 20 / 0.2)


def test_short_calls_are_timed_more_often_than_asked():
    calls = []
    best_of(1, lambda: calls.append(time.sleep(0.005)), at_least_s=0.05)
    assert 4 <= len(calls) <= 11
    calls.clear()
    best_of(3, lambda: calls.append(None))
    assert len(calls) == 1 + 3


def test_rates_are_rows_by_seconds_with_the_threads_of_the_backend(monkeypatch):
    small_problem(monkeypatch)
    threads, seen = torch.get_num_threads(), []

    def seconds(*_):
        seen.append(torch.get_num_threads())
        return 0.5, 0.25

    monkeypatch.setattr(local_speed, "_seconds", seconds)
    variant = local_speed.Variant("torch", threads + 1)
    record = local_speed._speed(variant, local_speed._problem(3, 5), 3, 5, 1)
    assert (record["predict_per_s"], record["train_per_s"]) == (30 / 0.5, 20 / 0.25)
    assert record["threads"] == seen[0] == threads + 1
    assert torch.get_num_threads() == threads  # for what is measured next


def test_a_backend_that_fails_is_a_row_and_an_exit_code(monkeypatch, capsys):
    small_problem(monkeypatch)

    def broken(*_):
        raise RuntimeError("no such path")

    monkeypatch.setattr(local_speed, "_seconds", broken)
    assert main(["bench", "local"]) == 1
    assert "failed: RuntimeError: no such path" in capsys.readouterr().out


# ---- one process a measurement ----


@pytest.mark.slow
def test_a_training_step_is_measured_in_a_process_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(step, "SIZES", (600,))
    assert main(["bench", "step", "--repeats", "1", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert (record["n"], record["d"], record["i"]) == (600, 20, 512)
    assert record["step_s"] > 0
    assert record["peak_bytes"] > 0


@pytest.mark.slow
def test_a_step_that_fails_is_a_row_and_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(step, "SIZES", (10,))  # fewer rows than actions
    assert main(["bench", "step"]) == 1
    printed = capsys.readouterr().out
    assert "failed" in printed
    assert "the process ended with exit code 1: ValueError: num_actions is 512" in printed


@pytest.mark.slow
def test_nearest_rows_are_measured_in_a_process_each_and_failures_are_rows(table, capsys):
    common = ["bench", "neighbours", "--points", "50", "--n-neighbors", "5", "--json"]
    assert main([*common, "--rows", "3000", "--methods", "tree", "scan", "--data", "clustered"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [(r["searcher"], r["data"], r["rows"], r["columns"]) for r in records] == [
        ("tree", "clustered", 3000, 3),
        ("scan", "clustered", 3000, 3),
    ]
    assert all(r["table_bytes"] == 36_000 and r["build_s"] > 0 and r["point_cpu_us"] > 0 for r in records)
    assert main([*common, str(table.with_name("missing.npz")), "--methods", "scipy"]) == 1
    assert "FileNotFoundError" in json.loads(capsys.readouterr().out)[0]["error"]


def test_nearest_rows_of_tables_are_standardised_and_drawn_at_random(tmp_path):
    x = np.random.default_rng(0).normal(5, 3, size=(400, 3))
    x[:, 1] = 2.0  # does not vary
    np.savez(tmp_path / "some.npz", X=x, y=x[:, 0])
    X = neighbour_speed._table(tmp_path / "some.npz", 300)
    assert X.shape == (300, 2)
    assert float(X.mean().abs()) < 0.2
    assert abs(float(X.std()) - 1) < 0.2
    record = neighbour_speed.measure("tree", str(tmp_path / "some.npz"), None, None, 1, 20, 3)
    assert (record["rows"], record["columns"]) == (400, 2)


# ---- in 80 columns ----


def test_a_wide_table_is_printed_in_parts_and_nothing_is_cut_off(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("parkinsons_telemonitoring", "bike")
    scores = {"nll": -1.2345, "rmse": 0.25, "r2": 0.9, "crps": 0.1, "coverage": 0.951, "coverage_error": 0.001}
    records = [{"table": name, "seed": 0, "method": "local-scale", **scores, "width": 1.0} for name in names]
    records.append({"table": "bike", "seed": 1, "method": "gpboost", "error": "[b] no"})
    names_of_rows = {key: lambda r, key=key: str(r[key]) for key in ("table", "seed", "method")}
    show(records, {**names_of_rows, **score_columns(), "MB": lambda _: "12"}, as_json=False, num_keys=3)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    parts = [part.split() for part in printed.split("\n\n")]
    assert len(parts) == 2  # such a long name leaves little room
    for part in parts:
        for name in (*names, "local-scale"):
            assert name in part
    shown = " ".join(printed.split())
    for text in ("-1.234", "0.2500", "95.1 %", "0.1 %", "failed: [b] no", *("NLL", "RMSE", "coverage", "width", "MB")):
        assert text in shown


def test_a_narrow_table_is_printed_whole(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    show([{"a": "x"}], {"name": lambda r: r["a"], "a b c": lambda _: "1"}, as_json=False)
    assert capsys.readouterr().out.splitlines()[-2:] == ["name  a b c", "x     1"]


def test_every_metric_has_a_column():
    record = metrics.scores(*(torch.tensor([1.0, 2.0]) for _ in range(3)))._asdict()
    assert [text(record) for text in score_columns().values()].count("") == 0
    assert {text({}) for text in score_columns().values()} == {"failed", ""}


@pytest.mark.parametrize("suite", ["", "engine", "step", "run", "results", "presets", "local", "tables", "structures"])
def test_help_is_wrapped_once(monkeypatch, capsys, suite):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["bench", *suite.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for line, following in pairwise(lines[lines.index("") :]):  # below the usage
        # Text that continues on the next line, at the same indent, does so because its next word does not fit.
        indent, next_indent = (len(text) - len(text.lstrip()) for text in (line, following))
        if line and following and indent == next_indent and indent in (0, 24) and ":" not in line[-1:]:
            assert len(line) + 1 + len(following.split()[0]) > 78, line
