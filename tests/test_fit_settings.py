"""Optimisers, settings and presets of a fit, what it shows, and its result in a file."""

import itertools
import json
import math

import pytest
import torch
from fit_problems import NOTHING, Bowl, method, wave

from cagp import GP, ConstantMean, GaussianNoise, fit
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.parameters import named_values
from cagp.training import PRESETS, Batch, FitResult, FitStatus, Settings, Step

pytestmark = pytest.mark.usefixtures("global_generator_stays")


# --- optimisers and settings ------------------------------------------------------------------------------------------


@pytest.mark.slow
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


# --- results in files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_result_is_plain_values_in_a_file_and_back(interrupted):
    def stop(step: Step) -> None:
        if interrupted and step.number == 3:
            raise KeyboardInterrupt

    result = fit(Bowl(), *NOTHING, num_steps=5, callback=stop)
    state = json.loads(json.dumps(result.state()))
    names = ["steps", "reason", "best_step", "best_value", "seconds", "failures", "findings", "status"]
    assert list(state) == names
    back = FitResult.from_state(state)
    assert back.steps == result.steps
    assert str(back) == str(result)
    assert back.interrupted is result.interrupted is interrupted
    assert back.status is result.status
    assert result.status is (FitStatus.INTERRUPTED if interrupted else FitStatus.ALL_STEPS)
    assert result.status == ("interrupted" if interrupted else "all steps")  # a string as well


class Valley(Bowl):
    """Rosenbrock's function: line searches look at several points."""

    def value(self, x):
        return (1 - x[0]).square() + 20 * (x[1] - x[0].square()).square()


def test_lbfgs_computes_no_loss_twice_and_takes_the_steps_of_an_optimiser_that_does():
    """A line search mostly ends at the last point that it looked at, where the next step begins."""
    valley, other = Valley(), Valley()
    result = fit(valley, *NOTHING, optimizer="lbfgs", schedule="constant", num_steps=15)
    plain = torch.optim.LBFGS([other.x], lr=1, max_iter=1, max_eval=25, line_search_fn="strong_wolfe", history_size=20)

    def closure() -> float:
        plain.zero_grad()
        loss = other.terms(Data(*NOTHING), Batch())["bowl"]
        loss.backward()
        return float(loss.detach())

    assert [step.loss for step in result.steps] == [plain.step(closure) for _ in range(15)]
    assert torch.equal(valley.visited[-1], other.x.detach())
    in_a_row = itertools.pairwise(valley.visited[:-1])  # the last one judges the end
    assert not any(torch.equal(before, after) for before, after in in_a_row)
    assert len(valley.visited) < 0.75 * len(other.visited)
