"""The noise that suits a method: raised by its loss before training, calibrated on held-out rows after it."""

import math

import pytest
import torch
from test_starting import data, loss, noise_of

from cagp import GP, SGPR, CaGPOpt, GaussianNoise, KnownNoise, fit, metrics, start_from_data
from cagp.kernels import Matern32, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import MultiTarget
from cagp.starting import calibrate_noise, raise_noise


@pytest.mark.parametrize("make", [lambda p, X: CaGPOpt.from_data(p, X, 10), lambda p, X: SGPR.from_data(p, X, 10)])
def test_noise_is_raised_to_where_the_loss_is_lowest(make):
    X, y = data(noise=0.0)
    method = make(start_from_data(GP(Scale(Matern32(3)), noise=GaussianNoise(1e-5)), X, y), X)
    method.prior.noise.noise = 1e-5
    before = loss(method, X, y)
    raise_noise(method, X, y)
    raised, lowest = noise_of(method.prior), loss(method, X, y)
    assert lowest < before
    assert math.log(raised / 1e-5, 4) == pytest.approx(round(math.log(raised / 1e-5, 4)), abs=1e-6)
    for factor in (0.25, 4.0):
        method.prior.noise.noise = factor * raised
        assert loss(method, X, y) > lowest


def test_noise_that_is_right_or_not_trained_stays():
    X, y = data()
    method = CaGPOpt.from_data(start_from_data(GP(Scale(Matern32(3))), X, y), X, 40, reblock_at=())
    fit(method, X, y, num_steps=150)
    found = method.prior.noise.noise.detach().clone()
    raise_noise(method, X, y)
    assert torch.equal(method.prior.noise.noise.detach(), found)
    method.prior.noise.noise = 1e-5
    method.prior.noise.requires_grad_(False)
    raise_noise(method, X, y)
    assert noise_of(method.prior) == pytest.approx(1e-5)
    known = CaGPOpt.from_data(GP(Scale(Matern32(3)), noise=KnownNoise()), X, 10)
    raise_noise(known, X, y, torch.ones_like(y))  # nothing to raise


def test_a_loss_that_cannot_be_computed_is_no_reason_to_stop(monkeypatch):
    """Twenty equal rows, far too little noise: factorisations fail until there is more of it."""
    X = torch.zeros(20, 1)
    y = torch.randn(20, generator=torch.Generator().manual_seed(0))
    method = CaGPOpt.from_data(GP(Scale(Matern32(1)), noise=GaussianNoise(1e-30, noise_floor=0.0)), X, 20)
    monkeypatch.setattr("cagp.linalg.JITTERS", (0.0,))
    with pytest.raises(NotPositiveDefiniteError):
        loss(method, X, y)
    raise_noise(method, X, y)
    assert noise_of(method.prior) > 0.05
    assert math.isfinite(loss(method, X, y))


def test_several_targets_have_their_noises_raised_one_after_the_other():
    X, y = data(noise=0.0)
    targets = torch.stack([y, torch.randn(len(y), generator=torch.Generator().manual_seed(2), dtype=y.dtype)], dim=1)
    kernel = Scale(Matern32(3))
    priors = [start_from_data(GP(kernel), X, y), GP(kernel)]
    first = CaGPOpt.from_data(priors[0], X, 40)
    both = MultiTarget([first, CaGPOpt(priors[1], first.actions)])
    for prior in priors:
        prior.noise.noise = 1e-4
    raise_noise(both, X, targets)
    smooth, rough = (noise_of(prior) for prior in priors)
    assert rough > 3 * smooth


# ---- calibration ----


def held_out_nll(method, X, y, X_held_out, y_held_out):
    return metrics.nll(y_held_out, *method.condition(X, y).predict(X_held_out, noise=True))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0.01, 1.0, 30.0])
def test_calibration_finds_the_noise_that_held_out_rows_ask_for(wrong):
    X, y = data(600)
    train, rest = (X[:500], y[:500]), (X[500:], y[500:])
    method = CaGPOpt.from_data(start_from_data(GP(Scale(Matern32(3))), *train), train[0], 60, reblock_at=())
    fit(method, *train, num_steps=60)
    learned = noise_of(method.prior)
    method.prior.noise.noise = wrong * learned
    before = held_out_nll(method, *train, *rest)
    calibrate_noise(method, *train, *rest)
    found, after = noise_of(method.prior), held_out_nll(method, *train, *rest)
    assert after <= before
    assert (after < before) == (found != pytest.approx(wrong * learned, rel=1e-9))
    steps = math.log(found / (wrong * learned), 2**0.5)
    assert steps == pytest.approx(round(steps), abs=1e-6)
    for factor in (2**0.5, 0.5**0.5):
        method.prior.noise.noise = factor * found
        assert held_out_nll(method, *train, *rest) >= after


def test_calibration_undoes_what_the_elbo_adds_to_the_noise():
    """Few actions and no noise at all: the loss wants more noise than predictions need."""
    X, y = data(600, num_dims=1, noise=0.0)
    train, rest = (X[:500], y[:500]), (X[500:], y[500:])
    method = CaGPOpt.from_data(start_from_data(GP(Scale(Matern32(1))), *train), train[0], 20)
    fit(method, *train, num_steps=120)
    learned, before = noise_of(method.prior), held_out_nll(method, *train, *rest)
    calibrate_noise(method, *train, *rest)
    assert noise_of(method.prior) < 0.75 * learned
    assert held_out_nll(method, *train, *rest) < before - 0.02


def test_calibration_stays_above_the_floor():
    X, y = data(60, num_dims=1, noise=0.0)
    method = CaGPOpt.from_data(GP(Scale(Matern32(1)), noise=GaussianNoise(0.011, noise_floor=0.01)), X[:50], 50)
    calibrate_noise(method, X[:50], y[:50], X[50:], y[50:])
    assert noise_of(method.prior) > 0.01
