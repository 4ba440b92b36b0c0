"""Sizes, durations and memory: what users write, and what the operating system says."""

import math
import subprocess
import sys

import numpy as np
import psutil
import pytest

from cagp import memory
from cagp.memory import available_memory, current_memory, default_memory_limit, peak_memory
from cagp.quantities import bytes_of, seconds_of


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (1.5e9, 1_500_000_000),
        ("500", 500),
        ("500MB", 500_000_000),
        ("4gb", 4_000_000_000),
        ("1.5 GiB", 3 * 2**29),
        (" 2 K ", 2000),
        ("3Ti", 3 * 2**40),
    ],
)
def test_sizes(size, expected):
    assert bytes_of(size) == expected


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("size", ["lots", "4 GBB", "-3MB", "", 0, -1, "0.1", 2.0**63, "1e9", math.nan, math.inf])
def test_sizes_that_are_not(size):
    with pytest.raises(ValueError, match=r"the size is .*, expected"):
        bytes_of(size)


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize(
    ("duration", "seconds"),
    [
        (None, math.inf),
        (3, 3.0),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("2 sec", 2),
        ("1.5min", 90),
        ("2m", 120),
        ("1h", 3600),
    ],
)
def test_durations(duration, seconds):
    assert seconds_of(duration) == seconds


@pytest.mark.usefixtures("annotations_off")
@pytest.mark.parametrize("duration", [0, -1, math.nan, "0s", "soon", "10 days", ""])
def test_durations_that_are_not(duration):
    with pytest.raises(ValueError, match=r"max_time is .*, expected"):
        seconds_of(duration)


def test_memory_grows_with_what_is_held():
    before, peak = current_memory(), peak_memory()
    held = np.ones(10_000_000)
    assert current_memory() - before > 0.8 * held.nbytes
    del held
    assert peak_memory() >= max(peak, before + 64_000_000)
    assert peak_memory() > 50_000_000


def test_half_of_the_available_memory_is_the_default_limit(monkeypatch):
    assert 0 < available_memory() <= psutil.virtual_memory().total
    monkeypatch.setattr(memory, "available_memory", lambda: 1001)
    assert default_memory_limit() == 500


@pytest.mark.parametrize(("limit", "used", "expected"), [("max", 10, 10**15), ("900", 200, 700), ("900", 1000, 0)])
def test_the_limit_of_the_control_group_counts(limit, used, expected, tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    monkeypatch.setattr(memory, "Path", lambda path: tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 10**15}))
    assert available_memory() == expected


def test_memory_needs_no_unix():
    """Where ``resource`` and ``fcntl`` do not exist, the module can be imported."""
    script = """
import sys, types, psutil
package = types.ModuleType("cagp"); package.__path__ = [sys.argv[1]]
sys.modules.update({"cagp": package, "resource": None, "fcntl": None, "msvcrt": types.ModuleType("msvcrt")})
import cagp.memory
assert cagp.memory.peak_memory() > 0
"""
    source = memory.__file__.removesuffix("memory.py")
    subprocess.run([sys.executable, "-c", script, source], check=True, timeout=60)
