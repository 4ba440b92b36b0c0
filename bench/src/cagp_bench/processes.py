"""Measurements in a process of their own: memory and threads of one do not affect the next, and it can be killed."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from cagp.quantities import bytes_of, seconds_of

WATCH_S = 0.1
"""The time between two looks at the memory of a process."""

PARENT_S = 0.5
"""The time between two looks at whether the parent lives."""


def in_new_process(
    module: str, options: dict[str, Any], max_time: str | None = None, max_memory: str | None = None
) -> dict[str, Any]:
    """What ``module`` measures with these options, if its main part calls ``answer``.

    A failure is a record too: ``error`` says why, and a process that takes longer than ``max_time``, or more than
    ``max_memory`` of resident memory (its children's included), is killed. ``total_s`` is how long it ran.
    """
    start = time.perf_counter()
    found = _in_new_process(module, options, max_time, max_memory)
    return {**found, "total_s": time.perf_counter() - start}


def _in_new_process(
    module: str, options: dict[str, Any], max_time: str | None, max_memory: str | None
) -> dict[str, Any]:
    limit = math.inf if max_time is None else seconds_of(max_time)
    most = math.inf if max_memory is None else float(bytes_of(max_memory))
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder) / "record.json", Path(folder) / "errors"  # libraries write to the standard output
        command = [sys.executable, "-m", module, json.dumps(options), str(out)]
        with errors.open("wb") as stream:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream)
            try:
                over = _watch(process, limit, most)
            finally:  # also after Ctrl-C
                _end(process)
        if over is not None:
            return {"error": f"killed at the {over} limit ({max_time if over == 'time' else max_memory})"}
        if process.returncode != 0:
            return {"error": _crash(process.returncode, errors.read_text(encoding="utf-8", errors="replace"))}
        return json.loads(out.read_text())


def _watch(process: "subprocess.Popen[bytes]", limit: float, most: float) -> str | None:
    """Wait for the end of a process; "time" or "memory" if it exceeds that limit first."""
    started = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(WATCH_S, max(0.0, limit - (time.monotonic() - started))))
            return None
        if time.monotonic() - started >= limit:
            return "time"
        if math.isfinite(most) and _resident(process.pid) > most:
            return "memory"


def _resident(pid: int) -> int:
    """The resident memory of a process and its children."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:  # it has ended
        return 0
    total = 0
    for member in family:
        with suppress(psutil.Error):
            total += member.memory_info().rss
    return total


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that still runs, with its children."""
    if process.poll() is not None:
        return
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
    process.kill()
    process.wait()


def answer(measure: Callable[..., dict[str, Any]]) -> None:
    """The other side: call ``measure`` with the options of the command line, and write its record."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    options, out = sys.argv[1:]
    Path(out).write_text(json.dumps(measure(**json.loads(options))))


def _end_with_parent(parent: int) -> None:
    """End this process when its parent has gone: a suite that is killed leaves no run behind."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


def _crash(code: int, errors: str) -> str:
    lines = errors.strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    if code == -signal.SIGKILL:
        return f"the process was killed (out of memory?){last}"
    if code < 0:
        return f"the process crashed ({signal.Signals(-code).name}){last}"
    return f"the process ended with exit code {code}{last}"
