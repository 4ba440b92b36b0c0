"""``max_time`` bounds the whole fit: on a clock that only the work itself moves, so that no machine is too busy."""

import math
import time

import lightgbm
import numpy as np
import pytest
import torch
from test_estimators import SMALL, used_by

from cagp import GP, CaGPOpt, CaGPRegressor, GaussianNoise, fit, limits
from cagp.kernels import Linear, Matern32, Scale
from cagp.methods import CGGP, SGPR, SVGP, CaGPCG, CaGPLocal, CholeskyGP
from cagp.recipes import direct, opt, trials
from cagp.recipes.table import RECIPES
from cagp.recipes.task import Task
from cagp.starting import calibrate_noise, raise_noise
from cagp.training import FitStatus, fitting

STEP, CONDITION, SCORE, PER_SCALE_ROW, ROUND = 0.25, 0.3, 0.3, 3e-4, 5e-3
LINE_SEARCH = 26
"""Evaluations of a step of L-BFGS, at most: only the first one is not cut short."""

PER_CHOICE_ROW = 0.02
"""Of the choice of inducing points: too much for all rows."""


class Clock:
    """Seconds that only ``spend`` moves."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def costs(self, monkeypatch, owner, name: str, seconds) -> None:
        """From now on, a call takes this many seconds."""
        call = getattr(owner, name)

        def spend(*arguments, **choices):
            result = call(*arguments, **choices)
            self.now += seconds(choices) if callable(seconds) else seconds
            return result

        monkeypatch.setattr(owner, name, spend)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """A clock on which each part of a fit has its price."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    clock.costs(monkeypatch, fitting._Run, "_loss_and_gradient", STEP)
    for method in (CaGPLocal, CaGPOpt, SVGP, SGPR, CGGP, CaGPCG):
        clock.costs(monkeypatch, method, "posterior", CONDITION)
    posterior = CholeskyGP.posterior

    def conditioned(self, data):
        clock.now += CONDITION * (data.num_rows / 200) ** 3
        return posterior(self, data)

    monkeypatch.setattr(CholeskyGP, "posterior", conditioned)
    clock.costs(monkeypatch, opt, "held_out_nll", SCORE)
    clock.costs(monkeypatch, trials, "leave_out", SCORE)
    clock.costs(monkeypatch, trials.HeldOutRows, "_scores", SCORE)
    clock.costs(
        monkeypatch, CaGPLocal, "choose_local_scale", lambda choices: PER_SCALE_ROW * choices.get("num_rows", 5000)
    )
    clock.costs(monkeypatch, lightgbm.Booster, "update", ROUND)
    choose = direct.choose_inducing_points

    def chosen(prior, X, *rest):
        clock.now += PER_CHOICE_ROW * len(X)
        return choose(prior, X, *rest)

    monkeypatch.setattr(direct, "choose_inducing_points", chosen)
    return clock


def table(num_rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 2))
    return X, np.sin(2 * X[:, 0]) + (X[:, 1] > 0) + 0.1 * rng.normal(size=num_rows)


def elapsed(clock: Clock, model, X, y) -> float:
    start = clock.now
    model.fit(X, y)
    return clock.now - start


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mean", ["auto", "trees"])
@pytest.mark.parametrize("max_time", [3.0, 12.0])
@pytest.mark.parametrize("method", [*RECIPES, "few rows"])
def test_the_whole_fit_ends_in_time(method, max_time, mean, clock, monkeypatch):
    """Within a tenth, or one step of training with the posterior that follows."""
    X, y = table()
    monkeypatch.setattr(limits, "EXACT_ROWS", 1000 if method == "few rows" else 100)
    method = "auto" if method == "few rows" else method
    model = CaGPRegressor(method, max_time=max_time, mean=mean, **used_by(method, **SMALL))
    spent = elapsed(clock, model, X, y)
    is_first = len(model.fit_result_.steps) < 2  # whose line search is not cut short
    one_step = LINE_SEARCH * STEP if model.method_ == "exact" and is_first else STEP
    assert spent <= max_time + max(0.1 * max_time, one_step + 2 * CONDITION)
    assert np.isfinite(model.predict(X, return_std=True)).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", ["auto", "local", "opt", "exact"])
def test_the_time_is_used(method, clock, monkeypatch):
    """A limit that allows everything changes nothing; one that does not is mostly spent on training."""
    X, y = table()
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    choices = {"max_epochs": 60, **used_by(method, **SMALL)}
    free = elapsed(clock, CaGPRegressor(method, **choices), X, y)
    assert elapsed(clock, CaGPRegressor(method, max_time=100 * free, **choices), X, y) <= 1.1 * free
    half = CaGPRegressor(method, max_time=free / 2, **choices)
    assert elapsed(clock, half, X, y) > 0.2 * free
    assert len(half.fit_result_.steps) > 3


def test_several_targets_alone_share_the_time(clock, monkeypatch):
    X, y = table()
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    both = np.stack([y, -y, y**2], 1)
    both[:3, 0], both[3:6, 1], both[6:9, 2] = np.nan, np.nan, np.nan
    model = CaGPRegressor("local", n_neighbors=8, max_time=18.0)
    assert elapsed(clock, model, X, both) <= 19.8
    counts = [len(result.steps) for result in model.fit_results_]
    assert min(counts) > 0.5 * max(counts)


def test_without_time_every_target_has_one_scale(monkeypatch):
    """A local scale is left out for each target, whatever came of the one before."""
    X, y = table()
    monkeypatch.setattr(Task, "time_left", lambda _: 1e-9)
    model = CaGPRegressor("local", n_neighbors=8, max_epochs=2, max_time=1000.0).fit(X, np.stack([y, -y], 1))
    assert model.fit_report_.count("no time was left to choose a local one") == 2
    assert np.isfinite(model.predict(X, return_std=True)).all()


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 90])
def test_what_was_not_tried_is_listed(num_rows, clock, monkeypatch):
    X, y = table(num_rows)
    monkeypatch.setattr(limits, "EXACT_ROWS", 100)
    choices = {"n_neighbors": 8, "n_actions": 8}
    everything = [trial["model"] for trial in CaGPRegressor(**choices).fit(X, y).choices_]
    everything = [
        model for model in everything if ", averaged with " not in model
    ]  # averages are of models that were tried
    short = CaGPRegressor(max_time=4.0, **choices).fit(X, y)
    left = [trial for trial in short.choices_ if trial["outcome"] == "not tried: the time limit"]
    assert left
    assert all(set(trial) == {"model", "outcome", "target"} for trial in left)
    assert len(short.choices_) == len(everything)
    assert f"{left[0]['model']}: not tried: the time limit" in short.fit_report_
    if num_rows == 200:
        assert "the time limit does not allow shared actions to be compared" in short.choice_


def test_a_kernel_that_does_not_decay(clock, monkeypatch):
    X, y = table()
    for rows, method in ((1000, "auto"), (100, "local"), (100, "hybrid")):
        monkeypatch.setattr(limits, "EXACT_ROWS", rows)
        kernel = Scale(Matern32(2)) + Scale(Linear(2))
        model = CaGPRegressor(method, kernel=kernel, max_time=6.0, **used_by(method, **SMALL))
        assert elapsed(clock, model, X, y) <= 6.0 + LINE_SEARCH * STEP + 2 * CONDITION


# ---- the loop of steps ----


def problem() -> tuple[CaGPOpt, torch.Tensor, torch.Tensor]:
    X, y = (torch.from_numpy(part) for part in table(80))
    return CaGPOpt.from_data(GP(Scale(Matern32(2)), noise=GaussianNoise(1e-4)), X, 8), X, y


def test_evaluations_count_for_the_deadline(clock):
    method, X, y = problem()

    def evaluate():
        clock.now += 10.0
        return {"nll": 1.0}

    result = fit(method, X, y, num_steps=100, evaluate=evaluate, evaluate_every=2, deadline=clock.now + 25.0)
    assert result.status is FitStatus.TIME_LIMIT
    assert len(result.steps) == 6  # three evaluations after two steps each: 31.5 s
    assert "time limit after 6 steps" in result.reason
    method, X, y = problem()
    limited = fit(method, X, y, num_steps=20, evaluate=evaluate, evaluate_every=2, max_time=25.0)
    assert len(limited.steps) == 20  # while max_time of one fit is training alone, as documented


def test_the_first_step_is_always_taken(clock):
    method, X, y = problem()
    result = fit(method, X, y, num_steps=10, deadline=clock.now - 1.0)
    assert len(result.steps) == 1
    assert math.isfinite(result.steps[0].loss)


def noise_of(method) -> float:
    return method.prior.noise.noise.item()


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_noise_is_tuned_until_the_time_is_up(allowed, clock, monkeypatch):
    method, X, y = problem()
    start = noise_of(method)
    clock.costs(monkeypatch, CaGPOpt, "terms", 1.0)
    # The first evaluation is of the noise as it is, each further one of four times as much.
    raise_noise(method, X, y, until=clock.now + allowed + 0.5)
    assert noise_of(method) == pytest.approx(start * 4 ** max(0, allowed))
    free, *_ = problem()
    raise_noise(free, X, y)
    assert noise_of(free) > noise_of(method)


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_noise_is_calibrated_until_the_time_is_up(allowed, clock):
    _, X, y = problem()
    method = CaGPOpt.from_data(GP(Scale(Matern32(2)), noise=GaussianNoise(0.9)), X[:60], 60)
    train, held = slice(0, 60), slice(60, 80)
    began = clock.now
    until = clock.now + CONDITION * (allowed - 0.5)
    calibrate_noise(method, X[train], y[train], X[held], y[held], until=until)
    assert clock.now - began <= CONDITION * (allowed + 1)
    assert (noise_of(method) == pytest.approx(0.9)) == (allowed <= 1)


# ---- noise floors ----


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("dtype", "floor"), [("float64", 1e-9), ("float32", 1e-6)])
@pytest.mark.parametrize("method", RECIPES)
def test_the_noise_floor_is_that_of_the_dtype(method, dtype, floor, monkeypatch):
    """Whatever the method, and whether it is chosen for few rows or for many."""
    X, y = table(120)
    for rows in (100, 1000) if method in ("auto", "opt") else (1000,):
        monkeypatch.setattr(limits, "EXACT_ROWS", rows)
        model = CaGPRegressor(method, dtype=dtype, max_epochs=2, **used_by(method, **SMALL)).fit(
            X, np.stack([y, -y], 1)
        )
        for posterior in model.posteriors_:
            assert posterior.prior.noise.noise_floor == floor
            assert posterior.X.dtype == getattr(torch, dtype)
