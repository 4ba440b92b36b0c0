"""Records of a benchmark run: the machine they were measured on, and how they are printed."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from textwrap import wrap
from typing import Any

import torch
from rich.console import Console

from cagp.engine import COMPILED
from cagp.metrics import METRICS


def machine() -> dict[str, Any]:
    """What a number depends on besides the code: processor, threads, versions."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instruction_set": COMPILED.instruction_set,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


Columns = dict[str, Callable[[dict[str, Any]], str]]
"""The names of a table's columns, and the text of each for a record."""


def show(records: list[dict[str, Any]], columns: Columns, as_json: bool, num_keys: int = 1) -> None:
    """Print the records as JSON, or as a table with one row per record.

    A table that is too wide for the terminal is printed in parts, one below the other. Each part begins with the first
    ``num_keys`` columns, which name the rows.
    """
    if as_json:
        print(json.dumps(records, indent=1))
        return
    console = Console()
    console.print("  ".join(f"{name} {value}" for name, value in machine().items() if value is not None), style="dim")
    cells = {name: [text(record) for record in records] for name, text in columns.items()}
    print("\n\n".join(_part(names, cells, console.width) for names in _parts(cells, num_keys, console.width)))
    for record in records:
        if "error" in record:
            console.print(f"failed: {record['error']}", style="red", soft_wrap=True, markup=False)


def _parts(cells: dict[str, list[str]], num_keys: int, width: int) -> list[list[str]]:
    """The names of the columns in groups that fit into ``width``, each with the keys first."""
    keys, others = list(cells)[:num_keys], list(cells)[num_keys:]
    parts = [list(keys)]
    for name in others:
        if len(parts[-1]) > num_keys and _total(_narrow(n, cells[n]) for n in [*parts[-1], name]) > width:
            parts.append(list(keys))
        parts[-1].append(name)
    return parts


def _part(names: list[str], cells: dict[str, list[str]], width: int) -> str:
    """Some columns as lines of text. Cells stay whole; names of columns wrap between words where there is no room."""
    widths = {name: _narrow(name, cells[name]) for name in names}
    for name in names:
        wider = widths | {name: max(widths[name], len(name))}
        widths = wider if _total(wider.values()) <= width else widths
    heads = [wrap(name, widths[name]) for name in names]
    depth = max(map(len, heads))
    rows = [*zip(*([""] * (depth - len(head)) + head for head in heads), strict=True)]
    rows += zip(*(cells[name] for name in names), strict=True)
    return "\n".join("  ".join(map(str.ljust, row, widths.values())).rstrip() for row in rows)


def _narrow(name: str, column: list[str]) -> int:
    return max(map(len, [*name.split(), *column]))


def _total(widths: Iterable[int]) -> int:
    """The width of columns with two spaces between them."""
    return sum(width + 2 for width in widths) - 2


def score_columns() -> Columns:
    """A column for each metric of ``Scores``; records of failures say so in the first one."""
    digits = {"nats": "{:.3f}", "target": "{:.4f}", "none": "{:.4f}", "share": "{:.1%}"}

    def column(field: str, form: str) -> Callable[[dict[str, Any]], str]:
        otherwise = "failed" if field == "nll" else ""
        return lambda record: otherwise if field not in record else form.format(record[field]).replace("%", " %")

    return {metric.label: column(field, digits[metric.unit]) for field, metric in METRICS.items()}


def in_one_line(error: Exception) -> str:
    """The class and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def collect(
    measurements: list[Callable[[], dict[str, Any]]],
    in_words: Callable[[dict[str, Any]], str],
    show_all: Callable[[list[dict[str, Any]]], None],
) -> int:
    """Carry out the measurements, with a line on the standard error for each; return 1 if any failed.

    The records are shown at the end, also after Ctrl-C: they may have taken hours.
    """
    records: list[dict[str, Any]] = []
    try:
        for done, measure in enumerate(measurements, start=1):
            records.append(measure())
            print(f"bench: {done}/{len(measurements)} {in_words(records[-1])}", file=sys.stderr, flush=True)
    finally:
        show_all(records)
    return int(any("error" in record for record in records))


def best_of(repeats: int, function: Callable[[], Any], at_least_s: float = 0.0) -> float:
    """The seconds of the fastest of ``repeats`` calls, or of more in ``at_least_s``, after one that is not timed."""
    function()
    seconds = []
    while len(seconds) < max(1, repeats) or sum(seconds) < at_least_s:
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
