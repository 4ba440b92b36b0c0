"""Leave-one-out predictions of training rows, against posteriors that never saw the row."""

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_problems import assert_close, condition
from problems import Problem, recipes

from cagp import GP, CaGPLocal, CholeskyGP, GaussianNoise
from cagp.actions import BlockActions
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt


def table(n: int = 60, d: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.3 * torch.randn(n, generator=g, dtype=torch.float64)
    return X, y, 0.02 + 0.1 * torch.rand(n, generator=g, dtype=torch.float64)


def prior(d: int = 2, noise: float = 0.1) -> GP:
    return GP(Scale(Matern32(d, torch.full((d,), 0.9, dtype=torch.float64)), 1.4), noise=GaussianNoise(noise))


def others(n: int, row: int) -> np.ndarray:
    return np.array([i for i in range(n) if i != row])


@pytest.mark.parametrize("known", [False, True])
def test_exact_rows_are_predicted_as_by_a_fit_without_them(known):
    X, y, row_noise = table()
    row_noise = row_noise if known else None
    p = prior()
    posterior = CholeskyGP(p).condition(X, y, row_noise)
    rows = torch.tensor([3, 17, 0, 59])
    found = posterior.left_out(rows)
    assert found is not None
    for i, row in enumerate(rows.tolist()):
        rest = others(len(X), row)
        noise = None if row_noise is None else row_noise[rest]
        one = oracle.exact_posterior(p, X[rest], y[rest], X[row : row + 1], noise)
        own = oracle.noise_vector(p.noise, 1, None if row_noise is None else row_noise[row : row + 1])
        assert_close(found.error[i], np.float64(y[row]) - one.mean[0])
        assert_close(found.variance[i], one.variance[0] + own[0])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("local_scale", [None, 4.0])
def test_local_rows_are_predicted_as_by_a_fit_without_them(known, local_scale):
    X, y, row_noise = table()
    row_noise = row_noise if known else None
    method = CaGPLocal(prior(), 5, num_neighbours_predict=9, local_scale=local_scale)
    rows = torch.arange(0, 60, 7)
    found = method.condition(X, y, row_noise).left_out(rows)
    for i, row in enumerate(rows.tolist()):
        rest = others(len(X), row)
        without = method.condition(X[rest], y[rest], None if row_noise is None else row_noise[rest])
        own = None if row_noise is None else row_noise[row : row + 1]
        one = without.predict(X[row : row + 1], noise=True, row_noise=own)
        assert_close(found.error[i], y[row] - one.mean[0], 1e-9)
        assert_close(found.variance[i], one.variance[0], 1e-9)


def dense_left_out(p: Problem, near: np.ndarray, row: int) -> tuple[float, float]:
    """Error and variance of a target given its neighbours and the actions without its weight, in dense formulas."""
    without = p.S.copy()
    without[row] = 0
    span = oracle.spanning(without, np.eye(len(p.X))[:, near])
    one = oracle.cagp_posterior(p.prior, span, p.X, p.y, p.X[row : row + 1], p.row_noise)
    noise = p.noise[row]
    return float(p.y[row]) - float(one.mean[0]), float(one.variance[0]) + noise


@settings(max_examples=25)
@given(recipes(max_rows=20), st.integers(0, 6))
def test_hybrid_rows_are_predicted_without_their_weight_in_the_shared_actions(recipe, k):
    p, n = recipe.build(), recipe.n
    posterior = condition(p, min(k, n - 1), hybrid=True)
    found = posterior.left_out(torch.arange(n))
    for row in range(n):
        if not torch.isfinite(found.error[row]):
            continue
        near = np.empty(0, int)
        if posterior.num_neighbours:
            near = posterior.index.nearest(p.X[[row]], posterior.num_neighbours, left_out=torch.tensor([row]))[
                0
            ].numpy()
        error, variance = dense_left_out(p, near, row)
        assert float(found.variance[row]) == pytest.approx(variance, rel=1e-5, abs=1e-7)
        assert float(found.error[row]) == pytest.approx(error, rel=1e-5, abs=1e-5)


def test_local_scales_of_the_hybrid_are_those_of_a_fit_without_the_row():
    X, y, row_noise = table()
    p = prior()
    actions = BlockActions.from_data(
        X, 6, lengthscale=torch.full((2,), 0.9), generator=torch.Generator().manual_seed(0)
    )
    method = CaGPLocal(p, 4, num_neighbours_predict=6, shared=actions, local_scale=3.0)
    posterior = method.condition(X, y, row_noise)
    rows = torch.arange(0, 60, 9)
    found = posterior.left_out(rows)
    S = oracle.action_matrix(actions)
    noise = oracle.noise_vector(p.noise, 60, row_noise)
    for i, row in enumerate(rows.tolist()):
        near = posterior.index.nearest(X[[row]], 6, left_out=torch.tensor([row]))[0].numpy()
        without = S.copy()
        without[row] = 0
        K = oracle.kernel_matrix(p.kernel, X, X) + np.diag(noise)
        G, B, yy = without.T @ K @ without, without.T @ K[:, near], y.numpy()
        C = K[np.ix_(near, near)] - B.T @ np.linalg.solve(G, B)
        r = yy[near] - B.T @ np.linalg.solve(G, without.T @ yy)
        ratio = (3.0 + r @ np.linalg.solve(C, r)) / (3.0 + 6)
        rho = oracle.kernel_matrix(p.kernel, X[[row]], X[near[:1]])[0, 0] / 1.4
        scale = 1 + (1 - (1 - rho) ** 4) * (ratio - 1)
        _, variance = dense_left_out(Problem(p, actions, X, y, row_noise, X[:1]), near, row)
        assert float(found.variance[i]) == pytest.approx(
            scale * (variance - float(row_noise[row])) + float(row_noise[row]), rel=1e-8
        )


def test_methods_whose_posteriors_do_not_hold_targets_have_none():
    X, y, _ = table()
    assert CaGPOpt.from_data(prior(), X, 8).condition(X, y).left_out(torch.arange(3)) is None
