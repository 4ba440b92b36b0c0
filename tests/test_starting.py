"""Where hyperparameters start: read off the data, or learned from nearest neighbours for a few steps."""

import pytest
import torch

from cagp import GP, CaGPOpt, start_from_data
from cagp.kernels import Matern32, Scale
from cagp.starting import raise_noise, start_from_neighbours


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


def test_neighbours_need_more_than_one_row_and_say_so():
    with pytest.raises(ValueError, match="X"):
        start_from_neighbours(GP(Scale(Matern32(2))), torch.empty(0, 2), torch.empty(0))
