"""Conjugate gradients, Lanczos quadrature and pivoted Cholesky against numpy's dense routines, and their status."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import well_conditioned
from torch import Tensor

from cagp.linalg import conjugate_gradients, pivoted_cholesky


def positive_definite(n: int, seed: int, smallest: float = 0.3) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64))[0]
    return (Q * (smallest + 5 * torch.rand(n, generator=g, dtype=torch.float64))) @ Q.mT


def solve(A: Tensor, B: Tensor, **changes):
    return conjugate_gradients(lambda V: A @ V, B, **({"tolerance": 1e-12, "max_iterations": 200} | changes))


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 2**31), st.booleans())
def test_conjugate_gradients_solve(n, c, seed, preconditioned):
    A = positive_definite(n, seed)
    B = torch.randn(n, c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    M = positive_definite(n, seed + 2, smallest=1.0)
    result = solve(A, B, precondition=(lambda V: torch.linalg.solve(M, V)) if preconditioned else None)
    assert bool(result.converged.all())
    assert not bool(result.broke_down.any())
    np.testing.assert_allclose(result.solution, np.linalg.solve(A.numpy(), B.numpy()), atol=1e-10)


def test_columns_end_on_their_own_and_are_frozen_then():
    A = torch.diag(torch.cat([torch.ones(10), torch.arange(1.0, 41.0)])).double()
    easy, hard = torch.zeros(50, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    easy[:10] = 1.0  # an eigenvector: one step
    zero = torch.zeros_like(easy)
    seen: list[Tensor] = []

    def product(V):
        seen.append(V.clone())
        return A @ V

    result = conjugate_gradients(product, torch.stack([easy, hard, zero], 1), tolerance=1e-10, max_iterations=100)
    assert bool(result.converged.all())
    assert result.num_iterations > 5
    assert all(float(V[:, 0].abs().max()) == 0 for V in seen[1:-1])  # directions of the frozen column
    torch.testing.assert_close(result.solution[:, 0], easy, rtol=0, atol=1e-12)
    assert float(result.solution[:, 2].abs().max()) == 0
    assert len(seen) == result.num_iterations + 1


def test_conjugate_gradients_say_when_they_did_not_get_there():
    A = torch.diag(torch.logspace(0, 6, 60, dtype=torch.float64))
    b = torch.ones(60, 1, dtype=torch.float64)
    result = solve(A, b, max_iterations=5)
    assert result.num_iterations == 5
    assert not bool(result.converged)
    true = float((b - A @ result.solution).norm() / b.norm())
    assert float(result.residual_norms) == pytest.approx(true, rel=1e-12)
    assert true > 1e-3


MEMORY = """
import resource, torch
from cagp.linalg import conjugate_gradients

torch.set_num_threads(1)
A = torch.logspace(0, 4, 3000, dtype=torch.float64)[:, None]
B = torch.randn(3000, 400, dtype=torch.float64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
limits = {"tolerance": 1e-14, "max_iterations": 100}
found = conjugate_gradients(lambda V: A * V, B, precondition=lambda V: V / A.sqrt(), **limits)
print(found.num_iterations, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (8 * B.numel()))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the unit of ru_maxrss differs elsewhere")
def test_the_memory_of_conjugate_gradients_does_not_grow_with_the_iterations():
    """A dozen arrays of the size of the right-hand sides, not one for each iteration."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=120, check=True)
    iterations, arrays = map(float, done.stdout.split())
    assert iterations == 100
    assert arrays < 30


def test_more_steps_than_the_coefficients_had_room_for_give_the_same_quadrature():
    """The log-determinant of 150 distinct eigenvalues needs as many steps."""
    A = torch.diag(torch.linspace(1, 50, 150, dtype=torch.float64))
    result = solve(A, torch.ones(150, 1, dtype=torch.float64), tolerance=1e-14)
    assert result.num_iterations > 64
    assert float(result.quadrature(torch.log)) == pytest.approx(float(A.diagonal().log().sum()), rel=1e-9)


def test_an_indefinite_matrix_is_a_breakdown_that_leaves_finite_numbers_and_the_other_columns():
    A = torch.diag(torch.tensor([1.0, 2.0, -3.0, 4.0], dtype=torch.float64))
    B = torch.tensor([[1.0, 1.0], [1.0, 1.0], [5.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    result = solve(A, B)
    assert result.broke_down.tolist() == [True, False]
    assert result.converged.tolist() == [False, True]
    assert bool(torch.isfinite(result.solution).all())
    torch.testing.assert_close(A @ result.solution[:, 1], B[:, 1])


def test_a_recurrence_that_drifts_is_set_right_by_residuals_computed_afresh():
    """Products of float32 precision: the recurrence alone ends above its tolerance."""
    A = positive_definite(200, 3, smallest=1e-2)
    b = torch.randn(200, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for tolerance in (4e-6, 5e-6, 6e-6):
        result = conjugate_gradients(
            lambda V: (A.float() @ V.float()).double(), b, tolerance=tolerance, max_iterations=500
        )
        assert bool(result.converged.all())
        assert float(((A @ result.solution - b).norm(dim=0) / b.norm(dim=0)).max()) < 3 * tolerance
    hopeless = conjugate_gradients(lambda V: (A.float() @ V.float()).double(), b, tolerance=1e-12, max_iterations=5000)
    assert not bool(hopeless.converged.any())
    assert hopeless.num_iterations < 5000  # it notices that it gets no further


def test_a_matrix_of_nan_is_a_breakdown():
    result = conjugate_gradients(lambda V: V * torch.nan, torch.ones(3, 1).double(), tolerance=1e-4, max_iterations=9)
    assert bool(result.broke_down)
    assert not bool(result.converged)
    assert result.num_iterations == 1


@pytest.mark.parametrize("preconditioned", [False, True])
def test_quadrature_is_the_dense_function_of_the_matrix(preconditioned):
    A, B = positive_definite(20, 1), well_conditioned(20, 3, torch.Generator().manual_seed(2))
    M = positive_definite(20, 3, smallest=1.0) if preconditioned else torch.eye(20, dtype=torch.float64)
    result = solve(A, B, precondition=lambda V: torch.linalg.solve(M, V), tolerance=1e-14)
    values, vectors = np.linalg.eigh(M.numpy())
    root = (vectors / np.sqrt(values)) @ vectors.T
    values, vectors = np.linalg.eigh(root @ A.numpy() @ root)
    log = (vectors * np.log(values)) @ vectors.T
    white = root @ B.numpy()
    np.testing.assert_allclose(result.quadrature(torch.log), np.diag(white.T @ log @ white), rtol=1e-10)


def test_quadrature_of_columns_of_different_length_is_that_of_each_alone():
    A = torch.diag(torch.cat([2 * torch.ones(10), torch.arange(1.0, 31.0)])).double()
    B = torch.zeros(40, 2, dtype=torch.float64)
    B[:10, 0] = 1.0
    B[:, 1] = 1.0
    together = solve(A, B).quadrature(torch.log)
    assert float(together[0]) == pytest.approx(10 * np.log(2.0), rel=1e-12)
    torch.testing.assert_close(together[1], A.diagonal().log().sum())


def cholesky_of(A: Tensor, rank: int):
    return pivoted_cholesky(A.diagonal(), lambda row: A[:, row], rank)


@given(st.integers(1, 25), st.integers(1, 25), st.integers(0, 2**31))
def test_pivoted_cholesky_reproduces_the_chosen_rows(n, rank, seed):
    A = positive_definite(n, seed)
    result = cholesky_of(A, rank)
    chosen, r = result.pivots, min(n, rank)
    assert len(set(chosen.tolist())) == len(chosen) == r
    remainder = A - result.L @ result.L.mT
    torch.testing.assert_close(remainder[chosen], torch.zeros(r, n).double(), rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh(remainder)[0]) > -1e-11


def test_pivoted_cholesky_takes_the_largest_remaining_variance():
    A = positive_definite(12, 5)
    result = cholesky_of(A, 6)
    remainder = A.clone()
    for pivot in result.pivots.tolist():
        assert pivot == int(remainder.diagonal().argmax())
        remainder = remainder - torch.outer(remainder[:, pivot], remainder[pivot]) / remainder[pivot, pivot]


def test_pivoted_cholesky_stops_at_a_singular_rest():
    thin = well_conditioned(30, 4, torch.Generator().manual_seed(0))
    result = cholesky_of(thin @ thin.mT, 30)
    assert result.L.shape == (30, 4)
    torch.testing.assert_close(result.L @ result.L.mT, thin @ thin.mT, rtol=0, atol=1e-12)
    A = torch.diag(torch.tensor([2.0, 8.0, 1.0, 4.0, 1.0], dtype=torch.float64))
    assert cholesky_of(A, 3).pivots.tolist() == [1, 3, 0]


def test_arguments_that_make_no_sense_are_refused():
    A = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="tolerance is 0"):
        solve(A, A, tolerance=0.0)
    with pytest.raises(ValueError, match="max_iterations is 0"):
        solve(A, A, max_iterations=0)
