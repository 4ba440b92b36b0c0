"""Kernel products: compiled, tiled and dense agree in values and gradients, to the last digits, in any memory."""

import textwrap

import numpy as np
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import COMPOSITE, KERNELS, STATIONARY
from torch import Tensor

from cagp import kernels
from cagp.engine import (
    COMPILED,
    INSTRUCTION_SETS,
    TORCH,
    Backend,
    BlockWeights,
    CompiledBackend,
    backend_for,
    choice,
    choose_backend,
    kernel_product,
)
from cagp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, RationalQuadratic, Scale
from cagp.parameters import Positive

needs_native = pytest.mark.skipif(not COMPILED.available, reason="the compiled kernels are not installed")
BACKENDS = [pytest.param(COMPILED, marks=needs_native, id="native"), pytest.param(TORCH, id="torch")]
AUTO_AND_TORCH = [pytest.param(None, id="auto"), pytest.param(TORCH, id="torch")]
DTYPES = [torch.float64, torch.float32]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
WEIGHTS = ["none", "dense", "block"]
# Rows and columns around the widths of vectors and panels, and columns up to the widest data of the paper.
SIZES = [
    (1, 1, 1),
    (7, 8, 2),
    (8, 7, 3),
    (31, 33, 9),
    (33, 31, 20),
    (65, 257, 1),
    (257, 65, 50),
    (257, 1, 2),
    (1, 257, 9),
    (520, 530, 4),
    (1, None, 3),  # Z is X
    (8, None, 1),
    (33, None, 20),
    (65, None, 2),
    (257, None, 9),
    (520, None, 3),
]


def periodic() -> Kernel:
    """The kernel of one's own that the documentation of ``cagp.kernels`` shows, from that very text."""
    lines = kernels.__doc__.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("class Periodic"))
    last = next(number for number, line in enumerate(lines) if line.strip().startswith("return"))
    namespace = {"Kernel": Kernel, "Positive": Positive, "torch": torch}
    exec(textwrap.dedent("\n".join(lines[first : last + 1])), namespace)
    return namespace["Periodic"](period=1.7, lengthscale=1.2)


def textbook_matrix(kernel: Kernel, X: Tensor, Z: Tensor) -> Tensor:
    """k(X, Z) of a stationary kernel by explicit differences; its slope at zero distance is zero."""
    r2 = ((X[:, None, :] - Z[None, :, :]) / kernel.lengthscale).square().sum(-1)
    apart = r2 > 0
    r = torch.where(apart, torch.where(apart, r2, 1.0).sqrt(), 0.0)
    if isinstance(kernel, RBF):
        return torch.exp(-r2 / 2)
    if isinstance(kernel, Matern12):
        return torch.exp(-r)
    if isinstance(kernel, Matern32):
        return (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r)
    if isinstance(kernel, Matern52):
        return (1 + 5**0.5 * r + 5 / 3 * r2) * torch.exp(-(5**0.5) * r)
    assert isinstance(kernel, RationalQuadratic)
    return (1 + r2 / (2 * kernel.alpha)) ** -kernel.alpha


def uneven_blocks(num_rows: int, generator: torch.Generator) -> Tensor:
    """Offsets of about num_rows / 5 blocks of very different sizes, some of a single row."""
    num_cuts = num_rows // 5
    cuts = torch.randperm(max(1, num_rows - 1), generator=generator)[:num_cuts] + 1
    cuts = torch.cat([torch.tensor([0, num_rows]), cuts[cuts < num_rows], torch.arange(1, min(4, num_rows))])
    return cuts.unique()


class Inputs:
    """Random inputs and weights of each kind for a product of k(X, Z) and W; ``m = None`` for Z that is X itself."""

    def __init__(self, kernel: str, n: int, m: int | None, d: int, dtype: torch.dtype, seed: int = 0):
        g = torch.Generator().manual_seed(seed)
        lengthscale = d**0.5 * (0.4 + torch.rand(d, generator=g, dtype=torch.float64))
        self.kernel = KERNELS[kernel](d, lengthscale)
        self.X = torch.randn(n, d, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
        self.Z = self.X
        if m is None:
            m = n
        else:
            self.Z = torch.randn(m, d, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
        self.offsets = uneven_blocks(m, g)
        self.values = torch.randn(m, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
        self.V = torch.randn(m, 3, generator=g, dtype=torch.float64).to(dtype).requires_grad_()

    def weights(self, kind: str) -> Tensor | BlockWeights | None:
        return {"none": None, "dense": self.V, "block": BlockWeights(self.values, self.offsets)}[kind]

    def leaves(self, kind: str) -> tuple[Tensor, ...]:
        """Everything that a product has a gradient in."""
        own = {"none": (), "dense": (self.V,), "block": (self.values,)}[kind]
        points = (self.X,) if self.Z is self.X else (self.X, self.Z)
        return (*points, *own, *self.kernel.parameters())

    def product(self, kind: str, **options) -> Tensor:
        return kernel_product(self.kernel, self.X, self.Z, self.weights(kind), **options)

    def dense_product(self, kind: str) -> Tensor:
        """The same in float64 by the textbook formula and a dense matrix product."""
        K = textbook_matrix(self.kernel, self.X.double(), self.Z.double())
        if kind == "none":
            return K
        if kind == "dense":
            return K @ self.V.double()
        columns = torch.arange(len(self.offsets) - 1).repeat_interleave(self.offsets.diff())
        W = torch.zeros(len(columns), len(self.offsets) - 1, dtype=torch.float64)
        W = W.index_put((torch.arange(len(columns)), columns), self.values.double())
        return K @ W

    def value_and_gradients(self, out: Tensor, kind: str) -> list[Tensor]:
        g = torch.Generator().manual_seed(1)
        incoming = torch.randn(out.shape, generator=g, dtype=torch.float64).to(out)
        gradients = torch.autograd.grad(out, self.leaves(kind), incoming)
        num_parameters = len(list(self.kernel.parameters()))  # one gradient, of all parameters together
        of_parameters = torch.cat([gradient.flatten() for gradient in gradients[-num_parameters:]])
        return [out.detach(), *gradients[:-num_parameters], of_parameters]


def assert_normwise_close(actual: Tensor, expected: Tensor, relative: float, floor: float = 0.0) -> None:
    """The largest error is at most ``relative`` times the largest value, or ``floor`` where terms of size 1 cancel."""
    actual, expected = actual.detach().double(), expected.detach().double()
    assert actual.shape == expected.shape
    assert bool(torch.isfinite(actual).all())
    assert float((actual - expected).abs().max()) <= relative * max(floor, float(expected.abs().max()))


# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_gradients_are_those_of_the_textbook_formula(backend, kernel, dtype, size):
    inputs = Inputs(kernel, *size, dtype)
    for kind in WEIGHTS:
        expected = inputs.value_and_gradients(inputs.dense_product(kind), kind)
        actual = inputs.value_and_gradients(inputs.product(kind, backend=backend), kind)
        for a, e in zip(actual, expected, strict=True):
            assert_normwise_close(a, e, TOLERANCE[dtype])


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request) -> CompiledBackend:
    """The compiled backend restricted to one instruction set."""
    return CompiledBackend(request.param)


@pytest.mark.parametrize("size", [(7, 33, 3), (65, 31, 20), (257, 9, 1), (31, None, 2), (257, None, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
@needs_native
def test_every_instruction_set_gives_the_textbook_values_and_gradients(instruction_set, kernel, dtype, size):
    inputs = Inputs(kernel, *size, dtype)
    for kind in WEIGHTS:
        expected = inputs.value_and_gradients(inputs.dense_product(kind), kind)
        actual = inputs.value_and_gradients(inputs.product(kind, backend=instruction_set), kind)
        for a, e in zip(actual, expected, strict=True):
            assert_normwise_close(a, e, TOLERANCE[dtype])


@needs_native
@settings(max_examples=60)
@given(
    kernel=st.sampled_from(list(STATIONARY)),
    n=st.integers(1, 140),
    m=st.none() | st.integers(1, 140),
    d=st.integers(1, 24),
    dtype=st.sampled_from(DTYPES),
    cuts=st.lists(st.integers(0, 140), max_size=12),
    seed=st.integers(0, 2**31),
)
def test_compiled_products_of_any_size_are_the_textbook_formula(kernel, n, m, d, dtype, cuts, seed):
    inputs = Inputs(kernel, n, m, d, dtype, seed)
    rows = len(inputs.Z)
    inputs.offsets = torch.tensor([0, *sorted(min(cut, rows) for cut in cuts), rows])  # of any size, zero included
    for kind in ("none", "block"):
        expected = inputs.value_and_gradients(inputs.dense_product(kind), kind)
        actual = inputs.value_and_gradients(inputs.product(kind, backend=COMPILED), kind)
        for a, e in zip(actual, expected, strict=True):
            assert_normwise_close(a, e, TOLERANCE[dtype], floor=0.02)


@needs_native
def test_an_unknown_instruction_set_is_an_error():
    X = torch.zeros(2, 1)
    with pytest.raises(ValueError, match="instruction set 'abacus' is not one this machine runs"):
        kernel_product(RBF(1), X, X, backend=CompiledBackend("abacus"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", AUTO_AND_TORCH)
@pytest.mark.parametrize("kernel", COMPOSITE)
def test_composite_kernels_are_the_textbook_formula(kernel, backend, dtype):
    inputs = Inputs(kernel, 33, 17, 4, dtype)
    K = torch.from_numpy(oracle.kernel_matrix(inputs.kernel, inputs.X, inputs.Z))
    W = BlockWeights(inputs.values.detach(), inputs.offsets)
    assert_normwise_close(inputs.product("none", backend=backend).detach(), K, TOLERANCE[dtype])
    assert_normwise_close(
        inputs.product("dense", backend=backend).detach(), K @ inputs.V.detach().double(), TOLERANCE[dtype]
    )
    assert_normwise_close(inputs.product("block", backend=backend).detach(), K @ W.dense().double(), TOLERANCE[dtype])
    diagonal = oracle.kernel_matrix(inputs.kernel, inputs.X, inputs.X).diagonal().copy()
    assert_normwise_close(inputs.kernel.diag(inputs.X).detach(), torch.from_numpy(diagonal), TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", COMPOSITE)
def test_composite_kernels_have_the_same_gradients_in_both_backends(kernel):
    inputs = Inputs(kernel, 33, 17, 4, torch.float64)
    for kind in WEIGHTS:
        auto, tiles = (inputs.value_and_gradients(inputs.product(kind, backend=b), kind) for b in (None, TORCH))
        for a, b in zip(auto, tiles, strict=True):
            assert_normwise_close(a, b, 1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_forward_and_diag_of_a_kernel_are_the_textbook_formula(kernel):
    inputs = Inputs(kernel, 12, 9, 3, torch.float64)
    K = torch.from_numpy(oracle.kernel_matrix(inputs.kernel, inputs.X, inputs.Z))
    assert_normwise_close(inputs.kernel(inputs.X, inputs.Z).detach(), K, 1e-14)
    diagonal = oracle.kernel_matrix(inputs.kernel, inputs.X, inputs.X).diagonal().copy()
    assert_normwise_close(inputs.kernel.diag(inputs.X).detach(), torch.from_numpy(diagonal), 1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("m", [5, None])
def test_blocks_without_rows_give_zero_columns(m, backend):
    inputs = Inputs("Matern32", 5, m, 2, torch.float64)
    W = BlockWeights(inputs.values.detach(), torch.tensor([0, 0, 2, 2, 5, 5]))
    out = kernel_product(inputs.kernel, inputs.X, inputs.Z, W, backend=backend).detach()
    K = textbook_matrix(inputs.kernel, inputs.X, inputs.Z).detach()
    assert bool((out[:, [0, 2, 4]] == 0).all())
    assert_normwise_close(out[:, 1], K[:, :2] @ inputs.values.detach()[:2], 1e-13)
    assert_normwise_close(out[:, 3], K[:, 2:] @ inputs.values.detach()[2:], 1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_strided_inputs_are_those_of_contiguous_ones(backend):
    inputs = Inputs("Matern52", 9, 12, 4, torch.float64)
    for same in (False, True):
        found = []
        for change in (torch.Tensor.clone, lambda t: t.T.contiguous().T):
            X, Z = (change(t.detach()).requires_grad_() for t in (inputs.X, inputs.Z))
            for W in (None, BlockWeights(inputs.values.detach(), inputs.offsets)):
                if same and W is not None:
                    X, Z = Z, Z
                out = kernel_product(inputs.kernel, X, Z, W, backend=backend)
                found.append(torch.autograd.grad(out.square().sum(), (X,) if X is Z else (X, Z)))
        for plain, strided in zip(found[:2], found[2:], strict=True):
            for a, b in zip(plain, strided, strict=True):
                assert bool((a != 0).all())
                assert_normwise_close(b, a, 1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_inputs_are_read_right(backend):
    inputs = Inputs("Matern52", 9, 12, 4, torch.float64)
    X, Z = inputs.X.detach(), inputs.Z.detach()
    X_strided, Z_strided = X.T.contiguous().T, torch.stack([Z, -Z], 1)[:, 0]
    values = torch.stack([inputs.values.detach(), torch.zeros(12)], 1)[:, 0]
    assert not any(t.is_contiguous() for t in (X_strided, Z_strided, values))
    for W, W_strided in [
        (None, None),
        (inputs.V.detach(), inputs.V.detach().T.contiguous().T),
        (BlockWeights(values.contiguous(), inputs.offsets), BlockWeights(values, inputs.offsets)),
    ]:
        plain = kernel_product(inputs.kernel, X, Z, W, backend=backend)
        strided = kernel_product(inputs.kernel, X_strided, Z_strided, W_strided, backend=backend)
        assert_normwise_close(strided, plain, 1e-15)


# --- gradients by finite differences ----------------------------------------------------------------------------------


def gradcheck(kernel: Kernel, X: Tensor, Z: Tensor, W, leaves, **options) -> bool:
    # gradcheck perturbs the leaves in place, so the product may take them from where they are.
    product = lambda *_: kernel_product(kernel, X, Z, W, **options)  # noqa: E731
    return torch.autograd.gradcheck(product, leaves, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_finite_differences(backend, kernel, kind):
    inputs = Inputs(kernel, 4, 7, 2, torch.float64)
    assert gradcheck(inputs.kernel, inputs.X, inputs.Z, inputs.weights(kind), inputs.leaves(kind), backend=backend)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_finite_differences_where_points_coincide(backend, kernel, kind):
    inputs = Inputs(kernel, 4, 7, 2, torch.float64)
    with torch.no_grad():
        inputs.X[1] = inputs.X[0]
        inputs.Z[:3] = inputs.X[:3]
        inputs.Z[6] = inputs.Z[5]
    assert gradcheck(inputs.kernel, inputs.X, inputs.Z, inputs.weights(kind), inputs.leaves(kind), backend=backend)


@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_finite_differences_where_both_inputs_are_one_tensor(backend, kernel):
    inputs = Inputs(kernel, 7, None, 2, torch.float64)
    with torch.no_grad():
        inputs.X[3] = inputs.X[0]
    for kind in WEIGHTS:
        leaves = inputs.leaves(kind)
        assert gradcheck(inputs.kernel, inputs.X, inputs.X, inputs.weights(kind), leaves, backend=backend)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("kernel", COMPOSITE)
def test_gradients_of_composite_kernels_are_finite_differences(kernel, kind):
    inputs = Inputs(kernel, 3, 5, 2, torch.float64)
    with torch.no_grad():
        inputs.Z[:2] = inputs.X[:2]
    assert gradcheck(inputs.kernel, inputs.X, inputs.Z, inputs.weights(kind), inputs.leaves(kind))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_documented_kernel_of_ones_own_works_gradients_included(kind):
    inputs = Inputs("RBF", 4, 7, 2, torch.float64)
    inputs.kernel = Scale(periodic(), 1.4) + Linear(2)
    X, Z = inputs.X.detach().numpy(), inputs.Z.detach().numpy()
    phase = np.pi * (X[:, None] - Z[None]) / 1.7
    K = 1.4 * np.exp(-2 * (np.sin(phase) ** 2).sum(-1) / 1.2**2) + X @ Z.T
    assert_normwise_close(inputs.product("none").detach(), torch.from_numpy(K), 1e-14)
    assert_normwise_close(inputs.kernel.diag(inputs.X).detach(), 1.4 + inputs.X.detach().square().sum(1), 1e-14)
    assert gradcheck(inputs.kernel, inputs.X, inputs.Z, inputs.weights(kind), inputs.leaves(kind))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", STATIONARY)
def test_only_the_gradients_asked_for_are_needed(kernel, backend):
    inputs = Inputs(kernel, 9, 8, 3, torch.float64)
    for kind in WEIGHTS:
        leaves = inputs.leaves(kind)
        everything = torch.autograd.grad(inputs.product(kind, backend=backend).sum(), leaves)
        for leaf, expected in zip(leaves, everything, strict=True):
            for other in leaves:
                other.requires_grad_(other is leaf)
            (alone,) = torch.autograd.grad(inputs.product(kind, backend=backend).sum(), leaf)
            assert_normwise_close(alone, expected, 1e-14)
        for leaf in leaves:
            leaf.requires_grad_()


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_is_an_error_and_never_a_wrong_number(backend, kind):
    inputs = Inputs("Matern32", 3, 5, 2, torch.float64)
    leaf = inputs.kernel.raw_lengthscale

    def second() -> Tensor:
        out = inputs.product(kind, backend=backend)
        (first,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.sum(), leaf)[0]

    with pytest.raises(RuntimeError, match=r"differentiable once|not implemented"):
        second()


# --- accuracy ---------------------------------------------------------------------------------------------------------


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


# --- reproducibility --------------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """A function that sets the number of threads; the old one is back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_repeated_calls_are_bit_identical(backend, kernel, dtype):
    for m in (133, None):
        inputs = Inputs(kernel, 201, m, 5, dtype)
        for kind in WEIGHTS:
            first, again = (inputs.value_and_gradients(inputs.product(kind, backend=backend), kind) for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
@needs_native
def test_compiled_results_do_not_depend_on_the_number_of_threads(threads, kernel, dtype):
    for m in (257, None):
        inputs = Inputs(kernel, 301, m, 5, dtype)
        for kind in ("none", "block"):
            results = []
            for count in (1, 2):
                threads(count)
                results.append(inputs.value_and_gradients(inputs.product(kind, backend=COMPILED), kind))
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# --- bounded memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", STATIONARY)
def test_any_memory_budget_gives_the_same_values_and_gradients(kernel, backend):
    inputs = Inputs(kernel, 65, 33, 3, torch.float64)
    for kind in WEIGHTS:
        expected = inputs.value_and_gradients(inputs.product(kind, backend=backend), kind)
        for max_bytes in (1, 5_000, 40_000):
            out = inputs.product(kind, backend=backend, max_bytes=max_bytes)
            for a, e in zip(inputs.value_and_gradients(out, kind), expected, strict=True):
                assert_normwise_close(a, e, 1e-13)


class Recording(Kernel):
    """A kernel that remembers how large the matrices were that it was asked for."""

    def __init__(self):
        super().__init__()
        self.inner = RBF(2)
        self.tiles: list[int] = []

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        self.tiles.append(X.shape[0] * Z.shape[0])
        return self.inner(X, Z)


@pytest.mark.parametrize("kind", ["dense", "block"])
def test_tiles_fit_the_memory_budget_forward_and_backward(kind):
    inputs = Inputs("RBF", 300, 40, 2, torch.float64)
    inputs.kernel = Recording()
    max_bytes = 80_000
    out = inputs.product(kind, max_bytes=max_bytes)
    forward = list(inputs.kernel.tiles)
    inputs.value_and_gradients(out, kind)
    backward = inputs.kernel.tiles[len(forward) :]
    assert len(forward) > 1
    assert len(backward) == len(forward)  # recomputed, not kept
    assert max(forward + backward) * 8 <= max_bytes


@needs_native
def test_compiled_dense_products_fit_the_memory_budget(monkeypatch):
    inputs = Inputs("RBF", 300, 40, 2, torch.float64)
    tiles = []
    matrix = CompiledBackend.matrix
    monkeypatch.setattr(
        CompiledBackend, "matrix", lambda self, k, X, Z: tiles.append(len(X) * len(Z)) or matrix(self, k, X, Z)
    )
    inputs.value_and_gradients(inputs.product("dense", backend=COMPILED, max_bytes=80_000), "dense")
    assert len(tiles) > 2
    assert max(tiles) * 8 <= 80_000


# --- block weights ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.integers(0, 2**31))
def test_block_weights_act_as_their_dense_matrix(sizes, seed):
    g = torch.Generator().manual_seed(seed)
    m, i = sum(sizes), len(sizes)
    W = BlockWeights(torch.randn(m, generator=g, dtype=torch.float64), torch.tensor([0, *sizes]).cumsum(0))
    dense = np.zeros((m, i))
    row = 0
    for j, size in enumerate(sizes):
        for _ in range(size):
            dense[row, j] = W.values[row]
            row += 1
    assert np.array_equal(W.dense().numpy(), dense)
    assert W.num_columns == i
    assert W.sizes.tolist() == sizes
    v, F = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((i,), (m, 3)))
    assert_normwise_close(W.expand(v), torch.from_numpy(dense) @ v, 1e-14)
    assert_normwise_close(W.project(F), torch.from_numpy(dense.T) @ F, 1e-14)


def test_block_projection_sums_many_rows_in_float64_and_has_the_right_gradient():
    g = torch.Generator().manual_seed(0)
    m = 5_000  # several tiles
    values, F = torch.randn(m, generator=g), 1 + torch.rand(m, 2, generator=g)
    W = BlockWeights(values, torch.tensor([0, 1, 4_000, m]))
    expected = W.dense().double().T @ F.double()
    assert W.project(F).dtype == torch.float64
    assert_normwise_close(W.project(F), expected, 1e-14)
    values, F = values.double().requires_grad_(), F.double().requires_grad_()
    incoming = torch.randn(3, 2, generator=g, dtype=torch.float64)
    actual = torch.autograd.grad(BlockWeights(values, W.offsets).project(F), (values, F), incoming)
    expected = torch.autograd.grad(BlockWeights(values, W.offsets).dense().T @ F, (values, F), incoming)
    for a, e in zip(actual, expected, strict=True):
        assert_normwise_close(a, e, 1e-14)


def test_block_projection_gradient_is_finite_differences():
    g = torch.Generator().manual_seed(0)
    values, F = (torch.randn(s, generator=g, dtype=torch.float64, requires_grad=True) for s in ((6,), (6, 3)))
    offsets = torch.tensor([0, 1, 4, 6])
    assert torch.autograd.gradcheck(lambda v, f: BlockWeights(v, offsets).project(f), (values, F), atol=1e-7, rtol=1e-6)


# --- choices and errors -----------------------------------------------------------------------------------------------


@needs_native
def test_the_backend_in_words_says_what_runs_and_why():
    X = torch.zeros(3, 2)
    best = INSTRUCTION_SETS[-1]
    assert backend_for(Scale(Matern32(2)) + Linear(2), X) == f"native ({best})"
    assert backend_for(Constant(2.0) * RBF(2), X) == f"native ({best})"
    assert backend_for(RBF(2) * RBF(2), X) == "torch tiles (Product is not compiled)"
    assert backend_for(RBF(2) + periodic(), X) == "torch tiles (Periodic is not compiled)"
    assert backend_for(RBF(2), X.half()) == "torch tiles (the data are float16)"
    assert backend_for(Linear(2) + Constant(), X) == "explicit features"


@needs_native
def test_asking_for_compiled_kernels_where_there_are_none_is_an_error():
    X = torch.zeros(3, 2)
    with pytest.raises(ValueError, match="backend is native, but Product is not compiled; use backend=None"):
        kernel_product(RBF(2) * RBF(2), X, X, backend=COMPILED)
    with pytest.raises(ValueError, match="backend is native, but the compiled kernels are not installed"):
        kernel_product(RBF(2), X, X, backend=CompiledBackend(None))


def test_one_function_chooses_and_the_first_backend_that_applies_is_taken(monkeypatch):
    X = torch.zeros(3, 2)
    assert choose_backend(RBF(2) * RBF(2), X) is TORCH
    assert choose_backend(RBF(2), X.half()) is TORCH
    assert choose_backend(RBF(2), X, TORCH) is TORCH
    if COMPILED.available:
        assert choose_backend(Scale(RBF(2)), X) is choose_backend(None, X) is COMPILED
    monkeypatch.setattr(choice, "BACKENDS", (CompiledBackend(None), TORCH))
    assert choose_backend(RBF(2), X) is choose_backend(None, X) is TORCH
    assert backend_for(RBF(2), X) == "torch tiles (the compiled kernels are not installed)"


@needs_native
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_backend_scales_the_kernels_it_says_it_can_compute(kind):
    inputs = Inputs("Matern32", 9, 8, 3, torch.float64)
    scaled, W = Scale(inputs.kernel, 2.0), inputs.weights(kind)
    assert COMPILED.why_not(scaled, inputs.X) is None
    out = COMPILED.matrix(scaled, inputs.X, inputs.Z) if W is None else None
    out = COMPILED.product(scaled, inputs.X, inputs.Z, W, 2**20) if W is not None else out
    assert_normwise_close(out, 2 * inputs.dense_product(kind), 1e-13)


class Subclass(RBF):
    """Not the RBF kernel any more."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.cos(r) * torch.exp(-r)


def test_a_subclass_of_a_compiled_kernel_runs_its_own_formula():
    inputs = Inputs("RBF", 5, 6, 2, torch.float64)
    kernel = Subclass(2, inputs.kernel.lengthscale)
    r = -torch.log(textbook_matrix(Matern12(2, inputs.kernel.lengthscale), inputs.X, inputs.Z))
    expected = (torch.cos(r) * torch.exp(-r)).detach()
    assert_normwise_close(kernel_product(kernel, inputs.X, inputs.Z).detach(), expected, 1e-13)


class OtherPrecision(Kernel):
    """Matern 3/2, but computed and returned in another dtype than that of the inputs; features and all."""

    def __init__(self, dtype: torch.dtype, lengthscale: Tensor):
        super().__init__()
        self.inner, self.dtype = Matern32(len(lengthscale), lengthscale), dtype

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.inner(X.to(self.dtype), Z.to(self.dtype))


class OtherFeatures(Linear):
    """A linear kernel whose features have another dtype than the inputs."""

    def features(self, X: Tensor) -> Tensor:
        return super().features(X).to(torch.float32 if X.dtype == torch.float64 else torch.float64)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_kernel_that_returns_another_dtype_is_cast_to_that_of_the_inputs(dtype, kind):
    other = torch.float32 if dtype == torch.float64 else torch.float64
    inputs = Inputs("Matern32", 9, 8, 3, dtype)
    expected = inputs.dense_product(kind)
    inputs.kernel = OtherPrecision(other, inputs.kernel.lengthscale.detach())
    assert inputs.kernel.diag(inputs.X).dtype == dtype
    for kernel in (inputs.kernel, Scale(inputs.kernel), inputs.kernel * Constant()):
        out = kernel_product(kernel, inputs.X, inputs.Z, inputs.weights(kind))
        assert out.dtype == dtype
        assert_normwise_close(out, expected, TOLERANCE[torch.float32])
    inputs.kernel = OtherFeatures(3)
    assert inputs.product(kind).dtype == dtype


@pytest.mark.usefixtures("annotations_off")
class TestErrors:
    X = torch.zeros(4, 2)

    def test_inputs_with_different_numbers_of_columns(self):
        with pytest.raises(
            ValueError, match=r"X has shape \(4, 2\) and Z \(4, 3\), expected two matrices with equally"
        ):
            kernel_product(RBF(2), self.X, torch.zeros(4, 3))

    def test_inputs_that_are_no_matrices(self):
        with pytest.raises(ValueError, match=r"X has shape \(4,\)"):
            kernel_product(RBF(1), torch.zeros(4), self.X)

    def test_a_kernel_made_for_other_columns(self):
        with pytest.raises(ValueError, match="X has 2 columns, the Matern32 kernel was made for num_dims = 3"):
            kernel_product(Scale(Matern32(3)) + Constant(), self.X, self.X)
        with pytest.raises(ValueError, match="X has 2 columns, the Linear kernel was made for num_dims = 1"):
            kernel_product(RBF(2) + Linear(1), self.X, self.X)

    def test_weights_of_another_length(self):
        with pytest.raises(ValueError, match="W has 3 rows, expected 4"):
            kernel_product(RBF(2), self.X, self.X, torch.zeros(3, 1))
        with pytest.raises(ValueError, match="W has 3 rows, expected 4"):
            kernel_product(RBF(2), self.X, self.X, BlockWeights(torch.zeros(3), torch.tensor([0, 3])))

    def test_mixed_precision(self):
        with pytest.raises(ValueError, match=r"Z has dtype torch\.float64, X has torch\.float32"):
            kernel_product(RBF(2), self.X, self.X.double())
        with pytest.raises(ValueError, match=r"W has dtype torch\.float64, X has torch\.float32"):
            kernel_product(RBF(2), self.X, self.X, torch.zeros(4, 1).double())

    @pytest.mark.parametrize("offsets", [[0, 2, 3], [1, 4], [0, 3, 2, 4]], ids=str)
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_offsets_that_are_no_partition_of_the_rows(self, backend, offsets):
        W = BlockWeights(torch.ones(4), torch.tensor(offsets))
        with pytest.raises(ValueError, match="offsets must"):
            kernel_product(RBF(2), self.X, self.X, W, backend=backend)

    def test_an_unknown_backend(self):
        with pytest.raises(ValueError, match=r"backend is 'torch', expected a Backend such as cagp\.engine\.TORCH"):
            kernel_product(RBF(2), self.X, self.X, backend="torch")

    def test_lengthscales_of_the_wrong_number(self):
        with pytest.raises(ValueError, match="lengthscale has 3 values, expected 1 or num_dims = 2"):
            RBF(2, [1.0, 2.0, 3.0])

    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
    def test_parameters_that_are_not_positive(self, value):
        with pytest.raises(ValueError, match=r"lengthscale is .* expected finite values above 0"):
            RBF(1, value)
        kernel = Scale(RBF(1))
        with pytest.raises(ValueError, match=r"outputscale is .* expected finite values above 0"):
            kernel.outputscale = value
