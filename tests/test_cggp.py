"""CGGP against the exact GP: loss, gradient and variance, and what it says where it did not converge."""

import math
import warnings

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import recipes
from test_compared_methods import assert_close, data, gradients, loss, prior_of
from torch import Tensor

from cagp import CGGP, GP, CholeskyGP, fit, start_from_data
from cagp.kernels import Matern32, Scale
from cagp.system import CGWarning, Solver, System


def exact_probes(solver: Solver) -> Tensor:
    """√p I: probes whose mean outer product is the identity."""
    p = sum(solver.L.shape)
    return math.sqrt(p) * torch.eye(p, dtype=torch.float64)


@settings(max_examples=25)
@given(recipes(max_rows=25, smallest_noise=0.05), st.integers(1, 10))
def test_cggp_with_a_full_set_of_probes_is_the_exact_gp_in_value_and_gradient(recipe, rank):
    p = recipe.build()
    given = p.X, p.y, p.row_noise
    method, exact = CGGP(p.prior, tolerance=1e-11, precondition_rank=rank), CholeskyGP(p.prior)
    solver = method._solver(p.X, p.row_noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CGWarning)  # a tolerance at the edge of round-off
        quadratic, log_det = method.estimates(solver, *given, exact_probes(solver))
        total = 0.5 * (quadratic + log_det) / len(p.y) + 0.5 * math.log(2 * math.pi)
        posterior = method.condition(*given)
        prediction, covariance = posterior.predict(p.Z), posterior.covariance(p.Z)
    expected = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise)
    K = oracle.kernel_matrix(p.prior.kernel, p.X, p.X) + np.diag(p.noise)
    assert_close(log_det, np.linalg.slogdet(K)[1])
    assert_close(prediction.mean, expected.mean)
    assert_close(prediction.variance, expected.variance)
    assert_close(covariance, expected.covariance)
    parameters = [q for q in p.prior.parameters() if q.requires_grad]
    if parameters:
        ours = torch.autograd.grad(total, parameters, allow_unused=True)
        theirs = torch.autograd.grad(exact.objective(*given), parameters, allow_unused=True)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b, 1e-6)


def test_cggp_estimates_loss_and_gradient_within_monte_carlo_error():
    X, y, row_noise = data(80)
    exact = CholeskyGP(prior_of())
    expected, slopes = loss(exact, X, y, row_noise), gradients(exact, X, y, row_noise)
    values, estimates = [], []
    for seed in range(20):
        method = CGGP(prior_of(), num_probes=8, precondition_rank=5, seed=seed, tolerance=1e-8)
        values.append(loss(method, X, y, row_noise))
        estimates.append(torch.cat([g.flatten() for g in gradients(method, X, y, row_noise)]))
    error = np.std(values) / math.sqrt(20)
    assert abs(np.mean(values) - expected) < 4 * error
    assert error < 0.01
    estimates, slopes = torch.stack(estimates), torch.cat([g.flatten() for g in slopes])
    assert bool(((estimates.mean(0) - slopes).abs() <= 4 * estimates.std(0) / math.sqrt(20) + 1e-8).all())
    assert float(estimates.std(0).max()) < 0.1


def test_the_probes_are_those_of_the_seed():
    X, y, _ = data(40)
    first, again = (loss(CGGP(prior_of(), seed=3), X, y) for _ in range(2))
    assert first == again
    assert first != loss(CGGP(prior_of(), seed=4, precondition_rank=3), X, y)


def test_cggp_variance_is_never_below_the_exact_one_even_where_the_solves_stop_early():
    X, y, _ = data(80)
    Z = data(20, seed=9)[0]
    prior = prior_of(noise=0.01)
    exact = oracle.exact_posterior(prior, X, y, Z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CGWarning)
        posterior = CGGP(prior, max_iterations=3, precondition_rank=2).condition(X, y)
        variance, covariance = posterior.variance(Z), posterior.covariance(Z)
    excess = covariance - torch.from_numpy(exact.covariance)
    assert_close(excess.diagonal(), variance - torch.tensor(exact.variance), 1e-12)
    assert float(excess.diagonal().max()) > 1e-4  # stopped early indeed
    assert float(torch.linalg.eigvalsh((excess + excess.mT) / 2)[0]) > -1e-10


def test_cggp_says_when_and_for_what_conjugate_gradients_did_not_converge():
    X, y, _ = data(80)
    method = CGGP(prior_of(noise=1e-3), max_iterations=2, precondition_rank=2)
    with pytest.warns(CGWarning, match=r"17 of 17 right-hand sides of the loss in 2 iterations.*precondition_rank"):
        method.objective(X, y)
    with pytest.warns(CGWarning, match="1 of 1 representer weights"):
        posterior = method.condition(X, y)
    assert not bool(posterior.representer_status.converged)
    with pytest.warns(CGWarning, match="5 of 5 columns of the variance"):
        posterior.predict(X[:5])
    with pytest.warns(CGWarning, match="columns of the variance"):
        status = posterior.solve(X[:5])
    assert status.num_iterations == 2
    assert not bool(status.converged.any())


def test_cggp_streams_kernels_beyond_its_byte_budget_with_the_same_result():
    X, y, row_noise = data(70)
    Z = data(9, seed=9)[0]
    kept, streamed = CGGP(prior_of(), tolerance=1e-9), CGGP(prior_of(), tolerance=1e-9, max_bytes=5000)
    assert System(prior_of(), X, None, kept.max_bytes)._K is not None
    assert System(prior_of(), X, None, streamed.max_bytes)._K is None
    assert_close(kept.objective(X, y, row_noise), streamed.objective(X, y, row_noise), 1e-9)
    a, b = (m.condition(X, y, row_noise).predict(Z) for m in (kept, streamed))
    assert_close(a.mean, b.mean, 1e-7)
    assert_close(a.variance, b.variance, 1e-7)


@pytest.mark.slow
def test_cggp_and_cholesky_learn_the_same():
    X, y, _ = data(100, seed=3)
    learned = []
    for make in (CholeskyGP, lambda prior: CGGP(prior, num_probes=32, precondition_rank=10)):
        method = make(start_from_data(GP(Scale(Matern32(2))), X, y))
        start = loss(CholeskyGP(method.prior), X, y)
        result = fit(method, X, y, num_steps=40, lr=0.2)
        assert not result.failures
        learned.append(loss(CholeskyGP(method.prior), X, y))
        assert learned[-1] < start - 0.1
    assert learned[1] == pytest.approx(learned[0], abs=0.01)
