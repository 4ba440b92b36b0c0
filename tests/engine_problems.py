"""Backends, dtypes, random inputs and textbook formulas for the tests of kernel products."""

from pathlib import Path

import pytest
import torch
from problems import KERNELS
from torch import Tensor

from cagp import kernels
from cagp.engine import (
    COMPILED,
    TORCH,
    BlockWeights,
    kernel_product,
)
from cagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, RationalQuadratic
from cagp.parameters import Positive

needs_native = pytest.mark.skipif(not COMPILED.instruction_set, reason="the compiled kernels are not installed")
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


def own_kernel() -> Kernel:
    """The kernel of one's own that docs/own-kernels.md shows first, from that very text."""
    lines = (Path(__file__).resolve().parents[1] / "docs" / "own-kernels.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("class Cauchy"))
    last = lines.index("```", first)
    namespace = {"kernels": kernels, "Positive": Positive}
    exec("\n".join(lines[first:last]), namespace)
    return namespace["Cauchy"](lengthscale=1.2)


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


class OtherPrecision(Kernel):
    """Matern 3/2, but computed and returned in another dtype than that of the inputs; features and all."""

    def __init__(self, dtype: torch.dtype, lengthscale: Tensor):
        super().__init__()
        self.inner, self.dtype = Matern32(len(lengthscale), lengthscale), dtype

    def forward(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.inner(X.to(self.dtype), Z.to(self.dtype))
