"""How this package writes files: whole or not at all, also after a kill, a power cut, a full disk or a second writer.

A new file is written under a name of its own in the folder of the old one, then put onto the disk, then renamed: at any
moment there is the old file or the new one. Its writer holds a lock on it that ends with the process. So a file under
such a name without a lock was left behind by a process that was killed, and the next writer removes it.
"""

import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from cagp.notices import warn

try:
    import fcntl
except ImportError:  # Windows: there an open file cannot be removed, which protects it as a lock does
    fcntl = None

PathLike = str | os.PathLike[str]

LOCK = "lock"
"""The name of the file in a folder that a process locks for itself."""

UNFINISHED = re.compile(r"\.cagp-[0-9a-f]{16}\.part")
"""Names of files that are being written. They begin with a point: a folder of tables does not count them."""

HINTS = {
    errno.ENOSPC: "; free some space on its disk",
    errno.EDQUOT: "; free some space on its disk",
    errno.EFBIG: "; the file is larger than the system allows",
    errno.EACCES: "; check the permissions of its folder",
    errno.EROFS: "; its disk is read-only",
}
"""What to do when a file cannot be written."""

NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
"""What file systems without locks, or without a way to put a folder onto the disk, answer."""


def checked_destination(path: PathLike) -> Path:
    """The file that writing to this path would replace, behind all symbolic links.

    Raises OSError if its folder does not exist, and ValueError if there is something else than a file.
    """
    name, mode = os.fspath(path), stat.S_IFREG  # a new file
    with suppress(FileNotFoundError), _named_errors(path):  # e.g. links in a circle
        mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{name} is a folder, expected the name of a file to write.")
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{name} is a device, a pipe or a socket, and stays as it is; expected the name of a file to write."
        )
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        folder = Path(path).parent if Path(path).absolute().parent == target.parent else target.parent
        raise FileNotFoundError(f"{name} cannot be written: the folder {folder} does not exist; create it first.")
    return target


@contextmanager
def replacing(path: PathLike) -> Iterator[BinaryIO]:
    """An open file that takes the place of ``path`` when the block ends; after an error, nothing has changed.

    A symbolic link stays, and the file that it leads to is replaced. The new file has the permissions of the old one.
    When the block has ended, the file is on the disk.
    """
    target = checked_destination(path)
    remove_left_behind(target.parent)
    part, descriptor = _new_part(target.parent, path)
    try:
        with _Named(descriptor, path) as raw:
            with suppress(OSError):  # there may be no old file, or it may be another user's
                os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
            file = io.BufferedWriter(raw)
            try:
                yield file
                file.flush()
            except BaseException:
                with suppress(OSError, ValueError):
                    file.detach()  # it must not be used when it is collected, after the file is closed
                raise
            with _named_errors(path):
                os.fsync(raw.fileno())
                os.replace(part, target)
            sync_folder(target.parent)
    finally:
        with suppress(OSError):  # once it is renamed, nothing has this name
            os.unlink(part)


def write_atomically(path: PathLike, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file so that at any moment it is complete: either the old one or the new one."""
    with replacing(path) as file:
        for piece in [content] if isinstance(content, bytes) else content:
            file.write(piece)


def append_durably(path: PathLike, content: bytes, *, sync: bool) -> None:
    """Add to the end of a file; with ``sync`` it is on the disk when this returns."""
    with _named_errors(path), open(path, "ab") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def rename_durably(old: Path, new: Path) -> None:
    """Rename a file, and replace the one that has the new name; when this returns, the new name is on the disk."""
    with _named_errors(new):
        os.replace(old, new)
    sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder onto the disk, where the system has a way to do that."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return  # a folder may be written to but not be read
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise OSError(error.errno, f"{folder} may not survive a power cut: {error.strerror}") from error
    finally:
        os.close(descriptor)


def remove_left_behind(folder: Path) -> None:
    """Remove files that processes were writing when they were killed; those of living processes stay."""
    if fcntl is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not UNFINISHED.fullmatch(entry.name):
                continue
            with suppress(OSError), ExitStack() as stack:
                descriptor = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError if its writer lives
                if _is_at(descriptor, entry.path):
                    os.unlink(entry.path)


def _new_part(folder: Path, path: PathLike) -> tuple[Path, int]:
    """A new file under a new name, open and locked."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        part = folder / f".cagp-{secrets.token_hex(8)}.part"  # never the same twice
        with _named_errors(path):
            descriptor = os.open(part, flags, 0o666)
        if fcntl is None:
            return part, descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = _is_at(descriptor, part)
        except OSError as error:
            locked = error.errno in NO_LOCKS  # without locks nobody removes it
        if locked:
            return part, descriptor
        with suppress(OSError):
            os.unlink(part)  # another process may have taken it for one that was left behind
        os.close(descriptor)


def _is_at(descriptor: int, path: PathLike) -> bool:
    """Whether an open file is the one that has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    return False


class _Named(io.FileIO):
    """A file whose errors name the path that it will have."""

    def __init__(self, descriptor: int, path: PathLike):
        super().__init__(descriptor, "w")
        self._path = path

    def write(self, content: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        with _named_errors(self._path):
            return super().write(content)


@contextmanager
def _named_errors(path: PathLike) -> Iterator[None]:
    """Errors of the system with the path that they are about, each of its own class."""
    try:
        yield
    except OSError as error:
        number, hint = error.errno or 0, HINTS.get(error.errno or 0, "")
        raise OSError(number, f"{os.fspath(path)} cannot be written: {error.strerror or error}{hint}") from error


# ---- one process at a time ----


@contextmanager
def locked_folder(folder: Path, user: str) -> Iterator[None]:
    """No other process may use the folder in the block; ValueError says who does, e.g. "another fit"."""
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise ValueError(f"{folder} is in use by {user}; wait for it, or choose another folder.") from error
    except NotImplementedError:
        warn(f"{folder} is on a file system without locks: make sure that nothing else uses it.", UserWarning)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for this folder; where there are no locks, do not wait."""
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):  # whatever is wrong with the folder, the writer says it
                descriptor = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
