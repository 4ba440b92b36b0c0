"""``cagp bench run SUITE --estimate FILE``: how long the runs of a suite would take, by the steps of shorter ones."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from cagp_bench.gp_settings import gp_settings, steps_in_epoch
from cagp_bench.grids import Grid
from cagp_bench.record_files import read_records
from cagp_bench.resuming import Record
from cagp_bench.suite_runs import table_label
from cagp_bench.suite_tables import MISSING
from cagp_bench.suites import Suite, Task, tasks_of


def run(suite: Suite, quick: bool, changes: dict[str, Any], file: Path) -> int:
    """Print the estimate for the Gaussian process runs of a suite, by the records of a file; return 0."""
    tasks = [task for task in tasks_of(suite, quick, changes) if task.protocol == "gp"]
    print(estimate(tasks, read_records(file)).text(Console().width))
    return 0


def estimate(tasks: Sequence[Task], records: Sequence[Record]) -> Grid:
    """A line for each table and label: its runs, and the hours of their training.

    A run takes as many steps as its settings say, each as long as those of the records with the same table and label.
    Evaluations are not counted, nor is what ``patience`` saves.
    """
    lines = list(dict.fromkeys((table_label(task.table), task.label) for task in tasks))
    total, cells = 0.0, []
    for table, label in lines:
        runs = [task for task in tasks if (table_label(task.table), task.label) == (table, label)]
        known = [r for r in records if (r["table"], r["label"]) == (table, label) and r.get("steps")]
        hours = sum(_seconds(task, known) for task in runs) / 3600 if known else None
        total += hours or 0.0
        cells.append((table, label, str(len(runs)), MISSING if hours is None else f"{hours:,.1f}"))
    cells.append(("all", "of those with records", str(len(tasks)), f"{total:,.1f}"))
    return Grid(dict(zip(("table", "method", "runs", "hours"), map(list, zip(*cells, strict=True)), strict=True)))


def _seconds(task: Task, known: Sequence[Record]) -> float:
    settings = gp_settings(task.settings)
    steps = settings.epochs * steps_in_epoch(task.method, settings, known[0]["n"])
    return steps * fmean(record["fit_s"] / record["steps"] for record in known)
