"""Products repeat to the bit, fit their memory budget, and take weights in blocks."""

import numpy as np
import pytest
import torch
from engine_problems import BACKENDS, DTYPES, WEIGHTS, Inputs, assert_normwise_close, needs_native
from hypothesis import given
from hypothesis import strategies as st
from problems import STATIONARY
from torch import Tensor

from cagp.engine import (
    COMPILED,
    BlockWeights,
    CompiledBackend,
)
from cagp.kernels import RBF, Kernel

# --- reproducibility --------------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    """A function that sets the number of threads; the old one is back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.thinned(15)
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


@pytest.mark.thinned(4)
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
    product = CompiledBackend.product

    def recorded(self, kernel, X, Z, W, *limits):
        tiles.extend([len(X) * len(Z)] if W is None else [])
        return product(self, kernel, X, Z, W, *limits)

    monkeypatch.setattr(CompiledBackend, "product", recorded)
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
