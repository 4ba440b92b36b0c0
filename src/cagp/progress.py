"""The progress of a long computation: a bar on a terminal, plain lines elsewhere, always on stderr."""

import math
import sys
import time
from typing import final

LINES = 10
"""The number of plain lines if the total is known."""

LINE_SECONDS = 10.0
"""The time between plain lines if the total is not known."""


@final
class Progress:
    """The progress of one computation in steps or rows; use it as a context manager.

    ``total`` is None for a table of unknown length, whose bar does not stay on the terminal.
    """

    def __init__(self, label: str, enabled: bool, total: int | None = None):
        self.label, self.enabled, self.total, self.done = label, enabled, total, 0
        self._start = self._printed_at = time.perf_counter()
        self._bar = None
        if not enabled:
            return
        from rich import console, progress  # here, because loading it takes as long as a small fit

        terminal = console.Console(file=sys.stderr)
        if terminal.is_terminal:
            shown = "{task.description}", progress.BarColumn(), "{task.fields[words]}", progress.TimeRemainingColumn()
            self._bar = progress.Progress(*shown, console=terminal, transient=total is None)
            self._task = self._bar.add_task(label, total=total, words="")

    def step(self, number: int, loss: float, seconds: float) -> None:
        """Show the step that was taken, counted from 1, its loss, and the seconds of all steps."""
        assert self.total is not None
        words = f"{number}/{self.total} steps, loss {loss:.4f}, {number / max(seconds, 1e-9):.2f} steps/s"
        self._show(number, words, number == self.total or number % math.ceil(self.total / LINES) == 0)

    def advance(self, num_rows: int, fraction: float | None = None) -> None:
        """Add rows that are done; ``fraction`` is that of all rows done so far in a table of unknown length."""
        before, self.done, now = self.done, self.done + num_rows, time.perf_counter()
        rate = f"rows, {self.done / max(now - self._start, 1e-9):,.0f} rows/s"
        if self.total is not None:
            is_due = self.done * LINES // self.total > before * LINES // self.total
            self._show(self.done, f"{self.done:,}/{self.total:,} {rate}", is_due)
            return
        is_due = now - self._printed_at >= LINE_SECONDS
        self._printed_at = now if is_due else self._printed_at
        share = "" if fraction is None else f", {100 * fraction:.0f} % of the table"
        self._show(fraction or 0.0, f"{self.done:,} {rate}{share}", is_due, None if fraction is None else 1.0)

    def _show(self, done: int | float, words: str, line_is_due: bool, total: float | None = None) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, words=words)
        elif self.enabled and line_is_due:
            print(f"{self.label}: {words}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
