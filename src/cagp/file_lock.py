"""A lock that one process at a time can hold, on every operating system."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt


class LockedError(OSError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created; LockedError if another process holds it.

    The lock ends with the process, however that ends.
    """
    with path.open("w") as file:
        try:
            _lock(file)
        except OSError as error:
            raise LockedError(f"{path} is locked by another process.") from error
        yield


def _lock(file: IO[str]) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore
