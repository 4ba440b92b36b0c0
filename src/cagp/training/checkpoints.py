"""Checkpoints of fits and tasks of searches: files that may always be deleted to start from scratch."""

import math
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from cagp.fields import is_finite
from cagp.storage import State, fingerprint, load_state, save_state

KIND, VERSION = "checkpoint", 2
REMEDY = "delete it to start from scratch"


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    save_state(path, state, KIND, VERSION)


def load_checkpoint(path: Path) -> State:
    """The state in a file; ValueError if the file is not a complete checkpoint of this version."""
    return load_state(path, KIND, VERSION, remedy=REMEDY)


def not_whole(path: Path | str, what: str) -> ValueError:
    """The error for a checkpoint that a fit cannot have written."""
    return ValueError(f"{path} cannot be read: it is not what cagp writes ({what}); {REMEDY}.")


def is_like(value: Any, like: Any) -> bool:
    """Whether a value from a file is built as one that this program made.

    A type stands for any of its values. Numbers are not NaN, counts not negative, tensors finite; a tensor of integers
    can have another length: the number of blocks of actions can change.
    """
    if isinstance(like, Tensor):
        alike = isinstance(value, Tensor) and value.dtype == like.dtype and value.ndim == like.ndim
        return alike and is_finite(value) and (value.shape == like.shape or not like.is_floating_point())
    if isinstance(like, dict):
        return isinstance(value, dict) and value.keys() == like.keys() and all(is_like(value[k], like[k]) for k in like)
    if isinstance(like, list):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(like, int):
        return type(value) is int and 0 <= value < 2**63
    if isinstance(like, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value > -math.inf
    return isinstance(value, like if isinstance(like, type) else type(like))


# ---- whether a checkpoint belongs to a method ----


@runtime_checkable
class Described(Protocol):
    """An object that is part of a method but no module, and changes what the method computes."""

    def description(self) -> Any:
        """What makes the object what it is, for ``plain_values``."""
        ...


def describe(method: nn.Module) -> list[Any]:
    """The kinds of a method's parts, and their plain attributes: what besides its tensors makes it what it is."""
    return [
        [name, type(part).__name__, {k: plain_values(v) for k, v in vars(part).items() if _counts(v)}]
        for name, part in method.named_modules()
    ]


def _counts(value: Any) -> bool:
    return isinstance(value, int | float | str | tuple | Described)


def plain_values(value: Any) -> Any:
    """Numbers and text as they are, tensors by their digest, containers and described objects by what they hold.

    Of any other object only its class counts.
    """
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Tensor):
        return fingerprint(value)
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, Described):
        return plain_values(value.description())
    return f"{type(value).__module__}.{type(value).__qualname__}"
