"""Kernels that do not decay learn from rows near and far, and forecast beyond the data."""

import time

import numpy as np
import pytest
import torch

from cagp import GP, CaGPRegressor, kernels, limits
from cagp.dataset import Data
from cagp.kernels import RBF, ActiveDims, Constant, Cosine, Linear, Matern12, Matern32, Periodic, Scale
from cagp.periodogram import CHANCE, peaks
from cagp.recipes import auto, exact, local
from cagp.recipes.task import Task
from cagp.training import FitResult, FitStatus

PERIOD, NOISE = 0.173, 0.2


def seasons(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A line, a season that is no sine, and noise; in years, not standardised."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(2000, 2004, n))
    wave = np.sin(2 * np.pi * x / PERIOD) + 0.4 * np.sin(4 * np.pi * x / PERIOD + 1)
    return x[:, None], 0.8 * (x - 2000) + wave + NOISE * rng.normal(size=n)


def forecast(model: CaGPRegressor, n: int) -> tuple[float, float, float]:
    """Learn from the first 80 %: the RMSE of the rest, the coverage of its 95 % intervals, and the learned period."""
    X, y = seasons(n)
    cut = int(0.8 * n)
    model.fit(X[:cut], y[:cut])
    mean, std = model.predict(X[cut:], return_std=True)
    error = np.abs(mean - y[cut:])
    (period,) = [entry["period"] for part in model.kernel_parts_ for entry in part["periods"] or []]
    return float(np.sqrt((error**2).mean())), float((error < 1.96 * std).mean()), period


def assert_good(rmse: float, coverage: float, period: float) -> None:
    assert rmse < 1.15 * NOISE
    assert 0.88 <= coverage <= 0.99
    assert period == pytest.approx(PERIOD, rel=0.01)


@pytest.fixture
def few_exact_rows(monkeypatch):
    """Exact inference on 300 rows, so that these tests take seconds."""
    monkeypatch.setattr(limits, "EXACT_ROWS", 300)


@pytest.mark.slow
def test_a_named_kernel_forecasts_a_trend_and_a_season():
    model = CaGPRegressor("exact", kernel="periodic")
    assert_good(*forecast(model, 500))
    assert "starting values of periods" in model.fit_report_


@pytest.mark.slow
@pytest.mark.usefixtures("few_exact_rows")
def test_many_rows_are_learned_from_a_sample_and_all_of_them_predict():
    model = CaGPRegressor(kernel="periodic")
    assert_good(*forecast(model, 3000))
    assert model.method_ == "exact"
    assert "Chose exact inference: the kernel links rows at any distance" in model.choice_
    assert "exact likelihood of 300 of the 2,400 rows, near and far" in model.fit_report_


@pytest.mark.slow
@pytest.mark.usefixtures("few_exact_rows")
def test_more_rows_than_exact_inference_takes_are_predicted_by_the_hybrid(monkeypatch):
    monkeypatch.setattr(auto, "MOST_EXACT", 300)
    model = CaGPRegressor(local_scale=None, kernel=Scale(Periodic(1, 0.18)) + Linear(1) + Constant())
    assert_good(*forecast(model, 3000))
    assert model.method_ == "hybrid"
    assert "never below that of the exact" in model.guarantee_


@pytest.mark.slow
@pytest.mark.usefixtures("few_exact_rows")
@pytest.mark.parametrize("method", ["local", "hybrid"])
def test_local_methods_learn_the_period_of_a_kernel_that_starts_elsewhere(method):
    """Nearest rows alone led to a period of 0.253 from such a start."""
    model = CaGPRegressor(method, kernel=Scale(Periodic(1, 0.25)) + Linear(1) + Constant(), local_scale=None)
    rmse, coverage, period = forecast(model, 1000)
    assert period == pytest.approx(PERIOD, rel=0.01)
    assert coverage >= 0.88
    if method == "hybrid":
        assert rmse < 1.2 * NOISE
    assert "exact likelihood of 300 of the 800 rows" in model.fit_report_
    assert ("Predictions use nearest rows alone" in model.fit_report_) is (method == "local")


def test_kernels_that_decay_learn_from_nearest_rows_as_before():
    X, y = seasons(200)
    model = CaGPRegressor("local", kernel="matern32", max_epochs=2).fit(X, y)
    assert "links rows at any distance" not in model.fit_report_


class Rough(kernels.Kernel):
    """exp(-r), as a user would write it: nothing says whether it decays."""

    def __init__(self, lengthscale: float):
        super().__init__()
        self.lengthscale = torch.nn.Parameter(torch.tensor(lengthscale))

    def forward(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(X.unsqueeze(-2) - Z.unsqueeze(-3)).abs().sum(-1) / self.lengthscale.to(X))


@pytest.mark.parametrize("method", ["local", "auto"])
def test_a_kernel_of_which_it_is_unknown_learns_like_one_that_decays(method):
    X, y = seasons(200)
    model = CaGPRegressor(method, kernel=Scale(Rough(0.5)), max_epochs=2).fit(X, y)
    assert "links rows at any distance" not in model.fit_report_
    assert np.isfinite(model.lengthscales_).all()


def task(X: torch.Tensor, y: torch.Tensor, kernel: kernels.Kernel, **changes) -> Task:
    values = {
        "data": Data(X, y), "kernel": kernel, "noise": None, "from_data": False, "seed": 0,
        "inputs": X.numpy(), "categorical": (), "mean": "zero", "kernels": (), "start": 1.0,
        "max_bytes": 2**26, "memory": 2**31, "max_memory": None, "max_epochs": None, "max_time": None, "folder": None,
        "verbose": False, "names": None, "points": None, "began": time.perf_counter(),
    }  # fmt: skip
    return Task(**(values | changes))


def data(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = torch.sin(20 * X[:, :1]) + 0.5 * X[:, 1:] + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    return X, y


@pytest.mark.usefixtures("few_exact_rows")
def test_nearest_rows_refine_the_parts_that_decay_and_no_others():
    X, y = data(2000)
    kernel = Scale(ActiveDims(Matern32(1, 0.5), [0])) + Linear(2) + Scale(Matern12(2, 3.0))
    whole = task(X, y, kernel, max_epochs=8)
    assert not kernel.decays(2)
    endless = kernel.endless_parameters(2)
    decaying = set(map(id, kernel.parts[1].parameters()))
    assert {id(p) for p in kernel.parameters()} - set(map(id, endless)) == decaying
    learned = local.learn_far(whole)
    assert "Nearest rows" not in " ".join(learned.notes)
    assert all(p.requires_grad for p in kernel.parameters())
    again = task(X, y, kernel, max_epochs=8)
    near = local.Neighbours(16)
    refined = local.learn_far(again, near)
    assert "Nearest rows of the whole table" in refined.notes[-1]
    with torch.no_grad():
        losses = [
            float(local.local_methods(again, each.priors, near)[0].objective(X, y[:, 0])) for each in (learned, refined)
        ]
    assert losses[1] < losses[0]
    for part in (kernel, refined.priors[0].kernel):
        assert all(p.requires_grad for p in part.parameters())
    result = refined.result
    first, last = result.steps[0].hyperparameters, result.steps[-1].hyperparameters  # of the steps on nearest rows
    moved = {name for name in first if first[name] != last[name]}
    inside = {"kernel.parts.1.outputscale", "kernel.parts.1.kernel.lengthscale"}
    assert moved == {*inside, "noise.noise"}
    assert moved < set(first)


def test_the_sample_has_near_and_far_rows_once_each():
    X = torch.linspace(0, 1, 5000, dtype=torch.float64)[:, None]
    rows = local.near_and_far(X, 400, seed=3)
    assert len(rows) == 400 == len(rows.unique())
    gaps = rows.diff()
    assert int((gaps == 1).sum()) > 150  # groups of neighbours
    assert int(gaps.max()) < 400  # no part of the table is left out
    assert torch.equal(rows, local.near_and_far(X, 400, seed=3))
    assert not torch.equal(rows, local.near_and_far(X, 400, seed=4))
    duplicates = torch.zeros(50, 1, dtype=torch.float64)
    assert len(local.near_and_far(duplicates, 30, 0).unique()) == 30


def test_starts_are_tried_for_periods_that_are_trained():
    X, y = data(600)
    kernel = ActiveDims(Periodic(1, 1.0), [0]) * RBF(2) + Cosine(2, 50.0)
    starts = exact.period_starts(kernel, X, y)
    assert starts[0] == []
    assert 3 <= len(starts) <= exact.MOST_STARTS
    truth = 2 * torch.pi / 20
    assert any(abs(float(period[0]) / truth - 1) < 0.02 for start in starts for _, period in start)
    kernel.requires_grad_(False)
    assert exact.period_starts(kernel, X, y) == [[]]
    assert exact.period_starts(Scale(RBF(2)), X, y) == [[]]


@pytest.mark.slow
def test_the_better_start_is_kept_and_a_short_time_limit_is_obeyed():
    X, y = data(300)
    kernel = Scale(ActiveDims(Periodic(1, 0.5), [0])) + Linear(2)
    given = task(X, y, kernel)
    priors, notes = exact.start_of_periods(given, given.priors())
    assert "Compared" in notes[0]
    assert priors[0].kernel.parts[0].kernel.kernel.period.item() == pytest.approx(2 * torch.pi / 20, rel=0.01)
    slow = task(X, y, kernel, max_time=1e-6)
    assert len(local.learn_far(slow).result.steps) <= 1


def test_half_periods_are_tried_a_few_times_whatever_the_optimiser_does(monkeypatch):
    """A period that stays half is halved again, until the shortest; one that comes back is given up at once."""
    X, y = data(60)
    kernel = Scale(ActiveDims(Periodic(1, 1.0), [0]))
    for back, times in ((1.0, exact.MOST_HALVINGS), (2.0, 1)):
        names = []

        def train(self, method, name, back=back, names=names, **changes):
            names.append(name)
            if name.startswith("half"):
                part = method.parts[0].prior.kernel.kernel.kernel
                part.period = back * part.period.detach()
            return FitResult([], "", 0, 1.0, 0.0, [], [], FitStatus.ALL_STEPS)

        monkeypatch.setattr(Task, "run", train)
        given = task(X, y, kernel)
        exact.start_of_periods(given, given.priors())
        assert sum(name.startswith("half") for name in names) == times
        assert len(set(names)) == len(names)  # each has a folder of its own


def test_shared_actions_are_single_rows_where_blocks_average_the_season_away():
    X = torch.linspace(0, 1, 2000, dtype=torch.float64)[:, None]
    y = torch.sin(2 * torch.pi * X / 0.01)
    for period, words in ((0.01, "a row in each"), (5.0, "equal weights")):
        kernel = Scale(Periodic(1, period))
        actions, said = local.far_actions(task(X, y, kernel), GP(kernel), 50)
        assert said.startswith(words)
        assert actions.num_actions == 50


@pytest.mark.slow
def test_a_killed_fit_resumes_to_the_same_bits(tmp_path):
    X, y = seasons(150)
    models = []
    for _ in range(2):  # the second finds the checkpoints of the first
        model = CaGPRegressor("local", kernel="periodic", max_epochs=3, checkpoint_dir=tmp_path)
        models.append(model.fit(X, y).predict(X))
    plain = CaGPRegressor("local", kernel="periodic", max_epochs=3).fit(X, y).predict(X)
    np.testing.assert_array_equal(models[0], models[1])
    np.testing.assert_array_equal(models[0], plain)


class TestPeriodogram:
    def test_it_finds_the_period_below_noise_and_above_a_trend(self):
        X, y = seasons(2000)
        y = y + np.random.default_rng(1).normal(size=2000)
        found = peaks(torch.tensor(X[:, 0]), torch.tensor(y), 2)
        assert found[0].period == pytest.approx(PERIOD, rel=0.01)
        assert found[0].by_chance < 1e-6
        assert found[0].share > found[1].share

    def test_shares_are_those_of_least_squares(self):
        g = torch.Generator().manual_seed(0)
        x = torch.rand(80, generator=g, dtype=torch.float64)
        y = torch.cos(40 * x) + torch.randn(80, generator=g, dtype=torch.float64)
        (peak,) = peaks(x, y)
        trend = torch.stack([x**0, x, x**2], 1)
        y = y - trend @ torch.linalg.lstsq(trend, y[:, None]).solution[:, 0]
        phase = 2 * torch.pi * (x - x.min()) / peak.period
        wave = torch.stack([x**0, torch.cos(phase), torch.sin(phase)], 1)
        left = y - wave @ torch.linalg.lstsq(wave, y[:, None]).solution[:, 0]
        assert peak.share == pytest.approx(1 - float(left.var() / y.var()), rel=1e-8)

    def test_noise_has_no_period_and_few_values_have_none_at_all(self):
        g = torch.Generator().manual_seed(0)
        by_chance = [
            peaks(torch.rand(100, generator=g).double(), torch.randn(100, generator=g).double())[0].by_chance
            for _ in range(60)
        ]
        assert sum(p < CHANCE for p in by_chance) <= 4
        assert peaks(torch.tensor([0.0, 1.0] * 50), torch.randn(100, generator=g)) == []
        assert peaks(torch.ones(100), torch.randn(100, generator=g)) == []
