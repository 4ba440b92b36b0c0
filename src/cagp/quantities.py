"""Sizes and durations as users write them ("4GB", "10min"), and numbers as users read them."""

import math
import re

UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, None: 1}


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
        raise ValueError(f'the size is {size!r}, expected between 1 byte and 2^63 bytes, e.g. "4GB".')
    return int(number)


def seconds_of(duration: float | str | None) -> float:
    """A duration in seconds, from a number or text like "90s", "10min", "2h"; infinite for None."""
    if duration is None:
        return math.inf
    if not isinstance(duration, str):
        seconds = float(duration)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|sec|min|m|h)?\s*", duration)
        if match is None:
            raise ValueError(f'max_time is {duration!r}, expected seconds, or text like "90s", "10min", "2h".')
        seconds = float(match[1]) * UNITS[match[2]]
    if not seconds > 0:
        raise ValueError(f"max_time is {duration!r}, expected more than zero seconds.")
    return seconds


def number(value: float) -> str:
    """Four significant digits, with commas; powers of ten only for tiny and huge values."""
    if not math.isfinite(value):
        return "unknown"
    size = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, 3 - size)}f}" if -4 <= size < 9 else f"{value:.3e}"


def size(num_bytes: int | float) -> str:
    """Bytes in a unit that suits them."""
    for unit in ("bytes", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" or num_bytes >= 100 else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} GB"
