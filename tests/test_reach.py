"""Blocks out of reach: what products leave out, the bound on what that changes, and where nothing may be left out."""

import math

import pytest
import torch
from engine_problems import (
    BACKENDS,
    DTYPES,
    TOLERANCE,
    assert_normwise_close,
    needs_native,
    own_kernel,
    textbook_matrix,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import KERNELS, STATIONARY
from torch import Tensor

from cagp.actions import BlockActions
from cagp.engine import COMPILED, TORCH, BlockWeights, kernel_product
from cagp.kernels import RBF, Constant, Cosine, Kernel, Linear, Matern32, Periodic, RationalQuadratic, Scale


class Wide:
    """Rows in blocks on a square that is ``width`` lengthscales wide, and other rows in no order."""

    def __init__(self, kernel: str, width: float, dtype: torch.dtype, n: int = 150, m: int = 240, seed: int = 0):
        g = torch.Generator().manual_seed(seed)
        self.kernel = KERNELS[kernel](2, [0.5, 2.0])
        inputs = (width * torch.rand(size, 2, generator=g, dtype=torch.float64) for size in (n, m))
        X, Z = (rows * torch.tensor([0.5, 2.0]) for rows in inputs)
        actions = BlockActions.from_data(Z, 20, lengthscale=torch.tensor([0.5, 2.0]))
        self.X = X.to(dtype).requires_grad_()
        self.Z = Z[actions.support].to(dtype).requires_grad_()
        values = torch.randn(m, generator=g, dtype=torch.float64)
        self.W = BlockWeights(values.to(dtype).requires_grad_(), actions.offsets)

    def textbook(self, rows: Tensor) -> Tensor:
        W = torch.zeros(len(self.Z), self.W.num_columns, dtype=torch.float64)
        W = W.index_put((torch.arange(len(self.Z)), self.W.columns()), self.W.values.double())
        return textbook_matrix(self.kernel, rows.double(), self.Z.double()) @ W

    def gradients(self, out: Tensor, *rows: Tensor) -> list[Tensor]:
        incoming = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
        found = torch.autograd.grad(out, (*rows, self.Z, self.W.values, *self.kernel.parameters()), incoming)
        return [out.detach(), *found]


@pytest.mark.thinned(28)
@pytest.mark.parametrize("width", [3.0, 30.0, 60.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_gradients_stay_those_of_the_textbook_formula(backend, kernel, dtype, width):
    data = Wide(kernel, width, dtype)
    pairs = [
        (kernel_product(data.kernel, data.X, data.Z, data.W, backend=backend), data.textbook(data.X), (data.X,)),
        (kernel_product(data.kernel, data.Z, data.Z, data.W, backend=backend), data.textbook(data.Z), ()),
    ]
    for out, expected, rows in pairs:
        found = zip(data.gradients(out, *rows), data.gradients(expected, *rows), strict=True)
        for a, e in found:
            assert_normwise_close(a, e, TOLERANCE[dtype])


@needs_native
@settings(max_examples=60, deadline=None)
@given(
    kernel=st.sampled_from(list(STATIONARY)),
    width=st.floats(0.5, 300.0),
    exponent=st.integers(1, 12),
    n=st.integers(1, 150),
    noise=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**31),
)
@torch.no_grad()
def test_what_is_left_out_changes_mean_and_variance_by_no_more_than_the_bound(kernel, width, exponent, n, noise, seed):
    data, tolerance = Wide(kernel, width, torch.float64, n=n, seed=seed), 10.0**-exponent
    prior = Scale(data.kernel, 3.0)
    S, s = data.W.dense(), data.W.dense().abs().sum(0)  # s: the 1-norm of each action
    inputs = (data.X, data.Z)
    a, KS = (kernel_product(prior, rows, data.Z, data.W, tolerance=0.0, backend=COMPILED) for rows in inputs)
    a_far, KS_far = (
        kernel_product(prior, rows, data.Z, data.W, tolerance=tolerance, backend=COMPILED) for rows in inputs
    )
    SKS, SKS_far = S.mT @ KS, S.mT @ KS_far
    epsilon, slack = 3.0 * tolerance, 1e-12
    assert bool(((a - a_far).abs() <= epsilon * s + slack).all())
    assert bool(((SKS - SKS_far).abs() <= epsilon * torch.outer(s, s) + slack).all())
    D = noise * S.mT @ S
    G, G_far = SKS + D, (SKS_far + SKS_far.mT) / 2 + D
    targets = torch.randn(len(G), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    v, v_far = torch.linalg.solve(G, targets)[:, 0], torch.linalg.solve(G_far, targets)[:, 0]
    u, u_far = torch.linalg.solve(G, a.mT).mT, torch.linalg.solve(G_far, a_far.mT).mT
    of_u, of_u_far, of_v = u.abs() @ s, u_far.abs() @ s, float(v.abs() @ s)
    relative = 1e-9 * (1 + of_u + of_u_far) * (1 + of_v)
    assert bool(((a_far @ v_far - a @ v).abs() <= epsilon * of_v * (1 + of_u_far) + relative).all())
    explained, explained_far = (a * u).sum(1), (a_far * u_far).sum(1)
    bound = epsilon * (of_u + of_u_far + of_u * of_u_far)
    assert bool(((explained_far - explained).abs() <= bound + relative).all())


@needs_native
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", STATIONARY)
def test_where_all_rows_are_within_reach_nothing_changes(kernel, dtype):
    data = Wide(kernel, 3.0, dtype)
    with torch.no_grad():
        for rows in (data.X, data.Z):
            usual, exact = (kernel_product(data.kernel, rows, data.Z, data.W, tolerance=t) for t in (None, 0.0))
            assert torch.equal(usual, exact)


@needs_native
@pytest.mark.parametrize("kernel", ["Matern32", "RBF"])
def test_results_do_not_depend_on_the_threads(kernel, monkeypatch):
    results = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        data = Wide(kernel, 100.0, torch.float32, n=1000)
        out = kernel_product(data.kernel, data.X, data.Z, data.W, backend=COMPILED)
        results.append(data.gradients(out, data.X))
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


@needs_native
def test_rows_that_are_not_finite_show_in_the_result():
    data = Wide("RBF", 100.0, torch.float64)
    with torch.no_grad():
        data.X[7, 0] = math.nan
        out = kernel_product(data.kernel, data.X, data.Z, data.W, backend=COMPILED)
    assert bool(out[7].isnan().all())
    assert not bool(out[8:].isnan().any())


@pytest.mark.parametrize("tolerance", [1e-3, 2.0**-24, 2.0**-53])  # also round-off of both dtypes
@pytest.mark.parametrize("kernel", STATIONARY)
def test_a_kernel_is_as_small_as_it_should_be_beyond_its_support_radius(kernel, tolerance):
    k: Kernel = KERNELS[kernel](1, 1.0)
    radius = k.support_radius(tolerance)
    origin = torch.zeros(1, 1, dtype=torch.float64)
    near, at = (float(k(origin, origin + r).detach()) for r in (0.999 * radius, radius))
    assert at <= tolerance * (1 + 1e-6) < near
    assert k.support_radius(0.0) == math.inf


def test_kernels_that_nobody_knows_to_fall_with_distance_have_no_end():
    class Own(RBF):
        def profile(self, r: Tensor) -> Tensor:
            return torch.exp(-r) * torch.cos(r)

    endless = [Own(2), Periodic(2), Cosine(2), Linear(2), Constant(), own_kernel(), Scale(RBF(2)), Matern32(2) * RBF(2)]
    for kernel in (*endless, RationalQuadratic(2, alpha=1e-3)):
        assert kernel.support_radius(1e-3) == math.inf
    with pytest.raises(ValueError, match=r"expected 0 \(leave nothing out\)"):
        RBF(2).support_radius(-1.0)
    X = torch.linspace(0, 1e4, 64, dtype=torch.float64)[:, None]
    W = BlockWeights(torch.ones(64, dtype=torch.float64), torch.arange(0, 65, 8))
    for kernel in (Periodic(1, 3.0), Own(1)):
        with torch.no_grad():
            found = kernel_product(kernel, X, X, W)
            assert torch.allclose(found, kernel(X, X) @ W.dense(), rtol=0, atol=1e-12)
            assert torch.equal(found, kernel_product(kernel, X, X, W, tolerance=0.5, backend=TORCH))
