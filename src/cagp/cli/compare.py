"""``cagp compare``: several methods on one table and one split."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cagp.cli import options
from cagp.cli.models import check_options, regressor
from cagp.cli.words import UsageError, Voice, on_one_line, print_json
from cagp.lazy import lazy_module
from cagp.quantities import number, size
from cagp.recipes import RECIPES
from cagp.text_tables import table_of_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib import figure as figures

    from cagp import estimators, memory, metrics, notices, plots
    from cagp.cli import scores, tables
else:
    np, figures, plots = map(lazy_module, ("numpy", "matplotlib.figure", "cagp.plots"))
    memory, metrics, notices = map(lazy_module, ("cagp.memory", "cagp.metrics", "cagp.notices"))
    scores, tables = map(lazy_module, ("cagp.cli.scores", "cagp.cli.tables"))
    estimators = lazy_module("cagp.estimators")

DEFAULT = ["local", "hybrid", "opt", "sgpr", "svgp"]
MOST_EXACT_ROWS = 5000
"""Up to this many training rows, the exact method is compared too, unless the user names methods."""

DESCRIPTION = f"""\
Fit several methods to one table, one after the other, and test all on the same held-out rows. A method that fails is a
row of the result with its reason, and the exit code is 1. Without --methods: {", ".join(DEFAULT)}, and exact up to
{MOST_EXACT_ROWS:,} rows. The table and the picture show quality against time. Nothing is saved: cagp fit does that."""

EPILOG = f"""\
examples:
  cagp compare houses.csv --target price
  cagp compare houses.csv --target price --methods local sgpr --max-time 1min
  cagp compare sales.csv --target units --split time:day --test-fraction 0.2
  cagp compare bike.npz --json > bike.json

{options.methods_in_words()}"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp compare``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_table(command, test_fraction=0.1)
    command.add_argument(
        "--methods", nargs="+", choices=RECIPES, metavar="METHOD", help=f"any of {', '.join(RECIPES)}; see below"
    )
    options.add_model(command, max_time="10min")
    command.add_argument(
        "--out",
        type=options.picture,
        default=Path("compare.png"),
        metavar="FILE",
        help="the picture; replaced if it exists (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout, words on stderr")
    command.add_argument("--quiet", action="store_true", help="do not show progress")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print a table, draw a picture; 1 if a method failed."""
    if arguments.test_fraction == 0:
        raise UsageError("--test-fraction is 0: methods are compared on test rows; give a share above 0.")
    check_options(arguments, arguments.methods or DEFAULT)
    if not arguments.out.absolute().parent.is_dir():
        raise UsageError(f"{arguments.out} cannot be written: there is no folder {arguments.out.parent}; create it.")
    table = tables.split_of(arguments)
    tables.warn_of_test_rows(table, arguments.split)
    few = len(table.train) <= MOST_EXACT_ROWS
    methods = arguments.methods or [*DEFAULT, *(["exact"] if few else [])]
    voice = Voice(quiet=False, data_on_stdout=arguments.json)
    _warm_up(methods[0], arguments, table.train)
    records, held = [], memory.current_memory()
    for method in dict.fromkeys(methods):
        if not arguments.quiet:
            print(f"{method} ...", file=sys.stderr)
        records.append(_measure(method, arguments, table, held))
    parts = tables.split_words(table, arguments.split, arguments.seed)
    voice.say(f"{table.num_rows:,} rows, {parts} {READING}\n")
    _show(voice, records)
    drawn = _draw(records, arguments)
    if drawn:
        voice.say(f"\nPicture: {arguments.out}")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "train_rows": len(table.train),
                "test_rows": len(table.test),
                "rows_without_target": table.num_missing,
                "targets": list(table.train.targets.columns),
                "split": str(arguments.split),
                "seed": arguments.seed,
                "methods": records,
                "picture": str(arguments.out) if drawn else None,
            }
        )
    return int(any("error" in record for record in records))


def _warm_up(method: str, arguments: argparse.Namespace, train: "tables.Part") -> None:
    """Fit a few rows: what torch loads at its first step should not count as the first method's time."""
    with suppress(Exception), notices.collected():
        model = regressor(method, arguments).set_params(max_epochs=2)
        model.fit(train.inputs.take(slice(32)), tables.as_target(train.targets.head(32)))


def _measure(method: str, arguments: argparse.Namespace, table: "tables.SplitTable", held: int) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why. ``held`` are the bytes of the process before any method."""
    peak_is_known = _reset_peak()
    try:
        start = time.perf_counter()
        model = regressor(method, arguments, verbose=not arguments.quiet)
        with redirect_stdout(StringIO()), notices.collected(estimators.CopiesWarning):  # both are in the fit report
            model.fit(table.train.inputs, table.train.target, table.train.noise, **table.train.by)
        model.set_params(verbose=False)
        fit_s, start = time.perf_counter() - start, time.perf_counter()
        if any(result.interrupted for result in model.fit_results_):
            raise KeyboardInterrupt
        tallies = scores.Tallies(model)
        tallies.add(table.test.targets.to_numpy(float), table.test.inputs, table.test.noise)
        predict_s = time.perf_counter() - start
        found = [tally.scores() for tally in tallies.model if tally.num_rows or len(tallies.model) == 1]
    except Exception as error:
        return {"method": method, "error": on_one_line(f"{type(error).__name__}: {error}")}
    return {
        "method": method,
        "used": model.method_,
        **{field: _over_targets(field, found) for field in metrics.METRICS},
        "fit_s": fit_s,
        "predict_s": predict_s,
        "memory_bytes": max(memory.peak_memory() - held, 0) if peak_is_known else None,
        "fit_report": model.fit_report_,
    }


def _over_targets(field: str, found: "list[metrics.Scores]") -> float | list[float]:
    """A score of each target; its mean over the targets where it has no unit of theirs."""
    values = [getattr(scores, field) for scores in found]
    return float(np.mean(values)) if metrics.METRICS[field].unit in ("nats", "share") else values


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


def _show(voice: Voice, records: list[dict[str, Any]]) -> None:
    """The table, the best NLL first; with several targets, NLL and coverage are means over them."""
    done = sorted((record for record in records if "error" not in record), key=lambda record: record["nll"])
    failed = [record for record in records if "error" in record]
    cells = {name: [text(record) for record in done] for name, text in COLUMNS.items()}
    cells["method"] += [record["method"] for record in failed]
    for name, column in list(cells.items())[1:]:
        column += ["failed" if name == "NLL" else ""] * len(failed)
    to = sys.stderr if voice.data_on_stdout else sys.stdout
    print(table_of_text(cells, shutil.get_terminal_size().columns if to.isatty() else sys.maxsize), file=to)
    for record in failed:
        voice.say(f"{record['method']} failed: {record['error']}")


def _draw(records: list[dict[str, Any]], arguments: argparse.Namespace) -> bool:
    """Write the picture; False where there is nothing to draw."""
    points = [
        plots.Point(record["method"], record["fit_s"], record["nll"]) for record in records if "error" not in record
    ]
    if not points:
        return False
    figure = figures.Figure(figsize=(7, 4.5), layout="constrained")
    axes = plots.methods_against_time(figure.subplots(), points, "test NLL (nats per row), lower is better")
    axes.set_title(Path(arguments.table).stem, loc="left", fontweight="bold", parse_math=False)
    plots.write_figure(figure, arguments.out)
    return True
