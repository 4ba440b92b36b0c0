"""The local scale: error bars that follow the neighbours, where that predicts better."""

import math

import numpy as np
import oracle
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from local_problems import assert_close, condition, draw_neighbours
from problems import recipes
from torch import Tensor

from cagp import GP, CaGPLocal, GaussianNoise, metrics
from cagp.actions import BlockActions, Partition
from cagp.comparison import MARGINS, Gains
from cagp.kernels import RBF, Matern32, Scale


@pytest.mark.slow
@settings(max_examples=25)
@given(recipes(), st.data())
def test_a_local_scale_multiplies_kernel_and_learned_noise_by_what_the_neighbours_say(recipe, data):
    """(ν + rᵀC⁻¹r) / (ν + k) where rows are close, from dense formulas; known noise and means stay."""
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    strength = data.draw(st.sampled_from([0.5, 4.0, 100.0]), label="strength")
    plain = condition(p, k, hybrid=False)
    posterior = CaGPLocal(p.prior, local_scale=strength).condition(p.X, p.y, p.row_noise, num_neighbours=k)
    K = oracle.kernel_matrix(p.prior.kernel, p.X, p.X) + np.diag(oracle.array(p.prior.noise_variance(p.X, p.row_noise)))
    residual = oracle.array(p.y - p.prior.mean(p.X))
    scales = []
    for z, rows in zip(p.Z, plain._neighbours(p.Z).numpy(), strict=True):
        r, C = residual[rows], K[np.ix_(rows, rows)]
        assume(np.linalg.cond(C) < 1e10)  # no row is left out; duplicates have a test of their own
        pair = oracle.kernel_matrix(p.prior.kernel, *2 * [torch.stack([z, p.X[rows[0]]])])
        close = 1 - (1 - abs(pair[0, 1]) / np.sqrt(pair[0, 0] * pair[1, 1])) ** 4
        scales.append(1 + close * ((strength + r @ np.linalg.solve(C, r)) / (strength + k) - 1))
    scale = torch.tensor(scales)
    slack = 1e-7 * max(1.0, p.scale) * max(1.0, float(scale.max()))
    known = torch.linspace(0.1, 0.2, len(p.Z), dtype=torch.float64)
    assert_close(posterior.predict(p.Z).mean, plain.predict(p.Z).mean, 0.0)
    assert_close(posterior.variance(p.Z), scale * plain.variance(p.Z), slack)
    of_targets = scale * (plain.variance(p.Z) + p.prior.noise.learned(p.Z)) + known
    assert_close(posterior.variance(p.Z, noise=True, row_noise=known), of_targets, slack)
    root = scale.sqrt()
    expected = root[:, None] * plain.covariance(p.Z) * root
    assert_close(posterior.covariance(p.Z), expected, slack)
    assert_close(posterior.joint(p.Z).covariance, expected, slack)
    noise = posterior.covariance(p.Z, noise=True, row_noise=known) - posterior.covariance(p.Z)
    assert_close(noise, torch.diag(scale * p.prior.noise.learned(p.Z) + known), slack)


def test_duplicates_and_missing_rows_do_not_count_for_the_scale():
    X = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)
    prior = GP(RBF(1), noise=GaussianNoise(1e-15, noise_floor=0.0))
    method = CaGPLocal(prior, local_scale=1.0)
    once, twice = (method.condition(X[r], y[r], num_neighbours=3) for r in ([0, 2], [0, 1, 2]))
    new = torch.linspace(-1, 2, 5, dtype=torch.float64)[:, None]
    assert_close(once.variance(new), twice.variance(new), 1e-6)
    shared = BlockActions(Partition(torch.arange(3), torch.tensor([0, 3])), dtype=torch.float64)
    hybrids = (CaGPLocal(prior, shared=shared, local_scale=scale) for scale in (None, 1.0))
    alone = [hybrid.condition(X, y, num_neighbours=0) for hybrid in hybrids]
    assert_close(alone[0].variance(new), alone[1].variance(new), 0.0)


def test_with_little_weight_on_the_learned_scale_it_does_not_matter():
    """Kernel and noise a hundred times larger: the neighbours say a hundred times smaller."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(200, 2, generator=g, dtype=torch.float64)
    y, answers = (9 * X).sin().sum(1), []
    for size in (1.0, 100.0):
        prior = GP(Scale(Matern32(2, 0.3), size), noise=GaussianNoise(0.01 * size))
        answers.append(CaGPLocal(prior, 8, local_scale=1e-9).condition(X, y).predict(X, noise=True))
    for a, b in zip(*answers, strict=True):
        assert_close(a, b, 1e-8)


def test_far_from_all_rows_the_scale_is_the_learned_one():
    """Calm rows say nothing of places that they are not correlated with."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(100, 1, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern32(1, 0.3), 2.0), noise=GaussianNoise(0.01))
    posterior = CaGPLocal(prior, local_scale=0.125).condition(X, 0.01 * (9 * X[:, 0]).sin())
    places = torch.tensor([[0.5], [1.2], [2.0], [1e3], [1e9]], dtype=torch.float64, requires_grad=True)
    scale = posterior.scale(places)
    assert scale[0] < 0.05
    assert bool((scale.diff() > 0)[:3].all())
    assert_close(scale[3:], torch.ones(2), 1e-6)
    assert_close(posterior.variance(places[3:], noise=True), torch.full((2,), 2.01), 1e-6)
    (slopes,) = torch.autograd.grad(posterior.variance(places).sum(), places)
    assert bool(torch.isfinite(slopes).all())


def quiet_and_loud(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A function of one input that varies ten times as much, noise included, beyond a half."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 1, generator=g, dtype=torch.float64)
    size = torch.where(X[:, 0] > 0.5, 1.0, 0.1)
    return X, size * ((40 * X[:, 0]).sin() + 0.3 * torch.randn(n, generator=g, dtype=torch.float64))


def test_error_bars_follow_the_neighbours_where_that_predicts_better():
    X, y = quiet_and_loud(3000, 0)
    new, targets = quiet_and_loud(2000, 1)
    prior = GP(Scale(Matern32(1, 0.1), 0.5), noise=GaussianNoise(0.05))
    method = CaGPLocal(prior, 16)
    plain = method.condition(X, y).predict(new, noise=True)
    choice = method.choose_local_scale(X, y)
    assert method.local_scale is None  # choosing changes nothing
    method = method.with_local_scale(choice.local_scale)
    assert method.local_scale == choice.local_scale
    assert choice.num_rows == 3000
    assert choice.nll < choice.nll_without - 0.3
    scaled = method.condition(X, y).predict(new, noise=True)
    assert abs(metrics.nll(targets, *scaled) - choice.nll) < 0.1  # rows left out one at a time are an honest test
    assert abs(metrics.nll(targets, *plain) - choice.nll_without) < 0.1
    for side in (new[:, 0] > 0.52, new[:, 0] < 0.48):
        covered = metrics.coverage(targets[side], scaled.mean[side], scaled.variance[side])
        assert abs(covered - 0.95) < 0.03
    quiet = new[:, 0] < 0.48
    assert metrics.coverage(targets[quiet], plain.mean[quiet], plain.variance[quiet]) > 0.995


def test_one_scale_stays_where_the_prior_is_right():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(800, 1, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern32(1, 0.2), 2.0), noise=GaussianNoise(0.1))
    covariance = torch.from_numpy(oracle.kernel_matrix(prior.kernel, X, X)) + 0.1 * torch.eye(800)
    y = torch.linalg.cholesky(covariance) @ torch.randn(800, generator=g, dtype=torch.float64)
    method = CaGPLocal(prior, 16, local_scale=3.0)
    choice = method.choose_local_scale(X, y)
    assert choice.local_scale is None
    assert method.local_scale == 3.0
    assert method.with_local_scale(None).local_scale is None
    assert choice.nll == choice.nll_without


def test_a_gain_is_large_enough_and_not_by_chance(monkeypatch):
    def is_gain(gains, least):
        monkeypatch.setitem(MARGINS, "local scale", MARGINS["local scale"]._replace(least=least))
        return Gains(gains).exceed("local scale")

    g = torch.Generator().manual_seed(0)
    noise = torch.randn(1000, generator=g, dtype=torch.float64)
    assert is_gain(0.1 + 0.5 * noise, 0.01)
    assert not is_gain(0.1 + 0.5 * noise, 0.2)  # too small
    assert not is_gain(0.02 + 0.5 * (noise - noise.mean()), 0.01)  # one standard error and a quarter
    outlier = torch.zeros(1000, dtype=torch.float64)
    outlier[3] = 1e5
    assert not is_gain(outlier, 0.01)  # one row alone
    assert is_gain(outlier + 0.1 + 0.5 * noise, 0.01)  # beside what all gain it does no harm
    assert not is_gain(-outlier + 0.1 + 0.5 * noise, 0.01)  # but a loss is a loss
    assert not is_gain(outlier * math.nan, 0.01)


def test_a_local_scale_that_makes_no_sense_is_refused():
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"local_scale is .*, expected None or a positive number"):
            CaGPLocal(GP(Matern32(1)), local_scale=scale)
    X = torch.zeros(1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="a local scale needs neighbours"):
        CaGPLocal(GP(Matern32(1))).choose_local_scale(X, X[:, 0])
