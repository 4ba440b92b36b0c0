"""``cagp bench run``: suites are data, every run is a record, killed suites resume, tables come from records alone."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from cagp import metrics
from cagp.cli import main
from cagp.data import split, standardized
from cagp_bench import gp_quality, processes, results_page, suite_runs
from cagp_bench.choices import CONTENDERS
from cagp_bench.gp_methods import GP_METHODS
from cagp_bench.gp_settings import GPSettings, gp_settings, steps_in_epoch
from cagp_bench.grids import Grid
from cagp_bench.processes import in_new_process
from cagp_bench.record_files import append_record, read_records
from cagp_bench.records import commit_of, environment
from cagp_bench.suite_tables import by_test_rows, choose, curves_figure, suite_grid
from cagp_bench.suites import PUBLISHED, SUITES, Entry, Suite, suite_from_file, tasks_of
from cagp_bench.table1 import PAPER_S1, configuration, table1, table_s1, with_entries

ROOT = Path(__file__).resolve().parents[1]
TINY = {"epochs": 4, "budget": 12, "evaluations": 2, "neighbours": 6, "lr": 0.1}


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 2))
    np.savez(tmp_path / "waves.npz", X=X, y=40 + 7 * (np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300)))
    return tmp_path / "waves.npz"


def measure(table, method, seed=0, **settings):
    record = gp_quality.measure(str(table), None, method, seed, gp_settings({**TINY, **settings})._asdict())
    assert "error" not in record, record["error"]
    return record


# ---- one run ----


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", GP_METHODS)
def test_every_method_has_a_complete_record(table, method):
    record = measure(table, method, optimizer="lbfgs" if method == "exact" else "adam", start="data", budget=40)
    assert (record["n"], record["num_validation"], record["num_test"], record["d"]) == (243, 27, 30, 2)
    for name in (*metrics.Scores._fields, "coverage_error_50", "validation_nll", "noise", "outputscale", "fit_s"):
        assert math.isfinite(record[name]), name
    assert len(record["lengthscales"]) == 2
    assert 0 < record["predict_s"] < record["peak_bytes"]
    assert [point["epoch"] for point in record["trajectory"]] == [2, 4]
    assert {"commit", "cpu", "load", "threads", "torch", "versions", "date"} <= set(record)
    json.dumps(record, allow_nan=False)


def test_scores_are_those_of_standardised_test_rows(table):
    """The exact GP's predictions, computed again from its hyperparameters with plain matrices."""
    record = measure(table, "exact", validation=False, double=True, noise_floor=1e-4)
    with np.load(table) as file:
        X, y = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
    rows = split(300, 0.1, 0)
    (X, y), (new, targets) = standardized(X, y, rows.train, rows.test)

    def kernel(A, B):
        r = math.sqrt(3) * torch.cdist(
            A / torch.tensor(record["lengthscales"]), B / torch.tensor(record["lengthscales"])
        )
        return record["outputscale"] * (1 + r) * torch.exp(-r)

    K = kernel(X, X) + record["noise"] * torch.eye(len(y), dtype=torch.float64)
    cross = kernel(new, X)
    mean = cross @ torch.linalg.solve(K, y)
    variance = record["outputscale"] + record["noise"] - (cross * torch.linalg.solve(K, cross.T).T).sum(1)
    assert record["nll"] == pytest.approx(metrics.nll(targets, mean, variance), abs=1e-6)
    assert record["rmse"] == pytest.approx(metrics.rmse(targets, mean), abs=1e-6)
    assert record["coverage_error_50"] == pytest.approx(metrics.coverage_error(targets, mean, variance, 0.5), abs=1e-9)


def test_the_epoch_is_chosen_by_validation_rows_and_test_rows_are_only_watched(table):
    record = measure(table, "opt", epochs=12, evaluations=6, lr=1.0)
    points = record["trajectory"]
    best = min(points, key=lambda point: point["validation_nll"])
    assert record["epoch"] == best["epoch"]
    assert record["nll"] == pytest.approx(best["test_nll"], rel=1e-5)
    assert record["validation_nll"] == pytest.approx(best["validation_nll"], rel=1e-5)


def test_opt_learns_the_table(table):
    record = measure(table, "opt", epochs=40, budget=20, start="neighbours", blocks="spatial", calibrate=True, lr=None)
    assert record["rmse"] < 0.3  # of targets with standard deviation 1
    assert 0.8 <= record["coverage"] <= 1
    assert record["epoch"] in (20, 40)


@pytest.mark.parametrize(("start", "lengthscale"), [("data", 2 * 2**0.5), ("paper", math.log(2))])
def test_hyperparameters_start_where_they_are_told(table, start, lengthscale):
    record = measure(table, "opt", epochs=1, evaluations=1, start=start)
    assert record["lengthscales"] == pytest.approx([lengthscale] * 2, rel=0.3)  # after one step


def test_the_hybrid_has_the_hyperparameters_of_local_and_other_predictions(table):
    settings = {"epochs": 40, "start": "data", "double": True, "validation": False, "lr": None}
    local, hybrid = measure(table, "local", **settings), measure(table, "hybrid", **settings)
    scale = measure(table, "local-scale", **settings)
    assert local["noise"] == hybrid["noise"] == scale["noise"]
    assert local["rmse"] != hybrid["rmse"]
    assert local["rmse"] == scale["rmse"]  # a local scale changes variances alone
    assert "scale_rows_nll" in scale
    assert measure(table, "local", **settings, objective="ordered")["noise"] != local["noise"]


def test_the_noise_floor_and_the_calibration_are_passed_on(table):
    assert measure(table, "opt", noise_floor=0.5)["noise"] >= 0.5
    plain, tuned = measure(table, "opt", epochs=8), measure(table, "opt", epochs=8, calibrate=True)
    assert tuned["noise"] != plain["noise"]
    assert tuned["validation_nll"] <= plain["validation_nll"] + 1e-6


def test_svgp_counts_passes_over_the_rows(table):
    record = measure(table, "svgp", batch_size=100)
    assert record["steps"] == 4 * 3  # 243 rows in minibatches of 100
    assert [point["epoch"] for point in record["trajectory"]] == [2, 4]


def test_a_run_that_fails_is_a_record(table):
    found = gp_quality.measure(str(table), None, "opt", 0, {"budget": 5000})
    assert found["error"].startswith("ValueError: num_actions is 5000")
    found = gp_quality.measure(str(table), None, "best", 0, {})
    assert "method is 'best', expected one of exact, opt" in found["error"]
    with pytest.raises(ValueError, match="unknown setting 'rate'; there are optimizer, lr"):
        gp_settings({"rate": 1.0})


# ---- suites as data ----


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_names_methods_and_settings_that_exist(name):
    suite = SUITES[name]
    for entry in suite.entries:
        assert entry.method in (GP_METHODS if entry.protocol == "gp" else CONTENDERS), entry
    labels = [entry.label for entry in suite.entries]
    assert len(set(labels)) == len(labels)
    for quick in (False, True):
        tasks = tasks_of(suite, quick)
        assert len({suite_runs.key(task) for task in tasks}) == len(tasks)
        for task in tasks:
            assert task.protocol == "table" or set(task.settings) == set(GPSettings._fields)


def test_table1_has_the_settings_of_the_paper():
    suite = SUITES["table1"]
    assert set(PAPER_S1) <= {entry.label for entry in suite.entries}
    assert {label for lines in PUBLISHED.values() for label in lines} == set(PAPER_S1)
    grid = configuration(quick=False)
    rows = [dict(zip(grid.columns, row, strict=True)) for row in grid.rows()]
    for row in rows[:8]:
        for name in ("rank", "tolerance", "epochs", "batch size", "precision"):
            assert row[name] == row[f"{name} in the paper"], (row["method"], name)
        assert set(row["learning rates"].split(", ")) == set(row["learning rates in the paper"].split(", "))
    assert {row["noise floors"] for row in rows} == {"0.0001, 1e-06"}
    paper = [task.settings for task in tasks_of(suite) if task.label == "CaGP-Opt, Adam"]
    assert {(s["blocks"], s["start"], s["calibrate"]) for s in paper} == {("ordered", "paper", False)}


def test_sweeps_multiply_and_changes_replace_them():
    entry = Entry("a", "opt", {"epochs": 5}, {"lr": [1.0, 0.1]}, quick={"epochs": 2})
    suite = Suite("s", "", ["t.npz"], [entry], [0, 1], [1e-4, 1e-6])
    found = [(t.seed, t.settings["lr"], t.settings["noise_floor"], t.settings["epochs"]) for t in tasks_of(suite)]
    assert found == [(s, lr, floor, 5) for s in (0, 1) for floor in (1e-4, 1e-6) for lr in (1.0, 0.1)]
    assert [t.settings["epochs"] for t in tasks_of(suite, quick=True)] == [2, 2]
    changed = tasks_of(suite, changes={"lr": 0.5, "noise_floor": 1e-3})
    assert [(t.settings["lr"], t.settings["noise_floor"]) for t in changed] == [(0.5, 1e-3)] * 2
    with pytest.raises(ValueError, match="the suite s has no entry 'b'; it has a"):
        with_entries(suite, ["b"])


def test_rows_are_those_of_the_table():
    suite = Suite("s", "", ["a.npz", "b.npz"], [Entry("x", "opt")], rows={"b.npz": 50})
    assert [(task.table, task.rows) for task in tasks_of(suite)] == [("a.npz", None), ("b.npz", 50)]
    assert [task.rows for task in tasks_of(suite._replace(rows=20))] == [20, 20]


def test_equal_time_limits_every_method_that_can_be_limited():
    """And a limit of the user replaces that of the suite."""
    suite = SUITES["equal-time"]
    able = {entry.label for entry in suite.entries if CONTENDERS[entry.method].takes_limit}
    assert {entry.label for entry in suite.entries} - able == {
        "scikit-learn, exact",
        "GPBoost, Vecchia",
        "histogram boosting",
        "histogram boosting, quantiles",
    }
    for changes, limit in ((None, "1min"), ({"fit_time": "5s", "epochs": 3}, "5s")):
        for task in tasks_of(suite, changes=changes):
            assert task.settings == ({"fit_time": limit} if task.label in able else {})
    assert {task.table: task.rows for task in tasks_of(suite) if task.rows} == {
        "folder:wind_farm": 100_000,
        "folder:ocean_atlas": 200_000,
        "folder:dem_trinidad": 100_000,
    }


def test_a_suite_of_your_own_is_a_json_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"tables": ["a.npz"], "entries": [{"label": "x", "method": "opt", "sweep": {"lr": [1]}}]})
    )
    suite = suite_from_file(file)
    assert (suite.name, suite.seeds, tasks_of(suite)[0].settings["lr"]) == ("mine", [0], 1)
    for wrong in ('{"tables": []}', "[", '{"tables": [], "entries": [{"label": "x"}]}'):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=r"mine.json is not a suite"):
            suite_from_file(file)
    file.write_text('{"tables": ["a"], "entries": [{"label": "x", "method": "opt", "settings": {"rate": 1}}]}')
    with pytest.raises(ValueError, match="unknown setting 'rate'"):
        suite_from_file(file)


# ---- processes and limits ----


def test_a_process_beyond_its_limits_is_killed_and_recorded(tmp_path, monkeypatch):
    (tmp_path / "greedy.py").write_text(
        "import sys, time\nfrom cagp_bench.processes import answer\n"
        "def measure(size, seconds):\n    block = bytearray(size)\n    time.sleep(seconds)\n"
        "    return {'size': len(block)}\n"
        "answer(measure)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert in_new_process("greedy", {"size": 10, "seconds": 0}, "1min", "1GB")["size"] == 10
    killed = in_new_process("greedy", {"size": 600_000_000, "seconds": 60}, "1min", "300MB")
    assert killed["error"] == "killed at the memory limit (300MB)"
    began = time.monotonic()
    killed = in_new_process("greedy", {"size": 10, "seconds": 60}, "0.3s", "1GB")
    assert killed["error"] == "killed at the time limit (0.3s)"
    assert time.monotonic() - began < 30
    wrong = in_new_process("greedy", {"size": -1, "seconds": 0})
    assert wrong["error"].startswith("the process ended with exit code 1: ValueError: negative count")


@pytest.mark.parametrize(
    ("code", "words"),
    [(-signal.SIGKILL, "killed (out of memory?): no"), (-signal.SIGSEGV, "crashed (SIGSEGV)"), (3, "code 3")],
)
def test_a_process_that_dies_says_how(code, words):
    assert words in processes._crash(code, "first\nno\n")


def test_records_know_commit_and_machine(tmp_path):
    found = environment()
    assert found["cpu"]
    assert found["versions"]["numpy"] == np.__version__
    package = tmp_path / "src" / "cagp"
    package.mkdir(parents=True)
    assert commit_of(package) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (package / "a.py").write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    clean = commit_of(package)
    assert clean is not None
    assert len(clean) == 12
    (package / "a.py").write_text("2")
    assert commit_of(package) == clean + "+"


# ---- running and resuming ----


@pytest.fixture
def mine(table, tmp_path):
    """A suite of three short runs in a file, of which one fails."""
    entries = [
        {"label": "opt", "method": "opt", "settings": TINY, "sweep": {"lr": [1.0, 0.1]}},
        {"label": "too many", "method": "opt", "settings": {**TINY, "budget": 5000}},
        {"label": "large tables", "method": "exact", "max_rows": 100},
    ]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"tables": [str(table), "folder:absent"], "entries": entries, "max_memory": "4GB"}))
    return file


@pytest.mark.slow
def test_a_killed_suite_resumes_and_ends_with_the_same_records(mine, tmp_path, capsys):
    """The process is killed after its first record; the second call carries out the rest and repeats nothing."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cagp", "bench", "run", str(mine), "--out", str(out), "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("bench: 1/3"):
            break
    runs = psutil.Process(process.pid).children()
    process.kill()
    process.stderr.close()
    process.wait()
    assert not psutil.wait_procs(runs, timeout=60)[1]  # the run that was under way has ended with it
    records = out / "mine.jsonl"
    first = records.read_bytes()
    assert first.count(b"\n") == 1, lines
    with records.open("ab") as file:
        file.write(b'{"table": "wav')  # killed while writing the second
    assert main(command[3:]) == 1  # a run failed, and a table is absent
    printed = capsys.readouterr()
    assert "bench: folder:absent is left out: FileNotFoundError" in printed.err
    assert "bench: 1 of 3 runs are in" in printed.err
    found = read_records(records)
    assert records.read_bytes().startswith(first)
    assert [(r["label"], r["settings"]["lr"], "error" in r) for r in found] == [
        ("opt", 1.0, False),
        ("opt", 0.1, False),
        ("too many", 0.1, True),
    ]
    assert found[0]["command"] == "cagp bench run mine.json"
    assert found[0]["max_memory"] == "4GB"
    assert "failed" in printed.out
    assert "failed: waves, seed 0, too many, rate 0.1 failed: ValueError: num_actions is 5000" in printed.out
    whole = records.read_bytes()
    assert main([*command[3:], "--json"]) == 1  # nothing is left to do
    assert records.read_bytes() == whole
    assert [r["label"] for r in json.loads(capsys.readouterr().out)] == ["opt", "opt", "too many"]
    assert sorted(path.name for path in out.iterdir()) == [
        *("mine-waves.png", "mine.csv", "mine.jsonl", "mine.md", "mine.tex", "mine.txt")
    ]
    shown = list(csv.DictReader(io.StringIO((out / "mine.csv").read_text())))
    assert [row["NLL"] for row in shown] == [
        f"{min(found[:2], key=lambda r: r['validation_nll'])['nll']:.4g}",
        "failed",
    ]


@pytest.fixture
def measured(monkeypatch):
    """Runs that are recorded and not carried out."""
    tasks = []

    def record(task, path, suite):
        tasks.append((task, path, suite))
        about = {**environment(), **suite_runs._about(task), "suite": suite.name, "max_time": suite.max_time}
        scores = {"nll": -1.0, "rmse": 0.5, "crps": 0.2, "coverage_error": 0.01, "fit_s": 2.0, "predict_s": 1.0}
        return {**about, **scores, "n": 270, "peak_bytes": 10**9, "validation_nll": -1.0, "trajectory": []}

    monkeypatch.setattr(suite_runs, "measure_alone", record)
    return tasks


def test_options_change_the_suite(table, measured, tmp_path, capsys):
    command = ["bench", "run", "table1", "--tables", str(table), "--records", str(tmp_path / "r.jsonl"), "--quick"]
    command += ["--methods", "CaGP-Opt, Adam", "--seeds", "3", "4", "--rows", "200", "--max-time", "5min"]
    assert main([*command, "--max-memory", "2GB", "--set", "epochs=7", "noise_floor=1e-3", "start=data"]) == 0
    assert [task.seed for task, _, _ in measured] == [3, 4]
    task, path, suite = measured[0]
    assert (task.rows, suite.max_time, suite.max_memory, path) == (200, "5min", "2GB", table)
    assert (task.settings["epochs"], task.settings["noise_floor"], task.settings["start"]) == (7, 1e-3, "data")
    stored = read_records(tmp_path / "r.jsonl")
    assert "--set epochs=7 noise_floor=1e-3 start=data --max-time 5min --max-memory 2GB" in stored[0]["command"]
    assert "-1 ± 0" in capsys.readouterr().out
    for wrong, message in (
        (["bench", "run", "table2"], "SUITE is 'table2', expected one of smoke, table1"),
        ([*command, "--set", "epochs"], "--set is 'epochs', expected KEY=VALUE"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err
    assert main([*command, "--set", "rate=1"]) == 1
    assert "unknown setting 'rate'" in capsys.readouterr().err


def test_methods_are_left_out_where_a_table_is_too_large_for_them(table, measured):
    suite = Suite(
        "s", "", [str(table)], [Entry("a", "exact", max_rows=270), Entry("b", "exact", {"epochs": 5}, max_rows=269)]
    )
    assert suite_runs.run(suite) == 0
    assert [task.label for task, _, _ in measured] == ["a"]


def test_the_smoke_suite_needs_no_files_and_table1_takes_a_folder(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CAGP_CACHE", str(tmp_path / "cache"))
    assert main(["bench", "run", "smoke"]) == 0
    assert {task.rows for task, _, _ in measured} == {400}
    with np.load(measured[0][1]) as file:
        assert file["X"].shape == (20_000, 2)
    measured.clear()
    np.savez(tmp_path / "own.npz", X=np.zeros((30, 2)), y=np.zeros(30))
    assert table1(True, tmp_path, tmp_path / "out", tables=["folder:own"], labels=["SVGP, Adam"]) == 0
    assert [(task.label, task.seed, task.settings["noise_floor"]) for task, _, _ in measured] == [
        ("SVGP, Adam", 0, 1e-4)
    ]
    assert table_s1(False, None, tmp_path / "out") == 0
    names = {f"{stem}.{ending}" for stem in ("table1", "table-s1") for ending in ("txt", "md", "tex", "csv")}
    assert names <= {path.name for path in (tmp_path / "out").iterdir()}
    capsys.readouterr()


# ---- tables from records ----


def record(label="a", seed=0, lr=1.0, validation=0.0, test=None, **others):
    """A record whose trajectory has the given test NLLs at epochs 1, 2 and so on."""
    points = [
        {"epoch": e, "seconds": float(e), "validation_nll": 0.0, "test_nll": v, "test_rmse": v + 10}
        for e, v in enumerate(test or [1.0], start=1)
    ]
    scores = {"nll": 5.0 + seed, "rmse": 0.5, "fit_s": 1.0, "predict_s": 0.5, "peak_bytes": 10**8, "n": 90}
    about = {
        "table": "bike",
        "label": label,
        "protocol": "gp",
        "seed": seed,
        "settings": {"lr": lr, "noise_floor": 1e-4},
    }
    return {**about, **scores, "validation_nll": validation, "trajectory": points, "epoch": 2, **others}


def test_the_learning_rate_is_that_of_the_best_validation_rows():
    runs = [record(seed=s, lr=lr, validation=v + s) for s in (0, 1) for lr, v in ((1.0, 0.3), (0.1, 0.1), (0.01, 0.2))]
    assert [(run["settings"]["lr"], run["seed"]) for run in choose(runs).runs] == [(0.1, 0), (0.1, 1)]
    failed = [{**run, "error": "no"} if run["settings"]["lr"] == 0.1 and run["seed"] else run for run in runs]
    assert choose(failed).runs[0]["settings"]["lr"] == 0.01  # the other has one seed fewer
    nothing = choose([{**run, "error": "no"} for run in runs])
    assert (nothing.runs, nothing.num_failed) == ([], 6)


def test_the_papers_choice_is_the_lowest_mean_over_seeds_of_test_rows():
    runs = [
        record(seed=0, lr=1.0, test=[3.0, 1.0, 2.0]),
        record(seed=1, lr=1.0, test=[3.0, 5.0, 2.0]),
        record(seed=0, lr=0.1, test=[2.5, 2.5, 2.5]),
        record(seed=1, lr=0.1, test=[2.5, 2.5, 0.5, 0.0]),  # epoch 4 is that of one seed alone
    ]
    best = by_test_rows(runs)
    assert best is not None
    assert (best.lr, best.epoch, best.nll.value, best.rmse.value) == (0.1, 3, 1.5, 11.5)
    assert best.nll.error == pytest.approx(1.0)
    assert by_test_rows([record(trajectory=[])]) is None


def test_a_grid_shows_means_failures_and_what_is_missing():
    runs = [record("CaGP-Opt, Adam", seed=s, noise=1e-4) for s in (0, 1)] + [{**record("b"), "error": "no"}]
    grid = suite_grid(runs, [("bike", "CaGP-Opt, Adam"), ("bike", "c")])
    rows = {row[1]: dict(zip(grid.columns, row, strict=True)) for row in grid.rows()}
    first = rows["CaGP-Opt, Adam"]
    assert (first["NLL"], first["seeds"], first["noise floor"], first["MB"]) == ("5.5 ± 0.5", "2", "0.0001", "100")
    assert (first["NLL in the paper"], first["RMSE in the paper"]) == ("-2.401", "0.018")
    assert (rows["b"]["NLL"], rows["b"]["seeds"]) == ("failed", "0 of 1")
    assert (rows["c"]["NLL"], rows["c"]["n"]) == ("–", "–")
    assert "CRPS" not in grid.columns  # no record has it


def test_floors_are_lines_of_their_own():
    low = record(settings={"lr": 1.0, "noise_floor": 1e-6}, nll=-9.0)
    rows = suite_grid([record(), low]).rows()
    assert [(row[2], row[7]) for row in rows] == [("0.0001", "5"), ("1e-06", "-9")]


def test_every_format_has_every_cell(tmp_path):
    grid = Grid({"method": ["a|b", "c_d"], "95 % width": ["1 ± 2", "–"]})
    assert grid.markdown().splitlines()[2:] == [r"| a\|b | 1 ± 2 |", "| c_d | – |"]
    assert r"c\_d & -- \\" in grid.latex()
    assert r"95 \% width" in grid.latex()
    assert list(csv.reader(io.StringIO(grid.csv()))) == [["method", "95 % width"], ["a|b", "1 ± 2"], ["c_d", "–"]]
    assert [path.suffix for path in grid.write(tmp_path / "t")] == [".txt", ".md", ".tex", ".csv"]
    assert (tmp_path / "t.txt").read_text() == grid.text(160).rstrip("\n") + "\n"


def test_curves_are_those_of_the_chosen_settings():
    runs = [record(lr=1.0, validation=0.5, test=[9.0, 8.0]), record(lr=0.1, validation=0.1, test=[3.0, 2.0])]
    figure = curves_figure(runs, "bike")
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_ydata()) == [3.0, 2.0]
    assert curves_figure([record(trajectory=[])], "bike") is None


def test_an_estimate_multiplies_steps_by_their_seconds(tmp_path, capsys):
    """Of 2 seeds and 2 rates: 1,000 epochs of Adam at 0.5 s; 100 epochs of 20 iterations at 3 s; no record of SVGP."""
    file, suite = tmp_path / "short.jsonl", tmp_path / "mine.json"
    for label, steps, seconds in (("a", 10, 5.0), ("b", 40, 120.0)):
        append_record(file, {"table": "t", "label": label, "n": 900, "steps": steps, "fit_s": seconds})
    append_record(file, {"table": "t", "label": "a", "error": "killed"})
    sweep = {"lr": [1.0, 0.1]}
    entries = [
        {"label": "a", "method": "opt", "settings": {"epochs": 1000}, "sweep": sweep},
        {"label": "b", "method": "exact", "settings": {"epochs": 100, "optimizer": "lbfgs"}, "sweep": sweep},
        {"label": "c", "method": "svgp"},
    ]
    suite.write_text(json.dumps({"tables": ["t.npz"], "seeds": [0, 1], "entries": entries}))
    assert main(["bench", "run", str(suite), "--estimate", str(file)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["t", "a", "4", f"{4 * 1000 * 0.5 / 3600:.1f}"] in lines
    assert ["t", "b", "4", f"{4 * 2000 * 3 / 3600:.1f}"] in lines
    assert ["t", "c", "2", "–"] in lines
    assert lines[-1][-2:] == ["10", f"{(2000 + 24_000) / 3600:.1f}"]


def test_svgp_takes_a_step_for_each_minibatch():
    settings = gp_settings({"batch_size": 100})
    assert [steps_in_epoch(name, settings, 250) for name in ("svgp", "opt")] == [3, 1]
    assert steps_in_epoch("opt", settings._replace(optimizer="lbfgs"), 250) == 20


# ---- the page of results ----

RECORDS = ROOT / "docs" / "records"
PAGE_RECORDS = [*sorted((RECORDS / "reproduce").glob("table1*.jsonl")), *sorted(RECORDS.glob("suite-*.jsonl"))]


def test_the_page_of_results_is_that_of_the_committed_records(tmp_path):
    """After a change, make it again: see CONTRIBUTING.md."""
    assert main(["bench", "results", *map(str, PAGE_RECORDS), "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text(
        encoding="utf-8"
    )


def test_equal_time_on_the_page_of_benchmarks_is_that_of_the_records():
    records = {(r["table"], r["label"]): r for r in read_records(RECORDS / "suite-equal-time.jsonl")}
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    lines = [line for line in page.split("### Equal time\n")[1].split("### ")[0].splitlines() if line.startswith("|")]
    tables, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert len(rows) >= 10
    for label, *cells in rows:
        for table, cell in zip(tables[1:], cells, strict=True):
            found = records.get((table, label))
            if found is None or "error" in found:
                assert cell == ("" if found is None else "killed"), (table, label)
            else:
                assert cell == f"{found['nll']:.2f}, {found['rmse']:#.2g}, {found['fit_s']:.0f}", (table, label)


def test_a_page_says_which_tables_of_the_paper_are_absent(tmp_path):
    def page(name):
        return " ".join(results_page.page([tmp_path / f"{name}.jsonl"]).split())

    for name, table in (("table1", "bike"), ("table1", "road"), ("smoke", "bike")):
        found = {**record(), **environment(), "table": table, "suite": name, "date": "2024-05-06T00:00:00+00:00"}
        append_record(tmp_path / f"{name}.jsonl", found)
        if (name, table) == ("table1", "bike"):
            assert "Road and Power of the paper: not on this machine" in page("table1")
    assert " Power of the paper: not on this machine" in page("table1")
    assert "not on this machine" not in page("smoke")


def test_a_page_has_command_machine_date_and_failures(tmp_path, capsys):
    about = {**environment(), "suite": "smoke", "command": "cagp bench run smoke", "max_time": "1h"}
    file = tmp_path / "suite-a.jsonl"
    for made in (record(), {**record("b", seed=1), "error": "ValueError: `x` is wrong"}):
        append_record(file, {**made, **about, "date": "2024-05-06T00:00:00+00:00"})
    again = {**record("c", settings={"lr": 0.5}), **about, "date": "2024-05-06T00:00:00+00:00"}
    for made in ({**again, "error": "killed at the time limit (1h)"}, again):  # repeated with more time
        append_record(file, made)
    text = results_page.page([file])
    assert "killed" not in text
    assert "    cagp bench run smoke --records suite-a.jsonl" in text
    assert f"{about['cpu']}, {about['cores']} cores" in text
    assert "Date: 2024-05-06." in text
    assert "- failed: bike, seed 1, b: ValueError:  x  is wrong" in text
    assert "Bike has no noise" in text
    assert "| bike | SVGP, Adam | – |" in text  # a line of the suite that was not run
    append_record(file, {**again, "seed": 2, "command": "cagp bench run smoke --methods c"})
    assert "| bike | SVGP, Adam | – |" in results_page.page([file])  # the other command asked for all
    append_record(tmp_path / "some.jsonl", {**again, "command": "cagp bench run smoke --methods c"})
    assert "SVGP, Adam" not in results_page.page([tmp_path / "some.jsonl"])
    append_record(tmp_path / "other.jsonl", {"what": "else"})
    assert main(["bench", "results", str(tmp_path / "other.jsonl"), "--out", str(tmp_path / "p.md")]) == 1
    assert "has no records of a suite" in capsys.readouterr().err
