"""Which process of a computation this is, as a launcher such as ``torchrun`` says; needs no torch."""

import os
from collections.abc import Mapping

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What launchers tell every process, in environment variables."""


class FirstProcessError(ValueError):
    """What went wrong in process 0, in another process: process 0 raises the error itself."""


def launched_size(environment: Mapping[str, str] | None = None) -> int:
    """The number of processes that a launcher has started; 1 without one."""
    found = os.environ if environment is None else environment
    if not all(name in found for name in LAUNCHED):
        return 1
    try:
        return int(found["WORLD_SIZE"])
    except ValueError:
        raise ValueError(f"WORLD_SIZE is {found['WORLD_SIZE']!r}, expected the number of processes.") from None


def launched_rank(environment: Mapping[str, str] | None = None) -> int:
    """The number of this process among those that a launcher has started; 0 without one."""
    found = os.environ if environment is None else environment
    return int(found["RANK"]) if launched_size(found) > 1 else 0
