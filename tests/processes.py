"""Processes that belong together, with the environment that torchrun would give them; none is left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    output: str  # stdout and stderr


@contextmanager
def started_together(size: int, arguments: Sequence[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """``python ARGUMENTS`` in ``size`` processes; in the end all are killed that have not ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    processes = []
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
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def wait_for(processes: Sequence[subprocess.Popen[str]], seconds: float) -> list[Ended]:
    """How processes end; ``subprocess.TimeoutExpired`` if one has not after ``seconds``."""
    until, ended = time.monotonic() + seconds, []
    for process in processes:
        output, _ = process.communicate(timeout=max(until - time.monotonic(), 0.1))
        ended.append(Ended(process.returncode, output))
    return ended


def run_together(size: int, arguments: Sequence[str], seconds: float) -> list[Ended]:
    """How ``size`` processes end that run ``python ARGUMENTS``; none of them runs longer than ``seconds``."""
    with started_together(size, arguments) as processes:
        return wait_for(processes, seconds)
