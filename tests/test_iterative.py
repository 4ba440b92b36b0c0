"""The iterative algorithm gives what the batch algorithm gives, for every policy; it stops, says why, and goes on."""

import math
import time
from typing import NamedTuple

import numpy as np
import oracle
import pytest
import torch
from torch import Tensor

from cagp import GP, ConstantMean, GaussianNoise
from cagp.iterative import (
    CGResiduals,
    GivenActions,
    KernelColumns,
    Lanczos,
    Mix,
    Policy,
    RandomActions,
    Stopping,
    TopEigenvectors,
    UnitVectors,
    iterate,
    top_eigenvectors,
)
from cagp.kernels import RBF, Matern12, Matern32, Scale
from cagp.posteriors import CaGPPosterior
from cagp.projection import project
from cagp.system import System

STREAMED = 2**12  # bytes: too few to keep the kernel matrix of any problem here


@pytest.fixture(autouse=True)
def global_generator_stays():
    """No policy draws from the global generator."""
    state = torch.get_rng_state()
    yield
    assert torch.equal(state, torch.get_rng_state())


class Data(NamedTuple):
    prior: GP
    X: Tensor
    y: Tensor
    Z: Tensor  # new inputs
    row_noise: Tensor | None

    @property
    def residual(self) -> np.ndarray:
        return oracle.array(self.y) - oracle.mean_vector(self.prior.mean, self.X)

    @property
    def Khat(self) -> np.ndarray:
        D = oracle.noise_vector(self.prior.noise, len(self.X), self.row_noise)
        return oracle.kernel_matrix(self.prior.kernel, self.X, self.X) + np.diag(D)


def make(n=40, d=2, kernel=Matern12, noise=0.1, by_row=False, dtype=torch.float64, seed=0) -> Data:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X).sum(1) + 0.3 * torch.randn(n, generator=g, dtype=torch.float64)
    Z = torch.cat([torch.randn(5, d, generator=g, dtype=torch.float64), X[:2]])
    row_noise = 0.02 + 0.5 * torch.rand(n, generator=g, dtype=torch.float64) if by_row else None
    prior = GP(Scale(kernel(d, 0.8), 1.3), ConstantMean(0.4), GaussianNoise(noise))
    return Data(prior, X.to(dtype), y.to(dtype), Z.to(dtype), None if row_noise is None else row_noise.to(dtype))


def policies(data: Data, count: int) -> dict[str, Policy]:
    n, d = data.X.shape
    g = torch.Generator().manual_seed(5)
    S = torch.randn(n, count, generator=g, dtype=torch.float64)
    Z = torch.randn(count, d, generator=g, dtype=torch.float64).to(data.X)
    return {
        "CG": CGResiduals(),
        "Lanczos": Lanczos(),
        "Lanczos from a vector": Lanczos(S[:, 0]),
        "eigenvectors": TopEigenvectors(count),
        "unit": UnitVectors(),
        "random unit": UnitVectors("random", seed=3),
        "pivoted unit": UnitVectors("pivoted"),
        "Gaussian": RandomActions("gaussian", seed=1),
        "Rademacher": RandomActions("rademacher", seed=1),
        "given": GivenActions(S),
        "kernel columns": KernelColumns(Z),
        "mix": Mix((CGResiduals(), 3), (UnitVectors("pivoted"), 2), (Lanczos(), count)),
    }


NAMES = list(policies(make(8), 4))


def run(data: Data, policy: Policy, steps: int | None, **choices):
    return iterate(data.prior, data.X, data.y, policy, Stopping(steps), data.row_noise, **choices)


def assert_same(posterior: CaGPPosterior, expected, Z: Tensor, tolerance: float):
    torch.testing.assert_close(
        posterior.mean(Z).double().numpy(), np.asarray(expected.mean), atol=tolerance, rtol=tolerance
    )
    covariance = posterior.covariance(Z).double().numpy()
    torch.testing.assert_close(covariance, np.asarray(expected.covariance), atol=tolerance, rtol=tolerance)


def span_error(A, B) -> float:
    """How far the spans of two matrices are apart: the norm of the difference of their projectors."""
    P, Q = (np.linalg.qr(oracle.array(M))[0] for M in (A, B))
    return float(np.linalg.norm(P @ P.T - Q @ Q.T, 2))


# ---- iterative = batch ----


@pytest.mark.thinned(20)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
@pytest.mark.parametrize("choices", [{}, {"reorthogonalise": True, "max_bytes": STREAMED}], ids=["kept", "streamed"])
def test_every_policy_gives_the_batch_posterior_of_its_actions(name, by_row, choices):
    data = make(by_row=by_row)
    iteration = run(data, policies(data, 12)[name], 12, **choices)
    assert iteration.status.num_steps == 12
    assert (iteration.system._K is not None) == (choices == {})
    posterior, actions = iteration.posterior(), iteration.actions
    assert_same(
        posterior, oracle.cagp_posterior(data.prior, actions.S, data.X, data.y, data.Z, data.row_noise), data.Z, 1e-8
    )
    batch = CaGPPosterior(data.prior, project(data.prior, actions, data.X, data.y, data.row_noise))
    torch.testing.assert_close(posterior.mean(data.Z), batch.mean(data.Z), atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(posterior.covariance(data.Z), batch.covariance(data.Z), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_weights_precision_and_residual_of_the_loop_itself(name):
    data = make(by_row=True)
    iteration = run(data, policies(data, 12)[name], 12)
    state, Khat, residual = iteration.state, data.Khat, data.residual
    S = np.linalg.qr(oracle.array(state.actions))[0]
    C = S @ np.linalg.solve(S.T @ Khat @ S, S.T)
    directions = state.directions.numpy()
    np.testing.assert_allclose(directions @ directions.T, C, atol=1e-6)
    np.testing.assert_allclose(directions.T @ Khat @ directions, np.eye(12), atol=1e-6)
    np.testing.assert_allclose(state.weights.numpy(), C @ residual, atol=1e-6)
    np.testing.assert_allclose(state.residual.numpy(), residual - Khat @ C @ residual, atol=1e-6)
    assert iteration.status.residual_norms[-1] == pytest.approx(
        np.linalg.norm(residual - Khat @ C @ residual), abs=1e-6
    )
    posterior = oracle.cagp_posterior(data.prior, S, data.X, data.y, data.X, data.row_noise)
    np.testing.assert_allclose(state.kernel_variance.numpy(), posterior.variance, atol=1e-6)
    np.testing.assert_allclose(state.target_variance.numpy(), np.diag(Khat - Khat @ C @ Khat), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_meets_the_exact_gp_with_as_many_actions_as_rows(name):
    data = make(n=12, d=1, noise=0.3, by_row=True, seed=4)
    choices = policies(data, 12)
    choices["mix"] = Mix((CGResiduals(), 3), (UnitVectors("pivoted"), 12))
    choices["kernel columns"] = KernelColumns(data.X)
    iteration = run(data, choices[name], None, reorthogonalise=True)
    assert iteration.status.num_steps == 12
    exact = oracle.exact_posterior(data.prior, data.X, data.y, data.Z, data.row_noise)
    assert_same(iteration.posterior(), exact, data.Z, 1e-6)
    assert iteration.status.residual_norms[-1] < 1e-6 * iteration.status.residual_norms[0]


def test_no_variance_is_below_the_exact_one_and_none_grows():
    data = make(n=30)
    exact = oracle.exact_posterior(data.prior, data.X, data.y, data.Z).variance
    for policy in policies(data, 25).values():
        before = np.full(len(data.Z), np.inf)
        for steps in (1, 4, 10, 25):
            variance = run(data, policy, steps).posterior().variance(data.Z).numpy()
            assert (variance >= exact - 1e-9).all()
            assert (variance <= before + 1e-9).all()
            before = variance


# ---- what single policies are ----


def conjugate_gradients(A: np.ndarray, b: np.ndarray, steps: int) -> list[np.ndarray]:
    """The textbook method (Hestenes and Stiefel): the iterates after 1, 2, ... steps."""
    x, r = np.zeros_like(b), b.copy()
    p, solutions = r.copy(), []
    for _ in range(steps):
        alpha = (r @ r) / (p @ A @ p)
        x = x + alpha * p
        new = r - alpha * (A @ p)
        p, r = new + (new @ new) / (r @ r) * p, new
        solutions.append(x)
    return solutions


def test_cg_residuals_give_the_mean_of_conjugate_gradients():
    data = make(n=50, noise=0.2)
    solutions = conjugate_gradients(data.Khat, data.residual, 15)
    cross = oracle.kernel_matrix(data.prior.kernel, data.Z, data.X)
    iteration = None
    for steps, solution in enumerate(solutions, 1):
        iteration = run(data, CGResiduals(), 1) if iteration is None else iteration.resume(Stopping(steps))
        np.testing.assert_allclose(iteration.state.weights.numpy(), solution, atol=1e-6)
        mean = oracle.mean_vector(data.prior.mean, data.Z) + cross @ solution
        np.testing.assert_allclose(iteration.posterior().mean(data.Z).numpy(), mean, atol=1e-6)
    assert np.linalg.norm(solutions[-1] - np.linalg.solve(data.Khat, data.residual)) > 1e-4  # and not the exact mean


def test_lanczos_vectors_and_cg_residuals_span_the_same_space():
    data = make(n=50, noise=0.2)
    for steps in (1, 2, 5, 12):
        S = {type(p).__name__: run(data, p, steps).actions.S for p in (CGResiduals(), Lanczos())}
        assert span_error(S["CGResiduals"], S["Lanczos"]) < 1e-8
        # A direction is not enough for a match: other vectors span something else.
        assert span_error(S["CGResiduals"], run(data, RandomActions(), steps).actions.S) > 0.5
    Q = oracle.array(S["Lanczos"])
    np.testing.assert_allclose(Q.T @ Q, np.eye(12), atol=1e-12)
    T = Q.T @ data.Khat @ Q
    np.testing.assert_allclose(T - np.triu(np.tril(T, 1), -1), 0, atol=1e-10)  # tridiagonal


@pytest.mark.parametrize("order", ["given", "random", "pivoted"])
def test_unit_vectors_are_the_exact_gp_on_the_chosen_rows(order):
    data = make(by_row=True)
    iteration = run(data, UnitVectors(order, seed=2), 9)
    rows = iteration.state.actions.argmax(0)
    assert len(set(rows.tolist())) == 9
    assert torch.equal(iteration.state.actions, torch.eye(40, dtype=torch.float64)[:, rows])
    on_rows = oracle.exact_posterior(data.prior, data.X[rows], data.y[rows], data.Z, data.row_noise[rows])
    assert_same(iteration.posterior(), on_rows, data.Z, 1e-9)
    # The products are columns of the Cholesky factor of K̂, its rows in the order chosen.
    factor = np.linalg.cholesky(data.Khat[np.ix_(rows, rows)])
    np.testing.assert_allclose(iteration.state.products[rows].numpy(), factor, atol=1e-10)


def test_pivots_are_where_the_exact_gp_on_earlier_ones_is_least_certain():
    data = make(by_row=True)
    rows = run(data, UnitVectors("pivoted"), 15).state.actions.argmax(0).tolist()
    for step in range(1, 15):
        chosen = rows[:step]
        left = [r for r in range(40) if r not in chosen]
        given = oracle.exact_posterior(data.prior, data.X[chosen], data.y[chosen], data.X[left], data.row_noise[chosen])
        assert given.variance[left.index(rows[step])] == pytest.approx(given.variance.max(), abs=1e-10)


def test_unit_vectors_keep_to_the_rows_they_were_given():
    data = make()
    rows = torch.tensor([7, 3, 30])
    for order in ("given", "random", "pivoted"):
        iteration = run(data, UnitVectors(order, rows=rows), None)
        assert set(iteration.state.actions.argmax(0).tolist()) == {3, 7, 30}
        assert "no further action" in iteration.status.reason
    assert run(data, UnitVectors(rows=rows), None).state.actions.argmax(0).tolist() == [7, 3, 30]


def test_random_actions_depend_on_their_seed_and_number_alone():
    data = make()
    S = {seed: run(data, RandomActions("gaussian", seed), 6).state.actions for seed in (0, 1, 2**32)}
    assert torch.equal(S[0], run(data, RandomActions("gaussian", 0), 6).state.actions)
    assert float((S[0].mT @ S[1]).abs().max()) < 0.9
    assert float((S[0].mT @ S[2**32]).abs().max()) < 0.9
    off_diagonal = S[0].mT @ S[0] - torch.eye(6, dtype=torch.float64)
    assert float(off_diagonal.abs().max()) < 0.9
    signs = run(data, RandomActions("rademacher", 0), 3).state.actions * math.sqrt(40)
    torch.testing.assert_close(signs.abs(), torch.ones_like(signs))
    assert 20 < int((signs > 0).sum()) < 100


@pytest.mark.parametrize("by_row", [False, True], ids=["one noise", "noise by row"])
def test_eigenvectors_by_factorisation_and_by_lanczos_iterations(by_row):
    data = make(n=80, by_row=by_row)
    D = oracle.noise_vector(data.prior.noise, 80, data.row_noise)
    K = data.Khat - np.diag(D)
    values = np.linalg.eigvalsh(K / np.sqrt(np.outer(D, D)))[::-1][:6]
    spans = []
    for choices in ({"dense_up_to": 80}, {"dense_up_to": 10, "tolerance": 1e-12}):
        for max_bytes in (2**28, STREAMED):
            found = top_eigenvectors(System(data.prior, data.X, data.row_noise, max_bytes), 6, **choices)
            np.testing.assert_allclose(found.values.numpy(), values, rtol=1e-9)
            s = found.vectors.numpy()
            np.testing.assert_allclose(K @ s, D[:, None] * s * values, atol=1e-7)
            assert float(found.residual_norms.max()) < 1e-6 * values[0]
            assert (found.num_products > 0) == (choices["dense_up_to"] == 10)
            spans.append(s)
    assert span_error(spans[0], spans[-1]) < 1e-7
    if not by_row:
        assert span_error(spans[0], np.linalg.eigh(data.Khat)[1][:, -6:]) < 1e-9
    best = oracle.mutual_information(data.prior, spans[0], data.X, data.row_noise)
    for name, policy in policies(data, 6).items():
        if name != "eigenvectors":
            S = run(data, policy, 6).actions.S
            assert oracle.mutual_information(data.prior, S, data.X, data.row_noise) < best - 1e-4, name


def test_kernel_columns_are_covariances_with_pseudo_inputs():
    data = make()
    S = run(data, KernelColumns(data.Z), 5).actions.S
    columns = oracle.kernel_matrix(data.prior.kernel, data.X, data.Z[:5])
    np.testing.assert_allclose(S.detach().numpy(), columns / np.linalg.norm(columns, axis=0), atol=1e-12)


def test_a_mix_takes_turns_and_passes_over_policies_that_have_nothing_left():
    data = make()
    S = torch.eye(40, dtype=torch.float64)[:, [4, 9]]
    mix = Mix((GivenActions(S), 5), (UnitVectors(), 3), (CGResiduals(), 2))
    iteration = run(data, mix, None)
    assert iteration.state.actions[:, :5].argmax(0).tolist() == [4, 9, 0, 1, 2]
    assert iteration.status.num_steps == 7
    alone = run(data, GivenActions(iteration.state.actions[:, :5]), None).state.residual
    torch.testing.assert_close(iteration.state.actions[:, 5], alone / alone.norm())
    # What the first has chosen, the second is not asked to choose again.
    overlapping = run(data, Mix((GivenActions(S), 2), (UnitVectors("pivoted"), 38)), None)
    assert overlapping.status.num_steps == 40
    assert overlapping.status.num_dropped == 0


# ---- stopping and going on ----


@pytest.mark.parametrize("name", NAMES)
def test_going_on_is_the_same_as_not_stopping(name):
    data = make()
    policy = policies(data, 12)[name]
    whole = run(data, policy, 12, reorthogonalise=True)
    first = run(data, policy, 2, reorthogonalise=True)
    part = first.resume(Stopping(7))
    parts = part.resume(Stopping(12))
    for field in ("actions", "directions", "products", "weights", "residual"):
        assert torch.equal(getattr(whole.state, field), getattr(parts.state, field)), field
    assert whole.status.residual_norms == parts.status.residual_norms
    assert parts.status.seconds >= part.status.seconds >= first.status.seconds
    # A second continuation of the same start disturbs neither the start nor the first.
    other = part.resume(Stopping(12), RandomActions(seed=9))
    assert part.status.num_steps == part.state.num_steps == 7
    assert torch.equal(whole.state.actions, parts.state.actions)
    assert torch.equal(other.state.actions[:, :7], part.state.actions)
    assert not torch.equal(other.state.actions[:, 7], parts.state.actions[:, 7])


def test_residual_norms_stop_the_iterations_and_are_true():
    data = make(noise=0.2)
    scale = np.linalg.norm(data.residual)
    for stopping, tolerance in [
        (Stopping(relative_residual=1e-3), 1e-3 * scale),
        (Stopping(absolute_residual=1e-2), 1e-2),
        (Stopping(relative_residual=1e-9, absolute_residual=1e-2), 1e-2),
    ]:
        iteration = iterate(data.prior, data.X, data.y, CGResiduals(), stopping)
        status = iteration.status
        assert status.converged
        assert "within the tolerance" in status.reason
        assert status.residual_norms[-1] <= tolerance < status.residual_norms[-2]
        assert len(status.residual_norms) == status.num_steps + 1
        assert status.residual_norms[0] == pytest.approx(scale)
        true = np.linalg.norm(data.residual - data.Khat @ iteration.state.weights.numpy())
        assert status.residual_norms[-1] == pytest.approx(true, rel=1e-10)
    unfinished = run(data, CGResiduals(), 3)
    assert not unfinished.status.converged
    assert unfinished.status.reason == "Took all 3 steps."


def test_the_clock_stops_the_iterations():
    data = make()

    class Slow(RandomActions):
        def action(self, system, state, memory):
            time.sleep(0.02)
            return super().action(system, state, memory)

    status = iterate(data.prior, data.X, data.y, Slow(), Stopping(max_seconds=0.05)).status
    assert 1 <= status.num_steps <= 4
    assert "time limit" in status.reason
    assert not status.converged


def test_actions_in_the_span_of_earlier_ones_are_dropped():
    data = make()
    g = torch.Generator().manual_seed(0)
    S = torch.randn(40, 3, generator=g, dtype=torch.float64)
    dependent = torch.stack([S[:, 0], 3 * S[:, 0], S[:, 1], torch.zeros(40), S[:, 1] - 2 * S[:, 0], S[:, 2]], 1)
    iteration = run(data, GivenActions(dependent), None)
    assert (iteration.status.num_steps, iteration.status.num_dropped) == (3, 3)
    assert_same(iteration.posterior(), oracle.cagp_posterior(data.prior, S, data.X, data.y, data.Z), data.Z, 1e-9)

    class Stubborn(Policy):
        def action(self, system, state, memory):
            return S[:, 0], None

    stuck = run(data, Stubborn(), None)
    assert stuck.status.num_steps == 1
    assert "the same action again" in stuck.status.reason


def test_cg_ends_where_the_residual_is_round_off():
    data = make(n=30, kernel=RBF, noise=1.0)
    iteration = run(data, CGResiduals(), None)
    assert iteration.status.residual_norms[-1] < 1e-12 * iteration.status.residual_norms[0]
    exact = oracle.exact_posterior(data.prior, data.X, data.y, data.Z)
    np.testing.assert_allclose(iteration.posterior().mean(data.Z).numpy(), exact.mean, atol=1e-10)


def test_targets_at_their_mean_leave_cg_nothing_to_do_and_lanczos_the_variance():
    data = make()
    data = data._replace(y=torch.full_like(data.y, 0.4))
    iteration = run(data, CGResiduals(), 5)
    assert iteration.status.num_steps == 0
    with pytest.raises(ValueError, match="the posterior is the prior"):
        iteration.posterior()
    lanczos = run(data, Lanczos(), 5)
    assert lanczos.status.num_steps == 5
    expected = oracle.cagp_posterior(data.prior, lanczos.actions.S, data.X, data.y, data.Z)
    assert_same(lanczos.posterior(), expected, data.Z, 1e-10)


def test_reorthogonalisation_keeps_residuals_orthogonal_where_round_off_does_not():
    data = make(n=150, d=1, kernel=Matern32, noise=1e-2)

    def overlap(iteration) -> float:
        S = iteration.state.actions.numpy()
        return float(np.abs(S.T @ S - np.eye(S.shape[1])).max())

    plain, careful = run(data, CGResiduals(), 40), run(data, CGResiduals(), 40, reorthogonalise=True)
    assert overlap(careful) < 1e-12
    assert overlap(plain) > 1e-6


def test_no_variance_falls_below_the_exact_one_where_iterations_go_on_beyond_convergence():
    data = make(n=150, d=1, kernel=RBF, noise=1e-5)
    exact = oracle.exact_posterior(data.prior, data.X, data.y, data.Z).variance
    for reorthogonalise in (False, True):
        iteration = run(data, CGResiduals(), None, reorthogonalise=reorthogonalise)
        assert 15 < iteration.status.num_steps < 60  # of 150: the rest would be round-off
        assert (iteration.posterior().variance(data.Z).numpy() >= exact - 1e-7).all()


# ---- the system ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("max_bytes", [2**28, STREAMED], ids=["kept", "streamed"])
def test_products_of_dense_and_sparse_vectors(dtype, max_bytes):
    data = make(by_row=True, dtype=dtype)
    system = System(data.prior, data.X, data.row_noise, max_bytes)
    V = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    V[5:, 1], V[:, 2] = 0, 0
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    expected = data.Khat @ V.numpy()
    np.testing.assert_allclose(system.products(V).numpy(), expected, atol=tolerance)
    for column in range(3):
        np.testing.assert_allclose(system.product(V[:, column]).numpy(), expected[:, column], atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_data_keep_their_dtype_and_come_close(name):
    data = make(by_row=True, dtype=torch.float32)
    iteration = run(data, policies(data, 8)[name], 8)
    posterior = iteration.posterior()
    mean, variance = posterior.predict(data.Z)
    assert mean.dtype == variance.dtype == torch.float32
    expected = oracle.cagp_posterior(data.prior, iteration.actions.S, data.X, data.y, data.Z, data.row_noise)
    np.testing.assert_allclose(mean.numpy(), expected.mean, atol=2e-4)
    np.testing.assert_allclose(variance.numpy(), expected.variance, atol=2e-4)


def test_training_further_does_not_change_an_iteration():
    data = make(kernel=Matern32)
    iteration = run(data, CGResiduals(), 5)
    before = iteration.posterior().predict(data.Z)
    with torch.no_grad():
        for parameter in data.prior.parameters():
            parameter.add_(0.7)
    for a, b in zip(before, iteration.posterior().predict(data.Z), strict=True):
        assert torch.equal(a, b)
    assert iteration.resume(Stopping(6)).status.num_steps == 6


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_are_named():
    data = make()
    for policy, message in [
        (GivenActions(torch.ones(7, 2, dtype=torch.float64)), "S has 7 rows, expected 40"),
        (KernelColumns(torch.ones(7, 3, dtype=torch.float64)), "Z has 3 columns"),
        (UnitVectors(rows=torch.tensor([3, 40])), "row numbers below 40"),
        (TopEigenvectors(41), "the number of eigenvectors is 41"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(data, policy, 3)
    with pytest.raises(ValueError, match="order is 'sorted'"):
        UnitVectors("sorted")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="distribution is 'cauchy'"):
        RandomActions("cauchy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="has 0 actions"):
        Mix((CGResiduals(), 0))
    with pytest.raises(ValueError, match="max_steps is 0"):
        Stopping(0)
    with pytest.raises(ValueError, match="relative_residual is -1"):
        Stopping(relative_residual=-1)
    with pytest.raises(ValueError, match="y has shape"):
        iterate(data.prior, data.X, data.y[:3], CGResiduals(), Stopping(3))
