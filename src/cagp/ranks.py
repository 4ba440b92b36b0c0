"""The processes of one computation, on torch.distributed: which of them this is, and what they agree on.

Every process runs the same program on the same table. What a sum over rows costs is divided among them; what decides
something (the time that is left, a score, a file) comes from process 0. Nothing is pickled: numbers travel as tensors,
states as the bytes that ``cagp.storage`` would write.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float64
from torch import Tensor, distributed, nn

from cagp import storage
from cagp.launch import FirstProcessError, launched_size
from cagp.storage import State

Answer = TypeVar("Answer")

TIMEOUT = timedelta(minutes=30)
"""The longest time that processes wait for one that is at work. One that dies is noticed at once, since it leaves its
connections; one that falls silent after ``SILENCE``."""

LOOK = timedelta(seconds=1)  # how often a process that waits for others looks whether they are still alive
SILENCE = 45.0  # seconds without a sign of life after which a process counts as lost
BEATS = 10  # signs of life in that time
KEY, LEFT = "cagp/heartbeat/{}", b"left"  # where a process counts in the store, and what stands there once it has left

SAME = 1e-6
"""Numbers that processes compute from the same table may differ by this, relatively: machines round differently."""

KIND, VERSION = "message", 1  # of the states that processes send

_BEATING: "dict[Any, Heartbeat]" = {}
"""The signs of life of the process groups that ``Ranks.here`` has made, until ``Ranks.leave``."""


class LostProcessError(ConnectionError):
    """Another process of the computation has ended, or cannot be reached."""


@final
@dataclass(frozen=True)
class Ranks:
    """This process and its peers. ``Ranks.here()`` finds them; ``Ranks.alone()`` is a process without peers.

    Every method that says "on all processes" must be called by all of them, in the same order.
    """

    rank: int  # of this process, from 0
    size: int  # the number of processes
    group: Any = None  # of torch.distributed; None for its default group
    devices: tuple[str, ...] = ("cpu",)  # the kinds of devices whose tensors can be sent
    beating: "Heartbeat | None" = field(default=None, compare=False)  # None: silent processes are not noticed
    interrupted: threading.Event = field(default_factory=threading.Event, compare=False)  # by Ctrl-C, see ``listening``

    @classmethod
    def alone(cls) -> "Ranks":
        """A process without peers."""
        return cls(0, 1)

    @classmethod
    def here(cls) -> "Ranks":
        """The default process group, if there is one or if a launcher such as ``torchrun`` asks for one; else alone."""
        if not distributed.is_available():
            return cls.alone()
        if not distributed.is_initialized():
            if launched_size() == 1:
                return cls.alone()
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "cpu:gloo"
            with _noticing("joined"):
                meeting = distributed.rendezvous("env://", timeout=TIMEOUT)  # pyright: ignore[reportPrivateImportUsage]
                store, rank, size = next(meeting)
                distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
                _BEATING[distributed.group.WORLD] = Heartbeat(store, rank, size, SILENCE)
        devices = tuple(pair.split(":")[0] for pair in distributed.get_backend_config().split(","))
        beating = _BEATING.get(distributed.group.WORLD)
        return cls(distributed.get_rank(), distributed.get_world_size(), None, devices, beating)

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which decides, writes and prints."""
        return self.rank == 0

    def device(self, asked: str | torch.device) -> torch.device:
        """The device of this process: of several GPUs of a machine, the one that the launcher numbers it by."""
        device = torch.device(asked)
        if self.size == 1 or device.type != "cuda" or device.index is not None:
            return device
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))

    def part(self, rows: Tensor) -> Tensor:
        """The rows that are this process's share; the shares differ in length by at most one."""
        return rows.tensor_split(self.size)[self.rank]

    # ---- numbers ----

    def add_up(self, values: Tensor) -> Tensor:
        """The sum of the values of all processes, on all processes; the same bits on each."""
        if self.size == 1:
            return values
        total = self._sendable(values.clone())
        with _noticing("added up"):
            self._done(distributed.all_reduce(total, group=self.group, async_op=True))
        return total.to(values.device)

    def from_all(self, *numbers: int | float) -> Float64[Tensor, "size k"]:
        """The numbers of each process in a row, on all processes."""
        rows = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        rows[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        return self.add_up(rows)

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is set on any of the processes, on all processes."""
        return self.add_up(torch.tensor(flags, dtype=torch.float64)).bool().tolist()

    def broadcast(self, value: float) -> float:
        """The value of process 0, on all processes."""
        return float(self._broadcast(torch.tensor([value], dtype=torch.float64), 0)[0])

    def check_same(self, numbers: Mapping[str, int | float], remedy: str) -> None:
        """Raise ValueError on all processes unless each has the same numbers, by their names, up to rounding."""
        table = self.from_all(*numbers.values())
        equal = torch.isclose(table, table[:1], rtol=SAME, atol=0.0, equal_nan=True)
        if bool(equal.all()):
            return
        other, which = (~equal).nonzero()[0].tolist()
        found = f"{list(numbers)[which]} is {table[0, which]:g} in process 0 and {table[other, which]:g} in process"
        raise ValueError(f"{found} {other}, expected the same in all {self.size} processes; {remedy}.")

    # ---- states and errors ----

    def from_first(self, produce: "Callable[[], State]") -> State:
        """What ``produce`` returns on process 0, on all processes; the others do not call it.

        If it raises ValueError or OSError there, the others raise ``FirstProcessError`` with its words.
        """
        if self.size == 1:
            return produce()
        if not self.is_first:
            failed, content = self._message(0, b"")
            if failed:
                raise FirstProcessError(content.decode())
            return storage.state_from_bytes(content, KIND, VERSION)
        try:
            state = produce()
        except (ValueError, OSError) as error:
            self._message(0, str(error).encode(), failed=True)
            raise
        self._message(0, storage.state_to_bytes(state, KIND, VERSION))
        return state

    def together(self, function: Callable[[], Answer], failures: tuple[type[Exception], ...]) -> Answer:
        """What the function returns on this process. If it fails on some processes, it fails on all of them."""
        answer: Any = None
        problem: Exception | None = None
        try:
            answer = function()
        except failures as error:
            problem = error
        failed = self.from_all(float(problem is not None)).nonzero()
        if len(failed):
            words = self.words_of(int(failed[0, 0]), str(problem))
            raise problem or failures[0](words)
        return answer

    def words_of(self, rank: int, words: str) -> str:
        """The words of one process, on all processes."""
        return self._message(rank, words.encode() if self.rank == rank else b"")[1].decode()

    def share(self, module: nn.Module) -> None:
        """Give the module the parameters and buffers that it has on process 0, on all processes."""
        if self.size > 1:
            module.load_state_dict(self.from_first(lambda: dict(module.state_dict())))

    # ---- answers in order ----

    def to_first(self, values: Tensor) -> list[Tensor]:
        """The matrices of all processes, on process 0; the others get empty ones. On all processes."""
        return self.exchange([values if rank == 0 else values[:0] for rank in range(self.size)])

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Matrices for each process become the matrices from each process, on all processes."""
        if self.size == 1:
            return list(parts)
        sent, counts = self._sendable(torch.cat(list(parts))), [len(part) for part in parts]
        expected = self.from_all(*counts)[:, self.rank].long().tolist()
        found = sent.new_empty(sum(expected), sent.shape[1])
        with _noticing("exchanged"):
            self._done(distributed.all_to_all_single(found, sent, expected, counts, self.group, async_op=True))
        return list(found.to(parts[0].device).split(expected))

    def leave(self) -> None:
        """End what ``here`` began, at the end of a program. On all processes.

        They wait for each other: the store ends with process 0, and until then a heartbeat may still ask it.
        """
        if self.size > 1:
            if self.beating is not None:
                self.beating.stop()
                _BEATING.pop(distributed.group.WORLD, None)
            with suppress(RuntimeError):  # one that has ended without a word keeps nobody from leaving
                together: Any = distributed.barrier(self.group, async_op=True)
                together.wait(timedelta(seconds=SILENCE))
            distributed.destroy_process_group(self.group)

    # ---- Ctrl-C ----

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it, Ctrl-C sets ``interrupted`` and nothing else, so that processes can stop at the same place.

        A process without peers needs no such thing, and a thread other than the main one hears no signals.
        """
        if self.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: self.interrupted.set())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # ---- inside ----

    def _done(self, work: Any) -> None:
        """Wait for an exchange, as long as all processes are alive."""
        if self.beating is None or self.devices != ("cpu",):  # NCCL waits elsewhere, and has a watch of its own
            work.wait()
            return
        while True:
            try:
                work.wait(LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    raise
            lost = self.beating.lost()
            if lost is not None:
                # Threads of torch.distributed still wait for the peer that will not answer: the process must end
                # without them. One that ends closes its connections, and process 0 the store, by which all find out who
                # is lost: they end once the others have found out, too.
                atexit.register(_end_now, SILENCE / (2 if self.is_first else 4))
                raise LostProcessError(
                    f"process {lost[0]} of this computation has given no sign of life for {lost[1]:.0f} s: its machine "
                    "has stopped or cannot be reached. With checkpoints, the same call resumes on any number of "
                    "processes."
                )

    def _sendable(self, values: Tensor) -> Tensor:
        return values if values.device.type in self.devices else values.to(self.device(self.devices[0]))

    def _broadcast(self, values: Tensor, rank: int) -> Tensor:
        if self.size == 1:
            return values
        sent = self._sendable(values)
        with _noticing("sent"):
            self._done(distributed.broadcast(sent, rank, self.group, async_op=True))
        return sent.to(values.device)

    def _message(self, rank: int, content: bytes, failed: bool = False) -> tuple[bool, bytes]:
        """Whether the process ``rank`` failed, and what it says."""
        anywhere_failed, num_bytes = self._broadcast(torch.tensor([int(failed), len(content)]), rank).tolist()
        if num_bytes == 0:
            return bool(anywhere_failed), b""
        text = torch.frombuffer(bytearray(content or num_bytes), dtype=torch.uint8)
        return bool(anywhere_failed), self._broadcast(text, rank).numpy().tobytes()


@contextmanager
def _noticing(what: str) -> Iterator[None]:
    """Turn what torch.distributed says about a lost process into words about this computation."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LostProcessError(
            f"another process of this computation has ended or cannot be reached: nothing could be {what} ({reason}). "
            "Look at what the other processes say; with checkpoints, the same call resumes on any number of processes."
        ) from error


# ---- signs of life ----


@final
class Heartbeat:
    """Counts in the store, and watches the counts of the others, until ``stop``.

    A process that ends closes its connections, which its peers notice at once. A machine without power or network
    closes nothing. So every process counts in the store of torch.distributed, in a thread of its own, and sees whether
    the others keep counting. How long they compute, or wait for each other, does not matter: ``monitored_barrier`` of
    torch.distributed has a single timeout, after which it calls a process that computes lost, too.
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
        self._store.set(KEY.format(rank), "0")
        self._thread.start()
        # An interpreter that ends while a thread waits for the store ends the process by std::terminate.
        atexit.register(self._rest)

    def _beat(self) -> None:
        number, keys = 0, [KEY.format(rank) for rank in range(self._size)]
        while not self._ended.wait(self._silence / BEATS):
            number += 1
            try:
                self._store.set(keys[self._rank], str(number))
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
            self._store.set(KEY.format(self._rank), LEFT.decode())


def _end_now(after: float) -> None:
    """End this process, some seconds after all that it had to say."""
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(after)
    os._exit(1)
