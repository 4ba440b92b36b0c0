"""Warnings of this package: issued as usual, or collected by whoever is computing.

``warnings.catch_warnings`` changes the filters of the whole process, which other threads share. ``collected`` changes
nothing outside its own context: a block, and the thread or task that runs it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class _Collector(NamedTuple):
    categories: tuple[type[Warning], ...]
    found: list[Warning]


_COLLECTORS: ContextVar[tuple[_Collector, ...]] = ContextVar("cagp_collectors", default=())


def warn(message: str, category: type[Warning], stacklevel: int = 1) -> None:
    """Hand the warning to the innermost ``collected`` block that wants it; without one, call ``warnings.warn``.

    Args:
        stacklevel: as for ``warnings.warn``: 1 is the caller of this function.
    """
    for collector in reversed(_COLLECTORS.get()):
        if issubclass(category, collector.categories):
            collector.found.append(category(message))
            return
    warnings.warn(message, category, stacklevel + 1)


@contextmanager
def collected(*categories: type[Warning]) -> Iterator[list[Warning]]:
    """A list that receives this package's warnings of the given categories, by default of all, while the block runs."""
    collector = _Collector(categories or (Warning,), [])
    token = _COLLECTORS.set((*_COLLECTORS.get(), collector))
    try:
        yield collector.found
    finally:
        _COLLECTORS.reset(token)
