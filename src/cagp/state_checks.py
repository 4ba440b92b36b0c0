"""Values of a stored state, each checked when it is taken: a state from a file can hold anything."""

from typing import TypeVar

import torch
from torch import Tensor

from cagp.checks import CHECKED_ROWS
from cagp.storage import State

T = TypeVar("T")


def strange(what: str) -> ValueError:
    """The error for a state that cagp has not written."""
    return ValueError(f"the state does not have {what} as cagp stores it; save the model again.")


def entry(state: State, name: str, kind: type[T]) -> T:
    """The value of an entry, which must be of this type."""
    value = state.get(name) if isinstance(state, dict) else None
    if not isinstance(value, kind):
        raise strange(repr(name))
    return value


def has(state: State, name: str) -> bool:
    """Whether an optional entry is not None."""
    if name not in state:
        raise strange(repr(name))
    return state[name] is not None


def count_in(state: State, name: str) -> int:
    """An integer, zero or above."""
    value = entry(state, name, int)
    if value < 0:
        raise strange(repr(name))
    return value


def shaped(state: State, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of finite numbers with this shape."""
    values = entry(state, name, Tensor)
    if values.shape != shape or not values.is_floating_point() or not is_finite(values):
        raise strange(repr(name))
    return values


def is_finite(values: Tensor) -> bool:
    """Whether all numbers are finite; memory O(1)."""
    parts = values.split(CHECKED_ROWS) if values.ndim else (values,)
    return all(bool(torch.isfinite(part).all()) for part in parts)


def factor(state: State, name: str, size: int) -> Tensor:
    """A Cholesky factor."""
    values = float64_in(state, name, (size, size))
    if not bool((values.diagonal() > 0).all()):
        raise strange(repr(name))
    return values


def float64_in(state: State, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of finite float64 numbers with this shape."""
    values = shaped(state, name, shape)
    if values.dtype != torch.float64:
        raise strange(repr(name))
    return values


def vector(state: State, name: str, num_rows: int, dtype: torch.dtype) -> Tensor:
    """Finite numbers, one for each row, in this dtype."""
    return shaped(state, name, (num_rows,)).to(dtype)
