"""Training lowers the loss on the schedule it states, easy problems are learned, metrics are their definitions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor, nn

from cagp import GP, CaGPOpt, GaussianNoise, fit, metrics
from cagp.kernels import Matern32, Matern52, Scale
from cagp.training import ParameterGroup, Step, Trainable


def wave(n: int = 60, noise: float = 0.1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    X = 6 * torch.rand(n, 1, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + noise * torch.randn(n, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype)


def method(X: Tensor, num_actions: int = 12, **choices) -> CaGPOpt:
    return CaGPOpt.from_data(GP(Scale(Matern32(1))), X, num_actions, **choices)


# --- fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("loss", ["elbo", "projected"])
def test_fit_lowers_the_loss_and_reports_it(loss, dtype):
    X, y = wave(dtype=dtype)
    m = method(X, loss=loss)
    before = m.objective(X, y).item()
    result = fit(m, X, y, num_steps=40, lr=0.1)
    steps, after = result.steps, m.objective(X, y).item()
    assert steps[0].loss == before  # the loss of a step is the one before it
    assert after == result.best_value <= min(step.loss for step in steps)
    assert after < before - 0.1
    assert [step.number for step in steps] == list(range(1, 41))
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds)
    assert all(type(step.loss) is float for step in steps)


def test_the_callback_sees_every_step_as_it_is_taken():
    X, y = wave(20)
    m = method(X, 4)
    seen: list[tuple[Step, float]] = []
    steps = fit(m, X, y, num_steps=5, callback=lambda step: seen.append((step, m.prior.noise.noise.item()))).steps
    assert [step for step, _ in seen] == steps
    assert len({noise for _, noise in seen}) == 5  # called after the parameters moved


def test_fit_moves_the_hyperparameters_and_the_actions():
    X, y = wave(20)
    m = method(X, 4)
    before = {name: p.detach().clone() for name, p in m.named_parameters()}
    fit(m, X, y, num_steps=1)
    moved = {name for name, p in m.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)


def test_fixed_parameters_stay():
    X, y = wave(20)
    m = method(X, 4)
    m.prior.noise.requires_grad_(False)
    noise, lengthscale = m.prior.noise.noise.item(), m.prior.kernel.kernel.lengthscale.item()
    fit(m, X, y, num_steps=3)
    assert m.prior.noise.noise.item() == noise
    assert m.prior.kernel.kernel.lengthscale.item() != lengthscale


class Slope(Trainable):
    """An objective whose gradient is 1 in each parameter: every step of Adam is then the learning rate itself."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def terms(self, data, batch) -> dict[str, Tensor]:
        return {"first": self.first, "second": self.second}

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": ParameterGroup([self.first], 0.2), "actions": ParameterGroup([self.second], 1.0)}

    def hyperparameters(self) -> dict[str, float]:
        return {"first": self.first.item()}


def learning_rates(num_steps: int, **options) -> tuple[list[float], list[float]]:
    """The learning rates of hyperparameters and actions at every step, read off the parameters' movement."""
    m = Slope()
    positions = [(0.0, 0.0)]
    record = lambda _: positions.append((m.first.item(), m.second.item()))  # noqa: E731
    result = fit(m, torch.zeros(1, 1), torch.zeros(1), num_steps=num_steps, callback=record, **options)
    rates = -np.diff(np.array(positions), axis=0)
    recorded = [(step.lr["hyperparameters"], step.lr["actions"]) for step in result.steps]
    assert np.allclose(recorded, rates, rtol=1e-6)
    return rates[:, 0].tolist(), rates[:, 1].tolist()


def test_learning_rates_fall_linearly_to_a_tenth():
    hyperparameters, actions = learning_rates(10, lr={"hyperparameters": 0.2, "actions": 0.05})
    assert np.allclose(hyperparameters, np.linspace(0.2, 0.02, 10), rtol=1e-6)
    assert np.allclose(actions, np.linspace(0.05, 0.005, 10), rtol=1e-6)
    assert np.allclose(learning_rates(1, lr=0.2)[0], [0.2], rtol=1e-6)


def test_other_schedules_are_their_formulas():
    assert np.allclose(learning_rates(6, lr=0.2, schedule="constant")[0], 0.2, rtol=1e-6)
    progress = np.arange(6) / 5
    cosine = 0.2 * (0.5 + 0.5 * (1 + np.cos(np.pi * progress)) / 2)
    assert np.allclose(learning_rates(6, lr=0.2, schedule="cosine", schedule_end=0.5)[0], cosine, rtol=1e-6)
    warm = learning_rates(6, lr=0.3, schedule="constant", warmup_steps=2)[0]
    assert np.allclose(warm, [0.1, 0.2, 0.3, 0.3, 0.3, 0.3], rtol=1e-6)


def test_one_learning_rate_serves_all_groups():
    assert np.allclose(*learning_rates(5, lr=0.3), rtol=1e-12)


def test_a_learning_rate_of_zero_keeps_the_actions():
    assert learning_rates(3, lr={"hyperparameters": 0.3, "actions": 0.0})[1] == [0.0, 0.0, 0.0]


def test_fit_is_reproducible_and_leaves_the_global_generator_alone():
    X, y = wave(30)
    state = torch.get_rng_state()
    losses = [[step.loss for step in fit(method(X, 6), X, y, num_steps=5).steps] for _ in range(2)]
    assert losses[0] == losses[1]
    assert torch.equal(state, torch.get_rng_state())


def test_known_row_noise_is_used_in_training():
    X, y = wave(40)
    outlier = y.clone()
    outlier[::8] += 5.0
    row_noise = torch.full_like(y, 1e-4)
    row_noise[::8] = 25.0
    m = method(X, 10)
    fit(m, X, outlier, row_noise, num_steps=60)
    clean = torch.ones(40, dtype=torch.bool)
    clean[::8] = False
    assert metrics.rmse(y[clean], m.condition(X, outlier, row_noise).mean(X[clean])) < 0.3
    assert m.prior.noise.noise.item() < 0.5


# --- an easy problem --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_noise_lengthscale_and_scale_of_a_draw_from_the_prior_are_recovered():
    g = torch.Generator().manual_seed(0)
    n = 300
    X = 30 * torch.rand(n, 1, generator=g, dtype=torch.float64)
    truth = Scale(Matern52(1, 1.5), 2.0)
    root = torch.linalg.cholesky(truth(X, X).detach() + 1e-9 * torch.eye(n, dtype=torch.float64))
    y = root @ torch.randn(n, generator=g, dtype=torch.float64)
    y = y + 0.3 * torch.randn(n, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern52(1, 0.5), 0.5), noise=GaussianNoise(1.0))
    m = CaGPOpt.from_data(prior, X, 100)
    fit(m, X, y, num_steps=150, lr=0.1)
    assert prior.noise.noise.item() == pytest.approx(0.09, rel=0.4)
    assert prior.kernel.kernel.lengthscale.item() == pytest.approx(1.5, rel=0.4)
    assert prior.kernel.outputscale.item() == pytest.approx(2.0, rel=0.7)


def test_a_noisy_wave_is_predicted_with_error_bars_that_cover():
    X, y = wave(200, noise=0.2)
    X_new, y_new = X[100:], y[100:]
    m = method(X[:100], 25)
    fit(m, X[:100], y[:100], num_steps=100)
    mean, variance = m.condition(X[:100], y[:100]).predict(X_new, noise=True)
    assert metrics.rmse(y_new, mean) < 0.26
    assert 0.85 <= metrics.coverage(y_new, mean, variance) <= 1.0
    assert metrics.nll(y_new, mean, variance) < 0.1  # of the true noise: log(0.2) + 1.42 = -0.19


# --- metrics ----------------------------------------------------------------------------------------------------------


def predictions(n: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    y, mean = (3 * torch.randn(n, generator=g, dtype=torch.float64) for _ in range(2))
    return y, mean, 0.01 + 4 * torch.rand(n, generator=g, dtype=torch.float64)


def test_nll_is_the_mean_negative_log_density():
    y, mean, variance = predictions()
    expected = -stats.norm.logpdf(y.numpy(), mean.numpy(), variance.sqrt().numpy()).mean()
    assert metrics.nll(y, mean, variance) == pytest.approx(expected, rel=1e-13)


def test_rmse_is_the_root_of_the_mean_squared_error():
    y, mean = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 0.0])
    assert metrics.rmse(y, mean) == pytest.approx(math.sqrt(13 / 3), rel=1e-15)


@settings(max_examples=20)
@given(st.floats(-4, 4), st.floats(-2, 2), st.floats(0.05, 3))
def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions(y, mean, std):
    distribution = stats.norm(mean, std)
    low, high = min(y, mean - 12 * std), max(y, mean + 12 * std)
    left = integrate.quad(
        lambda x: distribution.cdf(x) ** 2, low, y, limit=200, points=[mean] if low < mean < y else None
    )
    right = integrate.quad(
        lambda x: distribution.sf(x) ** 2, y, high, limit=200, points=[mean] if y < mean < high else None
    )
    actual = metrics.crps(*(torch.tensor([v], dtype=torch.float64) for v in (y, mean, std**2)))
    assert actual == pytest.approx(left[0] + right[0], abs=1e-7)


def test_crps_is_the_expected_distance_minus_half_the_expected_spread():
    y, mean, variance = predictions(5)
    rng = np.random.default_rng(0)
    draws = rng.normal(mean.numpy(), np.sqrt(variance.numpy()), (2, 200_000, 5))
    expected = np.abs(draws[0] - y.numpy()) - 0.5 * np.abs(draws[0] - draws[1])
    standard_error = expected.mean(1).std() / math.sqrt(len(expected[:, 0]))
    assert abs(metrics.crps(y, mean, variance) - expected.mean()) < 4.5 * standard_error


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_coverage_is_the_share_of_targets_inside_the_central_interval(level):
    g = torch.Generator().manual_seed(0)
    n = 100_000
    mean, variance = torch.randn(n, generator=g, dtype=torch.float64), 0.1 + torch.rand(n, generator=g).double()
    y = mean + variance.sqrt() * torch.randn(n, generator=g, dtype=torch.float64)
    covered = metrics.coverage(y, mean, variance, level)
    assert abs(covered - level) < 4.5 * math.sqrt(level * (1 - level) / n)
    edge = stats.norm.ppf(0.5 + level / 2)
    y = torch.tensor([edge - 1e-9, edge + 1e-9, -edge + 1e-9, -edge - 1e-9], dtype=torch.float64)
    assert metrics.coverage(y, torch.zeros(4), torch.ones(4), level) == 0.5


def test_metrics_of_float32_predictions_are_computed_in_float64():
    y, mean, variance = predictions()
    narrow = y.float(), mean.float(), variance.float()
    wide = tuple(t.double() for t in narrow)
    for metric in (metrics.nll, metrics.crps, metrics.coverage):
        assert metric(*narrow) == metric(*wide)
    assert metrics.rmse(*narrow[:2]) == metrics.rmse(*wide[:2])


def test_error_bars_that_are_right_score_better_than_wider_and_narrower_ones():
    g = torch.Generator().manual_seed(0)
    mean = torch.zeros(20_000, dtype=torch.float64)
    y = torch.randn(20_000, generator=g, dtype=torch.float64)
    right = torch.ones_like(y)
    for metric in (metrics.nll, metrics.crps):
        for factor in (0.5, 2.0):
            assert metric(y, mean, right) < metric(y, mean, factor * right)
