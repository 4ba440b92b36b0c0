"""``cagp compare``: several methods on one table and one split."""

import argparse
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
from cagp.cli.models import check_model, estimator
from cagp.cli.scores import TargetTally
from cagp.cli.sources import WholeTable, as_target, read_table_of
from cagp.estimators import CopiesWarning
from cagp.metrics import METRICS, Scores
from cagp.plots import Point, methods_against_time, write_figure
from cagp.quantities import number, size
from cagp.ranks import Ranks
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
    few = len(table.train) <= MOST_EXACT_ROWS
    methods = arguments.methods or [*COMPARED, *(["exact"] if few else [])]
    console = Console(quiet=False, data_on_stdout=arguments.json)
    _warm_up(methods[0], arguments, table)
    records, held = [], memory.current_memory()
    for method in dict.fromkeys(methods):
        if not arguments.quiet:
            print(f"{method} ...", file=sys.stderr)
        records.append(_measure(method, arguments, table, held))
    console.say(f"{table.num_rows:,} rows, {table.split_words(arguments)} {READING}\n")
    _show(console, records)
    drawn = _draw(records, arguments)
    if drawn:
        console.say(f"\nPicture: {arguments.out}")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "train_rows": len(table.train),
                "test_rows": len(table.test),
                "rows_without_target": table.num_missing,
                "targets": table.targets,
                "split": str(arguments.split),
                "seed": arguments.seed,
                "methods": records,
                "picture": str(arguments.out) if drawn else None,
            }
        )
    return int(any("error" in record for record in records))


def _warm_up(method: str, arguments: argparse.Namespace, table: WholeTable) -> None:
    """Fit a few rows: what torch loads at its first step should not count as the first method's time."""
    with suppress(Exception), notices.collected():
        model, few = estimator(method, arguments).set_params(max_epochs=2), table.train
        model.fit(few.inputs.take(slice(32)), as_target(few.targets.head(32)))


def _measure(method: str, arguments: argparse.Namespace, table: WholeTable, held: int) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why. ``held`` are the bytes of the process before any method."""
    peak_is_known = _reset_peak()
    try:
        start = time.perf_counter()
        model: Any = estimator(method, arguments, verbose=not arguments.quiet)
        with redirect_stdout(StringIO()), notices.collected(CopiesWarning):  # both are in the fit report
            table.fit(model)
        model.set_params(verbose=False)
        fit_s, start = time.perf_counter() - start, time.perf_counter()
        if any(result.interrupted for result in model.fit_results_):
            raise KeyboardInterrupt
        tally, (test, _) = TargetTally(model), table.tested(model, Ranks.alone())
        tally.add(test.targets.to_numpy(float), test.inputs, test.noise)
        predict_s = time.perf_counter() - start
        scores = [part.scores() for part in tally.model if part.num_rows or len(tally.model) == 1]
    except Exception as error:
        return {"method": method, "error": on_one_line(f"{type(error).__name__}: {error}")}
    return {
        "method": method,
        "used": model.method_,
        **{field: _over_targets(field, scores) for field in METRICS},
        "fit_s": fit_s,
        "predict_s": predict_s,
        "memory_bytes": max(memory.peak_memory() - held, 0) if peak_is_known else None,
        "fit_report": model.fit_report_,
    }


def _over_targets(field: str, scores: list[Scores]) -> float | list[float]:
    """A score of each target; its mean over the targets where it has no unit of theirs."""
    values = [getattr(of_target, field) for of_target in scores]
    return float(np.mean(values)) if METRICS[field].unit in ("nats", "share") else values


def _reset_peak() -> bool:
    """Let the peak of memory start again from here; whether that is possible on this system."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _of_targets(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda record: " ".join(number(value) for value in record[name])


def _method(record: dict[str, Any]) -> str:
    return record["method"] if record["method"] == record["used"] else f"{record['method']} ({record['used']})"


COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "method": _method,
    "NLL": lambda record: number(record["nll"]),
    "RMSE": _of_targets("rmse"),
    "CRPS": _of_targets("crps"),
    "95 % coverage": lambda record: f"{100 * record['coverage']:.1f} %",
    "95 % width": _of_targets("width"),
    "fit, s": lambda record: f"{record['fit_s']:.1f}",
    "predict, s": lambda record: f"{record['predict_s']:.2f}",
    "memory": lambda record: "" if record["memory_bytes"] is None else size(record["memory_bytes"]),
}
"""The names of the columns of the table, and the text of each for a record."""


READING = (
    "NLL, RMSE, CRPS: lower is better; coverage: closer to 95 % is better; width: narrower is better where the "
    "coverage is right; memory: the peak above what the table takes."
)


def _show(console: Console, records: list[dict[str, Any]]) -> None:
    """The table, the best NLL first; with several targets, NLL and coverage are means over them."""
    done = sorted((record for record in records if "error" not in record), key=lambda record: record["nll"])
    failed = [record for record in records if "error" in record]
    cells = {name: [text(record) for record in done] for name, text in COLUMNS.items()}
    cells["method"] += [record["method"] for record in failed]
    for name, column in list(cells.items())[1:]:
        column += ["failed" if name == "NLL" else ""] * len(failed)
    to = sys.stderr if console.data_on_stdout else sys.stdout
    print(table_of_text(cells, shutil.get_terminal_size().columns if to.isatty() else sys.maxsize), file=to)
    for record in failed:
        console.say(f"{record['method']} failed: {record['error']}")


def _draw(records: list[dict[str, Any]], arguments: argparse.Namespace) -> bool:
    """Write the picture; False where there is nothing to draw."""
    done = [record for record in records if "error" not in record]
    if not done:
        return False
    points = [Point(record["method"], record["fit_s"], record["nll"]) for record in done]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = methods_against_time(figure.subplots(), points, "test NLL (nats per row), lower is better")
    axes.set_title(Path(arguments.table).stem, loc="left", fontweight="bold", parse_math=False)
    write_figure(figure, arguments.out)
    return True
