"""The interface of a backend, and what it is given: everything that evaluates kernels on many rows goes through one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cagp.checks import check_first_order
from cagp.kernels import Kernel

NEGLIGIBLE = 256
"""Conditionals leave a row out when its variance given the rows before it is below this times round-off of its prior
variance; the same constant as in src/native/conditionals.h."""

TILE_ROWS = 2048  # rows that are projected at a time

Inputs = Float[Tensor, "n d"]
PerColumn = Float[Tensor, " d"]
Points = Float[Tensor, "t d"]
Rows = Int[Tensor, " t"]  # one for each test point
Neighbours = Int[Tensor, "t k"]  # rows for each test point, -1 for none


class BlockWeights(NamedTuple):
    """W (m, i) in O(m): column j holds ``values[offsets[j]:offsets[j + 1]]`` in those rows, and zeros elsewhere."""

    values: Float[Tensor, " m"]
    offsets: Int[Tensor, " i+1"]

    @property
    def num_columns(self) -> int:
        """The number of blocks i."""
        return self.offsets.shape[0] - 1

    @property
    def sizes(self) -> Int[Tensor, " i"]:
        """The number of rows in each block."""
        return self.offsets.diff()

    def double(self) -> "BlockWeights":
        """W in float64."""
        return self._replace(values=self.values.double())

    def blocks(self, first: int, last: int) -> "BlockWeights":
        """The weights of blocks ``first`` to ``last``, which does not count, on their own rows."""
        begin, end = int(self.offsets[first]), int(self.offsets[last])
        return BlockWeights(self.values[begin:end], self.offsets[first : last + 1] - begin)

    def columns(self) -> Int[Tensor, " m"]:
        """The block of each row."""
        return torch.arange(self.num_columns, device=self.offsets.device).repeat_interleave(self.sizes)

    def expand(self, v: Float[Tensor, " i"]) -> Float[Tensor, " m"]:
        """W v."""
        return self.values * v.to(self.values)[self.columns()]

    def project(self, F: Float[Tensor, "m c"]) -> Float[Tensor, "i c"]:
        """WᵀF, summed in float64."""
        return _BlockProjection.apply(self.values, F, self.columns(), self.num_columns)

    def dense(self) -> Float[Tensor, "m i"]:
        """W as a matrix, for small cases and tests."""
        return torch.diag(self.values) @ torch.nn.functional.one_hot(self.columns(), self.num_columns).to(self.values)


class _BlockProjection(torch.autograd.Function):
    """out[j] = Σ_{r in block j} values_r F_r in float64, a tile of rows at a time: F is never held twice."""

    @staticmethod
    def forward(ctx, values: Tensor, F: Tensor, columns: Tensor, num_columns: int) -> Tensor:
        ctx.save_for_backward(values, F, columns)
        out = F.new_zeros(num_columns, F.shape[1], dtype=torch.float64)
        for v, f, c in zip(*(t.split(TILE_ROWS) for t in (values, F, columns)), strict=True):
            out.index_add_(0, c, v.double()[:, None] * f.double())
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        (grad,) = grad_outputs
        values, F, columns = ctx.saved_tensors
        grad_values, grad_F = torch.empty_like(values), torch.empty_like(F) if ctx.needs_input_grad[1] else None
        for start in range(0, len(values), TILE_ROWS):
            rows = slice(start, start + TILE_ROWS)
            g = grad[columns[rows]]
            grad_values[rows] = torch.einsum("rc,rc->r", F[rows].double(), g)
            if grad_F is not None:
                grad_F[rows] = values[rows].double()[:, None] * g
        return grad_values, grad_F, None, None


Weights = Float[Tensor, "m c"] | BlockWeights


class LocalRows(NamedTuple):
    """The test points of ``local_moments``, their rows, and what is known of these; float64 but for inputs."""

    points: Points
    X: Inputs
    neighbours: Neighbours
    noise: Float[Tensor, "t k"]
    residual: Float[Tensor, "t k"] | Float[Tensor, " n"]  # that of all rows is a constant, in the dtype of X
    gram: Float[Tensor, "t k k"] | None
    cross: Float[Tensor, "t k"] | None


class LocalMoments(NamedTuple):
    """What its rows say about each test point, float64; k(x, x) - explained is its variance."""

    mean: Float[Tensor, " t"]  # cᵀC⁻¹r
    explained: Float[Tensor, " t"]  # cᵀC⁻¹c
    misfit: Float[Tensor, " t"]  # rᵀC⁻¹r
    num_rows: Float[Tensor, " t"]  # rows that count: misfit is the sum of as many squares


class Backend(ABC):
    """One way to compute kernel products, conditionals and nearest rows: a value without state.

    To add a backend, write a final class in a file of its own and name its value in ``cagp.engine.BACKENDS``. All
    methods but ``unsupported_reason`` are called only with kernels and inputs for which that returned None. Arguments
    are checked, and tensors may have any strides. Results are differentiable once in everything that is not an integer,
    except where a method says otherwise.
    """

    name: ClassVar[str]
    words: ClassVar[str]  # the name with what a user should know of this backend, for reports

    @abstractmethod
    def unsupported_reason(self, kernel: Kernel | None, X: Tensor) -> str | None:
        """Why this backend cannot compute with these inputs, in words, or None; nearest rows need no kernel."""

    @abstractmethod
    def product(
        self, kernel: Kernel, X: Inputs, Z: Float[Tensor, "m d"], W: Weights | None, max_bytes: int, tolerance: float
    ) -> Float[Tensor, "n c"]:
        """k(X, Z) W with no more than ``max_bytes`` of temporaries, or one row of k(X, Z); k(X, Z) without ``W``.

        With block-sparse ``W``, values of the kernel of at most ``tolerance`` times its variance may count as zero.
        """

    @abstractmethod
    def conditionals(self, kernel: Kernel, rows: LocalRows) -> LocalMoments:
        """``local_moments``; mean and explained are differentiable in all but ``X``."""

    def density(
        self, kernel: Kernel, X: Tensor, y: Tensor, rows: Tensor, neighbours: Tensor, noise: Tensor
    ) -> Tensor | None:
        """``local_density`` of the same arguments; None where this backend has no such sweep."""
        return None

    @abstractmethod
    def nearest(self, points: Points, X: Inputs, k: int, left_out: Rows | None, before: Rows | None) -> Neighbours:
        """The ``k`` rows of ``X`` nearest to each point, by increasing distance; -1 where there are fewer.

        The row ``left_out`` of a point does not count; with ``before``, only rows of ``X`` before that one do.
        """


def recomputed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function(*tensors)``, whose intermediates are not kept: they are computed again for the gradient."""
    if not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)


def by_rows(function: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
    """``function`` applied to tiles of ``rows`` rows of ``X``, whose intermediates are recomputed for the gradient."""
    return torch.cat([recomputed(function, tile) for tile in X.split(rows)])
