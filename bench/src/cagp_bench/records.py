"""Records of a benchmark run: the machine they were measured on, and how they are printed."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import cagp
from cagp.engine import COMPILED
from cagp.metrics import METRICS
from cagp.text_tables import table_of_text


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


VERSIONS = ("cagp", "numpy", "scipy", "scikit-learn", "lightgbm")


def environment() -> dict[str, Any]:
    """``machine`` and what else a later reader wants to know: commit, versions, processor, load, date."""
    return {
        **machine(),
        "cpu": _processor(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "commit": commit_of(Path(cagp.__file__).resolve().parent),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {name: found for name in VERSIONS if (found := _version(name)) is not None},
    }


def commit_of(package: Path) -> str | None:
    """The commit of a package in a checkout, with "+" if its files differ from it; None for an installed package."""
    if package.parent.name != "src" or not (package.parents[1] / ".git").exists():
        return None
    git = ["git", "-C", str(package.parents[1])]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=30)
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--", "src", "bench/src"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if found.returncode or changed.returncode:
        return None
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


Columns = dict[str, Callable[[dict[str, Any]], str]]
"""The names of a table's columns, and the text of each for a record."""


FAILED = "failed"


def cell(key: str, form: str = "{}", otherwise: str = "", unit: float = 1.0) -> Callable[[dict[str, Any]], str]:
    """A column: the value that records have under ``key``, in units of ``unit``; ``otherwise`` where there is none."""

    def text(record: dict[str, Any]) -> str:
        value = record.get(key)
        return otherwise if value is None else form.format(value if unit == 1 else value / unit)

    return text


def show(records: list[dict[str, Any]], columns: Columns, as_json: bool, num_keys: int = 1) -> int:
    """Print the records as JSON, or as a table with one row per record; return 1 if any is that of a failure.

    The first ``num_keys`` columns name the rows; they are repeated where the terminal is too narrow for one table.
    """
    failed = [record for record in records if "error" in record]
    if as_json:
        print(json.dumps(records, indent=1))
        return int(bool(failed))
    console = Console()
    console.print("  ".join(f"{name} {value}" for name, value in machine().items() if value is not None), style="dim")
    cells = {name: [text(record) for record in records] for name, text in columns.items()}
    print(table_of_text(cells, console.width, num_keys))
    for record in failed:
        console.print(f"failed: {record['error']}", style="red", soft_wrap=True, markup=False)
    return int(bool(failed))


def score_columns() -> Columns:
    """A column for each metric of ``Scores``; records of failures say so in the first one."""
    digits = {"nats": "{:.3f}", "target": "{:.4f}", "none": "{:.4f}", "share": "{:.1%}"}

    def column(field: str, form: str) -> Callable[[dict[str, Any]], str]:
        text = cell(field, form, FAILED if field == "nll" else "")
        return lambda record: text(record).replace("%", " %")

    return {metric.label: column(field, digits[metric.unit]) for field, metric in METRICS.items()}


def in_one_line(error: Exception) -> str:
    """The class and the first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``measure`` finds; a failure is a record too: ``error`` says why."""
    try:
        return measure()
    except Exception as error:
        return {"error": in_one_line(error)}


def collect(
    measurements: list[Callable[[], dict[str, Any]]],
    in_words: Callable[[dict[str, Any]], str],
    show_all: Callable[[list[dict[str, Any]]], Any],
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
