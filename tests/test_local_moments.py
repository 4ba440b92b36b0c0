"""Small conditionals: their moments and gradients are the dense ones, in every backend."""

import pytest
import torch
from engine_problems import AUTO_AND_TORCH, BACKENDS, DTYPES, OtherPrecision, needs_native, own_kernel
from local_problems import (
    INSTALLED,
    TOLERANCE,
    assert_close,
    gradients,
    leaves,
    make_case,
    slope,
    stationary,
    weighted_sum,
)
from problems import KERNELS, STATIONARY

from cagp import GP, CaGPLocal, CholeskyGP, ConstantMean, GaussianNoise, KnownNoise, LinearMean
from cagp.engine import COMPILED, INSTRUCTION_SETS, TORCH, CompiledBackend
from cagp.kernels import RBF, Constant, Matern32, Scale
from cagp.prior import ZeroMean


@pytest.mark.thinned(7)
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
            assert actual.dtype == torch.float64
            assert_close(actual, expected)


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
        assert torch.equal(mean.of_rows(X, rows), mean(X[rows].double()))
        assert mean.of_rows(X, rows).dtype == torch.float64
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


PATHS = [
    *(pytest.param(COMPILED, name, given, marks=needs_native) for name in STATIONARY for given in (False, True)),
    *((TORCH, name, given) for name in (*STATIONARY, "Linear + Matern52", "Matern12 * RBF") for given in (False, True)),
    (TORCH, "own kernel", False),
]


@pytest.mark.parametrize(("backend", "name", "given"), PATHS)
def test_gradients_are_the_slopes(backend, name, given):
    lengthscale = torch.tensor([0.9, 1.4, 0.7], dtype=torch.float64)
    kernel = stationary(name, 3) if name in STATIONARY else own_kernel()
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
    kernel = own_kernel()
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
    if COMPILED.instruction_set:
        with pytest.raises(ValueError, match="the kernel is a sum"):
            case._replace(kernel=RBF(3) + Constant()).moments(COMPILED)
        with pytest.raises(ValueError, match="Cauchy is not compiled"):
            case._replace(kernel=own_kernel()).moments(COMPILED)
    mean, explained, *_ = (value.sum() for value in case._replace(questions=case.questions.requires_grad_()).moments())
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(mean + explained, case.questions, create_graph=True)
    with pytest.raises(ValueError, match="not installed"):
        case.moments(CompiledBackend(None))
    monkeypatch.setattr("cagp.engine.BACKENDS", (CompiledBackend(None), TORCH))
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
