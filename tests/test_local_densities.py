"""Densities of rows given their neighbours: compiled in one sweep, they are the dense ones."""

import math
from typing import NamedTuple

import oracle
import pytest
import torch
from engine_problems import BACKENDS, DTYPES, needs_native
from local_problems import assert_close, make_case, stationary
from problems import STATIONARY
from torch import Tensor

from cagp import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean
from cagp.engine import (
    COMPILED,
    INSTRUCTION_SETS,
    TORCH,
    Backend,
    CompiledBackend,
    local_density,
)
from cagp.kernels import Constant
from cagp.local_inference import local_nll


class Densities(NamedTuple):
    """Rows that are predicted from others, with prior mean zero and one noise variance."""

    prior: GP
    X: Tensor
    y: Tensor
    rows: Tensor
    neighbours: Tensor

    def nll(self, backend: Backend | None = None) -> Tensor:
        return local_nll(self.prior, self.X, self.y, None, self.rows, self.neighbours, backend=backend)

    def gradients(self, backend: Backend) -> list[Tensor]:
        return list(torch.autograd.grad(self.nll(backend), list(self.prior.parameters())))

    def expected(self) -> float:
        found = oracle.local_posterior(self.prior, self.X, self.y, self.X[self.rows], self.neighbours)
        noise = oracle.noise_vector(self.prior.noise, len(self.X))[self.rows]
        return -oracle.log_predictive_densities(self.y[self.rows], found, noise).sum()


def make_densities(name: str, k: int, t: int, d: int, dtype: torch.dtype = torch.float64, **choices) -> Densities:
    case = make_case(stationary(name, d), k, t=t, d=d, dtype=dtype, **choices)
    g = torch.Generator().manual_seed(t)
    y = torch.randn(60, generator=g, dtype=torch.float64).to(dtype)
    rows = torch.randint(60, (t,), generator=g)
    neighbours = torch.where(case.neighbours == rows[:, None], -1, case.neighbours)
    return Densities(GP(case.kernel, noise=GaussianNoise(0.2)), case.X, y, rows, neighbours)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_densities_of_rows_are_the_dense_ones(backend, name, dtype):
    for k, t, d, missing in ((1, 3, 1, False), (4, 8, 2, True), (7, 13, 3, False), (16, 37, 9, True), (33, 5, 6, True)):
        problem = make_densities(name, k, t, d, dtype, missing=missing)
        assert_close(problem.nll(backend), problem.expected())


@pytest.mark.thinned(2)
@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_densities_in_one_sweep_have_the_gradients_of_the_torch_path(instructions, dtype):
    compiled = CompiledBackend(instructions)
    for name in STATIONARY:
        for k, t, d in ((1, 3, 1), (4, 8, 2), (6, 7, 3), (16, 37, 20), (19, 50, 5)):
            problem = make_densities(name, k, t, d, dtype, missing=k % 2 == 0)
            assert_close(problem.nll(compiled), problem.nll(TORCH).detach())
            for a, b in zip(problem.gradients(compiled), problem.gradients(TORCH), strict=True):
                assert_close(a, b, 1e-9)


@needs_native
def test_densities_in_one_sweep_do_not_depend_on_the_threads_or_on_the_wish_for_gradients():
    problem = make_densities("Matern52", 9, 1001, 3)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append([problem.nll(COMPILED).detach(), *problem.gradients(COMPILED)])
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(problem.nll(COMPILED), found[0][0])
    problem.prior.requires_grad_(False)
    assert not problem.nll(COMPILED).requires_grad


@needs_native
def test_densities_of_duplicates_without_noise_to_speak_of_have_the_gradients_of_the_torch_path():
    """Rows that their neighbours determine: their variance is what is left of the noise."""
    problem = make_densities("RBF", 8, 12, 2, oddity="duplicate rows")
    problem.prior.noise = GaussianNoise(1e-3)
    assert_close(problem.nll(COMPILED), problem.nll(TORCH).detach(), 1e-9)
    for a, b in zip(problem.gradients(COMPILED), problem.gradients(TORCH), strict=True):
        assert_close(a, b, 1e-7)


@needs_native
def test_what_is_not_a_number_is_no_density():
    problem = make_densities("Matern32", 5, 9, 2)
    problem.y[problem.neighbours[4, 0]] = math.nan
    assert bool(problem.nll(COMPILED).isnan())
    with torch.no_grad():
        problem.prior.kernel.raw_outputscale.fill_(math.nan)
    assert bool(problem._replace(y=torch.ones(60, dtype=torch.float64)).nll(COMPILED).isnan())


@needs_native
def test_what_one_sweep_does_not_know_is_left_to_the_moments():
    problem = make_densities("Matern32", 5, 9, 2)
    everything = (problem.X, problem.y, problem.rows, problem.neighbours, torch.tensor(0.2).double())
    assert local_density(problem.prior.kernel, *everything) is not None
    assert local_density(problem.prior.kernel + Constant(), *everything) is None
    assert local_density(problem.prior.kernel, *everything, backend=TORCH) is None
    X = problem.X.clone().requires_grad_()
    assert local_density(problem.prior.kernel, X, *everything[1:]) is None
    known = 0.1 + torch.rand(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    rows, kernel = (problem.rows, problem.neighbours), problem.prior.kernel
    for prior, row_noise in (
        (GP(kernel, ConstantMean(0.7)), None),
        (GP(kernel, LinearMean(2)), None),
        (GP(kernel), known),
        (GP(kernel, noise=KnownNoise()), known),
        (GP(kernel + Constant(0.5)), None),
    ):
        actual = local_nll(prior, problem.X, problem.y, row_noise, *rows)
        found = oracle.local_posterior(prior, problem.X, problem.y, problem.X[rows[0]], rows[1], row_noise=row_noise)
        noise = oracle.noise_vector(prior.noise, 60, row_noise)[rows[0]]
        assert_close(actual, -oracle.log_predictive_densities(problem.y[rows[0]], found, noise).sum())
