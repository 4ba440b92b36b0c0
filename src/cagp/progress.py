"""How far a long computation is: a bar on a terminal, plain lines elsewhere, always on the standard error."""

import sys
import time
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

AnyBar = TypeVar("AnyBar", bound="Bar")

LINES = 10
"""Plain lines in all, where the end is known."""

LINE_SECONDS = 10.0
"""Between plain lines, where it is not."""


class Bar:
    """Something that is under way; use as a context manager. ``bar`` is None where there is no terminal to draw on."""

    def __init__(
        self,
        label: str,
        enabled: bool,
        total: int | None,
        columns: tuple[ProgressColumn, ...],
        fields: dict[str, Any] | None = None,
        keep: bool = True,
    ):
        self.label, self.enabled, self.start = label, enabled, time.perf_counter()
        console = Console(file=sys.stderr)
        self.bar = None
        if enabled and console.is_terminal:
            every = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
            self.bar = Progress(*every, console=console, transient=not keep)
            self._task = self.bar.add_task(label, total=total, **(fields or {}))

    def __enter__(self: AnyBar) -> AnyBar:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def draw(self, **changes: Any) -> None:
        """Bring the bar up to date."""
        assert self.bar is not None
        self.bar.update(self._task, **changes)

    def say(self, words: str) -> None:
        """Print a plain line, if anything is to be shown."""
        if self.enabled:
            print(words, file=sys.stderr, flush=True)


class RowProgress(Bar):
    """Shows rows as they are answered."""

    def __init__(self, num_rows: int, enabled: bool, label: str = "predict"):
        super().__init__(label, enabled, num_rows, (MofNCompleteColumn(),))
        self.num_rows, self.done, self._said = num_rows, 0, 0

    def advance(self, num_rows: int) -> None:
        """So many more rows are done."""
        self.done += num_rows
        if self.bar is not None:
            self.draw(completed=self.done)
        elif self.done * LINES // self.num_rows > self._said:
            self._said = self.done * LINES // self.num_rows
            rate = self.done / max(time.perf_counter() - self.start, 1e-9)
            self.say(f"{self.label}: {self.done:,}/{self.num_rows:,} rows, {rate:,.0f} rows/s")


class TableProgress(Bar):
    """Shows the rows of a table that are done, however many it has, and their share where it is known."""

    def __init__(self, label: str, enabled: bool):
        super().__init__(label, enabled, None, (TaskProgressColumn(),), keep=False)
        self.done, self._said = 0, self.start

    def advance(self, num_rows: int, fraction: float | None) -> None:
        """So many more rows are done, and this share of all."""
        self.done += num_rows
        now = time.perf_counter()
        words = f"{self.label}: {self.done:,} rows, {self.done / max(now - self.start, 1e-9):,.0f} rows/s"
        if self.bar is not None:
            self.draw(completed=fraction or 0.0, total=None if fraction is None else 1.0, description=words)
        elif now - self._said >= LINE_SECONDS:
            self._said = now
            self.say(words + ("" if fraction is None else f", {100 * fraction:.0f} % of the table"))
