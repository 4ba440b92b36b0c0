"""A fit that is killed or interrupted goes on from its checkpoint and ends as if nothing had happened."""

import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fit_problems import (
    CHECKPOINT,
    HISTORY,
    NOTHING,
    Bowl,
    CrashError,
    assert_same_fit,
    assert_same_tensors,
    crash_at,
    history_of,
    method,
    wave,
)
from safetensors.torch import load_file
from torch import Tensor

from cagp import fit
from cagp.storage import load_state
from cagp.training import Batch, FitResult, Step
from cagp.training.fitting import KIND, VERSION

pytestmark = pytest.mark.usefixtures("global_generator_stays")

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
    ends = [load_state(folder / CHECKPOINT, KIND, VERSION) for folder in (actual, expected)]
    assert_same_tensors(ends[0]["parameters"], ends[1]["parameters"])
    for mine, other in zip(ends[0]["optimizer"]["torch"].values(), ends[1]["optimizer"]["torch"].values(), strict=True):
        assert_same_tensors(mine, other)
    assert not list(actual.glob("*.part"))


@pytest.mark.slow
def test_a_fit_killed_ten_times_ends_as_if_it_had_never_been(train_in_a_process, uninterrupted, tmp_path):
    moments = random.Random(0)
    for kill in range(10):
        stepped = kill % 2 == 1  # else while it starts or resumes, or soon after
        assert train_in_a_process(tmp_path, moments.uniform(0.0, 0.2), pause=0.03, stepped=stepped) == -9
    assert 0 < len(history_of_killed(tmp_path)) < 80  # midway
    assert train_in_a_process(tmp_path) == 0
    assert_same_files(tmp_path, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fit_killed_once_ends_as_if_it_had_never_been(seed, train_in_a_process, uninterrupted, tmp_path):
    assert train_in_a_process(tmp_path, random.Random(seed).uniform(0.0, 0.8), pause=0.02, stepped=True) == -9
    assert 0 < len(history_of_killed(tmp_path)) < 80
    assert train_in_a_process(tmp_path) == 0
    assert_same_files(tmp_path, uninterrupted)


def history_of_killed(folder: Path) -> list[str]:
    """The lines on disk, the last of which may be cut off."""
    return (folder / HISTORY).read_text().splitlines()


@pytest.mark.thinned(2)
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


@pytest.mark.thinned(2)
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
        def before_step(self, data, coming) -> Batch:
            return Batch(coming.part, event="changed" if coming.step == 2 else None)

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
