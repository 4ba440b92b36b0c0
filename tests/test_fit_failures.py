"""Steps that fail are taken back, and hopeless data end in usable parameters and a report."""

import math

import pytest
import torch
from fit_problems import NOTHING, Bowl, method, wave
from torch import Tensor

from cagp import GP, CaGPOpt, GaussianNoise, fit
from cagp.engine import backend_for
from cagp.kernels import Matern52, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.training import FitStatus, Step

pytestmark = pytest.mark.usefixtures("global_generator_stays")


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


@pytest.mark.thinned(3)
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


@pytest.mark.thinned(2)
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
