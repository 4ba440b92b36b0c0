"""How much memory this process holds, and how much more it may have."""

import re
import resource
import sys
from pathlib import Path


def current_memory() -> int:
    """Bytes held now; where /proc is missing, the most held so far."""
    return _status("VmRSS")


def peak_memory() -> int:
    """The most bytes held so far."""
    return _status("VmHWM")


def _status(field: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def available_memory() -> int | None:
    """Bytes this process can still take, by the machine and by its control group; None where neither says."""
    found = []
    machine = Path("/proc/meminfo")
    if machine.exists():
        line = next(line for line in machine.read_text().splitlines() if line.startswith("MemAvailable"))
        found.append(int(line.split()[1]) * 1024)
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()).isdigit():
        found.append(int(most) - int(used.read_text()))
    return min(found) if found else None


def bytes_of(size: int | float | str) -> int:
    """A size in bytes, from a number or text like "500MB", "4GB", "1.5 GiB"."""
    if not isinstance(size, str):
        number = float(size)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", size, re.IGNORECASE)
        if match is None:
            raise ValueError(f'the size is {size!r}, expected bytes, or text like "500MB", "4GB".')
        base = 1024 if match[3] else 1000
        number = float(match[1]) * base ** ("", "K", "M", "G", "T").index(match[2].upper())
    if not 1 <= number < 2**63:
        raise ValueError(f"the size is {size!r}, expected at least one byte, and a number that can be.")
    return int(number)
