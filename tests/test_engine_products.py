"""Compiled, tiled and dense kernel products agree with the textbook formulas, and gradients with finite differences."""

import numpy as np
import oracle
import pytest
import torch
from engine_problems import (
    AUTO_AND_TORCH,
    BACKENDS,
    DTYPES,
    SIZES,
    TOLERANCE,
    WEIGHTS,
    Inputs,
    assert_normwise_close,
    needs_native,
    own_kernel,
    textbook_matrix,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import COMPOSITE, KERNELS, STATIONARY
from torch import Tensor

from cagp.engine import (
    COMPILED,
    TORCH,
    BlockWeights,
    CompiledBackend,
    kernel_product,
)
from cagp.kernels import RBF, Kernel, Linear, Scale

# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.thinned(17)
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


@pytest.mark.thinned(25)
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


@pytest.mark.slow
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


@pytest.mark.thinned(39)
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


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_finite_differences(backend, kernel, kind):
    inputs = Inputs(kernel, 4, 7, 2, torch.float64)
    assert gradcheck(inputs.kernel, inputs.X, inputs.Z, inputs.weights(kind), inputs.leaves(kind), backend=backend)


@pytest.mark.thinned(6)
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


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_finite_differences_where_both_inputs_are_one_tensor(backend, kernel):
    inputs = Inputs(kernel, 7, None, 2, torch.float64)
    with torch.no_grad():
        inputs.X[3] = inputs.X[0]
    for kind in WEIGHTS:
        leaves = inputs.leaves(kind)
        assert gradcheck(inputs.kernel, inputs.X, inputs.X, inputs.weights(kind), leaves, backend=backend)


@pytest.mark.thinned(4)
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
    inputs.kernel = Scale(own_kernel(), 1.4) + Linear(2)
    X, Z = inputs.X.detach().numpy(), inputs.Z.detach().numpy()
    K = 1.4 * np.prod(1 / (1 + ((X[:, None] - Z[None]) / 1.2) ** 2), -1) + X @ Z.T
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
