"""What an object is, as plain values: whether a checkpoint belongs to a method is decided by them."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from cagp.storage import fingerprint


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
