"""CaGP-Local: small conditionals, posteriors with actions of each question's own, the hybrid, and their objectives."""

import copy
import math
from typing import NamedTuple

import numpy as np
import oracle
import pytest
import torch
from engine_problems import AUTO_AND_TORCH, BACKENDS, DTYPES, OtherPrecision, needs_native, periodic
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import KERNELS, STATIONARY, Problem, Recipe, make_prior, recipes
from torch import Tensor

from cagp import (
    GP,
    MAP,
    CaGPLocal,
    CaGPOpt,
    CholeskyGP,
    ConstantMean,
    GaussianNoise,
    KnownNoise,
    LinearMean,
    fit,
    metrics,
)
from cagp.actions import BlockActions, DenseActions, Partition, ordered_blocks
from cagp.engine import (
    COMPILED,
    INSTRUCTION_SETS,
    TORCH,
    Backend,
    CompiledBackend,
    LocalMoments,
    choice,
    local_density,
    local_moments,
)
from cagp.kernels import RBF, Constant, Kernel, Matern32, Scale
from cagp.local_inference import SharedActions, local_answers, local_nll
from cagp.methods.common import idle_inputs, is_gain
from cagp.neighbours import NeighbourIndex
from cagp.posteriors import LocalPosterior
from cagp.prior import ZeroMean

INSTALLED = [TORCH, *([COMPILED] if COMPILED.available else [])]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-4}


def assert_close(actual, expected, relative: float = 1e-10) -> None:
    """The largest error is at most ``relative`` times the largest expected value, or that of 1 where it is smaller."""
    actual, expected = oracle.array(actual), oracle.array(expected)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max(initial=0.0) <= relative * max(1.0, np.abs(expected).max(initial=0.0))


# --- small conditionals -----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Arguments of ``local_moments``."""

    kernel: Kernel
    questions: Tensor
    X: Tensor
    neighbours: Tensor
    noise: Tensor
    residual: Tensor
    gram: Tensor | None = None
    cross: Tensor | None = None

    def moments(self, backend: Backend | None = None) -> LocalMoments:
        return local_moments(*self, backend=backend)

    def expected(self) -> list[np.ndarray]:
        """cᵀC⁻¹r, cᵀC⁻¹c, rᵀC⁻¹r and the number of rows, a question at a time."""
        answers = []
        for q, rows in enumerate(self.neighbours.tolist()):
            here = [a for a, row in enumerate(rows) if row >= 0]
            near = oracle.array(self.X)[[rows[a] for a in here]]
            C = oracle.kernel_matrix(self.kernel, near, near) + np.diag(oracle.array(self.noise)[q, here])
            c = oracle.kernel_matrix(self.kernel, near, oracle.array(self.questions)[q : q + 1])[:, 0]
            if self.gram is not None and self.cross is not None:
                C = C - oracle.array(self.gram)[q][np.ix_(here, here)]
                c = c - oracle.array(self.cross)[q, here]
            r = oracle.array(self.residual)[q, here]
            a, b = np.linalg.solve(C, np.stack([r, c], axis=1)).T
            answers.append([c @ a, c @ b, r @ a, len(here)])
        return list(np.array(answers).T)


def make_case(
    kernel: Kernel,
    k: int,
    *,
    t: int = 11,
    d: int = 3,
    dtype: torch.dtype = torch.float64,
    given: bool = False,
    missing: bool = False,
    oddity: str = "none",
    seed: int = 0,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(60, d, generator=g, dtype=torch.float64)
    if oddity == "duplicate rows":
        X = X[torch.randint(0, 15, (60,), generator=g)]
    elif oddity == "constant column":
        X[:, 0] = 3.7
    X = X.to(dtype)
    questions = torch.cat([X[:2], torch.randn(t - 2, d, generator=g, dtype=torch.float64).to(dtype)])  # rows of X, too
    neighbours = torch.stack([torch.randperm(60, generator=g)[:k] for _ in range(t)])
    if missing:
        neighbours[torch.rand(t, k, generator=g) < 0.4] = -1
        neighbours[2] = -1
    noise = 0.05 + torch.rand(t, k, generator=g, dtype=torch.float64)
    residual = torch.randn(t, k, generator=g, dtype=torch.float64)
    case = Case(kernel, questions, X, neighbours, noise.to(dtype), residual.to(dtype))
    if not given:
        return case
    # What the function's values at three more inputs explain.
    Z = np.random.default_rng(seed).normal(size=(3, d))
    root = np.linalg.inv(np.linalg.cholesky(oracle.kernel_matrix(kernel, Z, Z) + 1e-3 * np.eye(3)))
    of_rows = torch.from_numpy(oracle.kernel_matrix(kernel, X, Z) @ root.T)[neighbours.clamp_min(0)]
    of_questions = torch.from_numpy(oracle.kernel_matrix(kernel, questions, Z) @ root.T)
    gram, cross = of_rows @ of_rows.mT, (of_rows @ of_questions[:, :, None])[:, :, 0]
    return case._replace(gram=gram.to(dtype), cross=cross.to(dtype))


def stationary(name: str, d: int, seed: int = 0) -> Kernel:
    lengthscale = d**0.5 * (0.4 + torch.rand(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return Scale(STATIONARY[name](d, lengthscale), 1.3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_are_the_dense_ones(backend, name, dtype):
    for k in range(1, 21):
        oddity = ("none", "duplicate rows", "constant column")[k % 3]
        d = 1 + k % 5
        options = {"oddity": oddity, "given": k % 2 == 0, "missing": k % 4 > 1, "t": 3 + k, "d": d, "seed": k}
        case = make_case(stationary(name, d), k, dtype=dtype, **options)
        for actual, expected in zip(case.moments(backend), case.expected(), strict=True):
            assert actual.dtype == dtype
            assert_close(actual, expected, TOLERANCE[dtype])


@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_every_instruction_set_gives_the_dense_moments_and_the_gradients_of_the_torch_path(instructions, dtype):
    compiled = CompiledBackend(instructions)
    for name in STATIONARY:
        case = make_case(stationary(name, 4), 9, t=37, d=4, dtype=dtype, given=True, missing=True)
        for actual, expected in zip(case.moments(compiled), case.expected(), strict=True):
            assert_close(actual, expected, TOLERANCE[dtype])
        for actual, expected in zip(*(gradients(case, backend) for backend in (compiled, TORCH)), strict=True):
            assert_close(actual, expected, 10 * TOLERANCE[dtype])


@needs_native
@pytest.mark.parametrize(("k", "d"), [(1, 1), (2, 7), (5, 2), (8, 9), (15, 3), (16, 20), (18, 6), (33, 5)])
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_blocks_of_rows_and_inputs_of_every_size_give_the_moments_and_gradients_of_the_torch_path(instructions, k, d):
    compiled = CompiledBackend(instructions)
    for name in ("Matern32", "RationalQuadratic"):
        case = make_case(stationary(name, d), k, t=7, d=d, missing=k % 2 == 0)
        for pair in (
            zip(case.moments(compiled), case.moments(TORCH), strict=True),
            zip(gradients(case, compiled), gradients(case, TORCH), strict=True),
        ):
            for actual, expected in pair:
                assert_close(actual, expected, 1e-9)


@needs_native
def test_noise_that_is_one_number_need_not_be_written_out():
    case = make_case(stationary("Matern52", 3), 6, missing=True)
    one = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    means = []
    for noise in (one.expand(case.noise.shape), one.expand(case.noise.shape).contiguous()):
        mean, explained, *others = case._replace(noise=noise).moments(COMPILED)
        means.append([mean, explained, *others, *torch.autograd.grad((mean + explained).sum(), one)])
    for a, b in zip(*means, strict=True):
        assert torch.equal(a, b)


@needs_native
@pytest.mark.parametrize("place", ["questions", "noise", "residual", "gram", "cross", "kernel"])
def test_a_gradient_is_the_same_whatever_else_is_differentiated(place):
    case = make_case(stationary("Matern32", 3), 6, given=True, missing=True)
    every = dict(zip(["questions", "noise", "residual", "gram", "cross"], gradients(case, COMPILED), strict=False))
    if place == "kernel":
        alone = torch.autograd.grad(weighted_sum(case, COMPILED), list(case.kernel.parameters()))
        for a, b in zip(alone, gradients(case, COMPILED)[5:], strict=True):
            assert torch.equal(a, b)
        return
    case.kernel.requires_grad_(False)
    case = case._replace(**{place: getattr(case, place).clone().requires_grad_()})
    (alone,) = torch.autograd.grad(weighted_sum(case, COMPILED), getattr(case, place))
    assert torch.equal(alone, every[place])


def test_means_and_noise_of_rows_are_those_at_the_rows():
    g = torch.Generator().manual_seed(3)
    X, row_noise = torch.randn(9, 2, generator=g), torch.rand(9, generator=g) + 0.1
    rows = torch.tensor([3, 3, 0, 8, 5])
    linear = LinearMean(2)
    with torch.no_grad():
        linear.slope.fill_(0.7)
    for mean in (ZeroMean(), ConstantMean(0.8), linear):
        assert torch.equal(mean.of_rows(X, rows), mean(X[rows]))
        assert mean.of_rows(X, rows).dtype == X.dtype
    for noise in (GaussianNoise(0.3), KnownNoise()):
        assert torch.equal(noise.of_rows(X, rows, row_noise), noise(X[rows], row_noise[rows]))
    assert torch.equal(GaussianNoise(0.3).of_rows(X, rows), GaussianNoise(0.3)(X[rows]))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STATIONARY)
def test_a_redundant_row_is_left_out_and_breaks_nothing(name, backend, given):
    """Duplicates without noise: the first of each counts, whatever the targets of the others."""
    plain = make_case(stationary(name, 3), 6, given=given)
    plain = plain._replace(noise=torch.zeros_like(plain.noise))
    again = torch.tensor([0, 1, 1, 2, 3, 0, 4, 4, 4, 5])  # columns of the case, duplicates after their originals
    case = plain._replace(
        neighbours=plain.neighbours[:, again],
        noise=plain.noise[:, again],
        residual=plain.residual[:, again] + torch.tensor([0, 0, 5.0, 0, 0, 5.0, 0, 5.0, 5.0, 0]),
        gram=None if plain.gram is None else plain.gram[:, again][:, :, again],
        cross=None if plain.cross is None else plain.cross[:, again],
    )
    for actual, expected in zip(case.moments(backend), plain.expected(), strict=True):
        assert_close(actual, expected, 1e-7)
    first = torch.tensor([0, 1, 3, 4, 6, 9])
    of_case, of_plain = gradients(case, backend), gradients(plain, backend)
    for place, (actual, expected) in enumerate(zip(of_case, of_plain, strict=True)):
        if place in (1, 2) or (given and place == 4):  # noise, residual, cross: those of the rows that count
            actual = actual[:, first]
        elif given and place == 3:
            actual = actual[:, first][:, :, first]
        assert_close(actual, expected, 1e-5)


def leaves(case: Case) -> list[Tensor]:
    """Questions, noise, residual, gram and cross if given, and the kernel's parameters."""
    tensors = [case.questions, case.noise, case.residual, case.gram, case.cross, *case.kernel.parameters()]
    return [tensor for tensor in tensors if tensor is not None]


def weighted_sum(case: Case, backend: Backend | None) -> Tensor:
    weights = torch.randn(2, len(case.questions), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mean, explained, misfit, num_rows = case.moments(backend)
    assert not misfit.requires_grad
    assert not num_rows.requires_grad
    return (weights[0] * mean.double() + weights[1] * explained.double()).sum()


def gradients(case: Case, backend: Backend | None) -> list[Tensor]:
    floating = {name: value for name, value in case._asdict().items() if name not in ("kernel", "X", "neighbours")}
    fresh = {name: None if v is None else v.detach().clone().requires_grad_() for name, v in floating.items()}
    case = case._replace(**fresh)
    return list(torch.autograd.grad(weighted_sum(case, backend), leaves(case)))


def slope(function, tensor: Tensor, direction: Tensor, step: float = 1e-5) -> float:
    """The derivative of function() when ``tensor`` moves, by central differences."""
    values = []
    with torch.no_grad():
        for sign in (1, -1):
            tensor.add_(direction, alpha=sign * step)
            values.append(float(function()))
            tensor.sub_(direction, alpha=sign * step)
    return (values[0] - values[1]) / (2 * step)


PATHS = [
    *(pytest.param(COMPILED, name, given, marks=needs_native) for name in STATIONARY for given in (False, True)),
    *((TORCH, name, given) for name in (*STATIONARY, "Linear + Matern52", "Matern12 * RBF") for given in (False, True)),
    (TORCH, "periodic", False),
]


@pytest.mark.parametrize(("backend", "name", "given"), PATHS)
def test_gradients_are_the_slopes(backend, name, given):
    lengthscale = torch.tensor([0.9, 1.4, 0.7], dtype=torch.float64)
    kernel = stationary(name, 3) if name in STATIONARY else periodic()
    if name in KERNELS and name not in STATIONARY:
        kernel = KERNELS[name](3, lengthscale)
    case = make_case(kernel, 7, given=given, missing=True)
    # Away from the rows, where Matern-1/2 has no slope.
    case = case._replace(questions=case.questions + 0.05)
    for tensor, gradient in zip(leaves(case), gradients(case, backend), strict=True):
        for seed in range(2):
            direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            if tensor is case.gram:
                direction = direction + direction.mT  # it stands for a symmetric matrix
            expected = slope(lambda: weighted_sum(case, backend), tensor, direction)
            assert float((gradient * direction).sum()) == pytest.approx(expected, rel=2e-6, abs=1e-6)
            assert abs(expected) > 1e-5


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_densities_of_rows_are_the_dense_ones(backend, name, dtype):
    for k, t, d, missing in ((1, 3, 1, False), (4, 8, 2, True), (7, 13, 3, False), (16, 37, 9, True), (33, 5, 6, True)):
        problem = make_densities(name, k, t, d, dtype, missing=missing)
        assert_close(problem.nll(backend), problem.expected(), TOLERANCE[dtype])


@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_densities_in_one_sweep_have_the_gradients_of_the_torch_path(instructions, dtype):
    compiled = CompiledBackend(instructions)
    for name in STATIONARY:
        for k, t, d in ((1, 3, 1), (4, 8, 2), (6, 7, 3), (16, 37, 20), (19, 50, 5)):
            problem = make_densities(name, k, t, d, dtype, missing=k % 2 == 0)
            assert_close(problem.nll(compiled), problem.nll(TORCH).detach(), TOLERANCE[dtype])
            for a, b in zip(problem.gradients(compiled), problem.gradients(TORCH), strict=True):
                assert_close(a, b, 10 * TOLERANCE[dtype])


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


@pytest.mark.parametrize("backend", AUTO_AND_TORCH)
def test_residuals_of_all_rows_need_not_be_gathered(backend):
    case = make_case(stationary("Matern52", 3), 6, missing=True)
    y = torch.randn(60, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    gathered = case._replace(residual=y[case.neighbours.clamp_min(0)])
    for a, b in zip(case._replace(residual=y.detach()).moments(backend), gathered.moments(backend), strict=True):
        assert torch.equal(a, b.detach())
    of_rows, of_gathered = (
        torch.autograd.grad(weighted_sum(c, backend), y)[0] for c in (case._replace(residual=y), gathered)
    )
    assert torch.equal(of_rows, of_gathered)
    assert bool((of_rows != 0).any())


@pytest.mark.parametrize("backend", AUTO_AND_TORCH)
def test_one_noise_for_all_neighbours(backend):
    case = make_case(stationary("Matern52", 3), 6, missing=True)
    one = torch.tensor(0.3, dtype=torch.float64)
    written_out = case._replace(noise=torch.full_like(case.noise, 0.3))
    for a, b in zip(case._replace(noise=one).moments(backend), written_out.moments(backend), strict=True):
        assert torch.equal(a, b)


COMPOSITES = ["Scale(RBF) + Constant", "Linear + Matern52", "Matern12 * RBF", "Constant * Matern32"]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", COMPOSITES)
def test_sums_and_products_take_a_path_that_knows_them(name, given):
    case = make_case(KERNELS[name](3, torch.tensor([0.9, 1.4, 0.7]).double()), 8, given=given, missing=True)
    for actual, expected in zip(case.moments(), case.expected(), strict=True):
        assert_close(actual, expected)


def test_a_kernel_of_ones_own_is_enough():
    kernel = periodic()
    case = make_case(kernel, 5)
    mean, explained, *_ = case.moments()
    for q, rows in enumerate(case.neighbours):
        near = case.X[rows]
        C = (kernel(near, near) + torch.diag(case.noise[q])).detach()
        c = kernel(near, case.questions[q : q + 1])[:, 0].detach()
        assert_close(mean[q], c @ torch.linalg.solve(C, case.residual[q]))
        assert_close(explained[q], c @ torch.linalg.solve(C, c))


@needs_native
def test_the_number_of_threads_changes_no_bit():
    case = make_case(stationary("Matern52", 5), 12, t=300, d=5, given=True, missing=True)
    one = [*case.moments(COMPILED), *gradients(case, COMPILED)]
    try:
        for threads in (2, 5):
            torch.set_num_threads(threads)
            for a, b in zip(one, [*case.moments(COMPILED), *gradients(case, COMPILED)], strict=True):
                assert torch.equal(a, b)
    finally:
        torch.set_num_threads(1)


def test_far_from_the_origin_no_digits_are_lost():
    case = make_case(stationary("Matern32", 3), 6)
    moved = case._replace(X=case.X + 1e6, questions=case.questions + 1e6)
    for backend in INSTALLED:
        for a, b in zip(moved.moments(backend), case.moments(backend), strict=True):
            assert_close(a, b, 1e-8)


def test_the_rows_are_constants_on_every_path():
    case = make_case(stationary("RBF", 3), 6)
    case = case._replace(X=case.X.clone().requires_grad_(), questions=case.questions.clone().requires_grad_())
    for backend in INSTALLED:
        with pytest.raises(RuntimeError, match="not have been used"):
            torch.autograd.grad(weighted_sum(case, backend), case.X)


@pytest.mark.usefixtures("annotations_off")
def test_wrong_arguments_and_paths_that_do_not_apply_are_refused(monkeypatch):
    case = make_case(RBF(3), 4)
    with pytest.raises(ValueError, match="backend is 'gpu', expected a Backend"):
        case.moments("gpu")
    if COMPILED.available:
        with pytest.raises(ValueError, match="the kernel is a sum"):
            case._replace(kernel=RBF(3) + Constant()).moments(COMPILED)
        with pytest.raises(ValueError, match="Periodic is not compiled"):
            case._replace(kernel=periodic()).moments(COMPILED)
    mean, explained, *_ = (value.sum() for value in case._replace(questions=case.questions.requires_grad_()).moments())
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(mean + explained, case.questions, create_graph=True)
    with pytest.raises(ValueError, match="not installed"):
        case.moments(CompiledBackend(None))
    monkeypatch.setattr(choice, "BACKENDS", (CompiledBackend(None), TORCH))
    assert_close(case.moments()[0], case.expected()[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_kernel_that_returns_another_dtype_works_as_in_exact_inference(dtype):
    """The kernel is Matern 3/2 in the other precision; the answers are those of the right one, to float32."""
    other = torch.float32 if dtype == torch.float64 else torch.float64
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, generator=g, dtype=torch.float64).to(dtype)
    y = torch.sin(4 * X.sum(1))
    lengthscale = torch.tensor([0.6, 0.9], dtype=torch.float64)
    odd, right = (
        GP(Scale(kernel, 1.3), noise=GaussianNoise(0.05))
        for kernel in (OtherPrecision(other, lengthscale), Matern32(2, lengthscale))
    )
    points = torch.rand(7, 2, generator=g, dtype=torch.float64).to(dtype)
    for method in (CholeskyGP, lambda prior: CaGPLocal(prior, 20, num_neighbours_predict=40)):
        actual, expected = (method(prior).condition(X, y).predict(points) for prior in (odd, right))
        assert actual.mean.dtype == dtype
        assert_close(actual.mean, expected.mean, 1e-4)
        assert_close(actual.variance, expected.variance, 1e-4)
    loss, expected = (CaGPLocal(prior, 39).objective(X, y) for prior in (odd, right))
    assert_close(loss, expected, 1e-4)


# --- posteriors -------------------------------------------------------------------------------------------------------


def condition(p: Problem, k: int, *, hybrid: bool, y: Tensor | None = None, **choices) -> LocalPosterior:
    method = CaGPLocal(p.prior, shared=p.actions if hybrid else None)
    return method.condition(p.X, p.y if y is None else y, p.row_noise, num_neighbours=k, **choices)


def draw_neighbours(data, n: int) -> int:
    return data.draw(st.integers(1, n), label="neighbours")


@settings(max_examples=30)
@given(recipes(), st.data())
def test_local_and_hybrid_are_the_dense_posteriors_of_their_actions(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        neighbours = posterior._neighbours(p.Z)
        assert all(len(set(rows)) == k for rows in neighbours.tolist())
        expected = oracle.local_posterior(p.prior, p.X, p.y, p.Z, neighbours, S, p.row_noise)
        actual = posterior.predict(p.Z)
        assert_close(actual.mean, expected.mean, 1e-9)
        assert_close(actual.variance, expected.variance, 1e-9 * max(1.0, p.scale))
        assert_close(posterior.mean(p.Z), actual.mean, 0.0)


def test_rows_that_shared_actions_and_other_rows_determine_together_are_left_out_by_round_off_of_any_sign():
    """11 of 19 rows beside 11 dense actions: three rows too many, whose pivots can come out on both sides of zero."""
    for seed in (1647994597, *range(20)):
        p = Recipe(19, 50, 11, "Matern12 * RBF", "dense", "linear", "one", 1e-4, "none", seed, torch.float64).build()
        actual = condition(p, 11, hybrid=True).predict(p.Z)
        exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z)
        assert_close(actual.mean, exact.mean, 1e-8)
        assert_close(actual.variance, exact.variance, 1e-9)


@settings(max_examples=25)
@given(recipes(dtype=torch.float32, smallest_noise=0.05), st.data())
def test_float32_data_get_the_answers_to_float32_accuracy(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        expected = oracle.local_posterior(p.prior, p.X, p.y, p.Z, posterior._neighbours(p.Z), S, p.row_noise)
        actual = posterior.predict(p.Z)
        assert_close(actual.mean, expected.mean, 2e-3)
        assert_close(actual.variance / p.scale, expected.variance / p.scale, 1e-4)


@given(recipes(), st.data())
def test_variances_are_ordered_exact_hybrid_local_and_exact_hybrid_global(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    exact = oracle.exact_posterior(p.prior, p.X, p.y, p.Z, p.row_noise).variance
    hybrid = oracle.array(condition(p, k, hybrid=True).variance(p.Z))
    local = oracle.array(condition(p, k, hybrid=False).variance(p.Z))
    shared = oracle.array(CaGPOpt(p.prior, p.actions).condition(p.X, p.y, p.row_noise).variance(p.Z))
    slack = 1e-9 * p.scale
    assert (exact <= hybrid + slack).all()
    assert (hybrid <= local + slack).all()
    assert (hybrid <= shared + slack).all()


@settings(max_examples=20)
@given(recipes(), st.data())
def test_more_neighbours_never_raise_the_variance(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for hybrid in (False, True):
        numbers = data.draw(st.integers(1, k), label="fewer"), k
        fewer, more = (condition(p, number, hybrid=hybrid).variance(p.Z) for number in numbers)
        assert bool((more <= fewer + 1e-9 * p.scale).all())


@settings(max_examples=30)
@given(recipes(square=True), recipes(), st.data())
def test_with_all_rows_or_as_many_actions_as_rows_the_answers_are_exact(square, recipe, data):
    p = recipe.build()
    q = square.build()
    cases = [(p, condition(p, recipe.n, hybrid=False)), (p, condition(p, recipe.n, hybrid=True))]
    cases.append((q, condition(q, draw_neighbours(data, square.n), hybrid=True)))
    for problem, posterior in cases:
        exact = oracle.exact_posterior(problem.prior, problem.X, problem.y, problem.Z, problem.row_noise)
        actual = posterior.predict(problem.Z)
        assert_close(actual.mean, exact.mean, 1e-8)
        assert_close(actual.variance / problem.scale, exact.variance / problem.scale, 1e-9)


@pytest.mark.parametrize("kind", ["blocks of one row", "all but one of one row", "unit vectors", "unit vectors mixed"])
@pytest.mark.parametrize("kernel", ["Matern32", "Scale(RBF) + Constant"])
def test_neighbours_in_the_span_of_the_shared_actions_count_once(kind, kernel):
    g = torch.Generator().manual_seed(3)
    n = 24
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X.sum(1))
    new = torch.cat([X[:4], torch.randn(5, 2, generator=g, dtype=torch.float64)])
    prior = make_prior(kernel, 2, 1e-4, g)
    if kind == "blocks of one row":
        actions = BlockActions(ordered_blocks(n, n), dtype=torch.float64)
    elif kind == "all but one of one row":
        offsets = torch.cat([torch.arange(n - 3), torch.tensor([n])])
        actions = BlockActions(Partition(torch.randperm(n, generator=g), offsets), dtype=torch.float64)
    else:
        S = torch.eye(n, dtype=torch.float64)[:, torch.randperm(n, generator=g)[:15]]
        mixed = S @ torch.randn(15, 15, generator=g, dtype=torch.float64)
        actions = DenseActions(S if kind == "unit vectors" else mixed)
    for k in (1, 5, n):
        posterior = CaGPLocal(prior, shared=actions).condition(X, y, num_neighbours=k)
        S = oracle.action_matrix(actions)
        expected = oracle.local_posterior(prior, X, y, new, posterior._neighbours(new), S)
        actual = posterior.predict(new)
        assert_close(actual.mean, expected.mean, 1e-7)  # the noise is small: K̂ has a condition of 1e5
        assert_close(actual.variance, expected.variance, 1e-9)
        joint = posterior.joint(new)
        together = oracle.cagp_posterior(
            prior, oracle.question_actions(n, posterior._neighbours(new).unique(), S), X, y, new
        )
        assert_close(joint.mean, together.mean, 1e-7)
        assert_close(joint.covariance, together.covariance, 1e-9)


@settings(max_examples=15)
@given(recipes(), st.data())
def test_joint_answers_are_those_of_the_union(recipe, data):
    p, k = recipe.build(), draw_neighbours(data, recipe.n)
    for S in (None, p.S):
        posterior = condition(p, k, hybrid=S is not None)
        union = posterior._neighbours(p.Z).unique()
        expected = oracle.cagp_posterior(
            p.prior, oracle.question_actions(recipe.n, union, S), p.X, p.y, p.Z, p.row_noise
        )
        joint = posterior.joint(p.Z)
        assert_close(joint.mean, expected.mean, 1e-8)
        assert_close(joint.covariance / p.scale, expected.covariance / p.scale, 1e-9)
        assert_close(posterior.covariance(p.Z), joint.covariance, 1e-12)
        assert bool((joint.covariance.diagonal() <= posterior.variance(p.Z) + 1e-9 * p.scale).all())
        alone = torch.cat([posterior.covariance(z[None])[0] for z in p.Z])  # a question's own union
        assert_close(alone / p.scale, posterior.variance(p.Z) / p.scale, 1e-9)


def test_samples_are_drawn_around_the_mean_of_the_union():
    """A row's own mean comes from fewer rows: it can be off by more than the covariance of the union says."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 1, generator=g, dtype=torch.float64)
    y = torch.sin(9 * X[:, 0])
    new = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None]
    posterior = CaGPLocal(GP(RBF(1, 0.2), noise=GaussianNoise(1e-3))).condition(X, y, num_neighbours=1)
    joint = posterior.joint(new)
    error = (joint.covariance.diagonal() / 4000).sqrt()
    draws = posterior.sample(new, 4000, generator=g)
    assert bool(((draws.mean(0) - joint.mean).abs() < 5 * error).all())
    assert float(((posterior.mean(new) - joint.mean).abs() / error).max()) > 20


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


def test_a_gain_is_large_enough_and_not_by_chance():
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


def test_joint_answers_that_need_too_many_rows_are_refused(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(50, 2, generator=g, dtype=torch.float64)
    posterior = CaGPLocal(GP(Matern32(2))).condition(X, X.sum(1), num_neighbours=4)
    monkeypatch.setattr(LocalPosterior, "MOST_JOINT_ROWS", 10)
    assert posterior.covariance(X[:2]).shape == (2, 2)
    for ask in (posterior.covariance, posterior.joint, lambda at: posterior.sample(at, 1)):
        with pytest.raises(ValueError, match="at 50 rows need 50 training rows together, the limit is 10"):
            ask(X)
    assert bool(torch.isfinite(posterior.predict(X).variance).all())


@settings(max_examples=25)
@given(recipes())
def test_without_neighbours_the_hybrid_is_cagp_opt_and_without_anything_the_prior(recipe):
    p = recipe.build()
    shared = CaGPOpt(p.prior, p.actions).condition(p.X, p.y, p.row_noise)
    hybrid = condition(p, 0, hybrid=True)
    assert_close(hybrid.mean(p.Z), shared.mean(p.Z), 1e-9)
    assert_close(hybrid.variance(p.Z) / p.scale, shared.variance(p.Z) / p.scale, 1e-10)
    assert_close(hybrid.covariance(p.Z) / p.scale, shared.covariance(p.Z) / p.scale, 1e-10)
    assert_close(hybrid.joint(p.Z).mean, shared.mean(p.Z), 1e-9)
    nothing = condition(p, 0, hybrid=False)
    assert_close(nothing.mean(p.Z), oracle.mean_vector(p.prior.mean, p.Z))
    assert_close(nothing.covariance(p.Z), oracle.kernel_matrix(p.prior.kernel, p.Z, p.Z))


@settings(max_examples=12)
@given(recipes(noises=("one",), oddities=("none",), max_rows=12), st.data())
def test_worst_case_error_in_the_unit_ball_of_the_rkhs_is_the_predictive_variance(recipe, data):  # Theorem S2 for S_x
    p, k = recipe._replace(mean="zero").build(), draw_neighbours(data, recipe.n)
    x = p.Z[:1]  # not a training input
    gram = oracle.noisy_gram(p.prior, torch.cat([p.X, x]))
    rng = np.random.default_rng(recipe.seed)
    for hybrid in (False, True):
        supremum = condition(p, k, hybrid=hybrid).variance(x, noise=True).item()

        def mean(values: np.ndarray, hybrid=hybrid) -> float:
            return condition(p, k, hybrid=hybrid, y=torch.from_numpy(values)).mean(x).item()

        # The error y(x) - mean(x) is the inner product of y with e = kˢ(·, x) - Σ c_r kˢ(·, x_r).
        e = np.append([-mean(unit) for unit in np.eye(recipe.n)], 1.0)
        assert_close(e @ gram @ e, supremum, 1e-9)
        worst = gram @ e / math.sqrt(e @ gram @ e)  # values of the worst function of norm 1
        assert_close((worst[-1] - mean(worst[:-1])) ** 2, supremum, 1e-9)
        for _ in range(3):
            w = rng.normal(size=len(gram))
            unit = gram @ w / math.sqrt(w @ gram @ w)
            assert (unit[-1] - mean(unit[:-1])) ** 2 <= supremum * (1 + 1e-9)


def test_neighbours_are_those_in_units_of_the_lengthscales():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(200, 2, generator=g, dtype=torch.float64)
    prior = GP(Scale(Matern32(2, [0.1, 10.0])))
    posterior = CaGPLocal(prior, index_kind="scan").condition(X, X[:, 0], num_neighbours=5)
    near = ((X[None] - X[:9, None]) / torch.tensor([0.1, 10.0])).square().sum(-1).argsort(dim=1)[:, :5]
    assert torch.equal(posterior._neighbours(X[:9]).sort().values, near.sort().values)


def test_what_is_kept_for_the_rows_changes_no_answer(monkeypatch):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(60, 2, generator=g, dtype=torch.float64)
    y, row_noise = X.sum(1).sin(), torch.rand(60, generator=g, dtype=torch.float64)
    method = CaGPLocal(GP(Matern32(2)), shared=BlockActions.from_data(X, 7))
    kept = method.condition(X, y, row_noise, num_neighbours=5)
    method.max_bytes = 2000  # a few rows at a time
    assert_close(method.condition(X, y, row_noise, num_neighbours=5)._kept, kept._kept, 1e-12)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    computed = method.condition(X, y, row_noise, num_neighbours=5)
    assert kept._kept is not None
    assert computed._kept is None
    questions = torch.rand(400, 2, generator=g, dtype=torch.float64, requires_grad=True)
    for a, b in zip(kept.predict(questions), computed.predict(questions), strict=True):
        assert_close(a, b, 1e-12)
        slopes = [torch.autograd.grad(answer.sum(), questions, retain_graph=True)[0] for answer in (a, b)]
        assert_close(*slopes, 1e-10)


def test_near_questions_are_answered_together_where_nothing_is_kept(monkeypatch):
    """Each row that occurs in a tile is computed once: in an order by place, hardly more rows than there are."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(4000, 2, generator=g, dtype=torch.float64)
    monkeypatch.setattr("cagp.posteriors.nearest_rows.KEPT_BYTES", 0)
    method = CaGPLocal(GP(Matern32(2)), shared=BlockActions.from_data(X, 4, support_size=8))
    posterior = method.condition(X, X.sum(1).sin(), num_neighbours=8)
    posterior.max_bytes = 4 * 8 * posterior._width * 100  # a hundred questions at a time
    computed = []
    rows_of = SharedActions.rows
    monkeypatch.setattr(SharedActions, "rows", lambda *args: computed.append(len(args[2])) or rows_of(*args))
    posterior.predict(torch.rand(2000, 2, generator=g, dtype=torch.float64))
    assert len(computed) == 20
    assert sum(computed) < 2 * len(X)  # in a random order of the questions: 20 times 700


# --- objectives -------------------------------------------------------------------------------------------------------


class Training(NamedTuple):
    X: Tensor
    y: Tensor
    row_noise: Tensor | None
    method: CaGPLocal


def training(
    objective: str, shared: str = "none", *, n: int = 30, k: int = 5, row_noise: bool = True, **choices
) -> Training:
    """A small problem; shared actions touch a third of the rows."""
    g = torch.Generator().manual_seed(1)
    X = torch.randn(n, 2, generator=g, dtype=torch.float64)
    X[3] = X[4]
    y = torch.sin(2 * X.sum(1)) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    known = 0.02 + 0.1 * torch.rand(n, generator=g, dtype=torch.float64) if row_noise else None
    prior = GP(Scale(Matern32(2, [0.9, 1.2]), 1.3), ConstantMean(0.2), GaussianNoise(0.05))
    actions = None
    if shared == "blocks":
        actions = BlockActions.from_data(X, 5, support_size=2, generator=g)
        with torch.no_grad():
            actions.values.add_(torch.rand(10, generator=g, dtype=torch.float64))
    choices = {"index_kind": "scan", **choices}
    return Training(X, y, known, CaGPLocal(prior, k, objective=objective, shared=actions, **choices))


def oracle_terms(t: Training) -> np.ndarray:
    """The negative log predictive density of every row that may be predicted."""
    rows = t.method._training_rows(len(t.X))
    S = None if t.method.shared is None else oracle.action_matrix(t.method.shared)
    neighbours = t.method._neighbours(t.X, rows)
    prior = t.method.prior
    prediction = oracle.local_posterior(prior, t.X, t.y, t.X[rows], neighbours, S, t.row_noise)
    noise = oracle.noise_vector(prior.noise, len(t.X), t.row_noise)[rows]
    return -oracle.log_predictive_densities(t.y[rows], prediction, noise)


every_objective = pytest.mark.parametrize("objective", ["loo", "ordered"])
every_shared = pytest.mark.parametrize("shared", ["none", "blocks"])


@every_objective
@every_shared
@pytest.mark.parametrize("row_noise", [False, True])
def test_the_objective_is_the_mean_of_predictive_densities(objective, shared, row_noise):
    t = training(objective, shared, row_noise=row_noise)
    value = t.method.objective(t.X, t.y, t.row_noise)
    assert_close(value, oracle_terms(t).mean(), 1e-10)
    t.method.max_bytes = 1024  # a row at a time
    assert_close(t.method.objective(t.X, t.y, t.row_noise), value, 1e-10)


@every_objective
@every_shared
def test_gradients_of_the_objective_are_its_slopes(objective, shared):
    t = training(objective, shared)

    def loss() -> Tensor:
        return t.method.objective(t.X, t.y, t.row_noise)

    parameters = dict(t.method.named_parameters())
    assert ("shared.values" in parameters) == (shared == "blocks")
    for (name, parameter), gradient in zip(
        parameters.items(), torch.autograd.grad(loss(), list(parameters.values())), strict=True
    ):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        expected = slope(loss, parameter, direction, step=1e-4)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-8), name
        assert abs(expected) > 1e-6, name


@every_objective
def test_without_mean_and_known_noise_the_objective_and_its_slopes_are_right_too(objective):
    t = training(objective, row_noise=False)
    t.method.prior.mean = ZeroMean()
    assert_close(t.method.objective(t.X, t.y), oracle_terms(t).mean(), 1e-10)
    t.method.max_bytes = 1024  # a row at a time
    assert_close(t.method.objective(t.X, t.y), oracle_terms(t).mean(), 1e-10)
    parameters = list(t.method.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(t.method.objective(t.X, t.y), parameters), strict=True
    ):
        expected = slope(lambda: t.method.objective(t.X, t.y), parameter, torch.ones_like(parameter))
        assert float(gradient.sum()) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@every_objective
def test_gradients_are_the_slopes_for_sums_of_kernels(objective):
    t = training(objective)
    t.method.prior.kernel = Scale(RBF(2, 0.8), 0.7) + Constant(0.3)
    parameters = list(t.method.parameters())
    for parameter, gradient in zip(
        parameters, torch.autograd.grad(t.method.objective(t.X, t.y), parameters), strict=True
    ):
        expected = slope(lambda: t.method.objective(t.X, t.y), parameter, torch.ones_like(parameter))
        assert float(gradient.sum()) == pytest.approx(expected, rel=1e-6, abs=1e-8)


@every_objective
@every_shared
def test_a_minibatch_is_an_unbiased_estimate(objective, shared):
    """Rows are drawn uniformly and independently, so that the mean over all batches is the full objective. With
    replacement: a row can come twice, and the variance is σ²/b, not σ²/b (n - b)/(n - 1)."""
    t = training(objective, shared, batch_size=4)
    terms = oracle_terms(t)
    rows = t.method._training_rows(30)
    place = {row: number for number, row in enumerate(rows.tolist())}
    means, counts = [], np.zeros(len(rows))
    for step in range(1500):
        batch = t.method.minibatch(step, 30)
        drawn = [place[row] for row in batch.tolist()]
        assert len(drawn) == 4
        means.append(terms[drawn].mean())
        np.add.at(counts, drawn, 1)
        if step < 5:
            assert_close(t.method.objective(t.X, t.y, t.row_noise, rows=batch), means[-1], 1e-10)
    expected = 6_000 / len(rows)
    assert (((counts - expected) ** 2) / expected).sum() < len(rows) + 5 * math.sqrt(2 * len(rows))  # chi squared
    assert abs(np.mean(means) - terms.mean()) < 5 * terms.std() / math.sqrt(6_000)
    assert np.var(means) == pytest.approx(terms.var() / 4, rel=0.2)


def test_minibatches_follow_seed_and_step_alone_and_become_all_rows_where_they_fit():
    t, same, other = (training("loo", batch_size=4, seed=seed) for seed in (0, 0, 1))
    for step in (0, 17):
        assert torch.equal(t.method.minibatch(step, 30), same.method.minibatch(step, 30))
        assert not torch.equal(t.method.minibatch(step, 30), other.method.minibatch(step, 30))
    assert int(t.method.minibatch(17, 6).max()) < 6  # other data are no trouble
    t.method.batch_size = 30
    assert t.method.minibatch(17, 30) is None  # all rows
    every = torch.arange(30)
    assert t.method.objective(t.X, t.y).item() == t.method.objective(t.X, t.y, rows=every).item()


@settings(max_examples=25)
@given(recipes(max_rows=25))
def test_ordered_with_all_earlier_rows_is_the_marginal_likelihood(recipe):
    p = recipe.build()
    method = CaGPLocal(p.prior, recipe.n, objective="ordered", index_kind="scan")
    expected = -oracle.log_marginal_likelihood(p.prior, p.X, p.y, p.row_noise) / recipe.n
    assert_close(method.objective(p.X, p.y, p.row_noise), expected, 1e-9)


def test_ordered_with_a_tree_is_the_marginal_likelihood_too():
    t = training("ordered", k=29, index_kind="tree")
    expected = -oracle.log_marginal_likelihood(t.method.prior, t.X, t.y, t.row_noise) / 30
    assert_close(t.method.objective(t.X, t.y, t.row_noise), expected, 1e-10)


@every_objective
def test_one_row_is_predicted_by_the_prior(objective):
    X, y = torch.ones(1, 2, dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    value = CaGPLocal(GP(Scale(RBF(2), 1.5), noise=GaussianNoise(0.5)), objective=objective).objective(X, y)
    assert value.item() == pytest.approx(0.5 * (0.7**2 / 2 + math.log(2 * math.pi * 2)))


@every_objective
@every_shared
def test_a_rows_own_target_never_enters_its_prediction(objective, shared):
    t = training(objective, shared)
    rows = t.method._training_rows(30)
    neighbours = t.method._neighbours(t.X, rows)

    def means(y: Tensor) -> Tensor:
        actions = t.method.shared
        if actions is not None:
            actions = t.method._seen(t.method.prior, actions, t.X, y, t.row_noise)
        return local_answers(t.method.prior, t.X, y, t.row_noise, t.X[rows], neighbours, actions).mean.detach()

    before, influence = means(t.y), 0
    for place, row in enumerate(rows.tolist()):
        y = t.y.clone()
        y[row] += 100.0
        after = means(y)
        assert float(after[place]) == float(before[place])
        influence += int((after != before).sum())
    assert influence > len(rows)  # of other rows' predictions


def test_shared_actions_on_all_rows_cannot_be_trained_beside():
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = CaGPLocal(GP(RBF(2)), 3, shared=BlockActions.from_data(X, 4))
    with pytest.raises(ValueError, match="give the actions a support_size, or train without them"):
        method.objective(X, X[:, 0])
    assert bool(torch.isfinite(method.condition(X, X[:, 0]).variance(X)).all())


# --- fits -------------------------------------------------------------------------------------------------------------


@every_objective
@every_shared
def test_a_fit_lowers_the_full_objective_and_resumes_bit_for_bit(objective, shared, tmp_path):
    def make() -> Training:
        return training(objective, shared, n=120, batch_size=32, refresh_at=(2, 7, 20), seed=4)

    class StopError(Exception):
        pass

    def stop(step):
        if step.number == 13:
            raise StopError

    whole, parts, resumed = make(), make(), make()
    data = whole.X, whole.y, whole.row_noise
    start = whole.method.objective(*data).item()
    changes = {"num_steps": 30, "lr": 0.1, "checkpoint_steps": 5}
    result = fit(whole.method, *data, **changes)
    assert not result.failures
    assert "CaGP-Local with 5 neighbours" in str(result)
    with pytest.raises(StopError):
        fit(parts.method, *data, callback=stop, checkpoint_dir=tmp_path, **changes)
    resumed.method.objective(*data)  # having been asked something changes nothing
    fit(resumed.method, *data, checkpoint_dir=tmp_path, **changes)
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, resumed.method.state_dict()[name]), name
    assert whole.method.objective(*data).item() < start - 0.01


def test_neighbours_are_sought_anew_when_it_is_time():
    t = training("loo", refresh_at=(3,))
    seen = []

    def record(step):
        seen.append(t.method.search_lengthscale.clone())

    with torch.no_grad():
        t.method.prior.kernel.kernel.raw_lengthscale.add_(0.3)  # a prior may get its starting values late
    start = t.method.prior.kernel.kernel.lengthscale.detach().clone()
    fit(t.method, t.X, t.y, num_steps=6, lr=0.1, callback=record)
    assert all(torch.equal(value, start) for value in seen[:3])
    assert all(torch.equal(value, seen[3]) for value in seen[3:])
    assert not torch.equal(seen[3], start)
    assert not torch.equal(seen[3], t.method.prior.kernel.kernel.lengthscale)  # learned further since


def test_the_index_follows_the_data_and_the_lengthscales():
    t = training("loo", k=3)
    X = t.X.flip(0).contiguous()
    t.method.objective(t.X, t.y)
    unit = t.method.search_lengthscale
    index = t.method._index(t.X, unit)
    assert t.method._index(t.X, unit) is index
    assert t.method._index(X, unit) is not index
    fresh = copy.deepcopy(t.method)
    fresh._memo.index = None
    assert t.method.objective(X, t.y.flip(0)).item() == fresh.objective(X, t.y.flip(0)).item()
    t.method.search_lengthscale = torch.tensor([0.01, 5.0], dtype=torch.float64)
    rows = torch.arange(30)
    expected = NeighbourIndex(t.X, t.method.search_lengthscale, "scan").nearest(t.X, 3, left_out=rows)
    assert torch.equal(t.method._neighbours(t.X, rows), expected)


def test_priors_on_hyperparameters_go_with_it():
    t = training("loo")
    plain = t.method.objective(t.X, t.y).item()
    method = MAP(t.method, lengthscale="dimension-scaled")
    assert method.objective(t.X, t.y).item() == pytest.approx(plain - method.log_prior(2).item() / 30)
    assert "CaGP-Local" in str(fit(method, t.X, t.y, num_steps=3))


@pytest.mark.usefixtures("annotations_off")
def test_choices_that_make_no_sense_are_refused():
    prior = GP(RBF(2))
    with pytest.raises(ValueError, match='expected "loo" or "ordered"'):
        CaGPLocal(prior, objective="vecchia")
    with pytest.raises(ValueError, match="num_neighbours is 0"):
        CaGPLocal(prior, 0)
    with pytest.raises(ValueError, match="batch_size is -1"):
        CaGPLocal(prior, batch_size=-1)
    X = torch.zeros(4, 2, dtype=torch.float64)
    with pytest.raises(ValueError, match="num_neighbours is -1, expected 0"):
        CaGPLocal(prior).condition(X, X[:, 0], num_neighbours=-1)


# --- findings ---------------------------------------------------------------------------------------------------------


def test_findings_name_inputs_that_do_not_matter():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(60, 2, generator=g, dtype=torch.float64)
    method = CaGPLocal(GP(Scale(Matern32(2, [0.3, 500.0]))), 8)
    summary, *others = method.findings(X, X[:, 0])
    assert "CaGP-Local with 8 neighbours (16 in predictions) on 60 rows" in summary
    assert any("1 of 2 inputs hardly matter" in words and words.endswith(": 1.") for words in others)
    names = ("depth", "colour")
    assert any(words.endswith(": colour.") for words in method.findings(X, X[:, 0], names))
    result = fit(method, X, X[:, 0], num_steps=1, lr=0.0, input_names=names)
    assert any(words.endswith(": colour.") for words in result.findings)


def test_an_input_with_a_long_lengthscale_matters_where_the_outputscale_is_large():
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = torch.cat([X, torch.ones(60, 1, dtype=torch.float64)], 1)  # an input that does not vary is not listed
    y = 5 * X[:, 0]
    # From end to end f changes with a variance of about 2 · 1e4 · 1.5 · (1 / 20)², and (1 / 20,000)².
    smooth = Scale(Matern32(3, [20.0, 20_000.0, 1.0]), 1e4)
    assert idle_inputs(smooth, X, y) == [1]
