"""What ``fit`` tells a method at every step, and what it does with an objective that is only an estimate."""

import math

import pytest
import torch
from torch import Tensor, nn

from cagp import fit
from cagp.training import Batch, FitResult, Step, StepRows, Trainable
from cagp.training.fitting import FLAT

NOTHING = (torch.zeros(1, 1), torch.zeros(1))  # the data of methods that need none


class Noted(Trainable):
    """x² plus the ``offsets`` of each call; notes what ``before_step`` is told, and then does what ``changes`` say."""

    def __init__(self, offsets: dict[int, float] | None = None, changes: dict[int, str] | None = None):
        super().__init__()
        self.x = nn.Parameter(torch.tensor(4.0, dtype=torch.float64))
        self.offsets, self.changes = offsets or {}, changes or {}
        self.visited: list[float] = []
        self.told: list[tuple[int, float, bool]] = []

    def terms(self, data, batch) -> dict[str, Tensor]:
        call = len(self.visited)
        self.visited.append(self.x.item())
        return {"square": self.x.square(), "offset": torch.tensor(self.offsets.get(call, 0.0), dtype=torch.float64)}

    def before_step(self, data, coming) -> Batch:
        self.told.append((coming.step, coming.share, coming.flat))
        return Batch(coming.part, event=self.changes.get(coming.step))


class Estimated(Noted):
    """The same, as a method whose objective is another estimate at every step."""

    def rows(self, step: int, num_rows: int) -> StepRows:
        return StepRows(stochastic=True)


# --- before a step ----------------------------------------------------------------------------------------------------


def test_a_method_is_told_the_step_and_the_share_of_steps_behind():
    method = Noted()
    fit(method, *NOTHING, num_steps=8, lr=0.01)
    assert [step for step, _, _ in method.told] == list(range(8))
    assert [share for _, share, _ in method.told] == [step / 8 for step in range(8)]


def expected_flatness(losses: list[float], window: int, changed: set[int]) -> list[bool]:
    """By the definition: two windows since the last change, the second hardly better than the first."""
    flat, since = [], 0
    for step in range(len(losses)):
        done = losses[:step]
        enough = len(done) - since >= 2 * window + 1
        if enough:
            late, before = sum(done[-window:]) / window, sum(done[-2 * window : -window]) / window
            flat.append(before - late <= FLAT * max(done[0] - late, 0.0))
        else:
            flat.append(False)
        if step in changed:
            since = step
    return flat


@pytest.mark.parametrize("changes", [{}, {30: "changed"}, {5: "changed", 47: "changed"}], ids=str)
def test_a_method_is_told_when_the_loss_is_flat_since_its_last_change(changes):
    method = Noted(changes=changes)
    result = fit(method, *NOTHING, num_steps=70, lr=0.4, window=5, schedule="constant")
    losses = [step.loss for step in result.steps]
    assert [flat for _, _, flat in method.told] == expected_flatness(losses, 5, set(changes))
    assert [bool(step.events) for step in result.steps] == [number in changes for number in range(70)]
    assert {True, False} == {flat for _, _, flat in method.told}
    for step in changes:  # the steps right after a change are not called flat, however little they gain
        assert not any(flat for _, _, flat in method.told[step + 1 : step + 11])


def test_a_falling_loss_is_not_flat():
    method = Noted()
    fit(method, *NOTHING, num_steps=40, lr=0.05, window=5, schedule="constant")  # x falls from 4 to about 2
    assert not any(flat for _, _, flat in method.told)


# --- stochastic objectives --------------------------------------------------------------------------------------------


def test_the_lowest_loss_decides_unless_the_objective_is_an_estimate():
    for kind, kept in ((Noted, 3), (Estimated, -1)):
        method = kind(offsets={3: -1000.0})  # the fourth of the losses is low, by luck
        result = fit(method, *NOTHING, num_steps=20, lr=0.1)
        assert method.x.item() == method.visited[kept]
        assert result.best_step == (4 if kind is Noted else 21)
    assert result.best_value == method.x.item() ** 2  # of the last parameters


def test_last_parameters_without_a_finite_loss_are_not_kept():
    method = Estimated(offsets={20: math.nan})  # the look at the parameters after the last of 20 steps
    result = fit(method, *NOTHING, num_steps=20, lr=0.1)
    assert method.x.item() == method.visited[19]
    assert result.best_step == 20


def scored(scores: list[float]) -> tuple[Estimated, list[float], FitResult]:
    method, seen = Estimated(), []

    def evaluate() -> dict[str, float]:
        seen.append(method.x.item())
        return {"score": scores[len(seen) - 1]}

    options = {"num_steps": 30, "evaluate_every": 10, "lr": 0.1, "monitor": "score"}
    return method, seen, fit(method, *NOTHING, evaluate=evaluate, **options)


@pytest.mark.parametrize("best", [0, 1, 2])
def test_a_monitored_metric_chooses_for_an_estimated_objective_too(best):
    scores = [3.0, 3.0, 3.0]
    scores[best] = 1.0
    method, seen, result = scored(scores)
    assert method.x.item() == seen[best]
    assert result.best_value == 1.0
    assert result.best_step == 10 * (best + 1) + 1


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_a_result_says_whether_ctrl_c_ended_the_fit(tmp_path):
    def interrupt(step: Step) -> None:
        if step.number == 6:
            raise KeyboardInterrupt

    cut = fit(Noted(), *NOTHING, num_steps=10, callback=interrupt, checkpoint_dir=tmp_path)
    assert cut.interrupted
    assert len(cut.steps) == 6
    resumed = fit(Noted(), *NOTHING, num_steps=10, checkpoint_dir=tmp_path)
    assert not resumed.interrupted
    assert len(resumed.steps) == 10
    for options in ({"max_time": 1e-9}, {"min_improvement": 1.0, "window": 1}):
        assert not fit(Noted(), *NOTHING, num_steps=10, **options).interrupted
    assert not fit(Noted(offsets={0: math.nan}), *NOTHING, num_steps=10).interrupted
