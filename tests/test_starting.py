"""Where hyperparameters start: read off the data, or learned from nearest neighbours for a few steps."""

import math

import pytest
import torch

from cagp import GP, SGPR, CaGPOpt, GaussianNoise, KnownNoise, fit, raise_noise, start_from_data, start_from_neighbours
from cagp.kernels import Matern32, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import Several


def data(num_rows=400, num_dims=3, noise=0.1, dtype=torch.float64):
    """Targets that depend on the first input alone."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, num_dims, generator=generator, dtype=dtype)
    y = torch.sin(3 * X[:, 0]) + noise * torch.randn(num_rows, generator=generator, dtype=dtype)
    return X, y


def noise_of(prior):
    return prior.noise.noise.item()


def loss(method, X, y):
    with torch.no_grad():
        return float(method.objective(X, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours_tell_which_inputs_matter_and_how_large_the_noise_is(dtype):
    X, y = data(dtype=dtype)
    prior = start_from_neighbours(GP(Scale(Matern32(3))), X, y)
    lengthscale = prior.kernel.kernel.lengthscale
    assert lengthscale[1:].min() > 5 * lengthscale[0]
    assert 0.5 * 0.1 < noise_of(prior) ** 0.5 < 2 * 0.1


def test_a_fit_begins_lower_after_neighbours_than_after_the_data_alone():
    X, y = data()
    losses = []
    for start in (start_from_data, start_from_neighbours):
        method = CaGPOpt.from_data(start(GP(Scale(Matern32(3))), X, y), X, 60, reblock_at=())
        raise_noise(method, X, y)
        losses.append(loss(method, X, y))
    assert losses[1] < losses[0] - 0.1


def test_the_same_seed_gives_the_same_start_and_leaves_global_state_alone():
    X, y = data(1500)  # more than a step draws
    state = torch.random.get_rng_state()
    starts = [start_from_neighbours(GP(Scale(Matern32(3))), X, y, num_steps=10, seed=seed) for seed in (1, 1, 2)]
    first, second, other = (start.kernel.kernel.lengthscale.detach() for start in starts)
    assert torch.equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(first, other)


def test_known_noise_of_rows_is_taken_along():
    X, y = data(noise=0.0)
    y = y + torch.randn(len(y), generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    with_noise = start_from_neighbours(GP(Scale(Matern32(3))), X, y, torch.ones_like(y))
    without = start_from_neighbours(GP(Scale(Matern32(3))), X, y)
    assert noise_of(with_noise) < 0.5 * noise_of(without)


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
    monkeypatch.setattr("cagp.linalg.dense.LARGEST_JITTER", 0.0)
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
    both = Several([first, CaGPOpt(priors[1], first.actions)])
    for prior in priors:
        prior.noise.noise = 1e-4
    raise_noise(both, X, targets)
    smooth, rough = (noise_of(prior) for prior in priors)
    assert rough > 3 * smooth


def test_neighbours_need_more_than_one_row_and_say_so():
    with pytest.raises(ValueError, match="X"):
        start_from_neighbours(GP(Scale(Matern32(2))), torch.empty(0, 2), torch.empty(0))
