"""Measurements in a process of their own: memory and threads of one do not affect the next, and it can be killed."""

import json
import math
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cagp.quantities import seconds_of


def in_new_process(module: str, options: dict[str, Any], max_time: str | None = None) -> dict[str, Any]:
    """What ``module`` measures with these options, if its main part calls ``answer``.

    A failure is a record too: ``error`` says why, and a process that takes longer than ``max_time`` is killed.
    """
    limit = math.inf if max_time is None else seconds_of(max_time)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"  # libraries write to the standard output
        command = [sys.executable, "-m", module, json.dumps(options), str(out)]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=limit if math.isfinite(limit) else None)
        except subprocess.TimeoutExpired:
            return {"error": f"killed at the time limit ({max_time})"}
        return json.loads(out.read_text()) if ended.returncode == 0 else {"error": _crash(ended)}


def answer(measure: Callable[..., dict[str, Any]]) -> None:
    """The other side: call ``measure`` with the options of the command line, and write its record."""
    options, out = sys.argv[1:]
    Path(out).write_text(json.dumps(measure(**json.loads(options))))


def _crash(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    if ended.returncode == -signal.SIGKILL:
        return f"the process was killed (out of memory?){last}"
    if ended.returncode < 0:
        return f"the process crashed ({signal.Signals(-ended.returncode).name}){last}"
    return f"the process ended with exit code {ended.returncode}{last}"
