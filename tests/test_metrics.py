"""Metrics and calibration against counting, and against quadrature of the normal density."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from cagp import metrics


def predictions(num_rows: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    mean = 3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(num_rows, generator=generator, dtype=torch.float64)
    y = mean + 1.3 * variance.sqrt() * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return y, mean, variance


def test_pit_is_the_integral_of_the_predictive_density():
    for y, mean, variance in zip(*predictions(10), strict=True):
        std = float(variance.sqrt())
        below, _ = quad(
            lambda t, m=float(mean), s=std: math.exp(-0.5 * ((t - m) / s) ** 2) / (s * math.sqrt(2 * math.pi)),
            float(mean) - 12 * std,
            float(y),
        )
        assert float(metrics.pit(y[None], mean[None], variance[None])) == pytest.approx(below, abs=1e-9)


@given(num_rows=st.integers(1, 60), num_levels=st.integers(1, 30), seed=st.integers(0, 100))
def test_calibration_counts_what_coverage_counts(num_rows, num_levels, seed):
    y, mean, variance = predictions(num_rows, seed)
    found = metrics.calibration(y, mean, variance, num_levels)
    same = metrics.calibration(y, mean, variance, list(found.levels))
    assert (list(same.coverage), same.error) == (list(found.coverage), found.error)
    levels = [(number + 1) / (num_levels + 1) for number in range(num_levels)]
    counted = [metrics.coverage(y, mean, variance, level) for level in levels]
    np.testing.assert_allclose(found.levels, levels, rtol=1e-15)
    np.testing.assert_allclose(found.coverage, counted, atol=1e-12)
    brute = sum(abs(share - level) for share, level in zip(counted, levels, strict=True)) / num_levels
    assert found.error == pytest.approx(brute, abs=1e-12)


def test_calibration_of_right_and_of_narrow_error_bars():
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(40_000, generator=generator, dtype=torch.float64)
    zero, one = torch.zeros_like(y), torch.ones_like(y)
    assert metrics.calibration(y, zero, one).error < 0.005
    narrow = metrics.calibration(y, zero, one / 4)
    assert bool((narrow.coverage < narrow.levels).all())
    assert narrow.error > 0.15
    assert metrics.pit(y, zero, one).histc(10, 0, 1).sub(4000).abs().max() < 300


@pytest.mark.usefixtures("annotations_off")
def test_calibration_needs_levels_between_zero_and_one():
    with pytest.raises(ValueError, match="levels is 0, expected at least 1"):
        metrics.calibration(*predictions(3), levels=0)
    for wrong in ([0.5, 1.0], [], 0.9):
        with pytest.raises(ValueError, match="expected probabilities between 0 and 1"):
            metrics.calibration(*predictions(3), levels=wrong)


# ---- all metrics together ----


def test_scores_are_the_metrics_one_by_one():
    y, mean, variance = predictions(200)
    found = metrics.scores(y, mean, variance)
    assert found.nll == metrics.nll(y, mean, variance)
    assert found.rmse == metrics.rmse(y, mean)
    assert found.r2 == pytest.approx(1 - float((y - mean).square().mean() / y.var(correction=0)), rel=1e-12)
    assert found.crps == metrics.crps(y, mean, variance)
    assert found.coverage == metrics.coverage(y, mean, variance)
    assert found.coverage_error == metrics.coverage_error(y, mean, variance) == abs(0.95 - found.coverage)
    assert found.width == metrics.interval_width(variance)
    assert tuple(metrics.METRICS) == metrics.Scores._fields
    assert math.isnan(metrics.scores(torch.ones(3), torch.zeros(3), torch.ones(3)).r2)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_coverage_error_is_the_distance_from_the_level(level):
    y, mean, variance = predictions(50)
    inside = [abs(t - m) <= norm.ppf(0.5 + level / 2) * math.sqrt(v) for t, m, v in zip(y, mean, variance, strict=True)]
    assert metrics.coverage_error(y, mean, variance, level) == pytest.approx(abs(level - sum(inside) / 50))


@pytest.mark.parametrize("offset", [0.0, 1e8])
@given(cuts=st.lists(st.integers(0, 50), max_size=5).map(sorted))
def test_a_sum_of_pieces_has_the_scores_of_all_rows(offset, cuts):
    y, mean, variance = predictions(50)
    y, mean, total = y + offset, mean + offset, metrics.ScoreSum()
    for rows in np.array_split(np.arange(50), cuts):
        total.add(y[rows], mean[rows], variance[rows])
    assert total.num_rows == 50
    np.testing.assert_allclose(total.scores(), metrics.scores(y, mean, variance), rtol=1e-7)


def test_a_sum_of_nothing_has_no_scores():
    total = metrics.ScoreSum()
    total.add(*(part[:0] for part in predictions(1)))
    with pytest.raises(ValueError, match="there are no rows with a known target"):
        total.scores()


def test_another_unit_only_scales_the_scores():
    y, mean, variance = predictions(60)
    found = metrics.scores(1e3 * y, 1e3 * mean, 1e6 * variance)
    usual = metrics.scores(y, mean, variance)
    np.testing.assert_allclose(usual.in_unit(1e3), found, rtol=1e-12)
    for unit in (1e-200, 1.0, 1e200):  # whose squares are not numbers any more
        y_, mean_, variance_, chosen = metrics.scaled(*((unit * part).numpy() for part in (y, mean, variance.sqrt())))
        np.testing.assert_allclose(metrics.scores(y_, mean_, variance_).in_unit(chosen), usual.in_unit(unit), rtol=1e-9)
