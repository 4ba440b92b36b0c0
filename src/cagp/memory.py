"""How much memory this process holds."""

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
