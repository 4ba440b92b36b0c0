"""Block-sparse weights W: each row belongs to one block, and column j is non-zero on block j alone."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_first_order


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

    TILE_ROWS = 2048

    @staticmethod
    def forward(ctx, values: Tensor, F: Tensor, columns: Tensor, num_columns: int) -> Tensor:
        ctx.save_for_backward(values, F, columns)
        out = F.new_zeros(num_columns, F.shape[1], dtype=torch.float64)
        for v, f, c in zip(*(t.split(_BlockProjection.TILE_ROWS) for t in (values, F, columns)), strict=True):
            out.index_add_(0, c, v.double()[:, None] * f.double())
        return out

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        (grad,) = grad_outputs
        values, F, columns = ctx.saved_tensors
        grad_values, grad_F = torch.empty_like(values), torch.empty_like(F) if ctx.needs_input_grad[1] else None
        for start in range(0, len(values), _BlockProjection.TILE_ROWS):
            rows = slice(start, start + _BlockProjection.TILE_ROWS)
            g = grad[columns[rows]]
            grad_values[rows] = torch.einsum("rc,rc->r", F[rows].double(), g)
            if grad_F is not None:
                grad_F[rows] = values[rows].double()[:, None] * g
        return grad_values, grad_F, None, None
