"""Records of a benchmark run: the machine they were measured on, and how they are printed."""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from cagp.engine import COMPILED


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


def show(records: list[dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str]], as_json: bool) -> None:
    """Print the records as JSON, or as a table with one row per record."""
    if as_json:
        print(json.dumps(records, indent=1))
        return
    console = Console()
    console.print("  ".join(f"{name} {value}" for name, value in machine().items() if value is not None), style="dim")
    table = Table(*columns, box=None, pad_edge=False)
    for record in records:
        table.add_row(*(text(record) for text in columns.values()))
    console.print(table)
    for record in records:
        if "error" in record:
            console.print(f"failed: {record['error']}", style="red", soft_wrap=True, markup=False)


def collect(
    measurements: list[Callable[[], dict[str, Any]]],
    in_words: Callable[[dict[str, Any]], str],
    show_all: Callable[[list[dict[str, Any]]], None],
) -> int:
    """Carry out one measurement after the other, each a line on the standard error; return 1 if any failed.

    The records are shown at the end, after Ctrl-C, too: hours may have gone into them.
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
    """The shortest of ``repeats`` timed calls in seconds, after one that is not timed; of more until time is up."""
    function()
    seconds = []
    while len(seconds) < max(1, repeats) or sum(seconds) < at_least_s:
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
