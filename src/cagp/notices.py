"""Warnings of this package: issued as usual, or collected by whoever is computing.

``warnings.catch_warnings`` changes the filters of the whole process, which other threads share. ``collected`` changes
nothing outside its own context: a block, and the thread or task that runs it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Collector = tuple[tuple[type[Warning], ...], list[Warning]]
"""The categories that a block collects, and what it has found."""

_COLLECTORS: ContextVar[tuple[Collector, ...]] = ContextVar("cagp_collectors", default=())


def warn(message: str, category: type[Warning], stacklevel: int = 1) -> None:
    """Hand the warning to the innermost ``collected`` block that wants it; without one, call ``warnings.warn``.

    ``stacklevel`` is as there: 1 is the caller of this function.
    """
    for categories, found in reversed(_COLLECTORS.get()):
        if issubclass(category, categories):
            found.append(category(message))
            return
    warnings.warn(message, category, stacklevel + 1)


@contextmanager
def collected(*categories: type[Warning]) -> Iterator[list[Warning]]:
    """A list that receives this package's warnings of the given categories, by default of all, while the block runs."""
    found: list[Warning] = []
    token = _COLLECTORS.set((*_COLLECTORS.get(), (categories or (Warning,), found)))
    try:
        yield found
    finally:
        _COLLECTORS.reset(token)
