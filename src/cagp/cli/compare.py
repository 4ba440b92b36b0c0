"""``cagp compare``: several methods on one table and one split."""

import argparse
import sys
import time
import warnings
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from cagp import plots
from cagp.cli import options
from cagp.cli.models import METHODS, check_options, regressor
from cagp.cli.scores import Tallies
from cagp.cli.tables import Parts, as_target, split_table
from cagp.cli.words import UsageError, Voice, on_one_line, print_json, size
from cagp.memory import current_memory, peak_memory
from cagp.quantities import number

DEFAULT = ["local", "hybrid", "opt", "sgpr", "svgp"]
EXACT_ROWS = 5000
"""Up to so many rows to train on, the exact method is among those compared unless the user chose."""

DESCRIPTION = f"""\
Fit several methods to one table, one after the other, and test all on the same rows held out. A method that fails is a
row of the result with its reason, and the exit code is 1. Without --methods: {", ".join(DEFAULT)}, and exact up to
{EXACT_ROWS:,} rows. The table and the picture show quality against time; nothing is saved: cagp fit does that."""

EPILOG = """\
examples:
  cagp compare houses.csv --target price
  cagp compare houses.csv --target price --methods local sgpr --max-time 1min --out houses.png
  cagp compare bike.npz --json > bike.json"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp compare``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_table(command, test_fraction=0.1)
    command.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", help=f"any of {', '.join(METHODS)}")
    options.add_model(command, max_time="10min")
    command.add_argument(
        "--out",
        type=options.picture,
        default=Path("compare.png"),
        metavar="FILE",
        help="the picture; replaced if it exists (default: %(default)s)",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout, words on stderr")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare, print a table, draw a picture; 1 if a method failed."""
    if arguments.test_fraction == 0:
        raise UsageError("--test-fraction is 0: methods are compared on test rows; give a share above 0.")
    check_options(arguments, arguments.methods or DEFAULT)
    if not arguments.out.absolute().parent.is_dir():
        raise UsageError(f"{arguments.out} cannot be written: there is no folder {arguments.out.parent}; create it.")
    parts = split_table(arguments.table, arguments.target, arguments.drop, arguments.test_fraction, arguments.seed)
    methods = arguments.methods or [*DEFAULT, *(["exact"] if len(parts.train) <= EXACT_ROWS else [])]
    voice = Voice(quiet=False, data_on_stdout=arguments.json)
    _warm_up(methods[0], arguments, parts)
    records, held = [], current_memory()
    for method in dict.fromkeys(methods):
        if not arguments.quiet:
            print(f"{method} ...", file=sys.stderr)
        records.append(_measure(method, arguments, parts, held))
    _show(voice, records, parts)
    drawn = _draw(records, arguments)
    if drawn:
        voice.say(f"\nPicture: {arguments.out}")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "train_rows": len(parts.train),
                "test_rows": len(parts.test),
                "rows_without_target": parts.num_missing,
                "targets": list(parts.train_targets.columns),
                "seed": arguments.seed,
                "methods": records,
                "picture": str(arguments.out) if drawn else None,
            }
        )
    return int(any("error" in record for record in records))


def _warm_up(method: str, arguments: argparse.Namespace, parts: Parts) -> None:
    """Fit a few rows: what torch loads at its first step should not count as the first method's time."""
    with suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = parts.train.head(32), as_target(parts.train_targets.head(32))
        regressor(method, arguments).set_params(max_epochs=2).fit(*few)


def _measure(method: str, arguments: argparse.Namespace, parts: Parts, held: int) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why. ``held`` are the bytes of the process before any method."""
    peak_is_known = _reset_peak()
    try:
        start = time.perf_counter()
        model = regressor(method, arguments, verbose=not arguments.quiet)
        with redirect_stdout(StringIO()):  # the fit report
            model.fit(parts.train, as_target(parts.train_targets))
        model.set_params(verbose=False)
        fit_s, start = time.perf_counter() - start, time.perf_counter()
        if model.fit_result_.interrupted:
            raise KeyboardInterrupt
        tallies = Tallies(model)
        tallies.add(parts.test_targets.to_numpy(float), parts.test)
        predict_s = time.perf_counter() - start
        found = [tally.scores() for tally in tallies.model]
    except Exception as error:
        return {"method": method, "error": on_one_line(f"{type(error).__name__}: {error}")}
    return {
        "method": method,
        "used": model.method_,
        "nll": float(np.mean([scores.nll for scores in found])),
        "rmse": [scores.rmse for scores in found],
        "r2": [scores.r2 for scores in found],
        "crps": [scores.crps for scores in found],
        "coverage": float(np.mean([scores.coverage for scores in found])),
        "width": [scores.width for scores in found],
        "fit_s": fit_s,
        "predict_s": predict_s,
        "memory_bytes": max(peak_memory() - held, 0) if peak_is_known else None,
        "fit_report": model.fit_report_,
    }


def _reset_peak() -> bool:
    """Let the peak of memory start again from here; whether that is possible on this system."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _show(voice: Voice, records: list[dict[str, Any]], parts: Parts) -> None:
    """The table, the best NLL first; with several targets, NLL and coverage are means over them."""
    console = Console(file=sys.stderr if voice.data_on_stdout else sys.stdout)
    if not console.is_terminal:
        console.width = 160
    columns = ["method", "NLL", "RMSE", "CRPS", "95 % coverage", "95 % width", "fit, s", "predict, s", "memory"]
    table = Table(*columns, box=None, pad_edge=False)
    done = sorted((record for record in records if "error" not in record), key=lambda record: record["nll"])
    for record in done:
        used = record["method"] if record["method"] == record["used"] else f"{record['method']} ({record['used']})"
        several = [" ".join(number(value) for value in record[name]) for name in ("rmse", "crps", "width")]
        memory = "" if record["memory_bytes"] is None else size(record["memory_bytes"])
        table.add_row(
            used,
            number(record["nll"]),
            several[0],
            several[1],
            f"{100 * record['coverage']:.1f} %",
            several[2],
            f"{record['fit_s']:.1f}",
            f"{record['predict_s']:.2f}",
            memory,
        )
    failed = [record for record in records if "error" in record]
    for record in failed:
        table.add_row(record["method"], "failed")
    voice.say(
        f"{len(parts.train):,} rows to train on, {len(parts.test):,} to test on. NLL, RMSE, CRPS: lower is better; "
        "coverage: closer to 95 % is better; width: narrower is better where the coverage is right; memory: the most "
        "that was held above what the table takes.\n"
    )
    console.print(table)
    for record in failed:
        voice.say(f"{record['method']} failed: {record['error']}")


def _draw(records: list[dict[str, Any]], arguments: argparse.Namespace) -> bool:
    """Write the picture; False where there is nothing to draw."""
    points = [
        plots.Point(record["method"], record["fit_s"], record["nll"]) for record in records if "error" not in record
    ]
    if not points:
        return False
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = plots.methods_against_time(figure.subplots(), points, "test NLL (nats per row), lower is better")
    axes.set_title(Path(arguments.table).stem, loc="left", fontweight="bold", parse_math=False)
    figure.savefig(arguments.out, dpi=150)
    return True
