"""Progress of steps and of rows, with what remains; plain lines where the output is not a terminal."""

import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from cagp.training.history import Step

_LINES = 10  # how many plain lines a whole fit prints


class Progress:
    """Shows steps as they are taken; use as a context manager."""

    def __init__(self, num_steps: int, enabled: bool, label: str = "fit"):
        self.num_steps, self.label, self.enabled = num_steps, label, enabled
        console = Console(file=sys.stderr)
        self.bar = None
        if enabled and console.is_terminal:
            self.bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TextColumn("{task.fields[rate]} steps/s"),
                TimeRemainingColumn(),
                console=console,
            )
            self.task = self.bar.add_task(label, total=num_steps, loss="", rate="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, step: Step) -> None:
        """Show one more step."""
        rate = f"{step.number / max(step.seconds, 1e-9):.2f}"
        if self.bar is not None:
            self.bar.update(self.task, completed=step.number, loss=f"{step.loss:.4f}", rate=rate)
        elif self.enabled and (step.number == self.num_steps or step.number % math.ceil(self.num_steps / _LINES) == 0):
            done = f"{step.number}/{self.num_steps}"
            print(f"{self.label}: {done} steps, loss {step.loss:.4f}, {rate} steps/s", file=sys.stderr)


class RowProgress:
    """Shows rows as they are answered; use as a context manager."""

    def __init__(self, num_rows: int, enabled: bool, label: str = "predict"):
        self.num_rows, self.label, self.enabled, self.done = num_rows, label, enabled, 0
        self.start, self.shown = time.perf_counter(), 0
        console = Console(file=sys.stderr)
        self.bar = None
        if enabled and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = RichProgress(*columns, console=console)
            self.task = self.bar.add_task(label, total=num_rows)

    def __enter__(self) -> "RowProgress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, num_rows: int) -> None:
        """Show that many more rows."""
        self.done += num_rows
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done)
        elif self.enabled and self.done * _LINES // self.num_rows > self.shown:
            self.shown = self.done * _LINES // self.num_rows
            rate = self.done / max(time.perf_counter() - self.start, 1e-9)
            print(f"{self.label}: {self.done:,}/{self.num_rows:,} rows, {rate:,.0f} rows/s", file=sys.stderr)
