"""Signs of life of the processes of one computation: a machine that vanishes without a word is noticed.

A process that ends closes its connections, which its peers notice at once. A machine without power or network closes
nothing. So every process counts in the store of torch.distributed, in a thread of its own, and sees whether the others
keep counting. How long they compute, or wait for each other, does not matter: ``monitored_barrier`` of
torch.distributed has a single timeout, after which it calls a process that computes lost, too.
"""

import atexit
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

SILENCE = 45.0
"""Seconds without a sign of life after which a process counts as lost."""

BEATS = 10
"""Signs of life in that time."""

LEFT = b"left"


@final
class Heartbeat:
    """Counts in the store, and watches the counts of the others, until ``stop``.

    Args:
        store: of torch.distributed, which all processes share; a connection of its own is made to it.
        silence: see ``SILENCE``.
    """

    def __init__(self, store: Any, rank: int, size: int, silence: float):
        self._store, self._rank, self._size, self._silence = store.clone(), rank, size, silence
        self._store.set_timeout(timedelta(seconds=max(silence / 3, 1)))
        now = time.monotonic()
        self._counts: list[bytes] = [b""] * size
        self._heard = [now] * size  # when the count of each process last changed, by the clock of this one
        self._round = now  # when the store last answered
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="cagp heartbeat", daemon=True)
        self._store.set(self._key(rank), "0")
        self._thread.start()
        # An interpreter that ends while a thread waits for the store ends the process by std::terminate.
        atexit.register(self._rest)

    @staticmethod
    def _key(rank: int) -> str:
        return f"cagp/heartbeat/{rank}"

    def _beat(self) -> None:
        number, keys = 0, [self._key(rank) for rank in range(self._size)]
        while not self._ended.wait(self._silence / BEATS):
            number += 1
            try:
                self._store.set(self._key(self._rank), str(number))
                counts = self._store.multi_get(keys)
            except RuntimeError:  # the store does not answer: the next round tries again
                continue
            self._round = now = time.monotonic()
            for rank, count in enumerate(counts):
                if count != self._counts[rank] or count == LEFT:
                    self._counts[rank], self._heard[rank] = count, now

    def lost(self) -> tuple[int, float] | None:
        """A process that gives no sign of life, and for how many seconds; None if all do.

        Process 0 is one where the store does not answer, which is on its machine.
        """
        now = time.monotonic()
        if now - self._round > self._silence:
            return 0, now - self._round
        # Counts are as old as the last round.
        rank = min(range(self._size), key=lambda rank: self._heard[rank])
        silent = self._round - self._heard[rank]
        return (rank, silent) if silent > self._silence and rank != self._rank else None

    def _rest(self) -> None:
        """End the thread, as soon as the store has answered it or has not in time."""
        self._ended.set()
        self._thread.join()

    def stop(self) -> None:
        """Say that this process has ended its part."""
        self._rest()
        atexit.unregister(self._rest)
        with suppress(RuntimeError):  # the process with the store may have ended before
            self._store.set(self._key(self._rank), LEFT.decode())


def end_without_peers(after: float) -> None:
    """Let this process end although threads of torch.distributed still wait for a peer that will not answer.

    Args:
        after: seconds to wait before that, for a process that others still need.
    """
    atexit.register(_end_now, after)


def _end_now(after: float) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(after)
    os._exit(1)
