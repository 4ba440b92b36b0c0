"""``cagp compare``: several methods on one table and one split."""

import argparse
import math
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cagp import memory, notices
from cagp.cli.commands import COMPARED, MOST_EXACT_ROWS
from cagp.cli.console import Console, UsageError, on_one_line, print_json
from cagp.cli.sources import WholeTable, check_model, estimator, read_table_of
from cagp.cli.tables import TargetTally, as_target, targets_of
from cagp.estimators import CopiesWarning
from cagp.metrics import METRICS
from cagp.plots import Point, methods_against_time, write_figure
from cagp.quantities import number, size
from cagp.text_tables import table_of_text


def run(arguments: argparse.Namespace) -> int:
    """Compare, print a table, draw a picture; 1 if a method failed."""
    if arguments.test_fraction == 0:
        raise UsageError("--test-fraction is 0: methods are compared on test rows; give a share above 0.")
    check_model(arguments, arguments.methods or COMPARED)
    if not arguments.out.absolute().parent.is_dir():
        raise UsageError(f"{arguments.out} cannot be written: there is no folder {arguments.out.parent}; create it.")
    table = read_table_of(arguments)
    table.warn_of_test_rows()
    few = len(table.train.inputs.matrix) <= MOST_EXACT_ROWS
    methods = arguments.methods or [*COMPARED, *(["exact"] if few else [])]
    console = Console(quiet=False, data_on_stdout=arguments.json)
    _warm_up(methods[0], arguments, table)
    records, held = [], memory.current_memory()
    for method in dict.fromkeys(methods):
        if not arguments.quiet:
            print(f"{method} ...", file=sys.stderr)
        records.append(_measure(method, arguments, table, held))
    console.say(f"{table.num_rows:,} rows, {table.split_words()} {READING}\n")
    _show(console, records)
    done = [record for record in records if "error" not in record]
    if done:
        points = [Point(record["method"], record["fit_s"], record["nll"]) for record in done]
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = methods_against_time(figure.subplots(), points, "test NLL (nats per row), lower is better")
        axes.set_title(Path(arguments.table).stem, loc="left", fontweight="bold", parse_math=False)
        write_figure(figure, arguments.out)
        console.say(f"\nPicture: {arguments.out}")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "train_rows": len(table.train.inputs.matrix),
                "test_rows": table.num_test,
                "rows_without_target": table.num_missing,
                "targets": table.targets,
                "split": str(arguments.split),
                "seed": arguments.seed,
                "methods": records,
                "picture": arguments.out if done else None,
            }
        )
    return int(len(done) < len(records))


def _warm_up(method: str, arguments: argparse.Namespace, table: WholeTable) -> None:
    """Fit a few rows: what torch loads at its first step should not count as the first method's time."""
    with suppress(Exception), notices.collected():
        model = estimator(method, arguments).set_params(max_epochs=2)
        few = table.train.where(np.arange(len(table.train.frame)) < 32)
        model.fit(few.inputs, as_target(few.frame.loc[:, table.targets]))


def _measure(method: str, arguments: argparse.Namespace, table: WholeTable, held: int) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why. ``held`` are the bytes of the process before any method."""
    peak_is_known = False
    with suppress(OSError):  # the peak of memory starts again from here, where the system has a way to ask for it
        Path("/proc/self/clear_refs").write_text("5")
        peak_is_known = True
    try:
        start = time.perf_counter()
        model: Any = estimator(method, arguments, verbose=not arguments.quiet)
        with redirect_stdout(StringIO()), notices.collected(CopiesWarning):  # both are in the fit report
            table.fit(model)
        model.set_params(verbose=False)
        fit_s, start = time.perf_counter() - start, time.perf_counter()
        if any(result.interrupted for result in model.fit_results_):
            raise KeyboardInterrupt
        tally, test = TargetTally(model), table.test
        tally.add(targets_of(model, test.frame, arguments.table), test.inputs, test.noise)
        predict_s = time.perf_counter() - start
        scores = [of_target["model"] for of_target in tally.record().values() if of_target["model"] is not None]
        # Of each target; where a score has no unit of theirs, its mean over the targets is shown.
        values = {field: [of_target[field] for of_target in scores] for field in METRICS}
    except Exception as error:
        return {"method": method, "error": on_one_line(f"{type(error).__name__}: {error}")}
    return {
        "method": method,
        "used": model.method_,
        **{field: float(np.mean(v)) if METRICS[field].unit in ("nats", "share") else v for field, v in values.items()},
        "fit_s": fit_s,
        "predict_s": predict_s,
        "memory_bytes": max(memory.peak_memory() - held, 0) if peak_is_known else None,
        "fit_report": model.fit_report_,
    }


READING = (
    "NLL, RMSE, CRPS: lower is better; coverage: closer to 95 % is better; width: narrower is better where the "
    "coverage is right; memory: the peak above what the table takes."
)
CELLS: dict[str, Callable[[dict[str, Any]], str]] = {
    "method": lambda r: r["method"] if r["method"] == r["used"] else f"{r['method']} ({r['used']})",
    "NLL": lambda r: number(r["nll"]),
    "RMSE": lambda r: " ".join(map(number, r["rmse"])),
    "CRPS": lambda r: " ".join(map(number, r["crps"])),
    "95 % coverage": lambda r: f"{100 * r['coverage']:.1f} %",
    "95 % width": lambda r: " ".join(map(number, r["width"])),
    "fit, s": lambda r: f"{r['fit_s']:.1f}",
    "predict, s": lambda r: f"{r['predict_s']:.2f}",
    "memory": lambda r: "" if r["memory_bytes"] is None else size(r["memory_bytes"]),
}
"""The columns of the table, from a record; with several targets, NLL and coverage are means over them."""


def _show(console: Console, records: list[dict[str, Any]]) -> None:
    """The table, the best NLL first, and why methods failed."""
    ranked = sorted(records, key=lambda record: record.get("nll", math.inf))
    to = sys.stderr if console.data_on_stdout else sys.stdout
    width = shutil.get_terminal_size().columns if to.isatty() else sys.maxsize
    failed = {"method": lambda r: r["method"], "NLL": lambda _: "failed"}
    rows = [(record, failed if "error" in record else CELLS) for record in ranked]
    cells = {head: [made[head](record) if head in made else "" for record, made in rows] for head in CELLS}
    console.say(table_of_text(cells, width))
    for record in records:
        if "error" in record:
            console.say(f"{record['method']} failed: {record['error']}")
