"""The leave-one-out loss of shared actions is what deleting each row by hand gives."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from inference_problems import assert_close
from problems import Problem, recipes, well_conditioned
from torch import Tensor

from cagp import GP, CaGPOpt, CholeskyGP, ConstantMean, GaussianNoise, KnownNoise, fit, start_from_data
from cagp.actions import Actions, BlockActions, DenseActions
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.losses import leave_one_out_nll
from cagp.training import Batch

STREAMED = 2**12  # bytes: a few rows of KS at a time


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def wave(n=40, dtype=torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and known noise variances."""
    g = seeded(0)
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype), (0.02 + 0.3 * torch.rand(n, generator=g, dtype=torch.float64)).to(dtype)


def make_prior() -> GP:
    return GP(Scale(Matern32(2, 0.9), 1.2), ConstantMean(0.1), GaussianNoise(0.05))


def by_deletion(prior: GP, S: np.ndarray, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> np.ndarray:
    """-log p(y_r | S₋ᵀy) of each row, from the posterior of the actions with row r set to zero."""
    noise = oracle.noise_vector(prior.noise, len(y), row_noise)
    found = []
    for r in range(len(y)):
        without = S.copy()
        without[r] = 0
        q = oracle.cagp_posterior(prior, oracle.spanning(without), X, y, X[r : r + 1], row_noise)
        prediction = oracle.Prediction(q.mean, q.variance)
        found.append(-oracle.log_predictive_densities(y[r : r + 1], prediction, noise[r : r + 1])[0])
    return np.array(found)


ACTIONS = {
    "blocks": lambda X: BlockActions.from_data(X, 9, start="random", generator=seeded(1)),
    "blocks of one row and more": lambda X: BlockActions.from_data(X, 30),
    "blocks of one row": lambda X: BlockActions.from_data(X, len(X)),
    "some rows without weight": lambda X: BlockActions.from_data(X, 5, support_size=3, generator=seeded(2)),
    "dense": lambda X: DenseActions(torch.randn(len(X), 9, generator=seeded(3), dtype=torch.float64)),
    "dense, one column a row": lambda X: DenseActions(torch.eye(len(X), dtype=torch.float64)[:, :7]),
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("known", [False, True], ids=["one noise", "noise by row"])
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_it_is_what_deleting_each_row_gives(name, known, max_bytes):
    X, y, row_noise = wave()
    row_noise = row_noise if known else None
    prior, actions = make_prior(), ACTIONS[name](X)
    expected = by_deletion(prior, oracle.action_matrix(actions), X, y, row_noise)
    with torch.no_grad():
        assert_close(leave_one_out_nll(prior, actions, X, y, row_noise, max_bytes), expected.sum())
        # An estimate from some rows is their mean, times n.
        rows = torch.tensor([3, 17, 3])
        some = leave_one_out_nll(prior, actions, X, y, row_noise, max_bytes, rows=rows)
        assert_close(some, len(y) * expected[rows].mean())


@settings(max_examples=25)
@given(recipes(kernels=("Scale(Matern32)", "Linear + Matern52"), smallest_noise=0.02, oddities=("none",), max_rows=15))
def test_it_holds_for_any_prior_and_depends_on_the_span_alone(recipe):
    p: Problem = recipe.build()
    with torch.no_grad():
        found = leave_one_out_nll(p.prior, p.actions, p.X, p.y, p.row_noise)
        tolerance = 1e-8 if p.X.dtype == torch.float64 else 1e-4
        assert_close(found, by_deletion(p.prior, p.S, p.X, p.y, p.row_noise).sum(), tolerance)
        mix = well_conditioned(recipe.i, recipe.i, seeded(recipe.seed))
        mixed = DenseActions(torch.from_numpy(p.S) @ mix)
        assert_close(leave_one_out_nll(p.prior, mixed, p.X, p.y, p.row_noise), found, tolerance)


def test_a_square_s_is_the_exact_gp_left_one_out():
    X, y, row_noise = wave()
    left_out = CholeskyGP(make_prior()).condition(X, y, row_noise).left_out(torch.arange(40))
    assert left_out is not None
    errors, variances = left_out
    expected = 0.5 * (errors**2 / variances + torch.log(2 * math.pi * variances)).sum()
    with torch.no_grad():
        assert_close(leave_one_out_nll(make_prior(), BlockActions.from_data(X, 40), X, y, row_noise), expected)


def assert_gradient_is_the_slope(prior: GP, actions: Actions, data: tuple, step: float = 1e-5) -> None:
    parameters = [p for p in [*prior.parameters(), *actions.parameters()] if p.requires_grad]
    gradients = torch.autograd.grad(leave_one_out_nll(prior, actions, *data), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for value, slope in zip(parameter.data.view(-1), gradient.view(-1), strict=True):
            with torch.no_grad():
                value += step
                above = leave_one_out_nll(prior, actions, *data).item()
                value -= 2 * step
                below = leave_one_out_nll(prior, actions, *data).item()
                value += step
            assert float(slope) == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
@pytest.mark.parametrize("name", ["blocks of one row and more", "some rows without weight", "dense"])
def test_its_gradient_is_its_slope(name, max_bytes):
    X, y, row_noise = wave(16)
    actions = ACTIONS[name](X) if name != "blocks of one row and more" else BlockActions.from_data(X, 12)
    actions.requires_grad_(True)
    assert_gradient_is_the_slope(make_prior(), actions, (X, y, row_noise, max_bytes))


@pytest.mark.parametrize("batch_size", [None, 20])
def test_actions_and_hyperparameters_can_be_trained_with_it(batch_size):
    X, y, _ = wave(80)
    prior = start_from_data(GP(Scale(Matern32(2))), X, y)
    method = CaGPOpt.from_data(prior, X, 10, loss="loo", batch_size=batch_size, reblock_at=())
    with torch.no_grad():
        before = method.objective(X, y).item()
        assert set(method.terms(Data(X, y), Batch())) == {"loo_nll"}
    result = fit(method, X, y, num_steps=25)
    with torch.no_grad():
        after = method.objective(X, y).item()
    assert after < before - 0.1
    assert any("loss loo" in line for line in result.findings)
    expected = by_deletion(prior, oracle.action_matrix(method.actions), X, y).mean()
    assert after == pytest.approx(expected, rel=1e-8)


def test_a_row_that_is_certain_without_its_weight_has_a_finite_loss():
    X, y, _ = wave(12)
    X, y = torch.cat([X, X[:3]]), torch.cat([y, y[:3]])  # copies, of which the second carries no weight
    S = torch.eye(15, dtype=torch.float64)[:, :12]
    prior = GP(Scale(Matern32(2, 0.9), 1.2), ConstantMean(0.1), KnownNoise())
    found = leave_one_out_nll(prior, DenseActions(S), X, y, torch.full((15,), 1e-14, dtype=torch.float64))
    assert math.isfinite(found.item())
