"""Which process of a computation this is, as a launcher such as ``torchrun`` says; needs no torch."""

import os

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What launchers tell every process, in environment variables."""


class FirstProcessError(ValueError):
    """What went wrong in process 0, in another process: process 0 raises the error itself."""


def launched_size() -> int:
    """The number of processes that a launcher has started; 1 without one."""
    size = os.environ["WORLD_SIZE"] if all(name in os.environ for name in LAUNCHED) else "1"
    if not size.isdigit():
        raise ValueError(f"WORLD_SIZE is {size!r}, expected the number of processes.")
    return int(size)


def launched_rank() -> int:
    """The number of this process among those that a launcher has started; 0 without one."""
    return int(os.environ["RANK"]) if launched_size() > 1 else 0
