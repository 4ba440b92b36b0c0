"""The progress of a long computation: a bar on a terminal, plain lines elsewhere, always on stderr."""

import math
import sys
import time
from abc import ABC, abstractmethod
from typing import TypeVar

AnyBar = TypeVar("AnyBar", bound="Bar")

LINES = 10
"""The number of plain lines if the total is known."""

LINE_SECONDS = 10.0
"""The time between plain lines if the total is not known."""


class Bar(ABC):
    """The progress of one computation; use it as a context manager.

    Args:
        total: what is to be done; None if that is not known.
        keep: whether the bar stays on the terminal in the end.
    """

    def __init__(self, label: str, enabled: bool, total: int | None, keep: bool = True):
        self.label, self.enabled, self.start = label, enabled, time.perf_counter()
        self._bar = None
        if not enabled:
            return
        from rich import console, progress  # here, because loading it takes as long as a small fit

        terminal = console.Console(file=sys.stderr)
        if terminal.is_terminal:
            shown = "{task.description}", progress.BarColumn(), "{task.fields[words]}", progress.TimeRemainingColumn()
            self._bar = progress.Progress(*shown, console=terminal, transient=not keep)
            self._task = self._bar.add_task(label, total=total, words="")

    @abstractmethod
    def words(self) -> str:
        """What is done so far."""

    def show(self, done: int | float, line_is_due: bool, total: float | None = None) -> None:
        """Draw the bar, or print a line if it is time for one."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, words=self.words())
        elif self.enabled and line_is_due:
            print(f"{self.label}: {self.words()}", file=sys.stderr, flush=True)

    def __enter__(self: AnyBar) -> AnyBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class StepProgress(Bar):
    """Shows steps with their loss."""

    def __init__(self, num_steps: int, enabled: bool, label: str = "fit"):
        super().__init__(label, enabled, num_steps)
        self.num_steps = num_steps

    def update(self, number: int, loss: float, seconds: float) -> None:
        """Show the step that was taken, counted from 1, and the seconds of all steps."""
        self._taken = number, loss, number / max(seconds, 1e-9)
        self.show(number, number == self.num_steps or number % math.ceil(self.num_steps / LINES) == 0)

    def words(self) -> str:
        number, loss, rate = self._taken
        return f"{number}/{self.num_steps} steps, loss {loss:.4f}, {rate:.2f} steps/s"


class RowProgress(Bar):
    """Shows the rows that are predicted."""

    def __init__(self, num_rows: int, enabled: bool, label: str = "predict"):
        super().__init__(label, enabled, num_rows)
        self.num_rows, self.done = num_rows, 0

    def advance(self, num_rows: int) -> None:
        """Add rows that are done."""
        before, self.done = self.done, self.done + num_rows
        self.show(self.done, self.done * LINES // self.num_rows > before * LINES // self.num_rows)

    def words(self) -> str:
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        return f"{self.done:,}/{self.num_rows:,} rows, {rate:,.0f} rows/s"


class TableProgress(Bar):
    """Shows the rows of a table that are done, and their fraction of the table if it is known."""

    def __init__(self, label: str, enabled: bool):
        super().__init__(label, enabled, None, keep=False)
        self.done, self.fraction, self._printed_at = 0, None, self.start

    def advance(self, num_rows: int, fraction: float | None) -> None:
        """Add rows that are done; ``fraction`` is that of all rows done so far."""
        self.done, self.fraction, now = self.done + num_rows, fraction, time.perf_counter()
        is_due = now - self._printed_at >= LINE_SECONDS
        self._printed_at = now if is_due else self._printed_at
        self.show(fraction or 0.0, is_due, None if fraction is None else 1.0)

    def words(self) -> str:
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        share = "" if self.fraction is None else f", {100 * self.fraction:.0f} % of the table"
        return f"{self.done:,} rows, {rate:,.0f} rows/s{share}"
