"""A fit stops when told to, ends with the best parameters, and says why."""

import math
import sys
import time
from itertools import pairwise

import pytest
import torch
from fit_problems import NOTHING, Bowl
from torch import Tensor

from cagp import fit
from cagp.training import FitResult, FitStatus

pytestmark = pytest.mark.usefixtures("global_generator_stays")


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
    assert result.reason == "Took all 37 steps, which made no progress: the starting values are the best."
    assert result.status is FitStatus.NO_PROGRESS


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


def test_a_step_that_gains_little_ends_the_fit():
    """``min_gain`` is in units of the loss; without it the same fit continues."""
    options = {"optimizer": "lbfgs", "schedule": "constant", "num_steps": 30}
    whole = fit(Bowl(), *NOTHING, **options)
    least = whole.steps[0].loss - whole.steps[1].loss
    short = fit(Bowl(), *NOTHING, **options, min_gain=1.01 * least)
    assert short.status is FitStatus.CONVERGED
    assert [step.loss for step in short.steps] == [step.loss for step in whole.steps[:2]]
    assert short.reason == f"Converged after 2 steps: the last step improved the loss by less than {1.01 * least:g}."
    longer = fit(Bowl(), *NOTHING, **options, min_gain=0.99 * least)
    assert len(longer.steps) > 2


def test_a_deadline_ends_a_line_search(clock):
    """The parameters are then those that the line search began with, and the first step is always whole."""
    options = {"optimizer": "lbfgs", "schedule": "constant", "num_steps": 30, "lr": 1e-3}
    free = slow_bowl(clock, 1.0)
    whole = fit(free, *NOTHING, **options)
    spent = [step.seconds for step in whole.steps]
    assert max(b - a for a, b in pairwise(spent)) > 1  # line searches of several evaluations
    for seconds in (0.5, spent[0] + 1.5, spent[2] + 1.5):
        began = clock.now
        m = slow_bowl(clock, 1.0)
        result = fit(m, *NOTHING, **options, deadline=began + seconds)
        assert clock.now - began <= max(seconds, spent[0]) + 2  # an evaluation, and that of the last parameters
        assert result.status is FitStatus.TIME_LIMIT
        assert len(result.steps) >= 1
        assert [step.loss for step in result.steps] == [step.loss for step in whole.steps[: len(result.steps)]]
