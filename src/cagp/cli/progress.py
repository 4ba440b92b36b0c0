"""How much of a table is done: a bar on a terminal, plain lines elsewhere; always on stderr."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_SECONDS = 10.0
"""Between plain lines."""


class TableProgress:
    """Shows the rows that are done and, where it is known, their share of the table; use as a context manager."""

    def __init__(self, label: str, enabled: bool):
        self.label, self.enabled, self.num_rows = label, enabled, 0
        self.start = self.said = time.perf_counter()
        console = Console(file=sys.stderr)
        self.bar = None
        if enabled and console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task(label, total=None)

    def __enter__(self) -> "TableProgress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, num_rows: int, fraction: float | None) -> None:
        """So many more rows are done, and this share of all."""
        self.num_rows += num_rows
        now = time.perf_counter()
        rate = self.num_rows / max(now - self.start, 1e-9)
        words = f"{self.label}: {self.num_rows:,} rows, {rate:,.0f} rows/s"
        if self.bar is not None:
            total = None if fraction is None else 1.0
            self.bar.update(self.task, completed=fraction or 0.0, total=total, description=words)
        elif self.enabled and now - self.said >= LINE_SECONDS:
            self.said = now
            share = "" if fraction is None else f", {100 * fraction:.0f} % of the table"
            print(words + share, file=sys.stderr, flush=True)
