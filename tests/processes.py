"""Processes that belong together, with the environment that torchrun would give them; none is left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    output: str  # stdout and stderr


def run_together(size: int, arguments: Sequence[str], seconds: float) -> list[Ended]:
    """Run ``python ARGUMENTS`` in ``size`` processes; all are killed if they have not ended after ``seconds``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    until, processes = time.monotonic() + seconds, []
    try:
        for rank in range(size):
            environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        ended = []
        for process in processes:
            output, _ = process.communicate(timeout=max(until - time.monotonic(), 0.1))
            ended.append(Ended(process.returncode, output))
        return ended
    finally:
        for process in processes:
            process.kill()
            process.wait()
