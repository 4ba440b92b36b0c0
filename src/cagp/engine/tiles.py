"""Tiles: a function of many rows, computed a few rows at a time and recomputed for its gradient."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def by_rows(function: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
    """``function`` applied to tiles of ``rows`` rows of ``X``, whose intermediates are recomputed for the gradient."""
    if not torch.is_grad_enabled():
        return torch.cat([function(tile) for tile in X.split(rows)])
    return torch.cat(
        [checkpoint(function, tile, use_reentrant=False, preserve_rng_state=False) for tile in X.split(rows)]
    )
