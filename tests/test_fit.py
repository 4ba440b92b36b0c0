"""A fit survives kills, damaged files, failing steps and hopeless data; it stops when told to, and says why."""

import itertools
import json
import math
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from cagp import GP, CaGPOpt, ConstantMean, GaussianNoise, fit
from cagp.actions import BlockActions, DenseActions
from cagp.actions.blocks import ordered_blocks
from cagp.engine import backend_for
from cagp.kernels import Matern32, Matern52, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.parameters import named_values
from cagp.training import PRESETS, FitResult, FitStatus, ParameterGroup, Settings, Step, Trainable
from cagp.training.checkpoints import load_checkpoint

CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"
NOTHING = (torch.zeros(1, 1), torch.zeros(1))  # the data of methods that need none


@pytest.fixture(autouse=True)
def global_generator_stays():
    """No test, and nothing that it calls, draws from the global generator."""
    state = torch.get_rng_state()
    yield
    assert torch.equal(state, torch.get_rng_state())


def wave(n: int = 60, d: int = 1, noise: float = 0.1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    X = 6 * torch.rand(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + noise * torch.randn(n, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype)


def method(X: Tensor, num_actions: int = 12, **choices) -> CaGPOpt:
    return CaGPOpt.from_data(GP(Scale(Matern32(X.shape[1]))), X, num_actions, **choices)


def prepare(m: CaGPOpt, X: Tensor, step: int, share: float, flat: bool) -> str | None:
    """What ``fit`` asks a method to do before a step."""
    return m.prepare(X, X[:, 0], None, step=step, share=share, flat=flat, rows=None)


class Bowl(Trainable):
    """(x - 1)² + (y + 2)², which does at its k-th call, counted from 0, what ``failures[k]`` says.

    Args:
        failures: "nan", "gradient" (not finite, the loss is), "indefinite" (NotPositiveDefiniteError), "interrupt".
        always: what it does at every call from this one on.
    """

    def __init__(self, failures: dict[int, str] | None = None, always: tuple[int, str] | None = None):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.failures, self.always = failures or {}, always
        self.visited: list[Tensor] = []
        self.on_call: Callable[[], None] = lambda: None

    def value(self, x: Tensor) -> Tensor:
        return (x - torch.tensor([1.0, -2.0], dtype=torch.float64)).square().sum()

    def objective_terms(self, X, y, row_noise=None, *, rows=None) -> dict[str, Tensor]:
        self.on_call()
        call = len(self.visited)
        self.visited.append(self.x.detach().clone())
        failure = self.failures.get(call)
        if self.always is not None and call >= self.always[0]:
            failure = self.always[1]
        loss = self.value(self.x)
        if failure == "nan":
            loss = loss * math.nan
        elif failure == "gradient":
            loss = loss + (self.x - self.x.detach()).square().sum().sqrt()
        elif failure == "indefinite":
            raise NotPositiveDefiniteError("SKS (2 x 2) is not positive definite. Probable causes: none.")
        elif failure == "interrupt":
            raise KeyboardInterrupt
        return {"bowl": loss}

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": ParameterGroup([self.x], 0.2)}

    def hyperparameters(self) -> dict[str, list[float]]:
        return {"x": self.x.tolist()}


def without_seconds(steps: list[Step]) -> list[dict]:
    return [{name: value for name, value in asdict(step).items() if name != "seconds"} for step in steps]


def history_of(folder: Path) -> list[dict]:
    """The steps on disk without their seconds, by a strict reader of JSON."""

    def refuse(text: str):
        raise AssertionError(f"{text} is not JSON")

    lines = (folder / HISTORY).read_text().splitlines()
    steps = [json.loads(line, parse_constant=refuse) for line in lines]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in steps]


def assert_same_tensors(actual, expected) -> None:
    assert list(actual) == list(expected)
    for name in expected:
        assert actual[name].dtype == expected[name].dtype
        assert torch.equal(actual[name], expected[name]), name


def assert_same_fit(actual: tuple[nn.Module, FitResult], expected: tuple[nn.Module, FitResult]) -> None:
    """Bit for bit, but for the time it took."""
    assert_same_tensors(actual[0].state_dict(), expected[0].state_dict())
    assert without_seconds(actual[1].steps) == without_seconds(expected[1].steps)
    for name in ("best_step", "best_value", "failures", "reason"):
        assert getattr(actual[1], name) == getattr(expected[1], name)


# --- kill and resume --------------------------------------------------------------------------------------------------

SERVER = '''
"""Reads folders, fits into each in a process of its own, says its number and how it ended."""
import os, sys, time
import torch
from safetensors.torch import save_file
from cagp import GP, CaGPOpt, fit, metrics
from cagp.kernels import Matern32, Scale

torch.set_num_threads(1)
torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # imports a lot the first time
g = torch.Generator().manual_seed(3)
X = 6 * torch.rand(70, 2, generator=g, dtype=torch.float64)
y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(70, generator=g, dtype=torch.float64)

def train(folder, pause):
    def stepped(step):
        with open(os.path.join(folder, "alive"), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(pause)

    m = CaGPOpt.from_data(GP(Scale(Matern32(2))), X[:60], 12, reblock_at=(5, 20, 50))
    evaluate = lambda: {"rmse": metrics.rmse(y[60:], m.condition(X[:60], y[:60]).mean(X[60:]))}
    r = fit(m, X[:60], y[:60], num_steps=80, evaluate=evaluate, evaluate_every=4, monitor="rmse",
            checkpoint_dir=folder, checkpoint_steps=3, callback=stepped)
    save_file({name: t.contiguous() for name, t in m.state_dict().items()}, os.path.join(folder, "final"))
    with open(os.path.join(folder, "result"), "w") as file:
        file.write(repr((r.reason, r.best_step, r.best_value, r.failures)))

for line in sys.stdin:
    folder, pause = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            train(folder, float(pause))
            status = 0
        finally:
            os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
'''


@pytest.fixture(scope="module")
def train_in_a_process(tmp_path_factory):
    """A function that fits into a folder in a process of its own, its exit code.

    ``kill_after``: seconds after which it is killed, from its start or, if ``stepped``, from its first step.
    """
    script = tmp_path_factory.mktemp("server") / "server.py"
    script.write_text(SERVER)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def train(folder: Path, kill_after: float | None = None, pause: float = 0.0, stepped: bool = False) -> int:
            assert server.stdin is not None
            assert server.stdout is not None
            print(folder, pause, sep="\t", file=server.stdin, flush=True)
            child = int(server.stdout.readline())
            if kill_after is not None:
                alive = folder / "alive"
                while stepped and not (alive.exists() and alive.read_text() == str(child)):
                    time.sleep(0.001)
                time.sleep(kill_after)
                os.kill(child, 9)
            return int(server.stdout.readline())

        yield train
        server.stdin.close()


@pytest.fixture(scope="module")
def uninterrupted(train_in_a_process, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert train_in_a_process(folder) == 0
    assert len(history_of(folder)) == 80
    return folder


def assert_same_files(actual: Path, expected: Path) -> None:
    assert_same_tensors(load_file(actual / "final"), load_file(expected / "final"))
    assert history_of(actual) == history_of(expected)
    assert (actual / "result").read_text() == (expected / "result").read_text()
    ends = [load_checkpoint(folder / CHECKPOINT) for folder in (actual, expected)]
    assert_same_tensors(ends[0]["parameters"], ends[1]["parameters"])
    for mine, other in zip(ends[0]["optimizer"]["torch"].values(), ends[1]["optimizer"]["torch"].values(), strict=True):
        assert_same_tensors(mine, other)
    assert not list(actual.glob("*.part"))


def test_a_fit_killed_ten_times_ends_as_if_it_had_never_been(train_in_a_process, uninterrupted, tmp_path):
    moments = random.Random(0)
    for kill in range(10):
        stepped = kill % 2 == 1  # else while it starts or resumes, or soon after
        assert train_in_a_process(tmp_path, moments.uniform(0.0, 0.2), pause=0.03, stepped=stepped) == -9
    assert 0 < len(history_of_killed(tmp_path)) < 80  # midway
    assert train_in_a_process(tmp_path) == 0
    assert_same_files(tmp_path, uninterrupted)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fit_killed_once_ends_as_if_it_had_never_been(seed, train_in_a_process, uninterrupted, tmp_path):
    assert train_in_a_process(tmp_path, random.Random(seed).uniform(0.0, 0.8), pause=0.02, stepped=True) == -9
    assert 0 < len(history_of_killed(tmp_path)) < 80
    assert train_in_a_process(tmp_path) == 0
    assert_same_files(tmp_path, uninterrupted)


def history_of_killed(folder: Path) -> list[str]:
    """The lines on disk, the last of which may be cut off."""
    return (folder / HISTORY).read_text().splitlines()


class CrashError(Exception):
    """The process ended here."""


def crash_at(number: int) -> Callable[[Step], None]:
    def callback(step: Step) -> None:
        if step.number == number:
            raise CrashError

    return callback


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("crashes", [(2,), (4, 5, 11, 14), (9, 19)], ids=str)
def test_lbfgs_goes_on_from_its_checkpoint_bit_for_bit(crashes, dtype, tmp_path):
    X, y = wave(40, dtype=dtype)
    options = {"optimizer": "lbfgs", "num_steps": 20, "checkpoint_steps": 3}
    make = lambda: method(X, 8, reblock_at=(7,))  # noqa: E731
    whole = make()
    expected = whole, fit(whole, X, y, **options)
    for number in crashes:
        with pytest.raises(CrashError):
            fit(make(), X, y, **options, checkpoint_dir=tmp_path, callback=crash_at(number))
    resumed = make()
    assert_same_fit((resumed, fit(resumed, X, y, **options, checkpoint_dir=tmp_path)), expected)


def test_steps_taken_back_are_the_same_after_a_resume(tmp_path):
    class Cliff(Bowl):
        """Infinite beyond a wall between the start and the minimum."""

        def value(self, x: Tensor) -> Tensor:
            return super().value(x) + (math.inf if float(x[0].detach()) > 0.4 else 0.0)

    options = {"num_steps": 30, "lr": 0.3, "schedule": "constant", "checkpoint_steps": 1, "max_failures": 100}
    whole = Cliff()
    expected = whole, fit(whole, *NOTHING, **options)
    assert len(expected[1].failures) > 3
    for number in (2, 3, 9):
        with pytest.raises(CrashError):
            fit(Cliff(), *NOTHING, **options, checkpoint_dir=tmp_path, callback=crash_at(number))
    resumed = Cliff()
    assert_same_fit((resumed, fit(resumed, *NOTHING, **options, checkpoint_dir=tmp_path)), expected)


def test_a_finished_fit_called_again_gives_its_result_without_a_step(tmp_path):
    X, y = wave(30)
    first, second = method(X, 6), method(X, 6)
    expected = first, fit(first, X, y, num_steps=7, checkpoint_dir=tmp_path)
    taken: list[Step] = []
    actual = second, fit(second, X, y, num_steps=7, checkpoint_dir=tmp_path, callback=taken.append)
    assert not taken
    assert_same_fit(actual, expected)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("number", [3, 5, 6])
def test_a_fit_ended_by_ctrl_c_between_steps_goes_on_bit_for_bit(number, optimizer, tmp_path):
    X, y = wave(30)

    def interrupt(step: Step) -> None:
        if step.number == number:
            raise KeyboardInterrupt

    options = {"optimizer": optimizer, "num_steps": 10}
    whole, cut, resumed = (method(X, 6, reblock_at=(5,)) for _ in range(3))
    expected = whole, fit(whole, X, y, **options)
    assert len(fit(cut, X, y, **options, checkpoint_dir=tmp_path, callback=interrupt).steps) == number
    assert_same_fit((resumed, fit(resumed, X, y, **options, checkpoint_dir=tmp_path)), expected)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("call", [1, 3, 4, 6])
def test_a_fit_ended_by_ctrl_c_inside_a_step_goes_on_bit_for_bit(call, optimizer, tmp_path):
    class Valley(Bowl):
        """Takes several evaluations a line search."""

        def value(self, x: Tensor) -> Tensor:
            return (1 - x[0]).square() + 30 * (x[1] - x[0].square()).square()

    options = {"optimizer": optimizer, "num_steps": 8}
    whole, cut, resumed = Valley(), Valley({call: "interrupt"}), Valley()
    expected = whole, fit(whole, *NOTHING, **options)
    assert "Interrupted" in fit(cut, *NOTHING, **options, checkpoint_dir=tmp_path).reason
    assert_same_fit((resumed, fit(resumed, *NOTHING, **options, checkpoint_dir=tmp_path)), expected)


def test_a_change_before_a_step_that_ctrl_c_ends_is_told_once(tmp_path):
    class Changing(Bowl):
        def prepare(self, X, y, row_noise, *, step, share, flat, rows) -> str | None:
            return "changed" if step == 2 else None

    fit(Changing({2: "interrupt"}), *NOTHING, num_steps=4, checkpoint_dir=tmp_path)
    result = fit(Changing(), *NOTHING, num_steps=4, checkpoint_dir=tmp_path)
    assert [step.events for step in result.steps] == [[], [], ["changed"], []]


def test_an_interruption_does_not_change_which_evaluations_count(tmp_path):
    def run(folder: Path | None = None, stop_at: int = 0) -> tuple[Bowl, FitResult]:
        def callback(step: Step) -> None:
            if step.number == stop_at:
                raise KeyboardInterrupt

        m = Bowl()
        scores = lambda: {"score": abs(float(m.x.detach()[0]) - 0.3)}  # lowest after the third of nine steps  # noqa: E731
        options = {"lr": 0.1, "schedule": "constant", "num_steps": 9, "evaluate_every": 4, "monitor": "score"}
        return m, fit(m, *NOTHING, **options, evaluate=scores, checkpoint_dir=folder, callback=callback)

    expected = run()
    assert run(tmp_path, stop_at=3)[1].best_step == 4
    assert_same_fit(run(tmp_path), expected)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(tmp_path) -> Path:
    """The folder of a fit of ``wave(30)`` that ended after four of nine steps."""
    X, y = wave(30)
    with pytest.raises(CrashError):
        fit(method(X, 6), X, y, num_steps=9, checkpoint_dir=tmp_path, checkpoint_steps=2, callback=crash_at(5))
    return tmp_path


def go_on(folder: Path, X: Tensor | None = None, y: Tensor | None = None, m=None, row_noise=None, **changes):
    data = wave(30)
    X, y = data[0] if X is None else X, data[1] if y is None else y
    options = {"num_steps": 9, "checkpoint_steps": 2, **changes}
    return fit(method(X, 6) if m is None else m, X, y, row_noise, **options, checkpoint_dir=folder)


def test_a_checkpoint_of_the_same_fit_is_accepted(interrupted):
    assert len(go_on(interrupted).steps) == 9
    assert not list(interrupted.glob("*.part"))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 10},
        {"lr": 0.2},
        {"schedule": "cosine"},
        {"optimizer": "lbfgs"},
        {"max_failures": 3},
    ],
    ids=str,
)
def test_a_checkpoint_of_other_settings_is_refused(changes, interrupted):
    before = (interrupted / CHECKPOINT).read_bytes(), (interrupted / HISTORY).read_bytes()
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors belongs to another fit .*choose another folder"):
        go_on(interrupted, **changes)
    assert before == ((interrupted / CHECKPOINT).read_bytes(), (interrupted / HISTORY).read_bytes())


def test_a_checkpoint_of_other_data_is_refused(interrupted):
    X, y = wave(30)
    moved = X.clone()
    moved[7] = moved[7] * (1 + 1e-15) + 1e-15
    assert not torch.equal(moved, X)
    for change in ({"X": moved, "m": method(X, 6)}, {"y": -y}, {"row_noise": torch.zeros_like(y)}):
        with pytest.raises(ValueError, match="belongs to another fit"):
            go_on(interrupted, **change)


def test_a_checkpoint_of_other_starting_values_is_refused(interrupted):
    X, _ = wave(30)
    for other in (method(X, 5), CaGPOpt.from_data(GP(Scale(Matern32(1, 0.9))), X, 6)):
        with pytest.raises(ValueError, match="belongs to another fit"):
            go_on(interrupted, m=other)


@pytest.mark.parametrize("difference", ["loss", "kernel", "noise floor", "re-blocking"])
def test_a_checkpoint_of_another_method_is_refused(difference, interrupted):
    X, _ = wave(30)
    other = method(X, 6)
    if difference == "loss":
        other.loss = "projected"
    elif difference == "kernel":
        other = CaGPOpt.from_data(GP(Scale(Matern52(1))), X, 6)
    elif difference == "noise floor":
        raw = other.prior.noise.raw_noise.detach().clone()
        other.prior.noise = GaussianNoise(noise_floor=1e-2)
        other.prior.noise.raw_noise.data = raw
    else:
        other.reblock_at = (5,)
    with pytest.raises(ValueError, match="belongs to another fit"):
        go_on(interrupted, m=other)


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.001, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_checkpoint_is_an_error_that_says_what_to_do(share, interrupted):
    path = interrupted / CHECKPOINT
    content = path.read_bytes()
    path.write_bytes(content[: math.ceil(share * len(content))])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors .*delete it to start from scratch"):
        go_on(interrupted)


def damaged(content: bytes, seed: int, first: int, last: int) -> bytes:
    """One bit of one byte between first and last is another."""
    r = random.Random(seed)
    place = r.randrange(first, last)
    return content[:place] + bytes([content[place] ^ 1 << r.randrange(8)]) + content[place + 1 :]


@pytest.mark.parametrize("part", ["length", "header", "tensors"])
def test_a_checkpoint_with_a_flipped_bit_is_an_error_that_says_what_to_do(part, interrupted):
    path, folder = interrupted / CHECKPOINT, interrupted
    content, history = path.read_bytes(), (folder / HISTORY).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    first, last = {"length": (0, 8), "header": (8, header), "tensors": (header, len(content))}[part]
    outcomes = {}
    for seed in range(8):
        (folder / HISTORY).write_bytes(history)
        path.write_bytes(damaged(content, seed, first, last))
        try:
            go_on(folder)
            outcomes[seed] = "went on"
        except Exception as error:
            if not (isinstance(error, ValueError) and CHECKPOINT in str(error) and "delete it" in str(error)):
                outcomes[seed] = repr(error)
    assert not outcomes


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_is_never_executed(interrupted):
    path, marker = interrupted / CHECKPOINT, interrupted / "executed"
    path.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(ValueError, match="delete it to start from scratch"):
        go_on(interrupted)
    torch.save({"state": Payload(marker)}, path)
    with pytest.raises(ValueError, match="delete it to start from scratch"):
        go_on(interrupted)
    assert not marker.exists()


@pytest.mark.parametrize("damage", ["a line less", "a line cut off", "zeros", "no file"])
def test_a_history_that_does_not_suit_its_checkpoint_is_an_error_that_names_it(damage, interrupted):
    path = interrupted / HISTORY
    lines = path.read_text().splitlines(keepends=True)
    first = "".join(lines[:3])
    path.write_text(
        {"a line less": first, "a line cut off": first + lines[3][:20], "zeros": "\x00" * 50}.get(damage, "")
    )
    if damage == "no file":
        path.unlink()
    with pytest.raises(ValueError, match=r"history\.jsonl"):
        go_on(interrupted)


def test_a_line_cut_off_after_the_checkpoint_is_dropped(interrupted):
    path = interrupted / HISTORY
    assert len(path.read_text().splitlines()) == 5  # one more than the checkpoint
    path.write_bytes(path.read_bytes()[:-40])
    result = go_on(interrupted)
    assert history_of(interrupted) == without_seconds(result.steps)


def test_a_write_that_fails_leaves_the_old_checkpoint(interrupted, monkeypatch):
    def full(_) -> None:
        raise OSError(28, "No space left on device")

    before = (interrupted / CHECKPOINT).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            go_on(interrupted)
    assert (interrupted / CHECKPOINT).read_bytes() == before
    assert len(go_on(interrupted).steps) == 9
    assert not list(interrupted.glob("*.part"))


def test_the_history_on_disk_is_the_documented_fields_as_json_lines(tmp_path):
    X, y = wave(30)
    m = method(X, 6, reblock_at=(3,))
    options = {"num_steps": 8, "evaluate_every": 4, "evaluate": lambda: {"score": 1.5}}
    result = fit(m, X, y, **options, checkpoint_dir=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert lines == [asdict(step) for step in result.steps]
    assert [set(line) for line in lines] == [{field.name for field in fields(Step)}] * 8
    assert [line["evaluation"] for line in lines] == [None, None, None, {"score": 1.5}] * 2
    assert ["blocks" in " ".join(line["events"]) for line in lines] == [number == 4 for number in range(1, 9)]
    for line in lines:
        assert math.isclose(sum(line["terms"].values()), line["loss"], rel_tol=1e-12)
        assert set(line["terms"]) == {"negative_log_likelihood", "kl"}
        assert set(line["lr"]) == {"hyperparameters", "actions"}


def test_the_history_is_json_where_an_evaluation_is_not_a_number(tmp_path):
    fit(Bowl(), *NOTHING, num_steps=2, evaluate_every=1, evaluate=lambda: {"s": math.nan}, checkpoint_dir=tmp_path)
    assert len(history_of(tmp_path)) == 2


def test_a_fit_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(Bowl(), *NOTHING, num_steps=60)
    assert not list(tmp_path.iterdir())


# --- failing steps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["nan", "gradient", "indefinite"])
def test_a_failed_step_is_taken_back_and_tried_with_half_the_learning_rate(failure):
    m = Bowl({3: failure})
    result = fit(m, *NOTHING, num_steps=6, lr=0.1, schedule="constant")
    v = m.visited
    assert torch.equal(v[4], v[2])
    assert not torch.equal(v[3], v[2])
    assert torch.allclose(v[5] - v[4], (v[3] - v[2]) / 2, rtol=1e-9)  # the same averages of the gradient
    assert [step.lr["hyperparameters"] for step in result.steps] == [0.1] * 3 + [0.05] * 3
    assert len(result.failures) == 1
    assert "Step 4 failed and was taken back" in result.failures[0]
    expected = {"nan": "the loss is nan", "gradient": "gradient is not finite", "indefinite": "not positive definite."}
    assert expected[failure] in result.failures[0]
    assert "Probable" not in result.failures[0]
    assert [step.events for step in result.steps] == [[], [], [], result.failures, [], []]
    assert result.failures[0] in str(result)
    assert len(result.steps) == 6


def test_failures_in_a_row_halve_the_rate_each_time():
    m = Bowl({2: "nan", 3: "indefinite", 4: "nan", 6: "nan"})
    result = fit(m, *NOTHING, num_steps=5, lr=0.8, schedule="constant")
    assert [step.lr["hyperparameters"] for step in result.steps] == [0.8, 0.8, 0.1, 0.05, 0.05]
    assert [len(step.events) for step in result.steps] == [0, 0, 3, 1, 0]


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("failure", ["nan", "gradient", "indefinite"])
def test_a_fit_ends_with_its_best_parameters_after_too_many_failures(failure, optimizer):
    m = Bowl(always=(5, failure))
    result = fit(m, *NOTHING, optimizer=optimizer, num_steps=100, lr=0.2, max_failures=3)
    assert len(result.failures) == 4
    assert result.status is FitStatus.TOO_MANY_FAILURES
    assert "4 failed steps" in result.reason
    assert "learning rates" in result.reason
    assert len(result.steps) < 100
    started = [torch.tensor(step.hyperparameters["x"], dtype=torch.float64) for step in result.steps]
    best = min(started, key=lambda x: float(m.value(x)))
    assert float(m.value(m.x.detach())) <= float(m.value(best))
    assert result.best_value == float(m.value(m.x.detach()))


def test_no_failure_is_tolerated_where_none_may_happen():
    result = fit(Bowl({2: "nan"}), *NOTHING, num_steps=10, max_failures=0)
    assert len(result.failures) == 1
    assert len(result.steps) == 2


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("failure", ["nan", "gradient", "indefinite"])
def test_a_fit_that_fails_at_the_start_changes_nothing_and_explains(failure, optimizer):
    m = Bowl(always=(0, failure))
    result = fit(m, *NOTHING, optimizer=optimizer, num_steps=10)
    assert torch.equal(m.x.detach(), torch.zeros(2, dtype=torch.float64))
    assert not result.steps
    assert "starting values" in result.reason
    assert result.status is FitStatus.BAD_START
    expected = {"nan": "the loss is nan", "gradient": "gradient is not finite", "indefinite": "Probable causes"}
    assert expected[failure] in result.reason


def test_nan_hyperparameters_at_the_start_are_explained():
    X, y = wave(30)
    m = method(X, 6)
    with torch.no_grad():
        m.prior.noise.raw_noise.fill_(math.nan)
    result = fit(m, X, y, num_steps=5)
    assert "starting values" in result.reason
    assert result.status is FitStatus.BAD_START
    assert not result.steps


def test_ctrl_c_ends_with_the_best_parameters():
    m = Bowl()

    def interrupt(step: Step) -> None:
        if step.number == 6:
            raise KeyboardInterrupt

    result = fit(m, *NOTHING, num_steps=100, lr=0.6, schedule="constant", callback=interrupt)
    losses = [float(m.value(x)) for x in m.visited]
    assert len(result.steps) == 6
    assert min(losses) < losses[-1]  # it overshot: the last are not the best
    assert torch.equal(m.x.detach(), m.visited[losses.index(min(losses))])
    assert result.best_step == losses.index(min(losses)) + 1
    assert result.reason == "Interrupted after 6 steps."
    assert result.status is FitStatus.INTERRUPTED


def test_an_evaluation_that_fails_after_a_step_too_far_does_not_lose_the_fit():
    m = Bowl()

    def evaluate() -> dict[str, float]:
        if len(m.visited) == 6:
            raise NotPositiveDefiniteError("SKS (2 x 2) is not positive definite.")
        return {"score": float(m.value(m.x.detach()))}

    result = fit(m, *NOTHING, num_steps=10, evaluate=evaluate, evaluate_every=1, monitor="score")
    assert len(result.steps) == 10
    assert result.best_value < float(m.value(m.visited[0]))


@pytest.mark.filterwarnings("ignore::cagp.linalg.JitterWarning")
@pytest.mark.parametrize("lr", [1e3, 1e20, 1e30])
@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_absurd_learning_rates_end_with_a_usable_method(optimizer, lr):
    X, y = wave(30, dtype=torch.float32)
    m = method(X, 6)
    before = m.objective(X, y).item()
    result = fit(m, X, y, optimizer=optimizer, num_steps=12, lr=lr)
    assert m.objective(X, y).item() <= before
    assert math.isfinite(result.best_value)
    assert all(bool(torch.isfinite(p).all()) for p in m.parameters())


# --- stopping ---------------------------------------------------------------------------------------------------------


class Clock:
    """Stands in for ``time``."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sys.modules["cagp.training.fitting"], "time", clock)
    return clock


def slow_bowl(clock: Clock, seconds: float) -> Bowl:
    m = Bowl()
    m.on_call = lambda: clock.passes(seconds)
    return m


@pytest.mark.parametrize(
    ("max_time", "num_steps"),
    [("90s", 2), ("10min", 10), ("10 min", 10), ("1.5h", 90), ("2m", 2), ("61", 2), (60, 1), (60.5, 2), ("0.5sec", 1)],
)
@pytest.mark.usefixtures("annotations_off")
def test_a_fit_ends_at_the_first_step_past_its_time(max_time, num_steps, clock):
    result = fit(slow_bowl(clock, 60), *NOTHING, num_steps=200, max_time=max_time)
    assert len(result.steps) == num_steps
    assert result.seconds == 60 * num_steps
    assert result.reason == f"Reached the time limit ({max_time}) after {num_steps} steps."
    assert result.status is FitStatus.TIME_LIMIT


@pytest.mark.parametrize("max_time", ["ten minutes", "10 hours!", "", "-5s", "1e3s", "5d", "0s", 0, -1.0, math.nan])
@pytest.mark.usefixtures("annotations_off")
def test_a_time_that_cannot_be_read_is_refused(max_time):
    with pytest.raises(ValueError, match="max_time is "):
        fit(Bowl(), *NOTHING, max_time=max_time)


def test_real_time_is_limited():
    m = Bowl()
    m.on_call = lambda: time.sleep(0.02)
    steps = fit(m, *NOTHING, num_steps=1000, max_time=0.1).steps
    assert steps[-1].seconds >= 0.1 > steps[-2].seconds
    assert len(steps) <= 5


def test_evaluations_and_callbacks_do_not_count_as_training_time(clock):
    m = slow_bowl(clock, 1.0)

    def evaluate() -> dict[str, float]:
        clock.passes(100.0)
        return {"score": 1.0}

    options = {"evaluate_every": 2, "callback": lambda _: clock.passes(1000.0)}
    result = fit(m, *NOTHING, num_steps=7, max_time=7.5, evaluate=evaluate, **options)
    assert [step.seconds for step in result.steps] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert result.seconds == 7.0
    assert result.reason == "Took all 7 steps."
    assert result.status is FitStatus.ALL_STEPS


def test_failed_steps_count_as_training_time(clock):
    m = slow_bowl(clock, 1.0)
    m.failures = {2: "nan", 3: "nan"}
    assert fit(m, *NOTHING, num_steps=100, max_time=5.0).steps[-1].seconds == 5.0
    assert len(m.visited) == 5 + 1  # and one look at the last parameters


def test_a_loss_that_no_longer_improves_ends_the_fit():
    m = Bowl()
    options = {"lr": 0.1, "schedule": "constant", "min_improvement": 1e-3, "window": 10}
    result = fit(m, *NOTHING, num_steps=5000, **options)
    losses = [step.loss for step in result.steps]
    assert 21 <= len(losses) < 1000
    assert result.reason == f"The loss no longer improves; stopped after {len(losses)} steps."
    assert result.status is FitStatus.CONVERGED
    assert result.best_value < 1e-2 * losses[0]

    def gain(n: int) -> float:
        """Of the last ten of the first n steps over the ten before, as a fraction of all improvement."""
        last = sum(losses[n - 10 : n]) / 10
        return (sum(losses[n - 20 : n - 10]) / 10 - last) / (losses[0] - last)

    assert gain(len(losses)) < 1e-3
    assert all(gain(n) >= 1e-3 for n in range(21, len(losses)))


def test_a_loss_that_never_improved_ends_the_fit():
    result = fit(Bowl(), *NOTHING, num_steps=200, lr=0.0, min_improvement=0.01, window=5)
    assert len(result.steps) == 11


def test_all_steps_are_taken_where_nothing_else_is_asked():
    result = fit(Bowl(), *NOTHING, num_steps=37, lr=0.0)
    assert len(result.steps) == 37
    assert result.reason == "Took all 37 steps."


def scored(scores: list[float], **options) -> tuple[Bowl, FitResult, list[Tensor]]:
    """A fit whose evaluations return these scores; the parameters at each of them."""
    m = Bowl()
    seen: list[Tensor] = []

    def evaluate() -> dict[str, float]:
        seen.append(m.x.detach().clone())
        return {"other": 0.0, "score": scores[len(seen) - 1]}

    return m, fit(m, *NOTHING, evaluate=evaluate, monitor="score", **options), seen


def test_patience_ends_with_the_parameters_of_the_best_evaluation():
    m, result, seen = scored([5.0, 3.0, 3.0, 4.0, 3.5], num_steps=100, evaluate_every=2, patience=3)
    assert len(seen) == 5
    assert len(result.steps) == 10
    assert torch.equal(m.x.detach(), seen[1])
    assert result.best_value == 3.0
    assert result.best_step == 5  # the step that starts from the parameters after the fourth
    assert result.steps[4].hyperparameters["x"] == m.x.tolist()
    assert result.reason == "No better score in 3 evaluations; stopped after 10 steps."
    assert result.status is FitStatus.NO_BETTER


def test_patience_starts_again_at_every_gain():
    scores = [9.0, 10.0, 8.0, 9.0, 7.0, 7.5, math.nan]
    m, result, seen = scored(scores, num_steps=100, evaluate_every=1, patience=2)
    assert len(result.steps) == 7
    assert torch.equal(m.x.detach(), seen[4])


def test_the_monitored_metric_decides_what_is_best_although_the_loss_was_lower():
    m, result, seen = scored([1.0, 2.0, 3.0], num_steps=30, evaluate_every=10, lr=0.1)
    assert torch.equal(m.x.detach(), seen[0])
    assert float(m.value(seen[2])) < float(m.value(seen[0]))
    assert result.reason == "Took all 30 steps."
    assert [step.evaluation["score"] for step in result.steps if step.evaluation] == [1.0, 2.0, 3.0]


def test_the_last_parameters_are_evaluated_too():
    m, result, seen = scored([3.0, 2.0, 1.0], num_steps=25, evaluate_every=10)
    assert len(seen) == 3
    assert torch.equal(m.x.detach(), seen[2])
    assert result.best_step == 26


def test_the_last_parameters_are_judged_by_the_loss_too():
    m = Bowl()
    result = fit(m, *NOTHING, num_steps=5, lr=0.01)
    assert result.best_step == 6
    assert result.best_value == float(m.value(m.x.detach())) < result.steps[-1].loss


# --- fits that would diverge ------------------------------------------------------------------------------------------


def hopeless(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    """Inputs, targets and a number of actions."""
    X, y = wave(60, d=2)
    if name == "constant target":
        y = torch.full_like(y, 3.0)
    elif name == "zero target":
        y = torch.zeros_like(y)
    elif name == "one row a thousand times":
        X, y = torch.cat([X, X[:1].expand(1000, 2)]), torch.cat([y, y[:1].expand(1000)])
    elif name == "only one row, many times":
        X, y = X[:1].repeat(50, 1), y[:1].repeat(50)
    elif name == "noise-free":
        y = torch.sin(X[:, 0])
    elif name == "pure noise":
        y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    elif name == "5 rows":
        X, y = X[:5], y[:5]
    elif name == "1 row":
        X, y = X[:1], y[:1]
    elif name == "huge targets":
        y = 1e8 * y
    elif name == "far inputs":
        X = 1e6 * X
    return X.to(dtype), y.to(dtype), min(10, len(y))


@pytest.mark.filterwarnings("ignore::cagp.linalg.JitterWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rate", [None, 10.0], ids=["usual rate", "lr=10"])
@pytest.mark.parametrize(
    "data",
    [
        "ordinary",
        "constant target",
        "zero target",
        "one row a thousand times",
        "only one row, many times",
        "noise-free",
        "pure noise",
        "5 rows",
        "1 row",
        "huge targets",
        "far inputs",
    ],
)
def test_hard_data_end_in_finite_parameters_predictions_and_a_report(data, rate, dtype):
    X, y, num_actions = hopeless(data, dtype)
    m = method(X, num_actions)
    result = fit(m, X, y, num_steps=22, lr=rate)
    assert all(bool(torch.isfinite(t).all()) for t in m.state_dict().values())
    mean, variance = m.condition(X, y).predict(X + 0.01, noise=True)
    assert bool(torch.isfinite(mean).all())
    assert bool((torch.isfinite(variance) & (variance > 0)).all())
    assert m.objective(X, y).item() <= result.steps[0].loss
    assert backend_for(m.prior.kernel, X) in str(result)
    assert result.reason in str(result)


def test_noise_free_data_are_said_to_look_so():
    X, y = wave(40, noise=0.0)
    m = CaGPOpt.from_data(GP(Scale(Matern52(1)), noise=GaussianNoise(noise_floor=1e-2)), X, 20)
    assert "noise variance sits at its floor (0.01)" in str(fit(m, X, y, num_steps=200))


# --- blocks -----------------------------------------------------------------------------------------------------------


def weights_of_rows(actions: BlockActions) -> dict[int, float]:
    """Each support row's raw weight; ``values`` are in ascending order of the rows."""
    return dict(zip(actions.support.sort().values.tolist(), actions.values.tolist(), strict=True))


def blocks_of(actions: BlockActions) -> list[set[int]]:
    return [set(rows.tolist()) for rows in actions.support.split(actions.offsets.diff().tolist())]


def dense(actions: BlockActions) -> Tensor:
    """S, written from the blocks and the weights of the rows."""
    S = torch.zeros(actions.num_rows, actions.num_actions, dtype=torch.float64)
    weights = weights_of_rows(actions)
    for j, block in enumerate(blocks_of(actions)):
        for row in block:
            S[row, j] = weights[row]
    return S / S.norm(dim=0)


def random_actions(X: Tensor, num_actions: int, **choices) -> BlockActions:
    return BlockActions.from_data(X, num_actions, start="random", generator=torch.Generator().manual_seed(1), **choices)


@pytest.mark.parametrize("num_actions", [1, 7, 12, 53])
def test_new_blocks_hold_every_row_with_equal_weights(num_actions):
    X, y = wave(53, d=2)
    m = CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, num_actions, blocks="ordered"), reblock_at=(4,))
    m.prior.kernel.kernel.lengthscale = [0.1, 30.0]
    weights, old = weights_of_rows(m.actions), blocks_of(m.actions)
    assert prepare(m, X, 3, 0.3, False) is None
    assert blocks_of(m.actions) == old
    assert str(num_actions) in prepare(m, X, 4, 0.4, False)
    blocks = blocks_of(m.actions)
    assert len(blocks) == num_actions
    assert sorted(row for block in blocks for row in block) == list(range(53))
    assert weights_of_rows(m.actions) == dict.fromkeys(weights, 1.0)  # a new cut starts with equal weights
    sparse = m.actions.weights(torch.float64)
    S = dense(m.actions)
    assert torch.allclose(sparse.values, S[m.actions.support, sparse.columns()], atol=1e-15)
    assert math.isfinite(m.objective(X, y).item())
    # The first column's lengthscale is short: blocks are intervals of it.
    edges = sorted((float(X[list(block), 0].min()), float(X[list(block), 0].max())) for block in blocks)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(edges))


def test_new_blocks_of_a_thinned_support_keep_it():
    X, _ = wave(53, d=2)
    actions = random_actions(X, 6, support_size=4)
    weights = weights_of_rows(actions)
    actions.reblock(X, torch.tensor([0.1, 30.0], dtype=torch.float64))
    assert weights_of_rows(actions) == dict.fromkeys(weights, 1.0)
    assert len(blocks_of(actions)) == 6


def test_a_fit_with_new_blocks_says_so_and_lowers_the_loss():
    X, y = wave(60, d=2)
    m = method(X, 10, reblock_at=(5, 10))
    before = blocks_of(m.actions)
    result = fit(m, X, y, num_steps=40)
    assert [step.number for step in result.steps if any("blocks" in event for event in step.events)] == [6, 11]
    assert blocks_of(m.actions) != before  # the second input does not matter, which the lengthscales learned
    assert m.objective(X, y).item() == result.best_value < result.steps[0].loss


@pytest.mark.parametrize(
    ("n", "num_actions", "more"), [(50, 1, 2), (53, 6, 12), (53, 7, 20), (17, 12, 17), (12, 12, 12)]
)
def test_grown_actions_are_nested_and_rows_keep_their_weights(n, num_actions, more):
    X, _ = wave(n, d=2)
    actions = random_actions(X, num_actions)
    old, weights = blocks_of(actions), weights_of_rows(actions)
    actions.grow(X, more)
    new = blocks_of(actions)
    assert len(new) == more
    assert all(sum(block <= other for other in old) == 1 for block in new)
    assert sorted(row for block in new for row in block) == list(range(n))
    assert weights_of_rows(actions) == weights


@pytest.mark.parametrize("support_size", [None, 3])
def test_an_action_is_the_sum_of_its_parts(support_size):
    X, _ = wave(53, d=2)
    actions = random_actions(X, 7, support_size=support_size)
    old, old_blocks = dense(actions), blocks_of(actions)
    actions.grow(X, 15, torch.tensor([0.1, 30.0], dtype=torch.float64))
    new, new_blocks = dense(actions), blocks_of(actions)
    sparse = actions.weights(torch.float64)
    assert torch.allclose(sparse.values, new[actions.support, sparse.columns()], atol=1e-15)
    for j, block in enumerate(old_blocks):
        children = [k for k, child in enumerate(new_blocks) if child <= block]
        # Orthogonal unit vectors: the old action is the sum of its projections on them.
        parts = [new[:, k] * (new[:, k] @ old[:, j]) for k in children]
        assert torch.allclose(torch.stack(parts).sum(0), old[:, j], atol=1e-15)


def test_variance_never_grows_when_actions_do():
    X, y = wave(64, d=2)
    m = CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, 4))
    X_new = wave(40, d=2)[0] + 0.3
    variances = [m.condition(X, y).variance(X_new)]
    while m.actions.num_actions < 64:
        m.actions.grow(X, 2 * m.actions.num_actions)
        variances.append(m.condition(X, y).variance(X_new))
    assert len(variances) == 5
    for before, after in itertools.pairwise(variances):
        assert bool((after <= before + 1e-12).all())
        assert float(after.mean()) < float(before.mean())
    K = m.prior.kernel
    with torch.no_grad():
        cross = K(X_new, X)
        noisy = K(X, X) + m.prior.noise.noise * torch.eye(64, dtype=torch.float64)
        exact = K.diag(X_new) - (cross * torch.linalg.solve(noisy, cross.mT).mT).sum(1)
    assert torch.allclose(variances[-1], exact, atol=1e-10)  # one action for each row


def test_a_state_with_another_number_of_blocks_is_restored():
    X, y = wave(50, d=2)
    m, other = (CaGPOpt(GP(Scale(Matern32(2))), random_actions(X, 6)) for _ in range(2))
    m.actions.grow(X, 12)
    other.load_state_dict(m.state_dict())
    assert other.actions.num_actions == 12
    assert_same_tensors(other.state_dict(), m.state_dict())
    assert other.objective(X, y).item() == m.objective(X, y).item()
    m.actions.grow(X, 24)
    assert other.actions.num_actions == 12  # a copy, not the same memory
    fit(other, X, y, num_steps=3)
    assert math.isfinite(other.objective(X, y).item())


def test_rows_of_weight_zero_do_not_end_a_fit_that_cuts_blocks_again():
    X, y = wave(16)
    order = X[:, 0].argsort()
    values = torch.ones(16, dtype=torch.float64)
    values[order[:4]] = 0.0  # after a new cut, a block of its own
    actions = BlockActions(ordered_blocks(16, 4), values)
    m = CaGPOpt(GP(Scale(Matern32(1))), actions, reblock_at=(2,))
    result = fit(m, X, y, num_steps=5, lr={"hyperparameters": 0.1, "actions": 0.0})
    assert math.isfinite(result.best_value)


# --- optimisers and settings ------------------------------------------------------------------------------------------


def test_lbfgs_reaches_a_lower_loss_than_adam_in_fewer_steps():
    X, y = wave(80)
    first, second = (method(X, 12, reblock_at=()) for _ in range(2))
    adam = fit(first, X, y, num_steps=100)
    lbfgs = fit(second, X, y, optimizer="lbfgs", schedule="constant", num_steps=80)
    assert lbfgs.best_value <= adam.best_value + 1e-6


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_every_step_of_lbfgs_lowers_the_loss(schedule):
    X, y = wave(80)
    m = method(X, 12, reblock_at=())
    losses = [step.loss for step in fit(m, X, y, optimizer="lbfgs", schedule=schedule, num_steps=20).steps]
    assert all(after < before for before, after in itertools.pairwise(losses))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "lbfgs", "lr": {"hyperparameters": 1.0, "actions": 1.0}}, "lr .*L-BFGS takes one rate"),
        ({"learning_rate": 0.1}, "unknown setting 'learning_rate'.*num_steps"),
        ({"settings": "fast"}, "settings is 'fast'.*paper-adam"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'.*adam, lbfgs"),
        ({"schedule": "step"}, "schedule is 'step'.*linear"),
        ({"schedule_end": 0.0}, "schedule_end is 0.0"),
        ({"num_steps": 0}, "num_steps is 0"),
        ({"window": 0}, "window is 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"checkpoint_steps": 0}, "checkpoint_steps is 0"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"max_failures": -1}, "max_failures is -1"),
        ({"lr": -0.1}, "lr is -0.1"),
        ({"lr": math.nan}, "lr is nan"),
        ({"lr": {"hyperparameters": math.inf}}, "lr is .*inf"),
        ({"lr": {"kernel": 0.1}}, "lr has a rate for 'kernel'.*hyperparameters"),
        ({"lr": {"hyperparameters": 0.1, "kernle": 0.1}}, "kernle"),
        ({"monitor": "rmse"}, "monitor is 'rmse'.*evaluate"),
        ({"monitor": "rmse", "evaluate": lambda: {"nll": 1.0}, "evaluate_every": 1}, "monitor is 'rmse'.*nll"),
        ({"patience": 2}, "patience .*evaluate"),
        ({"patience": 0, "monitor": "nll", "evaluate": lambda: {"nll": 1.0}}, "patience is 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
@pytest.mark.usefixtures("annotations_off")
def test_what_cannot_be_done_is_refused_by_the_name_of_the_option(changes, words):
    with pytest.raises(ValueError, match=words):
        fit(Bowl(), *NOTHING, **changes)


def test_presets_are_the_papers():
    adam, lbfgs = PRESETS["paper-adam"], PRESETS["paper-lbfgs"]
    assert (adam.optimizer, adam.num_steps, adam.schedule, adam.schedule_end) == ("adam", 1000, "linear", 0.1)
    assert adam.warmup_steps == lbfgs.warmup_steps == 0
    assert adam.lr_factor(0) == 1.0
    assert adam.lr_factor(999) == pytest.approx(0.1, rel=1e-12)
    assert adam.lr_factor(333) == pytest.approx(1 - 0.9 / 3, rel=1e-12)
    assert (lbfgs.optimizer, lbfgs.num_steps) == ("lbfgs", 100)
    assert PRESETS["default"] == Settings()


def test_a_preset_is_used_with_the_changes_that_are_asked_for():
    steps = fit(Bowl(), *NOTHING, settings="paper-adam", num_steps=11, lr=0.5).steps
    assert len(steps) == 11
    assert steps[0].lr == {"hyperparameters": 0.5}
    assert steps[-1].lr["hyperparameters"] == pytest.approx(0.05, rel=1e-12)
    mine = Settings(num_steps=4, schedule="constant", lr=0.7)
    assert [step.lr["hyperparameters"] for step in fit(Bowl(), *NOTHING, settings=mine).steps] == [0.7] * 4
    assert mine == Settings(num_steps=4, schedule="constant", lr=0.7)


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 3, 10, 19, 25, 100, 109])
def test_progress_is_about_ten_plain_lines_where_there_is_no_terminal(num_steps, capsys, monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    result = fit(Bowl(), *NOTHING, num_steps=num_steps, progress=True)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert min(num_steps, 8) <= len(lines) <= 14
    assert "\x1b" not in err
    assert "\r" not in err
    assert f"{num_steps}/{num_steps} steps, loss {result.steps[-1].loss:.4f}" in lines[-1]


def test_nothing_is_printed_unless_asked(capsys):
    X, y = wave(30)
    fit(method(X, 6), X, y, num_steps=12)
    fit(Bowl({0: "nan", 5: "nan"}), *NOTHING, num_steps=12, progress=False)
    assert tuple(capsys.readouterr()) == ("", "")


def test_the_report_says_when_more_steps_would_help():
    assert "take more steps" in str(fit(Bowl(), *NOTHING, num_steps=40, lr=0.01, schedule="constant"))
    assert "take more steps" not in str(fit(Bowl(), *NOTHING, num_steps=600, lr=0.1))


def test_named_values_are_plain_numbers_in_the_users_units():
    prior = GP(Scale(Matern32(2, [0.7, 3.0]), 2.5), ConstantMean(-4.0), GaussianNoise(0.2, noise_floor=0.05))
    values = named_values(prior)
    assert values == {
        "kernel.outputscale": pytest.approx(2.5, rel=1e-12),
        "kernel.kernel.lengthscale": pytest.approx([0.7, 3.0], rel=1e-12),
        "mean.constant": -4.0,
        "noise.noise": pytest.approx(0.2, rel=1e-12),
    }
    with torch.no_grad():
        prior.noise.raw_noise.fill_(0.3)
    raw = torch.tensor(0.3, dtype=torch.float64)
    assert named_values(prior)["noise.noise"] == float(torch.exp(raw)) + 0.05
    assert type(named_values(prior)["noise.noise"]) is float
    assert json.loads(json.dumps(named_values(prior))) == named_values(prior)


def test_steps_record_the_values_they_started_from():
    X, y = wave(30)
    m = method(X, 6)
    before = named_values(m.prior)
    steps = fit(m, X, y, num_steps=3, lr=0.1, schedule="constant").steps
    assert steps[0].hyperparameters == before
    assert steps[1].hyperparameters != before
    assert m.hyperparameters() == named_values(m.prior)


# --- growth -----------------------------------------------------------------------------------------------------------


def test_actions_double_when_the_loss_is_flat():
    X, _y = wave(80, d=2)
    m = method(X, 16, start_actions=4, reblock_at=())
    assert m.actions.num_actions == 4
    assert prepare(m, X, 3, 0.0, False) is None
    assert "8 actions" in prepare(m, X, 4, 0.0, True)
    assert "16 actions" in prepare(m, X, 5, 0.0, True)
    assert prepare(m, X, 6, 0.0, True) is None  # there are as many as asked for
    assert m.actions.num_actions == 16


@pytest.mark.parametrize("num_actions", [16, 19, 5])
def test_a_fit_that_starts_with_few_actions_ends_with_all(num_actions):
    X, y = wave(80, d=2)
    m = method(X, num_actions, start_actions=4, reblock_at=(3,))
    result = fit(m, X, y, num_steps=30)
    assert m.actions.num_actions == num_actions
    grown = [step.number for step in result.steps if any("actions" in event for event in step.events)]
    assert len(grown) == math.ceil(math.log2(num_actions / 4))
    assert max(grown) <= 8  # a fifth of all steps, and the next
    # Of the fewer actions before, none is the best, even where their loss was lower.
    assert result.best_step >= max(grown)
    assert result.best_value == m.objective(X, y).item()


def test_a_growing_fit_is_resumed_bit_for_bit(tmp_path):
    X, y = wave(60, d=2)
    whole, cut, resumed = (method(X, 12, start_actions=3, reblock_at=(4,)) for _ in range(3))
    fit(whole, X, y, num_steps=24)
    calls = itertools.count()

    def stop(_):
        if next(calls) == 13:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        fit(cut, X, y, num_steps=24, checkpoint_dir=tmp_path, checkpoint_steps=1, callback=stop)
    fit(resumed, X, y, num_steps=24, checkpoint_dir=tmp_path)
    assert_same_tensors(resumed.state_dict(), whole.state_dict())


def test_a_posterior_with_more_actions_than_were_trained():
    X, y = wave(120, d=2)
    m = method(X, 10)
    fit(m, X, y, num_steps=20)
    state = {name: value.clone() for name, value in m.state_dict().items()}
    X_new = wave(30, d=2)[0] + 0.1
    few, same = m.condition(X, y), m.condition(X, y, num_actions=40, refit_steps=0)
    assert same.num_actions == 40
    assert bool((same.variance(X_new) <= few.variance(X_new) + 1e-12).all())
    assert same.prior.noise.noise.item() == m.prior.noise.noise.item()
    many = m.condition(X, y, num_actions=40)
    assert many.prior.noise.noise.item() < m.prior.noise.noise.item()  # less is left to the noise
    assert_same_tensors(m.state_dict(), state)
    with pytest.raises(ValueError, match="num_actions is 4, expected at least the 10 trained"):
        m.condition(X, y, num_actions=4)
    with pytest.raises(ValueError, match="num_actions is 121"):
        m.condition(X, y, num_actions=121)


def test_only_blocks_can_grow():
    X, y = wave(20)
    dense_actions = DenseActions(torch.eye(20, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="grow_to needs BlockActions"):
        CaGPOpt(GP(Scale(Matern32(1))), dense_actions, grow_to=5)
    with pytest.raises(ValueError, match="num_actions needs BlockActions"):
        CaGPOpt(GP(Scale(Matern32(1))), dense_actions).condition(X, y, num_actions=5)
    with pytest.raises(ValueError, match="grow_to is 21"):
        CaGPOpt(GP(Scale(Matern32(1))), random_actions(X, 3), grow_to=21)


# --- results in files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_is_plain_values_in_a_file_and_back(interrupted):
    def stop(step: Step) -> None:
        if interrupted and step.number == 3:
            raise KeyboardInterrupt

    result = fit(Bowl(), *NOTHING, num_steps=5, callback=stop)
    state = json.loads(json.dumps(result.state()))
    names = ["steps", "reason", "best_step", "best_value", "seconds", "failures", "findings", "interrupted"]
    assert list(state) == names  # what files of earlier versions hold, too
    back = FitResult.from_state(state)
    assert back.steps == result.steps
    assert str(back) == str(result)
    assert back.interrupted is result.interrupted is interrupted
    assert back.status is (FitStatus.INTERRUPTED if interrupted else FitStatus.UNKNOWN)
    assert result.status is (FitStatus.INTERRUPTED if interrupted else FitStatus.ALL_STEPS)
    assert result.status == ("interrupted" if interrupted else "all steps")  # a string as well
