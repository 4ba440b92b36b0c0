"""Calibration of predictive distributions against counting, and against quadrature of the normal density."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

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
    levels = [(number + 1) / (num_levels + 1) for number in range(num_levels)]
    counted = [metrics.coverage(y, mean, variance, level) for level in levels]
    np.testing.assert_allclose(found.levels, levels, rtol=1e-15)
    np.testing.assert_allclose(found.observed, counted, atol=1e-12)
    brute = sum(abs(share - level) for share, level in zip(counted, levels, strict=True)) / num_levels
    assert found.error == pytest.approx(brute, abs=1e-12)


def test_calibration_of_right_and_of_narrow_error_bars():
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(40_000, generator=generator, dtype=torch.float64)
    zero, one = torch.zeros_like(y), torch.ones_like(y)
    assert metrics.calibration(y, zero, one).error < 0.005
    narrow = metrics.calibration(y, zero, one / 4)
    assert bool((narrow.observed < narrow.levels).all())
    assert narrow.error > 0.15
    assert metrics.pit(y, zero, one).histc(10, 0, 1).sub(4000).abs().max() < 300


def test_calibration_needs_a_level():
    with pytest.raises(ValueError, match="num_levels is 0, expected at least 1"):
        metrics.calibration(*predictions(3), num_levels=0)
