"""How much memory this process uses, and how much more it can get."""

from pathlib import Path

import psutil


def current_memory() -> int:
    """Bytes that this process uses now."""
    return psutil.Process().memory_info().rss


def peak_memory() -> int:
    """The most bytes that this process has used so far."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    info = psutil.Process().memory_info()
    if psutil.WINDOWS:
        return info.peak_wset  # pyright: ignore[reportAttributeAccessIssue]
    import resource  # Unix only: on Windows the module does not exist

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if psutil.MACOS else peak * 1024


def available_memory() -> int:
    """Bytes that this process can still get: what is free on the machine, or less if its control group has a limit."""
    available = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    limit, used = group / "memory.max", group / "memory.current"
    if limit.exists() and used.exists() and (most := limit.read_text().strip()).isdigit():
        available = min(available, max(int(most) - int(used.read_text()), 0))
    return available


def default_memory_limit() -> int:
    """The bytes that a computation may use unless the user sets a limit: half of what is available."""
    return available_memory() // 2
