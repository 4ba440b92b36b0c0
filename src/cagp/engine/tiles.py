"""Tiles: a function of many rows, computed a few rows at a time and recomputed for its gradient."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """``function(*tensors)``, whose intermediates are not kept: they are computed again for the gradient."""
    if not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)


def by_rows(function: Callable[[Tensor], Tensor], X: Tensor, rows: int) -> Tensor:
    """``function`` applied to tiles of ``rows`` rows of ``X``, whose intermediates are recomputed for the gradient."""
    return torch.cat([recomputed(function, tile) for tile in X.split(rows)])
