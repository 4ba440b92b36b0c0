"""A search is the fits it says it is, survives kills, Ctrl-C and crashes, and reads its trials as a person would."""

import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from scipy import optimize, stats
from torch import Tensor

from cagp import GP, CaGPOpt, fit, metrics, plots, start_from_data
from cagp.action_search import SearchResult, Trial, runner, search_num_actions
from cagp.action_search.trial import read_trial, trial_path
from cagp.cli import main
from cagp.data import Standardizer, split, standardized
from cagp.kernels import RBF, Scale
from cagp.training import FitStatus
from cagp.training.checkpoints import load_checkpoint

ACTIONS, RATES, STEPS = 10, (0.1, 0.5), 120
CHOICES = {"num_actions": (ACTIONS,), "kernel": "rbf", "seed": 3, "num_steps": STEPS, "jobs": 2}


def table(n: int = 300) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    X = 5 + 3 * torch.rand(n, 2, generator=g, dtype=torch.float64)
    y = 100 + 10 * torch.sin(2 * X[:, 0]) + torch.randn(n, generator=g, dtype=torch.float64)
    return X, y


SCRIPT = """
import sys
import torch
from safetensors.torch import load_file
from cagp.action_search import search_num_actions

torch.set_num_threads(1)
data = load_file(sys.argv[1])
search_num_actions(data["X"], data["y"], folder=sys.argv[2], num_actions=(10,), lrs=(0.1, 0.5), kernel="rbf", seed=3,
                   num_steps=120, jobs=2)
"""


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def lines_of(folder: Path, rate: float) -> list[str]:
    path = trial_path(folder, ACTIONS, rate).with_suffix("") / "history.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def fitted_directly(X: Tensor, y: Tensor, rate: float) -> dict[str, float]:
    """What a trial should give, from the pieces of the package and by another path."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(3))
    held, rows = order[: len(y) // 10], order[len(y) // 10 :]
    X_held, y_held = (X[held] - X[rows].mean(0)) / X[rows].std(0), (y[held] - y[rows].mean()) / y[rows].std()
    X, y = (X[rows] - X[rows].mean(0)) / X[rows].std(0), (y[rows] - y[rows].mean()) / y[rows].std()
    method = CaGPOpt.from_data(start_from_data(GP(Scale(RBF(2))), X, y), X, ACTIONS)
    result = fit(
        method,
        X,
        y,
        num_steps=STEPS,
        lr={"hyperparameters": rate, "actions": 1.0},
        evaluate=lambda: {"nll": metrics.nll(y_held, *method.condition(X, y).predict(X_held, noise=True))},
        monitor="nll",
    )
    mean, variance = method.condition(X, y).predict(X_held, noise=True)
    inside = (y_held - mean).abs() <= stats.norm.ppf(0.975) * variance.sqrt()
    return {
        "nll": -stats.norm.logpdf(y_held.numpy(), mean.numpy(), variance.sqrt().numpy()).mean(),
        "rmse": (y_held - mean).square().mean().sqrt().item(),
        "coverage": inside.double().mean().item(),
        "steps": len(result.steps),
        "best_step": result.best_step,
    }


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> tuple[Path, SearchResult, list[list[str]]]:
    """A search killed with SIGKILL and called again: its folder, its result, and what each fit had recorded before."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("search")
    X, y = table()
    save_file({"X": X, "y": y}, folder / "data")
    (folder / "script.py").write_text(SCRIPT)
    out = folder / "out"
    parent = subprocess.Popen([sys.executable, str(folder / "script.py"), str(folder / "data"), str(out)])
    wait_until(lambda: any(len(lines_of(out, rate)) > 55 for rate in RATES))  # one has a checkpoint, written at step 50
    children = children_of(parent.pid)
    parent.kill()
    parent.wait()
    assert len(children) == 2
    wait_until(lambda: not any(is_running(child) for child in children), 10.0)
    assert not list((out / "trials").glob("*.json"))  # killed midway
    before = [lines[:50] if len(lines) > 55 else [] for lines in (lines_of(out, rate) for rate in RATES)]
    assert any(before)
    return out, search_num_actions(X, y, folder=out, lrs=RATES, **CHOICES), before


def test_a_killed_search_goes_on_to_the_results_of_direct_fits(resumed):
    folder, result, before = resumed
    assert [(t.num_actions, t.lr, t.error) for t in result.trials] == [(ACTIONS, rate, None) for rate in RATES]
    for trial, lines in zip(result.trials, before, strict=True):
        expected = fitted_directly(*table(), trial.lr)
        assert trial.nll == pytest.approx(expected.pop("nll"), rel=1e-12)  # scipy's formula rounds differently
        assert {name: getattr(trial, name) for name in expected} == expected
        assert lines_of(folder, trial.lr)[: len(lines)] == lines  # seconds too: not fitted anew
        assert np.mean(trial.row_nll) == pytest.approx(trial.nll, rel=1e-12)
        assert len(trial.curve) == STEPS // 10
        assert trial.curve[-1][0] <= trial.seconds
        assert min(nll for _, nll in trial.curve) == trial.nll
        assert trial.threads == 1
    assert result.num_rows == 270
    assert result.folder == folder


def test_a_finished_search_called_again_starts_no_process(resumed, monkeypatch):
    monkeypatch.setattr(runner.subprocess, "Popen", None)
    folder, result, _ = resumed
    assert search_num_actions(*table(), folder=folder, lrs=RATES, **CHOICES) == result
    fewer = search_num_actions(*table(), folder=folder, lrs=RATES[:1], **CHOICES)
    assert fewer.trials == result.trials[:1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 4}, "seed = 3, not 4"),
        ({"num_steps": 50}, "num_steps = 120, not 50"),
        ({"kernel": "matern32"}, "kernel = 'rbf', not 'matern32'"),
        ({"max_time": "1min"}, "max_time = None, not '1min'"),
        ({"dtype": torch.float32}, "dtype = 'float64', not 'float32'"),
        ({"y": table()[1] + 1}, r"\(other data\)"),
        ({"X": table()[0][:, :1].clone()}, "other data"),
        ({"X": table()[0].float(), "y": table()[1].float()}, "other data"),
    ],
    ids=["seed", "steps", "kernel", "time", "dtype", "targets", "inputs", "dtype of the data"],
)
def test_a_folder_of_another_search_is_refused(changes, words, resumed):
    X, y = table()
    changes = {"X": X, "y": y, "lrs": RATES, "folder": resumed[0], **CHOICES, **changes}
    with pytest.raises(ValueError, match=f"belongs to another search .*{words}.*choose another folder"):
        search_num_actions(**changes)


def test_two_searches_do_not_share_a_folder(resumed):
    with runner.locked_folder(resumed[0], "this test"), pytest.raises(ValueError, match="in use by another search"):
        search_num_actions(*table(), folder=resumed[0], lrs=RATES, **CHOICES)


def test_a_damaged_trial_is_an_error_that_says_what_to_do(resumed, tmp_path):
    path = trial_path(resumed[0], ACTIONS, RATES[0])
    assert read_trial(path).error is None
    for content in (path.read_text()[:-20], '{"num_actions": 10}', '{"a": 1}'):
        (tmp_path / "trial.json").write_text(content)
        with pytest.raises(ValueError, match=r"trial.json cannot be read: .*delete it"):
            read_trial(tmp_path / "trial.json")


def test_a_crash_is_a_row_and_is_tried_again(resumed, tmp_path, monkeypatch, capfd):
    popen = subprocess.Popen
    killed = []

    def start_and_kill(*arguments, **options):
        process = popen(*arguments, **options)
        process.kill()
        killed.append(process)
        return process

    monkeypatch.setattr(runner.subprocess, "Popen", start_and_kill)
    options = CHOICES | {"num_actions": (ACTIONS, 20)}
    result = search_num_actions(*table(), folder=resumed[0], lrs=RATES[:1], progress=True, **options)
    assert [trial.error for trial in result.trials] == [None, "the process was killed (out of memory?)"]
    assert result.best == result.trials[0]
    assert "failed: the process was killed" in str(result)
    assert "1 of 2 trials failed" in str(result)
    assert not trial_path(resumed[0], 20, RATES[0]).exists()
    assert "2/2 20 actions at rate 0.1 failed: the process was killed" in capfd.readouterr().err
    search_num_actions(*table(), folder=resumed[0], lrs=RATES[:1], **options)
    assert len(killed) == 2


def test_the_command_stops_at_ctrl_c_goes_on_and_reports_failures(tmp_path, monkeypatch, capsys):
    X, y = table(200)
    np.savez(tmp_path / "waves.npz", X=X.numpy(), y=y.numpy())
    out = tmp_path / "out"
    command = ["search", str(tmp_path / "waves.npz"), "--out", str(out)]
    command += ["--n-actions", "10", "--steps", "120", "--lr", "0.1"]
    started = []
    popen = subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def sleep(seconds: float) -> None:
        time.sleep(0.002)
        if len(lines_of(out, 0.1)) >= 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "pause", sleep)
        assert main(command) == 130
    assert "interrupted with 0 of 1 trials done" in capsys.readouterr().err
    assert [process.returncode for process in started] == [130]
    fit_folder = trial_path(out, 10, 0.1).with_suffix("")
    num_steps = load_checkpoint(fit_folder / "checkpoint.safetensors")["steps"]
    assert 2 <= num_steps < 120
    before = lines_of(out, 0.1)[:num_steps]

    damaged = trial_path(out, 10, 0.7).with_suffix("") / "checkpoint.safetensors"
    damaged.parent.mkdir()
    damaged.write_bytes(b"damaged")
    assert main([*command, "0.7", "--jobs", "2"]) == 1
    printed = capsys.readouterr()
    assert lines_of(out, 0.1)[:num_steps] == before
    assert "2/2" in printed.err
    assert "Take 10 actions at learning rate 0.1" in printed.out
    assert "failed: ValueError" in printed.out
    assert (out / "search.png").read_bytes().startswith(b"\x89PNG")
    assert [process.returncode for process in started] == [130, 0, 0]

    monkeypatch.setattr(runner.subprocess, "Popen", None)  # failures stay: nothing is missing
    assert main([*command, "0.7"]) == 1


@pytest.mark.usefixtures("annotations_off")
def test_errors_of_usage_come_before_anything_is_written(tmp_path):
    X, y = table(20)
    for changes, words in (
        ({"num_actions": (4, 19)}, "num_actions is 19, expected an integer from 1 to 18"),
        ({"num_actions": ()}, "at least one value"),
        ({"lrs": (0.1, 0.0)}, "rates above zero"),
        ({"kernel": "Cosine"}, "expected one of matern12, matern32"),
        ({"jobs": 0}, "jobs is 0"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"max_time": "soon"}, "max_time is 'soon'"),
        ({"dtype": torch.float16}, "dtype is torch.float16"),
        ({"y": y[:-1]}, "y has shape"),
    ):
        arguments = {"X": X, "y": y, "num_actions": (4,), "folder": tmp_path / "new"} | changes
        with pytest.raises(ValueError, match=words):
            search_num_actions(**arguments)
    assert not (tmp_path / "new").exists()


# --- the reading ------------------------------------------------------------------------------------------------------


def trials(*rows: tuple[int, float, float, float], spread: float = 0.0) -> SearchResult:
    """Trials (actions, rate, NLL, seconds); ``spread``: how much the NLLs of rows differ from one fit to another."""
    g = np.random.default_rng(0)
    made = []
    for actions, rate, nll, seconds in rows:
        noise = g.normal(size=100)
        row_nll = (nll + spread * (noise - noise.mean())).tolist()
        curve = [(seconds / 2, nll + 1.0), (0.75 * seconds, nll), (seconds, nll + 0.5)]
        made.append(Trial(actions, rate, None, nll, 0.1, 0.95, seconds, 300, 280, "", 1, curve, row_nll))
    return SearchResult(made, Path("somewhere"), 10_000)


def test_the_fewest_actions_that_more_do_not_improve_are_recommended():
    result = trials((64, 0.3, 0.5, 5.0), (128, 1.0, 0.10, 10.0), (256, 1.0, 0.095, 25.0), (512, 0.3, 0.12, 60.0))
    assert result.recommended == result.trials[1]
    assert result.best == result.trials[2]
    words = result.recommendation()
    assert "Take 128 actions at learning rate 1:" in words
    assert "64 lose 0.400 nats per row." in words
    assert "256 would gain 0.005 ± 0.000 nats per row for 2.5 times the time: too little to matter" in words
    assert "512 gain nothing and take 6.0 times the time." in words
    assert "largest number" not in words


def test_a_gain_within_the_chance_of_the_validation_rows_is_none():
    rows = (64, 1.0, 0.5, 5.0), (128, 1.0, 0.4, 10.0)
    assert trials(*rows).recommended.num_actions == 128
    assert trials(*rows, spread=1.0).recommended.num_actions == 64  # 0.1 ± 0.14


def test_the_standard_error_is_that_of_paired_differences():
    result = trials((64, 1.0, 0.5, 5.0), (128, 1.0, 0.49, 10.0), spread=0.3)
    a, b = (np.array(trial.row_nll) for trial in result.trials)
    assert f"0.010 ± {stats.sem(a - b):.3f}" in result.recommendation()


def test_the_best_rate_of_each_number_counts_and_edges_are_pointed_out():
    rows = (64, 0.1, 0.9, 5.0), (64, 0.3, 0.3, 5.0), (64, 1.0, 0.4, 5.0), (128, 0.1, 0.2, 9.0), (128, 0.3, 0.05, 9.0)
    result = trials(*rows, (128, 1.0, 0.0, 9.0))
    assert result.best_of_each == [result.trials[1], result.trials[5]]
    words = result.recommendation()
    assert "It is the largest number that was tried: 256 may do better." in words
    assert "Its learning rate is the highest that was tried: a higher one may do better." in words
    assert "64 lose 0.300 nats" in words
    assert "learning rate is" not in trials(*rows).recommendation()
    low = trials((64, 0.1, 0.0, 5.0), (64, 0.3, 0.3, 5.0))
    assert "the lowest that was tried: a lower one" in low.recommendation()


def test_fits_that_ran_out_of_time_are_named():
    result = trials((64, 0.1, 0.5, 5.0), (1024, 0.1, 0.0, 9.0))
    late = replace(result.trials[1], status=FitStatus.TIME_LIMIT.value)
    words = SearchResult([result.trials[0], late], result.folder, 10_000).recommendation()
    assert "Fits with 1,024 actions ran out of time" in words


def test_a_search_without_a_success_says_so():
    failed = Trial(64, 0.1, error="ValueError: no")
    result = SearchResult([failed], Path("somewhere"), 100)
    assert result.best is None
    assert result.recommended is None
    assert "failed: ValueError: no" in str(result)
    assert "No trial succeeded" in str(result)
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.quality_against_time(Figure().subplots(), result.trials)


def test_the_table_has_a_line_for_every_trial():
    lines = trials((64, 0.3, 0.5, 5.0), (1024, 1.0, -0.1234, 100.0)).table().splitlines()
    assert lines[2].split() == ["1,024", "1", "-0.123", "0.1000", "0.950", "100.0", "300"]
    assert len({len(line) for line in lines}) == 1


# --- the picture ------------------------------------------------------------------------------------------------------


def test_the_picture_has_a_line_of_the_best_so_far_for_each_number_of_actions():
    result = trials((64, 0.3, 0.5, 4.0), (64, 1.0, 0.4, 8.0), (1024, 0.3, 0.1, 40.0))
    ax = Figure().subplots()
    assert plots.quality_against_time(ax, [*result.trials, Trial(2048, 0.3, error="no")]) is ax
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
    assert [list(line.get_xdata()) for line in lines] == [[4.0, 6.0, 8.0], [20.0, 30.0, 40.0]]
    assert np.allclose([line.get_ydata() for line in lines], [[1.4, 0.4, 0.4], [1.1, 0.1, 0.1]])
    assert [text.get_text() for text in ax.texts] == ["64 actions", "1,024 actions"]
    assert ax.get_xscale() == "log"
    assert ax.get_ylim()[0] < 0.1 < 0.4 < ax.get_ylim()[1]


@pytest.mark.parametrize("places", [[0.5, 0.5, 0.5], [0.1, 0.12, 0.9], [0.9, 0.1, 0.5], [0.3], [0.2, 0.21, 0.22, 0.5]])
def test_labels_are_moved_apart_as_little_as_it_takes(places):
    moved = plots.over_time.apart(places, 0.1)
    order = np.argsort(places, kind="stable")
    assert np.all(np.diff(np.array(moved)[order]) >= 0.1 - 1e-12)

    def cost(x: np.ndarray) -> float:
        return float(np.square(x - np.array(places)[order]).sum())

    gaps = [{"type": "ineq", "fun": lambda x, k=k: x[k + 1] - x[k] - 0.1} for k in range(len(places) - 1)]
    best = optimize.minimize(cost, np.arange(len(places), dtype=float), constraints=gaps, tol=1e-12)
    assert np.allclose(np.array(moved)[order], best.x, atol=1e-4)


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_parts_are_in_the_units_of_the_first():
    X, y = table(50)
    train, test = split(50, 0.2, 0)
    (X_train, y_train), (X_test, y_test) = standardized(X, y, train, test, dtype=torch.float32)
    assert X_train.dtype == y_test.dtype == torch.float32
    assert torch.allclose(X_train.double().mean(0), torch.zeros(2).double(), atol=1e-6)
    assert torch.allclose(y_train.double().std(), torch.ones(()).double(), atol=1e-6)
    scaler = Standardizer.fit(X[train], y[train])
    assert torch.equal(X_test, scaler.inputs(X[test]).float())
    assert torch.equal(y_test, scaler.targets(y[test]).float())


def test_row_nll_is_the_negative_log_density_of_each_row():
    g = torch.Generator().manual_seed(0)
    y, mean = torch.randn(2, 20, generator=g)
    variance = 0.1 + torch.rand(20, generator=g)
    expected = -stats.norm.logpdf(y.double().numpy(), mean.double().numpy(), variance.double().sqrt().numpy())
    assert np.allclose(metrics.row_nll(y, mean, variance).numpy(), expected, rtol=1e-12)
    assert math.isclose(metrics.nll(y, mean, variance), expected.mean(), rel_tol=1e-12)
