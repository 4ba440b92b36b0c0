"""The backend in torch: any kernel, device and dtype, a tile of rows at a time."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from cagp.checks import check_first_order
from cagp.engine.backend import NEGLIGIBLE, Backend, BlockWeights, LocalMoments, LocalRows, by_rows
from cagp.kernels import Kernel

TORCH_ENTRIES = 2**18  # of the matrices of test points that are conditioned at a time on a CPU: they stay in the cache
NEAREST_ELEMENTS = 2**24  # distances that a search for the nearest rows holds at once
_TEMPORARIES = 8  # as large as a tile, in a kernel's forward and backward: differences, distances, values, gradients
_CACHED_ELEMENTS = 2**18  # such a tile is several times faster than one as large as the budget allows


@final
@dataclass(frozen=True)
class TorchBackend(Backend):
    """Torch operations on tiles; applies to everything."""

    name: ClassVar[str] = "torch"
    words: ClassVar[str] = "torch tiles"

    def unsupported_reason(self, kernel: Kernel | None, X: Tensor) -> str | None:
        return None

    def product(
        self, kernel: Kernel, X: Tensor, Z: Tensor, W: Tensor | BlockWeights | None, max_bytes: int, tolerance: float
    ) -> Tensor:
        """By the kernel's own formula, of all rows at any distance.

        Time O(n m (d + c)), O(n m d) for block-sparse W; memory O(tile + n c).
        """
        if W is None:
            return kernel(X, Z)
        most = min(max_bytes // (_TEMPORARIES * X.element_size()), _CACHED_ELEMENTS)
        if not isinstance(W, BlockWeights):
            return by_rows(lambda tile: kernel(tile, Z) @ W, X, max(1, most // len(Z)))
        # Every block becomes as long as the longest: its padding repeats its last row, with weight zero.
        position = torch.arange(max(1, int(W.sizes.max())), device=W.offsets.device)
        inside = (position < W.sizes[:, None]).to(W.values)
        index = (W.offsets[:-1, None] + torch.minimum(position, W.sizes[:, None] - 1)).clamp(0, len(W.values) - 1)
        Z, values = Z[index.flatten()], W.values[index] * inside

        def of_tile(tile: Tensor) -> Tensor:
            return torch.einsum("riq,iq->ri", kernel(tile, Z).unflatten(1, values.shape), values)

        return by_rows(of_tile, X, max(1, most // len(Z)))

    def conditionals(self, kernel: Kernel, rows: LocalRows) -> LocalMoments:
        """On a CPU in tiles; elsewhere all test points at once, which keeps such a device busy."""
        if rows.residual.ndim == 1:
            rows = rows._replace(residual=rows.residual[rows.neighbours.clamp_min(0)])
        t, k = rows.neighbours.shape
        size = max(1, TORCH_ENTRIES // max(1, k) ** 2) if rows.X.device.type == "cpu" else t
        if t <= size:
            return _conditionals(kernel, rows)
        split = {name: value.split(size) for name, value in rows._asdict().items() if name != "X" and value is not None}
        tiles = (rows._replace(**dict(zip(split, parts, strict=True))) for parts in zip(*split.values(), strict=True))
        found = [_conditionals(kernel, tile) for tile in tiles]
        return LocalMoments(*map(torch.cat, zip(*found, strict=True)))

    def nearest(self, points: Tensor, X: Tensor, k: int, left_out: Tensor | None, before: Tensor | None) -> Tensor:
        """All distances, a tile of points at a time. Time O(t n d)."""

        def of_tile(tile: Tensor) -> Tensor:
            distances = torch.cdist(points[tile], X, compute_mode="donot_use_mm_for_euclid_dist")
            if left_out is not None:
                distances.scatter_(1, left_out[tile, None], math.inf)
            if before is not None:
                distances[torch.arange(len(X), device=X.device) >= before[tile, None]] = math.inf
            found = distances.topk(min(k, len(X)), largest=False)
            rows = torch.where(found.values < math.inf, found.indices, -1)
            return torch.nn.functional.pad(rows, (0, k - rows.shape[1]), value=-1)

        tiles = torch.arange(len(points), device=points.device).split(max(1, NEAREST_ELEMENTS // max(1, len(X))))
        return torch.cat([of_tile(tile) for tile in tiles])


TORCH = TorchBackend()


def _conditionals(kernel: Kernel, rows: LocalRows) -> LocalMoments:
    points, X, neighbours, noise, residual, gram, cross = rows
    present = neighbours >= 0
    both = present[:, :, None] & present[:, None, :]
    near, points = X.detach()[neighbours.clamp_min(0)].double(), points.double()
    K = torch.where(both, kernel(near, near), 0.0)
    c = torch.where(present, kernel(points[:, None, :], near)[:, 0, :], 0.0)
    C = K + torch.diag_embed(torch.where(present, noise, 1.0))
    smallest = NEGLIGIBLE * torch.finfo(C.dtype).eps * C.detach().diagonal(dim1=-2, dim2=-1)
    C = C if gram is None else C - torch.where(both, gram, 0.0)
    c = c if cross is None else c - torch.where(present, cross, 0.0)
    r = torch.where(present, residual.double(), 0.0)
    return LocalMoments(*_Conditional.apply(C, c, r, smallest, present.to(C)))


class _Conditional(torch.autograd.Function):
    """The moments; with a = C⁻¹r, b = C⁻¹c and cotangents g, h of mean and explained:

    ∂c = g a + 2h b,    ∂r = g b,    ∂C = -(g (a bᵀ + b aᵀ) / 2 + h b bᵀ).
    """

    @staticmethod
    def forward(ctx, C: Tensor, c: Tensor, r: Tensor, smallest: Tensor, present: Tensor) -> LocalMoments:
        L, kept = _cholesky_without_negligible(C, smallest)
        right = torch.stack([r, c], dim=-1) * kept[:, :, None]
        a, b = torch.cholesky_solve(right, L).unbind(-1)
        a, b = a * kept, b * kept
        ctx.save_for_backward(a, b)
        moments = LocalMoments((c * a).sum(-1), (c * b).sum(-1), (r * a).sum(-1), (kept * present).sum(-1))
        ctx.mark_non_differentiable(moments.misfit, moments.num_rows)
        return moments

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        a, b = ctx.saved_tensors
        g, h = (grad[:, None] for grad in grad_outputs[:2])
        half = (g / 2 * a + h * b)[:, :, None] * b[:, None, :]
        grad_C = -(half + (g / 2 * b)[:, :, None] * a[:, None, :])
        return grad_C, g * a + 2 * h * b, g * b, None, None


def _cholesky_without_negligible(C: Tensor, smallest: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the matrices without the rows that the rows before them determine, and which rows were kept."""
    # In a factor, the rows that were left out are those of the identity.
    L, info = torch.linalg.cholesky_ex(C)
    kept = torch.ones_like(smallest)
    bad = (info > 0) | ~(L.diagonal(dim1=-2, dim2=-1).square() > smallest).all(-1)
    if bool(bad.any()):
        L = L.clone()
        L[bad], kept[bad] = _column_by_column(C[bad], smallest[bad])
    return L, kept


def _column_by_column(C: Tensor, smallest: Tensor) -> tuple[Tensor, Tensor]:
    """The same for matrices with rows to leave out: those whose pivots are negligible."""
    L, kept = torch.zeros_like(C), torch.zeros_like(smallest)
    for j in range(C.shape[-1]):
        column = C[:, :, j] - (L[:, :, :j] @ L[:, j, :j, None])[:, :, 0]
        pivot = column[:, j]
        keep = pivot > smallest[:, j]
        root = torch.where(keep, pivot, 1.0).sqrt()
        below = torch.arange(C.shape[-1], device=C.device) >= j
        L[:, :, j] = torch.where(keep[:, None] & below, column / root[:, None], 0.0)
        kept[:, j] = keep.to(C.dtype)
    return L * kept[:, :, None] + torch.diag_embed(1 - kept), kept
