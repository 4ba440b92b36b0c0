"""``cagp fit``: learn from a table, test on rows held out, save the model."""

import argparse
import json
import os
import shutil
import time
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cagp.cli import options
from cagp.cli.models import check_likelihood, check_options, regressor
from cagp.cli.words import UsageError, Voice, check_shared_table, count, names, print_json, warn
from cagp.lazy import lazy_module
from cagp.likelihood_registry import GAUSSIAN
from cagp.quantities import size
from cagp.recipes import RECIPES

if TYPE_CHECKING:
    from cagp import estimators, files, memory, notices, report, storage, training
    from cagp import ranks as processes
    from cagp.cli import classes, in_pieces, scores, tables
    from cagp.data import tables as data_tables
else:
    estimators, notices = map(lazy_module, ("cagp.estimators", "cagp.notices"))
    files, memory, storage, training = map(lazy_module, ("cagp.files", "cagp.memory", "cagp.storage", "cagp.training"))
    processes, report, in_pieces = map(lazy_module, ("cagp.ranks", "cagp.report", "cagp.cli.in_pieces"))
    classes = lazy_module("cagp.cli.classes")
    scores, tables, data_tables = map(lazy_module, ("cagp.cli.scores", "cagp.cli.tables", "cagp.data.tables"))

WITH_SITES = ("local", "exact", "hybrid", "opt", "cg")
"""What "auto" can be with --classify and with --likelihood, and whose options it takes."""

RUN = "run.json"
"""What a resumed run needs besides checkpoints: which fit it is, and its memory limit."""

DESCRIPTION = """\
Learn from a table and save a model. A share of the rows is held out for testing: the saved model has not seen them
(--test-fraction 0 trains on all rows). They are drawn at random, or chosen with --split so that the test is like the
use: the latest rows for forecasts, whole groups if new persons or places are to be predicted. Text columns are encoded.
Rows without a target are left out. Inputs may be missing.

The table can be a file, a folder of files or a quoted pattern. Several files, and a file that would not fit into
--max-memory, are read in pieces by the methods local and auto: the rows stay on disk, at most 100,000 are tested on,
and the planned peak of memory is said before training.

Checkpoints are kept in a folder beside the model (model.cagp.checkpoints) until it is saved. If a run is killed, the
same command with --resume continues from its last checkpoint. Without --resume, a folder that was left behind is an
error, so that no work is lost. Ctrl-C ends training: the model is saved as it is then, and --resume continues.

Started by torchrun, on one machine or several, the processes share the rows of every training step. All of them read
the table; the first prints and writes. A run can be resumed with another number of processes. With --shards, each
process reads its part of the table and keeps a region of it, in a file of its own beside the model."""

EPILOG = f"""\
examples:
  cagp fit houses.csv --target price --out houses.cagp
  cagp fit houses.csv --target price --drop id --max-time 10min
  cagp fit houses.csv --target price --report report.html
  cagp fit patients.csv --target diagnosis --classify
  cagp fit visits.csv --target visits --likelihood poisson --exposure hours
  cagp fit visits.csv --target score --split group:patient
  cagp fit weather.parquet --target rain wind --method local --n-neighbors 64
  cagp fit houses.csv --target price --out houses.cagp --resume
  cagp fit 'parts/*.parquet' --target y --method local --max-memory 4GB
  zcat big.csv.gz | cagp fit - --target y --json > fit.json
  torchrun --nproc-per-node 4 -m cagp fit big.parquet --target y --method local
  torchrun --nproc-per-node 4 -m cagp fit dir --target y --method local --shards

{options.methods_in_words()}"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp fit``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_table(command, test_fraction=0.1)
    command.add_argument(
        "--method", choices=RECIPES, default="auto", metavar="METHOD", help="one of those below (default: %(default)s)"
    )
    command.add_argument(
        "--classify",
        action="store_true",
        help="the target holds classes: text, or numbers that are codes; predictions are probabilities",
    )
    options.add_likelihood(command)
    options.add_model(command, max_time=None)
    command.add_argument(
        "--out",
        type=Path,
        default=Path("model.cagp"),
        metavar="FILE",
        help="the model; replaced if it exists (default: %(default)s)",
    )
    command.add_argument("--resume", action="store_true", help="continue a run with the same options that was killed")
    command.add_argument("--report", type=options.page, metavar="FILE", help="an HTML page on the test rows")
    command.add_argument("--store-float32", action="store_true", help="round the stored rows: half the size")
    command.add_argument(
        "--rows-beside",
        action="store_true",
        help="keep the rows in a file of their own, MODEL.rows; a table in pieces always does",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout, words on stderr")
    command.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    command.set_defaults(run=run, ranks=True)


def run(arguments: argparse.Namespace) -> int:
    """Fit, test, save, and say what was done; 130 if Ctrl-C ended the training."""
    check_likelihood(arguments)
    if arguments.classify:
        classes.check_classify(arguments)
    has_sites = arguments.classify or arguments.likelihood != GAUSSIAN
    check_options(arguments, [*(WITH_SITES if has_sites else ()), arguments.method])
    ranks = processes.Ranks.here()
    if arguments.classify and ranks.size > 1:
        raise UsageError(f"--classify trains in one process, and {ranks.size} were started; start a single one.")
    check_shared_table(arguments.table, ranks.size)
    folder = arguments.out.with_name(arguments.out.name + ".checkpoints")
    with ExitStack() as resources:
        ranks.from_first(lambda: _checked_out(arguments, folder, resources))
        if arguments.classify:
            return _classified(arguments, folder)
        return _run(arguments, ranks, folder)


def _run(arguments: argparse.Namespace, ranks: "processes.Ranks", folder: Path) -> int:
    begun = ranks.from_first(lambda: {"has_checkpoint": _has_checkpoint(folder)})["has_checkpoint"]
    voice = Voice(arguments.quiet or not ranks.is_first, data_on_stdout=arguments.json)
    reason = ranks.from_first(lambda: {"words": in_pieces.reason(arguments)})["words"]
    if arguments.report is not None and arguments.test_fraction == 0:
        raise UsageError("--report needs test rows: give a --test-fraction above 0.")
    if reason is not None and arguments.likelihood != GAUSSIAN:
        raise UsageError(f"--likelihood {arguments.likelihood} takes the whole table in memory. {reason}")
    source = tables.split_of(arguments) if reason is None else in_pieces.split_in_pieces(arguments)
    if isinstance(source, tables.SplitTable):
        voice.say(_data(source, arguments))
        if ranks.is_first:
            tables.warn_of_test_rows(source, arguments.split)
    else:
        voice.say(f"{reason} {_data_in_pieces(source, arguments)}")
    if arguments.resume and not begun:
        voice.say(f"There is no checkpoint in {folder} to continue from: starting from scratch.")

    start = time.perf_counter()
    model = _fitted(arguments, source.train if isinstance(source, tables.SplitTable) else source, folder, ranks)
    in_regions = in_pieces.is_sharded(arguments)
    if not in_regions:
        ranks.leave()
    seconds = time.perf_counter() - start
    voice.say(f"\nFitted in {seconds:.1f} s.\n{model.fit_report_}")
    interrupted = any(result.interrupted for result in model.fit_results_)
    if not ranks.is_first and not in_regions:
        return 130 if interrupted else 0
    rows = "beside" if arguments.rows_beside or (reason is not None and not in_regions) else "inside"
    model.save(arguments.out, dtype="float32" if arguments.store_float32 else None, rows=rows)
    if ranks.is_first and not interrupted:
        _remove_checkpoints(folder)
    together = ranks if in_regions else processes.Ranks.alone()
    table = source if isinstance(source, tables.SplitTable) else in_pieces.tested(source, model, together)
    tallies = None
    if len(table.test):
        tallies = scores.Tallies(model)
        tallies.add(table.test.targets.to_numpy(float), table.test.inputs, table.test.noise)
        voice.say(f"\nOn {count(len(table.test), 'test row')}, which were not trained on:\n{tallies.words()}")
    if in_regions:
        ranks.leave()
        if not ranks.is_first:
            return 130 if interrupted else 0
    num_bytes = arguments.out.stat().st_size
    beside = f", and its rows to {arguments.out}.rows beside it" if rows == "beside" else ""
    if in_regions:
        beside = f", and its regions to {arguments.out}.region-1-of-{ranks.size} and so on beside it"
    voice.say(
        f"\nSaved {arguments.out} ({size(num_bytes)}){beside}; it holds training data, see cagp info {arguments.out}."
    )
    if arguments.report is not None:
        groups = tables.groups_in_both(table) if arguments.split.kind == "random" else {}
        report.write_report(
            model,
            table.test.frame,
            table.test.target,
            arguments.report,
            sample_noise=table.test.noise,
            shared_groups=groups,
        )
        voice.say(f"Wrote {arguments.report}.")
    if interrupted:
        voice.say("Training was interrupted: the same command with --resume continues it.")
    else:
        voice.say(f"Next: cagp predict {arguments.out} new.csv")
    if arguments.json:
        print_json(
            {
                "table": arguments.table,
                "rows": table.num_rows,
                "rows_without_target": table.num_missing,
                "in_pieces": reason is not None,
                "train_rows": model.n_rows_,
                "test_rows": len(table.test),
                "inputs": list(table.train.frame.columns),
                "targets": list(table.train.targets.columns),
                "split": str(arguments.split),
                "seed": arguments.seed,
                "method": model.method_,
                "likelihood": model.likelihood,
                "exposure": model.exposure,
                "choice": model.choice_,
                "tried": model.choices_,
                "mean": "zero" if model.trees_ is None else "trees",
                "fit_seconds": seconds,
                "status": model.fit_result_.status.value,
                "interrupted": interrupted,
                "fit_report": model.fit_report_,
                "guarantee": model.guarantee_,
                "target_transforms": list(model.target_transforms_),
                "metrics": None if tallies is None else tallies.record(),
                "model": str(arguments.out),
                "bytes": num_bytes,
                "rows_beside": rows == "beside",
                "report": None if arguments.report is None else str(arguments.report),
            }
        )
    return 130 if interrupted else 0


def _classified(arguments: argparse.Namespace, folder: Path) -> int:
    """Fit a classifier; a folder without a checkpoint does not stay."""
    try:
        return classes.fit_classes(arguments, folder, lambda: _remove_checkpoints(folder))
    except BaseException:
        if not _has_checkpoint(folder):
            shutil.rmtree(folder)
        raise


def _checked_out(arguments: argparse.Namespace, folder: Path, resources: ExitStack) -> dict[str, Any]:
    """Find what would go wrong at the end before hours of training, and lock the folder for checkpoints."""
    if any(arguments.out.name.lower().endswith(ending) for ending in data_tables.READABLE):
        raise UsageError(f"--out is {arguments.out}, a table by its name; call the model e.g. model.cagp.")
    for path in (arguments.out, arguments.report):
        if path is None:
            continue
        try:
            target = files.checked_destination(path)
        except (ValueError, FileNotFoundError, IsADirectoryError) as error:
            raise UsageError(str(error)) from error
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(f"{path} cannot be written: no permission to write in {target.parent}.")
    folder.mkdir(exist_ok=True)
    resources.enter_context(files.locked_folder(folder, "another fit"))
    resources.callback(_remove_if_empty, folder)
    if _has_checkpoint(folder) and not arguments.resume:
        raise UsageError(
            f"{folder} is left from a fit that did not end. Run the same command with --resume to continue it, or "
            "delete the folder to start from scratch."
        )
    return {}


def _remove_checkpoints(folder: Path) -> None:
    """Remove the folder. Its checkpoints go first: what is left of it if this is interrupted is not a fit to resume."""
    for checkpoint in folder.glob(f"**/{training.CHECKPOINT}"):
        checkpoint.unlink()
    shutil.rmtree(folder)


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder that has nothing but its lock."""
    if {path.name for path in folder.glob("*")} <= {files.LOCK}:
        shutil.rmtree(folder, ignore_errors=True)


def _fitted(
    arguments: argparse.Namespace,
    train: "tables.Part | in_pieces.PiecesToFit",
    folder: Path,
    ranks: "processes.Ranks",
) -> "estimators.GPRegressor":
    """The regressor, fitted with checkpoints in the folder; it keeps neither their path nor that it showed progress."""
    model = regressor(
        arguments.method,
        arguments,
        max_memory=ranks.from_first(lambda: {"bytes": _memory(arguments, train, folder)})["bytes"],
        checkpoint_dir=folder,
        verbose=not arguments.quiet,
    )
    try:
        with redirect_stdout(StringIO()), notices.collected(estimators.CopiesWarning) as found:  # told with the rest
            if isinstance(train, in_pieces.PiecesToFit):
                model.fit(train.train)
            else:
                model.fit(train.inputs, train.target, train.noise, **train.by)
    except BaseException:
        if ranks.is_first and not _has_checkpoint(folder):
            shutil.rmtree(folder)
        raise
    for warning in found:
        warn(str(warning))
    model.set_params(checkpoint_dir=None, verbose=False, max_memory=arguments.max_memory)
    return model


def _has_checkpoint(folder: Path) -> bool:
    return any(folder.glob(f"**/{training.CHECKPOINT}"))


def _memory(arguments: argparse.Namespace, train: "tables.Part | in_pieces.PiecesToFit", folder: Path) -> int:
    """The memory limit in bytes: a resumed run has that of the run it continues, however much is free by now.

    Raises ValueError where the folder belongs to another fit.
    """
    path, given = folder / RUN, arguments.max_memory
    this = _key(arguments, train)
    if path.exists() and _has_checkpoint(folder):
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            key, limit = str(stored["fit"]), int(stored["memory"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}; delete its folder to start from scratch.") from error
        if key != this:
            raise ValueError(
                f"{folder} belongs to another fit (other data or options); run the command that made it, or delete "
                "the folder to start from scratch."
            )
        return limit if given is None else given
    limit = memory.default_memory_limit() if given is None else given
    folder.mkdir(exist_ok=True)
    files.write_atomically(path, json.dumps({"fit": this, "memory": limit}).encode())
    return limit


def _key(arguments: argparse.Namespace, train: "tables.Part | in_pieces.PiecesToFit") -> str:
    """What a fit depends on, as a short text: the rows, the method, its options."""
    plain: dict[str, Any] = options.options_of(arguments)
    chosen = ("method", "kernel", "mean", "target_transform", "categories", "copies", "max_epochs", "seed", "device")
    plain |= {name: getattr(arguments, name) for name in chosen}
    if arguments.likelihood != GAUSSIAN:
        plain |= {"likelihood": arguments.likelihood, "exposure": arguments.exposure}
    if isinstance(train, in_pieces.PiecesToFit):
        chosen = [arguments.target, arguments.drop, arguments.noise, arguments.test_fraction]
        return storage.fingerprint(plain, train.key(arguments.table), chosen)
    plain["split"] = str(arguments.split)
    arrays = [train.inputs.matrix, train.targets.to_numpy(float)]
    return storage.fingerprint(plain, *arrays, *([] if train.noise is None else [train.noise]))


def _data_in_pieces(pieces: "in_pieces.PiecesToFit", arguments: argparse.Namespace) -> str:
    """A table in pieces in a few sentences."""
    words = (
        f"{count(pieces.num_rows, 'row')}, {count(len(pieces.inputs), 'input')} ({names(pieces.inputs)}), "
        f"{'target' if len(pieces.targets) == 1 else 'targets'} {names(pieces.targets)}."
    )
    if not pieces.num_test:
        return f"{words} All are trained on."
    most = f", at most {in_pieces.MOST_TEST_ROWS:,}" if pieces.num_test == in_pieces.MOST_TEST_ROWS else ""
    num_train = pieces.num_rows - pieces.num_test
    return f"{words} {num_train:,} to train on, {pieces.num_test:,} to test on{most} (seed {arguments.seed})."


def _data(table: "tables.SplitTable", arguments: argparse.Namespace) -> str:
    """The data in a few sentences."""
    inputs, targets = table.train.frame.columns, table.train.targets.columns
    words = [
        f"{count(table.num_rows, 'row')}, {count(len(inputs), 'input')} ({names(inputs)}), "
        f"{'target' if len(targets) == 1 else 'targets'} {names(targets)}."
    ]
    if table.num_missing:
        words.append(f"Left out {count(table.num_missing, 'row')} without a target.")
    if len(table.test):
        words.append(tables.split_words(table, arguments.split, arguments.seed))
    else:
        words.append("All are trained on.")
    return " ".join(words)
