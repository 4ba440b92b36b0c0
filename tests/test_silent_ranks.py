"""A machine that vanishes without closing its connections: here a process is stopped, so that it answers nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import started_together, wait_for

SILENCE = 6.0
WAITS = f"""
import os, signal, sys, time
import torch
from cagp import ranks as agreed
agreed.SILENCE = {SILENCE}
from cagp.ranks import LostProcessError, Ranks

ranks, silent = Ranks.here(), int(sys.argv[1])
if ranks.is_first:
    time.sleep({SILENCE} * 1.5)  # as long as it works, the others wait
assert float(ranks.add_up(torch.ones(1))[0]) == ranks.size
if ranks.rank == silent:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    ranks.add_up(torch.ones(1))
except LostProcessError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 2])
def test_processes_wait_for_one_that_works_and_not_for_one_that_is_silent(silent):
    start = time.monotonic()
    with started_together(3, ["-c", WAITS, str(silent)]) as processes:
        others = [process for rank, process in enumerate(processes) if rank != silent]
        ended = wait_for(others, 100)
        assert processes[silent].poll() is None
    for process in ended:
        assert f"process {silent} of this computation has given no sign of life for" in process.output
        assert "resumes on any number of processes" in process.output
        assert process.code == 1  # although it caught the error: threads that wait would keep it alive
    assert time.monotonic() - start > 2 * SILENCE


ENDS_WHILE_THE_STORE_IS_ASKED = """
import socket, sys, time
from datetime import timedelta
from torch import distributed
from cagp.ranks import Heartbeat

class Slow:
    def __del__(self, sleep=time.sleep):  # while the interpreter ends, other threads get their turn
        sleep(2)

store = distributed.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=5))
beating = Heartbeat(store, 0, 2, 3.0)  # process 1 never comes: the store lets the thread wait for its count
time.sleep(0.7)
sys.slow = Slow()
"""


@pytest.mark.slow
def test_a_process_ends_cleanly_while_its_heartbeat_waits_for_the_store():
    ended = subprocess.run([sys.executable, "-c", ENDS_WHILE_THE_STORE_IS_ASKED], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_silent_process_ends_the_command_in_one_line(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,y\n" + "\n".join(f"{k},{k % 7}.5" for k in range(300)))
    program = f"import sys; from cagp import ranks; ranks.SILENCE = {SILENCE}; from cagp.cli import main; "
    options = ["--target", "y", "--method", "local", "--max-epochs", "1000000", "--out", str(tmp_path / "m.cagp")]
    command = ["-c", program + "sys.exit(main(sys.argv[1:]))", "fit", str(table), *options, "--quiet"]
    with started_together(2, command) as processes:
        until = time.monotonic() + 240
        while not list(tmp_path.glob("m.cagp.checkpoints/**/checkpoint.safetensors")):
            assert time.monotonic() < until
            assert processes[0].poll() is None
            time.sleep(0.1)
        os.kill(processes[1].pid, signal.SIGSTOP)
        (first,) = wait_for(processes[:1], 60)
    assert first.code == 1
    assert first.output.startswith("cagp: process 1 of this computation has given no sign of life")
    assert len(first.output.splitlines()) == 1
    assert not (tmp_path / "m.cagp").exists()
