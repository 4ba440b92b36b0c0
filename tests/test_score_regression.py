"""Classes as a regression on scores, against dense float64 formulas and one-dimensional integrals."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cagp import GP
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.likelihoods import Logit, Probit, Softmax, class_likelihood
from cagp.methods import CaGPLocal, ScoreRegression
from cagp.posteriors import predict_columns
from cagp.prior import GaussianNoise
from cagp.training import Batch

N = 60


def problem(num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, indicators and weights."""
    g = torch.Generator().manual_seed(num_classes)
    X = torch.randn(N, 2, generator=g, dtype=torch.float64)
    codes = (X[:, 0] * 1.5 + torch.randn(N, generator=g)).round().long().remainder(num_classes)
    codes[:num_classes] = torch.arange(num_classes)
    y = codes[:, None].double() if num_classes == 2 else torch.nn.functional.one_hot(codes, num_classes).double()
    return X, y, 0.5 + torch.rand(N, generator=g, dtype=torch.float64)


def made(likelihood, y: Tensor, weight: Tensor, k: int = N - 1) -> ScoreRegression:
    prior = GP(Scale(Matern32(2, torch.tensor([0.8, 1.3])), 2.5), noise=GaussianNoise(0.7))
    offset = likelihood.offsets(y, weight).expand(y.shape) + 0.3 * torch.sin(torch.arange(float(N)))[:, None]
    return ScoreRegression(CaGPLocal(prior, k, batch_size=1000), likelihood, offset, weight, 3.0)


def dense(method: ScoreRegression, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Left-out mean and variance of each row's functions: with Q = K̂⁻¹, t - Qt/q and 1/q - noise."""
    noise = method.row_noise()
    Q = torch.linalg.inv(method.prior.kernel(X, X).detach() + torch.diag(noise))
    q, targets = Q.diagonal(), method.targets(y)
    return targets - (Q @ targets) / q[:, None] + method.offset, 1 / q - noise


@pytest.mark.parametrize("likelihood", [Logit(), Probit(), Softmax(3), Softmax(5)])
def test_the_loss_is_that_of_dense_leave_one_out_predictions(likelihood):
    X, y, weight = problem(getattr(likelihood, "num_classes", 2))
    method = made(likelihood, y, weight)
    mean, variance = dense(method, X, y)
    right = float(weight @ likelihood.row_loss(y, mean, variance) / weight.sum())
    found = method.terms(Data(X, y), Batch())
    assert found["left_out_log_loss"].item() == pytest.approx(right, rel=1e-9)
    assert found["log_prior"].item() == 0.0  # at the start


@pytest.mark.parametrize("likelihood", [Logit(), Probit(), Softmax(4)])
def test_gradients_are_those_of_finite_differences(likelihood):
    X, y, weight = problem(getattr(likelihood, "num_classes", 2))
    method = made(likelihood, y, weight, 12)
    with torch.no_grad():
        for p in method.parameters():
            p += 0.1
    method.objective(X, y).backward()
    for p in method.parameters():
        for i in range(p.numel()):
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    p.view(-1)[i] += step
                    ends.append(method.objective(X, y).item())
                    p.view(-1)[i] -= step
            assert float(p.grad.view(-1)[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8)


def test_one_factorisation_gives_the_means_of_every_function():
    X, y, weight = problem(4)
    method = made(Softmax(4), y, weight)
    targets = method.targets(y)
    points = torch.randn(30, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    posteriors, whole = (
        [
            method.local.condition(X, column.contiguous(), num_neighbours=k, shares_rows=True)
            for column in targets.unbind(1)
        ]
        for k in (20, N)
    )
    mean, variance = predict_columns(posteriors, points)
    for j, posterior in enumerate(posteriors):
        own_mean, own_variance = posterior.predict(points)
        torch.testing.assert_close(mean[:, j], own_mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(variance, own_variance, rtol=1e-9, atol=1e-9)
    K = method.prior.kernel(X, X).detach() + method.prior.noise.noise.detach() * torch.eye(N)
    cross = method.prior.kernel(points, X).detach()
    exact_mean, exact_variance = predict_columns(whole, points)
    torch.testing.assert_close(exact_mean, cross @ torch.linalg.solve(K, targets), rtol=1e-8, atol=1e-8)
    assert bool((variance >= exact_variance - 1e-9).all())  # fewer rows never promise more


def one_dimensional(mean: np.ndarray, std: float) -> np.ndarray:
    """∫ softmax(f) Normal(f; mean, std² I) df of one row: softmax(f)_c is the probability that f_c + g_c is largest,
    with independent g of the Gumbel distribution, so that the integral is over that largest value alone."""
    normal = np.linspace(-9, 9, 181)
    weights = np.exp(-(normal**2) / 2) / np.exp(-(normal**2) / 2).sum()
    t = np.arange(mean.max() - 9 * std - 6, mean.max() + 9 * std + 40, 0.1)
    away = t[:, None, None] - mean[None, :, None] - std * normal
    below = np.exp(-np.exp(np.minimum(-away, 700)))
    F, density = below @ weights, (np.exp(-away) * below) @ weights
    everything = np.prod(F, 1, keepdims=True)
    return (density * everything / np.maximum(F, 1e-300)).sum(0) * 0.1


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("num_classes", "std"), [(3, 0.5), (3, 3.0), (26, 1.0), (26, 3.0)])
def test_probabilities_integrate_the_softmax(num_classes, std):
    mean = 3 * torch.randn(6, num_classes, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = Softmax(num_classes).log_probabilities(mean, torch.full((6,), std**2).double()).exp().numpy()
    right = np.stack([one_dimensional(row, std) for row in mean.numpy()])
    np.testing.assert_allclose(right.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_without_variance_probabilities_are_the_softmax_and_far_away_the_shares():
    mean = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    p = Softmax(3).log_probabilities(mean, torch.zeros(5).double()).exp()
    torch.testing.assert_close(p, torch.softmax(mean, 1))
    _, y, _ = problem(3)
    weight = torch.ones(N).double()
    torch.testing.assert_close(torch.softmax(Softmax(3).offsets(y, weight), 0), y.mean(0))
    for link in (Logit(), Probit()):
        half = link.offsets(problem(2)[1], weight)
        assert float(link.moments(half).mean) == pytest.approx(float(problem(2)[1].mean()))


def test_twice_the_weight_is_the_row_twice():
    X, y, _ = problem(2)
    weight = torch.ones(N).double()
    weight[:20] = 2
    once, twice = made(Logit(), y, weight), torch.cat([torch.arange(N), torch.arange(20)])
    prior, points = once.prior, X + 0.1
    known = once.local.condition(X, once.targets(y)[:, 0], num_neighbours=N)  # weights are noise of rows
    noise = once.row_noise()
    K = prior.kernel(X, X).detach() + torch.diag(noise)
    right = prior.kernel(points, X).detach() @ torch.linalg.solve(K, once.targets(y)[:, 0])
    doubled = prior.kernel(X[twice], X[twice]).detach() + 0.7 * torch.eye(len(twice))
    cross = prior.kernel(points, X[twice]).detach()
    torch.testing.assert_close(cross @ torch.linalg.solve(doubled, once.targets(y)[twice, 0]), right)
    assert not torch.allclose(known.predict(points).mean, right)


def test_what_cannot_be_learned_is_refused():
    X, y, weight = problem(3)
    method = made(Softmax(3), y, weight)
    with pytest.raises(ValueError, match="values other than 0 and 1"):
        method.objective(X, y * 2)
    with pytest.raises(ValueError, match=r"expected .60, 3."):
        method.objective(X, y[:, :2])
    with pytest.raises(ValueError, match="pass weights instead"):
        method.objective(X, y, torch.ones(N, 3).double())
    with pytest.raises(ValueError, match="two classes have Logit"):
        Softmax(2)
    with pytest.raises(ValueError, match="which is for two classes, and y has 4"):
        class_likelihood("probit", 4)
    assert math.isclose(class_likelihood("logit", 4).num_classes, 4)
