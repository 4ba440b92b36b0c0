"""The interface of a backend, through which everything goes that evaluates kernels on many rows; and the one in torch,
which computes any kernel on any device and dtype, a tile of rows at a time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

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
TORCH_ENTRIES = 2**18  # of the matrices of test points that are conditioned at a time on a CPU: they stay in the cache
NEAREST_ELEMENTS = 2**24  # distances that a search for the nearest rows holds at once
_TEMPORARIES = 8  # as large as a tile, in a kernel's forward and backward: differences, distances, values, gradients
_CACHED_ELEMENTS = 2**18  # such a tile is several times faster than one as large as the budget allows

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


# ---- in torch ----


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
