"""What a class stores of itself: a table of fields, each with the check that its value must pass when it is read.

A file can hold anything. A class that is stored declares its fields once; both directions follow from the table:

    class Line:
        FIELDS: ClassVar[Fields] = {"slope": numbers("d"), "offset": real(), "names": optional(list_of(text))}

        def state(self) -> State:
            return {name: getattr(self, name) for name in self.FIELDS}

        @classmethod
        def from_state(cls, state: Any) -> "Line":
            return cls(**checked(state, cls.FIELDS))

A check takes a value and the sizes so far, and returns the value as the class wants it, or calls ``require``. A size is
a name: "d" stands for any length where it first occurs, and for the same length from then on. Checks nest.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cagp.checks import CHECKED_ROWS
from cagp.storage import State

Sizes = dict[str, int]
Check = Callable[[Any, Sizes], Any]
Fields = Mapping[str, Check]


class _WrongError(ValueError):
    """A value does not pass its check; ``checked`` adds the name of the field."""


def require(right: bool) -> None:
    """Let the check of a field fail unless it is right."""
    if not right:
        raise _WrongError("a value is not as cagp stores it; save the model again.")


def strange(what: str) -> ValueError:
    """The error for a state that cagp has not written."""
    return ValueError(f"the state does not have {what} as cagp stores it; save the model again.")


def checked(state: Any, fields: Fields, sizes: Sizes | None = None) -> State:
    """The values of a state that a table names, in its order; ValueError where one is not there or fails its check."""
    sizes = {} if sizes is None else sizes
    values = {}
    for name, check in fields.items():
        if not isinstance(state, dict) or name not in state:
            raise strange(repr(name))
        try:
            values[name] = check(state[name], sizes)
        except _WrongError as error:
            raise strange(repr(name)) from error
    return values


def entry(state: Any, name: str, check: Check, sizes: Sizes | None = None) -> Any:
    """A single field of a state, after its check."""
    return checked(state, {name: check}, sizes)[name]


# ---- plain values ----


def that(is_right: Callable[[Any], bool], check: Check | None = None) -> Check:
    """A value that passes ``check``, if there is one, and of which ``is_right`` then holds."""

    def both(value: Any, sizes: Sizes) -> Any:
        value = value if check is None else check(value, sizes)
        require(is_right(value))
        return value

    return both


anything: Check = that(lambda value: True)
"""Whatever a file can hold; for what is compared or tried elsewhere."""

text: Check = that(lambda value: type(value) is str)
flag: Check = that(lambda value: type(value) is bool)

mapping: Check = that(lambda value: isinstance(value, dict))
"""A dict of anything; for what checks itself."""


def integer(least: int = 0, most: int = 2**63 - 1) -> Check:
    """An integer in a range."""
    return that(lambda value: type(value) is int and least <= value <= most)


def real(above: float = -math.inf, below: float = math.inf) -> Check:
    """A number strictly between two others; never NaN."""
    right = that(lambda value: type(value) in (int, float) and above < value < below)
    return lambda value, sizes: float(right(value, sizes))


# ---- values that hold others ----


def optional(check: Check) -> Check:
    """None, or a value that passes the check."""
    return lambda value, sizes: None if value is None else check(value, sizes)


def list_of(check: Check, least: int = 0) -> Check:
    """A list of at least ``least`` values that pass the check."""

    def each(value: Any, sizes: Sizes) -> list[Any]:
        require(isinstance(value, list) and len(value) >= least)
        return [check(item, sizes) for item in value]

    return each


def dict_of(check: Check) -> Check:
    """A dict from text to values that pass the check."""

    def each(value: Any, sizes: Sizes) -> dict[str, Any]:
        require(isinstance(value, dict) and all(isinstance(key, str) for key in value))
        return {key: check(item, sizes) for key, item in value.items()}

    return each


def record(fields: Fields) -> Check:
    """A dict with the fields of another table, which shares the sizes of this one."""
    return lambda value, sizes: checked(value, fields, sizes)


def made_by(from_state: Callable[[Any], Any]) -> Check:
    """What ``from_state`` makes of the value, which raises ValueError itself."""
    return lambda value, sizes: from_state(value)


# ---- tensors ----


def is_finite(values: Tensor) -> bool:
    """Whether all numbers are finite; memory O(1)."""
    return all(bool(torch.isfinite(part).all()) for part in torch.atleast_1d(values).split(CHECKED_ROWS))


def tensor(*shape: int | str, dtype: torch.dtype | None = None) -> Check:
    """A tensor of this shape, whose names are sizes, and of this dtype, or any."""

    def check(value: Any, sizes: Sizes) -> Tensor:
        require(isinstance(value, Tensor) and value.ndim == len(shape) and dtype in (None, value.dtype))
        for size, expected in zip(value.shape, shape, strict=True):
            require(size == (sizes.setdefault(expected, size) if isinstance(expected, str) else expected))
        return value

    return check


def numbers(*shape: int | str, dtype: torch.dtype | None = None) -> Check:
    """A tensor of finite floating-point numbers."""
    return that(lambda values: values.is_floating_point() and is_finite(values), tensor(*shape, dtype=dtype))


def float64(*shape: int | str) -> Check:
    """A tensor of finite float64 numbers."""
    return numbers(*shape, dtype=torch.float64)


def factor(size: str) -> Check:
    """A Cholesky factor, float64."""
    return that(lambda values: bool((values.diagonal() > 0).all()), float64(size, size))


tensors: Check = dict_of(that(lambda item: isinstance(item, Tensor)))
"""A dict from text to tensors of any shape and dtype."""
