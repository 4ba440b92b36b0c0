"""``cagp fit``: learn from a table, test on rows held out, save the model."""

import argparse
import json
import os
import shutil
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from cagp.cli import options
from cagp.cli.models import METHODS, check_options, regressor
from cagp.cli.scores import Tallies
from cagp.cli.tables import Parts, as_target, split_table
from cagp.cli.words import UsageError, Voice, count, names, print_json, size
from cagp.data.tables import READABLE
from cagp.estimators import GPRegressor
from cagp.memory import available_memory
from cagp.storage import write_atomically
from cagp.training.fitting import CHECKPOINT

LIMITS = "limits.json"

DESCRIPTION = """\
Learn from a table and save a model. A share of the rows, drawn by seed, is held out and tested on: the model that is
saved has not seen them (--test-fraction 0 trains on all rows). Text columns are encoded, and rows without a target are
left out; missing inputs are an error.

Checkpoints are kept in a folder beside the model (model.cagp.checkpoints) until it is saved. A run that was killed goes
on when the same command is given again with --resume; without it, a folder that was left behind is an error, so that
no work is lost. Ctrl-C ends training: the model is saved as it is then, and --resume goes on."""

EPILOG = """\
examples:
  cagp fit houses.csv --target price --out houses.cagp
  cagp fit houses.csv --target price --drop id --max-time 10min --report report.html
  cagp fit weather.parquet --target temperature wind --method local --neighbours 64
  cagp fit houses.csv --target price --out houses.cagp --resume
  zcat big.csv.gz | cagp fit - --target y --json > fit.json

methods:
  auto    exact up to 2,000 rows; beyond, what predicts held-out training rows best
  local   every question from its nearest rows; any number of rows
  hybrid  nearest rows and actions that all questions share
  opt     learned actions (CaGP-Opt);  cg: those of conjugate gradients (CaGP-CG)
  exact   Cholesky factorisation, a few thousand rows;  cggp: by conjugate gradients
  sgpr    inducing points;  svgp: inducing points, minibatches"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp fit``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_table(command, test_fraction=0.1)
    command.add_argument("--method", choices=METHODS, default="auto", help="(default: %(default)s; see below)")
    options.add_model(command, max_time=None)
    command.add_argument(
        "--out",
        type=Path,
        default=Path("model.cagp"),
        metavar="FILE",
        help="the model; replaced if it exists (default: %(default)s)",
    )
    command.add_argument("--resume", action="store_true", help="go on where a killed run with the same options was")
    command.add_argument("--report", type=options.page, metavar="FILE", help="an HTML page on the test rows")
    command.add_argument("--store-float32", action="store_true", help="round the stored rows: half the size")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout, words on stderr")
    command.add_argument("--quiet", action="store_true", help="no words and no progress, only warnings and errors")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit, test, save, and say what was done; 130 if Ctrl-C ended the training."""
    check_options(arguments, [arguments.method])
    _check_out(arguments)
    folder = arguments.out.with_name(arguments.out.name + ".checkpoints")
    if _has_checkpoint(folder) and not arguments.resume:
        raise UsageError(
            f"{folder} is left from a fit that did not end. Give the same command with --resume to go on from it, or "
            "delete the folder to start afresh."
        )
    voice = Voice(arguments.quiet, data_on_stdout=arguments.json)
    parts = split_table(arguments.table, arguments.target, arguments.drop, arguments.test_fraction, arguments.seed)
    if arguments.report is not None and len(parts.test) == 0:
        raise UsageError("--report needs test rows: give a --test-fraction above 0.")
    voice.say(_data(parts, arguments.seed))
    if arguments.resume and not _has_checkpoint(folder):
        voice.say(f"There is no checkpoint in {folder} to go on from: starting afresh.")

    start = time.perf_counter()
    model = _fitted(arguments, parts, folder)
    seconds = time.perf_counter() - start
    voice.say(f"\nFitted in {seconds:.1f} s.\n{model.fit_report_}")
    interrupted = model.fit_result_.interrupted
    model.save(arguments.out, dtype="float32" if arguments.store_float32 else None)
    if not interrupted:
        shutil.rmtree(folder)
    tallies = None
    if len(parts.test):
        tallies = Tallies(model)
        tallies.add(parts.test_targets.to_numpy(float), parts.test)
        voice.say(f"\nOn {count(len(parts.test), 'test row')}, which were not trained on:\n{tallies.words()}")
    num_bytes = arguments.out.stat().st_size
    voice.say(f"\nSaved {arguments.out} ({size(num_bytes)}); it holds training data, see cagp info {arguments.out}.")
    if arguments.report is not None:
        model.report(parts.test, as_target(parts.test_targets), arguments.report)
        voice.say(f"Wrote {arguments.report}.")
    if interrupted:
        voice.say("Training was interrupted: the same command with --resume goes on from there.")
    else:
        voice.say(f"Next: cagp predict {arguments.out} new.csv")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "rows": parts.num_rows,
                "rows_without_target": parts.num_missing,
                "train_rows": len(parts.train),
                "test_rows": len(parts.test),
                "inputs": list(parts.train.columns),
                "targets": list(parts.train_targets.columns),
                "seed": arguments.seed,
                "method": model.method_,
                "fit_seconds": seconds,
                "interrupted": interrupted,
                "fit_report": model.fit_report_,
                "metrics": None if tallies is None else tallies.record(),
                "model": str(arguments.out),
                "bytes": num_bytes,
                "report": None if arguments.report is None else str(arguments.report),
            }
        )
    return 130 if interrupted else 0


def _check_out(arguments: argparse.Namespace) -> None:
    """Find what would go wrong at the end before hours of training."""
    if any(arguments.out.name.lower().endswith(ending) for ending in READABLE):
        raise UsageError(f"--out is {arguments.out}, a table by its name; call the model e.g. model.cagp.")
    for path in (arguments.out, arguments.report):
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"{path} is a folder, expected the name of a file to write.")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.parent}; create it.")
        if not os.access(path.absolute().parent, os.W_OK):
            raise PermissionError(f"{path} cannot be written: no permission to write in {path.absolute().parent}.")


def _fitted(arguments: argparse.Namespace, parts: Parts, folder: Path) -> GPRegressor:
    """The regressor, fitted with checkpoints in the folder; it keeps neither their path nor that it showed progress."""
    model = regressor(
        arguments.method,
        arguments,
        max_memory=_memory(arguments.max_memory, folder),
        checkpoint_dir=folder,
        verbose=not arguments.quiet,
    )
    try:
        with redirect_stdout(StringIO()):  # the fit report comes with the rest
            model.fit(parts.train, as_target(parts.train_targets))
    except BaseException:
        if not _has_checkpoint(folder):
            shutil.rmtree(folder)
        raise
    model.set_params(checkpoint_dir=None, verbose=False, max_memory=arguments.max_memory)
    return model


def _has_checkpoint(folder: Path) -> bool:
    return any(folder.glob(f"*/{CHECKPOINT}"))


def _memory(given: int | None, folder: Path) -> int:
    """The limit of memory in bytes, the same for a run and for what resumes it, however much is free then."""
    path = folder / LIMITS
    if given is None and path.exists():
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["memory"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}; delete its folder to start afresh.") from error
    memory = (available_memory() or 2**32) // 2 if given is None else given
    folder.mkdir(exist_ok=True)
    write_atomically(path, json.dumps({"memory": memory}).encode())
    return memory


def _data(parts: Parts, seed: int) -> str:
    """The data in a few sentences."""
    inputs, targets = parts.train.columns, parts.train_targets.columns
    words = [
        f"{count(parts.num_rows, 'row')}, {count(len(inputs), 'input')} ({names(inputs)}), "
        f"{'target' if len(targets) == 1 else 'targets'} {names(targets)}."
    ]
    if parts.num_missing:
        words.append(f"Left out {count(parts.num_missing, 'row')} without a target.")
    if len(parts.test):
        words.append(f"{len(parts.train):,} to train on, {len(parts.test):,} to test on (seed {seed}).")
    else:
        words.append("All are trained on.")
    if parts.num_moved:
        words.append(
            f"{count(parts.num_moved, 'row')} drawn for testing {'is' if parts.num_moved == 1 else 'are'} trained on: "
            "no other row has their levels."
        )
    return " ".join(words)
