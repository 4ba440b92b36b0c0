"""The progress of a long computation: a bar on a terminal, plain lines elsewhere, always on stderr."""

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

AnyBar = TypeVar("AnyBar", bound="Bar")

Columns = Callable[[Any], tuple[Any, ...]]
"""The columns of a bar, made by the module ``rich.progress``."""

LINES = 10
"""The number of plain lines if the total is known."""

LINE_SECONDS = 10.0
"""The time between plain lines if the total is not known."""


class Bar(ABC):
    """The progress of one computation; use it as a context manager. ``bar`` is None if there is no terminal."""

    def __init__(
        self,
        label: str,
        enabled: bool,
        total: int | None,
        columns: Columns,
        fields: dict[str, Any] | None = None,
        keep: bool = True,
    ):
        self.label, self.enabled, self.start = label, enabled, time.perf_counter()
        self.bar = None
        if not enabled:
            return
        from rich import console, progress  # here, because loading it takes as long as a small fit

        terminal = console.Console(file=sys.stderr)
        if terminal.is_terminal:
            every = "{task.description}", progress.BarColumn(), *columns(progress), progress.TimeRemainingColumn()
            self.bar = progress.Progress(*every, console=terminal, transient=not keep)
            self._task = self.bar.add_task(label, total=total, **(fields or {}))

    @abstractmethod
    def line(self) -> str:
        """The current progress as a plain line."""

    def __enter__(self: AnyBar) -> AnyBar:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def draw(self, **changes: Any) -> None:
        """Update the bar."""
        assert self.bar is not None
        self.bar.update(self._task, **changes)

    def print_line(self) -> None:
        """Print the current progress as a plain line if the progress is enabled."""
        if self.enabled:
            print(self.line(), file=sys.stderr, flush=True)


class StepProgress(Bar):
    """Shows steps with their loss."""

    def __init__(self, num_steps: int, enabled: bool, label: str = "fit"):
        words, fields = ("loss {task.fields[loss]}", "{task.fields[rate]} steps/s"), {"loss": "", "rate": ""}
        super().__init__(label, enabled, num_steps, lambda rich: (rich.MofNCompleteColumn(), *words), fields)
        self.num_steps = num_steps
        self._number, self._loss, self._rate = 0, "", ""

    def update(self, number: int, loss: float, seconds: float) -> None:
        """Show the step that was taken, counted from 1, and the seconds of all steps."""
        self._number, self._loss = number, f"{loss:.4f}"
        self._rate = f"{number / max(seconds, 1e-9):.2f}"
        if self.bar is not None:
            self.draw(completed=number, loss=self._loss, rate=self._rate)
        elif number == self.num_steps or number % math.ceil(self.num_steps / LINES) == 0:
            self.print_line()

    def line(self) -> str:
        steps = f"{self._number}/{self.num_steps} steps"
        return f"{self.label}: {steps}, loss {self._loss}, {self._rate} steps/s"


class RowProgress(Bar):
    """Shows the rows that are predicted."""

    def __init__(self, num_rows: int, enabled: bool, label: str = "predict"):
        super().__init__(label, enabled, num_rows, lambda rich: (rich.MofNCompleteColumn(),))
        self.num_rows, self.done, self._num_lines = num_rows, 0, 0

    def advance(self, num_rows: int) -> None:
        """Add rows that are done."""
        self.done += num_rows
        if self.bar is not None:
            self.draw(completed=self.done)
        elif self.done * LINES // self.num_rows > self._num_lines:
            self._num_lines = self.done * LINES // self.num_rows
            self.print_line()

    def line(self) -> str:
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        return f"{self.label}: {self.done:,}/{self.num_rows:,} rows, {rate:,.0f} rows/s"


class TableProgress(Bar):
    """Shows the rows of a table that are done, and their fraction of the table if it is known."""

    def __init__(self, label: str, enabled: bool):
        super().__init__(label, enabled, None, lambda rich: (rich.TaskProgressColumn(),), keep=False)
        self.done, self.fraction, self._printed_at = 0, None, self.start

    def advance(self, num_rows: int, fraction: float | None) -> None:
        """Add rows that are done; ``fraction`` is that of all rows done so far."""
        self.done += num_rows
        self.fraction = fraction
        if self.bar is not None:
            self.draw(completed=fraction or 0.0, total=None if fraction is None else 1.0, description=self._rows())
        elif time.perf_counter() - self._printed_at >= LINE_SECONDS:
            self._printed_at = time.perf_counter()
            self.print_line()

    def line(self) -> str:
        return self._rows() + ("" if self.fraction is None else f", {100 * self.fraction:.0f} % of the table")

    def _rows(self) -> str:
        rate = self.done / max(time.perf_counter() - self.start, 1e-9)
        return f"{self.label}: {self.done:,} rows, {rate:,.0f} rows/s"
