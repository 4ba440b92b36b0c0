"""Kernel values are right to the last digits, for close points, far points and what is not a number."""

import numpy as np
import oracle
import pytest
import torch
from engine_problems import BACKENDS, DTYPES, WEIGHTS, Inputs, assert_normwise_close, needs_native
from problems import KERNELS, STATIONARY
from torch import Tensor

from cagp.engine import (
    Backend,
    BlockWeights,
    kernel_product,
)
from cagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, RationalQuadratic


def profile_on_grid(kernel: Kernel, r: np.ndarray, dtype: torch.dtype, backend: Backend) -> np.ndarray:
    """k at scaled distances r, each exact in ``dtype`` together with its square."""
    X = torch.from_numpy(r).to(dtype)[:, None]
    assert np.array_equal((X * X)[:, 0].double().numpy(), r**2)
    out = kernel_product(kernel, X, torch.zeros(1, 1, dtype=dtype), backend=backend)
    return out.detach()[:, 0].numpy()


def errors_in_ulp(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Errors in units of the last place, where the result is a normal number; others must be zero or nearly so."""
    tiny = np.finfo(actual.dtype).tiny
    normal = expected > 2 * tiny
    assert (np.abs(actual[~normal]) <= 2 * tiny).all()
    spacing = np.spacing(expected[normal].astype(actual.dtype)).astype(np.longdouble)
    return np.abs(actual[normal].astype(np.longdouble) - expected[normal]) / spacing


GRIDS = {torch.float32: np.arange(0, 40, 2.0**-6), torch.float64: np.arange(0, 40, 2.0**-9)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@needs_native
def test_exp_is_right_to_two_units_in_the_last_place(instruction_set, dtype):
    r = GRIDS[dtype]
    assert (
        errors_in_ulp(
            profile_on_grid(RBF(1), r, dtype, instruction_set), np.exp(-(r.astype(np.longdouble) ** 2) / 2)
        ).max()
        <= 2
    )
    r = r * 16  # Matern 1/2 falls more slowly: to the end of the range
    r = r[r**2 < 2.0**24 / 16] if dtype == torch.float32 else r
    assert (
        errors_in_ulp(profile_on_grid(Matern12(1), r, dtype, instruction_set), np.exp(-r.astype(np.longdouble))).max()
        <= 2
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@needs_native
def test_matern_profiles_are_as_accurate_as_their_exponent_allows(instruction_set, dtype):
    r = GRIDS[dtype]
    for kernel, nu in ((Matern32(1), 3), (Matern52(1), 5)):
        s = np.sqrt(np.longdouble(nu)) * r.astype(np.longdouble)
        polynomial = 1 + s if nu == 3 else 1 + s + s**2 / 3
        actual = profile_on_grid(kernel, r, dtype, instruction_set)
        expected = polynomial * np.exp(-s)
        normal = np.exp(-s) > 2 * np.finfo(actual.dtype).tiny
        # s is rounded once, and exp turns that relative error into an absolute one of the exponent.
        assert (errors_in_ulp(actual[normal], expected[normal]) <= 6 + 2 * s[normal]).all()
        assert (actual[~normal] <= expected[~normal] * 1.01 + 2 * np.finfo(actual.dtype).tiny).all()


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.3, 50.0, 1e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@needs_native
def test_rational_quadratic_is_as_accurate_as_its_exponent_allows(instruction_set, dtype, alpha):
    r = GRIDS[dtype]
    kernel = RationalQuadratic(1, 1.0, alpha)
    a = np.longdouble(kernel.alpha.item())
    exponent = a * np.log1p(r.astype(np.longdouble) ** 2 / (2 * a))
    errors = errors_in_ulp(profile_on_grid(kernel, r, dtype, instruction_set), np.exp(-exponent))
    normal = np.exp(-exponent) > 2 * np.finfo(np.float32 if dtype == torch.float32 else np.float64).tiny
    assert (errors <= 4 + 6 * exponent[normal]).all()


def test_rational_quadratic_with_a_large_alpha_is_the_rbf_kernel():
    inputs = Inputs("RBF", 20, 10, 3, torch.float64)
    limit = RationalQuadratic(3, inputs.kernel.lengthscale, alpha=1e9)
    assert_normwise_close(kernel_product(limit, inputs.X, inputs.Z).detach(), inputs.product("none").detach(), 1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", STATIONARY)
def test_close_points_far_from_the_origin_keep_their_digits_in_float32(kernel, backend):
    g = torch.Generator().manual_seed(0)
    X = torch.stack([2000 + 0.01 * torch.arange(60), -5e4 + torch.rand(60, generator=g)], 1)
    model = KERNELS[kernel](2, torch.tensor([0.05, 0.5], dtype=torch.float64))
    expected = torch.from_numpy(oracle.kernel_matrix(model, X, X))
    values = torch.randn(60, generator=g)
    W = BlockWeights(values, torch.tensor([0, 10, 60]))
    actual = kernel_product(model, X, X, backend=backend).detach()
    assert_normwise_close(actual, expected, 1e-6)
    assert bool((actual.diagonal() == 1).all())
    product = kernel_product(model, X, X, W, backend=backend).detach()
    assert_normwise_close(product, expected @ W.dense().double(), 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("span", [1e2, 1e4, 1e6])
def test_float32_error_is_at_most_an_eps_of_the_span_in_lengthscales(span, backend):
    X = torch.cat([torch.linspace(0, 1, 40), torch.linspace(span, span + 1, 40)])[:, None]
    kernel = Matern12(1, 1.0)
    expected = torch.from_numpy(oracle.kernel_matrix(kernel, X, X))
    error = (kernel_product(kernel, X, X, backend=backend).detach() - expected).abs().max()
    assert float(error) <= 2 * 2.0**-23 * span


FAR = {torch.float32: [1e3, 1e10, 1e18], torch.float64: [1e3, 1e10, 1e100, 1e150]}
TOO_FAR_TO_SQUARE = {torch.float32: [1e25, 1e38], torch.float64: [1e200, 1e307]}


def covariance_and_gradients(kernel: Kernel, far: float, dtype: torch.dtype, backend: Backend) -> tuple[Tensor, ...]:
    """The kernel matrix of the points 0 and ``far``, and the gradients of the sum of its values."""
    X = torch.tensor([[0.0], [far]], dtype=dtype, requires_grad=True)
    out = kernel_product(kernel, X, X.detach(), backend=backend)
    return out, *torch.autograd.grad(out.sum(), (X, *kernel.parameters()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", ["RBF", "Matern12", "Matern32", "Matern52"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_points_extremely_far_apart_have_zero_covariance_and_zero_gradients(backend, kernel, dtype):
    for far in FAR[dtype]:
        model = KERNELS[kernel](1, torch.ones(1, dtype=torch.float64))
        out, *gradients = covariance_and_gradients(model, far, dtype, backend)
        assert out.tolist() == [[1, 0], [0, 1]], far
        assert not any(bool(gradient.any()) for gradient in gradients), far


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rational_quadratic_keeps_its_tail_at_extreme_distances(backend, dtype):
    for far in FAR[dtype]:
        out, *gradients = covariance_and_gradients(RationalQuadratic(1, 1.0, alpha=0.25), far, dtype, backend)
        tail = (1 + np.longdouble(far) ** 2 / 0.5) ** np.longdouble(-0.25)
        assert abs(out[0, 1].item() - tail) <= 1e-5 * tail, far
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients), far


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_rational_quadratic_tail_ends_at_the_largest_square(backend, dtype):
    for far in TOO_FAR_TO_SQUARE[dtype]:
        model = RationalQuadratic(1, 1.0, alpha=0.7)
        out, *gradients = covariance_and_gradients(model, far, dtype, backend)
        largest = (torch.finfo(dtype).max / 100) ** -0.7
        assert 0 <= out[0, 1].item() <= largest, far
        assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients), far


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [name for name in STATIONARY if name != "RationalQuadratic"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_distances_whose_square_overflows_give_zero_and_not_nan(backend, kernel, dtype):
    for far in TOO_FAR_TO_SQUARE[dtype]:
        model = KERNELS[kernel](1, torch.ones(1, dtype=torch.float64))
        out, *gradients = covariance_and_gradients(model, far, dtype, backend)
        assert out.tolist() == [[1, 0], [0, 1]], far
        assert not any(bool(gradient.any()) for gradient in gradients), far


@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_inputs_and_parameters_stay_visible(backend, kernel):
    inputs = Inputs(kernel, 4, 5, 2, torch.float64)
    with torch.no_grad():
        inputs.X[1, 0] = torch.nan
    for kind in WEIGHTS:
        assert bool(inputs.product(kind, backend=backend)[1].isnan().all())
    inputs = Inputs(kernel, 4, 5, 2, torch.float64)
    with torch.no_grad():
        inputs.kernel.raw_lengthscale[0] = torch.nan
    for kind in WEIGHTS:
        assert bool(inputs.product(kind, backend=backend).isnan().all())
