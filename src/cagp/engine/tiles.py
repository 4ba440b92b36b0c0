"""The engine in torch: any kernel, device and dtype, a tile of rows at a time, recomputed for the gradient."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cagp.engine.weights import BlockWeights
from cagp.kernels import Kernel

# A kernel's forward and backward hold several tile-sized temporaries (differences, distances, values, their gradients).
_TEMPORARIES = 8
# A tile that stays in the cache is several times faster than one as large as the budget allows.
_CACHED_ELEMENTS = 2**18


def tile_rows(num_rows: int, num_columns: int, element_size: int, max_bytes: int) -> int:
    """Rows per tile so that a tile and its temporaries fit both ``max_bytes`` and, if it can be, the cache."""
    elements = min(max_bytes // (_TEMPORARIES * element_size), _CACHED_ELEMENTS)
    return min(num_rows, max(1, elements // num_columns))


def by_rows(function: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
    """``function`` applied to tiles of ``rows`` rows of ``X``, whose intermediates are recomputed for the gradient."""
    if not torch.is_grad_enabled():
        return torch.cat([function(tile) for tile in X.split(rows)])
    return torch.cat(
        [checkpoint(function, tile, use_reentrant=False, preserve_rng_state=False) for tile in X.split(rows)]
    )


def matmul(
    kernel: Kernel, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"], V: Float[Tensor, "m c"], max_bytes: int
) -> Float[Tensor, "n c"]:
    """k(X, Z) V. Time O(n m (d + c)), memory O(tile + n c)."""
    rows = tile_rows(X.shape[0], Z.shape[0], X.element_size(), max_bytes)
    return by_rows(lambda tile: kernel(tile, Z) @ V, X, rows)


def block_matmul(
    kernel: Kernel, X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"], W: BlockWeights, max_bytes: int
) -> Float[Tensor, "n i"]:
    """k(X, Z) W. Time O(n m d), memory O(tile + n i)."""
    index, mask = _padded(W)
    Z, values = Z[index], (W.values[index] * mask).view(W.num_columns, -1)
    rows = tile_rows(X.shape[0], Z.shape[0], X.element_size(), max_bytes)
    return by_rows(lambda tile: torch.einsum("riq,iq->ri", kernel(tile, Z).unflatten(1, values.shape), values), X, rows)


def _padded(W: BlockWeights) -> tuple[Int[Tensor, " p"], Float[Tensor, " p"]]:
    """Row indices with every block as long as the longest (a block's padding repeats its last row) and their mask."""
    position = torch.arange(max(1, int(W.sizes.max())), device=W.offsets.device)
    inside = position < W.sizes[:, None]
    index = (W.offsets[:-1, None] + torch.minimum(position, W.sizes[:, None] - 1)).clamp(0, len(W.values) - 1)
    return index.flatten(), inside.flatten().to(W.values)
