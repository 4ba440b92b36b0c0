"""``cagp fit``: read a table, split it, fit, save the model, test it on rows held out, and say what was done."""

import argparse
import json
import os
import shutil
import time
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from cagp import notices
from cagp.cli.commands import parameters_of
from cagp.cli.console import Console, UsageError, count, print_json, warn
from cagp.cli.sources import (
    Source,
    WholeTable,
    check_model,
    estimator,
    kind_of_targets,
    open_in_pieces,
    read_table_of,
    reason_for_pieces,
)
from cagp.cli.tables import Model, tally_of, targets_of, write_report
from cagp.data.table_files import READABLE
from cagp.estimators import CopiesWarning
from cagp.files import checked_destination, locked_folder, write_atomically
from cagp.memory import default_memory_limit
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.storage import fingerprint
from cagp.training import CHECKPOINT

RUN = "run.json"
"""What a resumed run needs besides checkpoints: which fit it is, and its memory limit."""


class CheckpointFolder:
    """The folder beside a model with the checkpoints of its fit, which another run can continue."""

    def __init__(self, model: Path):
        self.path = model.with_name(model.name + ".checkpoints")

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to continue from."""
        return any(self.path.glob(f"**/{CHECKPOINT}"))

    def lock(self, resume: bool, resources: ExitStack) -> None:
        """Make the folder for this process alone, until ``resources`` are closed; UsageError if another fit began."""
        self.path.mkdir(exist_ok=True)
        resources.enter_context(locked_folder(self.path, "another fit"))
        # Without a checkpoint there is nothing in the folder to continue from.
        resources.callback(lambda: self.is_begun or shutil.rmtree(self.path, ignore_errors=True))
        if self.is_begun and not resume:
            raise UsageError(
                f"{self.path} contains checkpoints of an unfinished fit. Run the same command with --resume to "
                "continue it, or delete the folder to start from scratch."
            )

    def memory_limit(self, fit: str, asked: int | None) -> int:
        """The limit in bytes: a resumed run has that of the run it continues; ValueError if that was another fit."""
        path = self.path / RUN
        if not path.exists() or not self.is_begun:
            limit = default_memory_limit() if asked is None else asked
            write_atomically(path, json.dumps({"fit": fit, "memory": limit}).encode())
            return limit
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            stored_fit, limit = str(stored["fit"]), int(stored["memory"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}; delete its folder to start from scratch.") from error
        if stored_fit != fit:
            raise ValueError(
                f"{self.path} belongs to another fit (other data or options); run the command that made it, or delete "
                "the folder to start from scratch."
            )
        return limit if asked is None else asked

    def remove(self) -> None:
        """Remove the folder. Its checkpoints go first: if this is interrupted, the rest is not a fit to resume."""
        for checkpoint in self.path.glob(f"**/{CHECKPOINT}"):
            checkpoint.unlink()
        shutil.rmtree(self.path)


def run(arguments: argparse.Namespace) -> int:
    """Fit, test, save, and say what was done; 130 if Ctrl-C ended the training."""
    check_model(arguments, [arguments.method])
    if arguments.report is not None and arguments.test_fraction == 0:
        raise UsageError("--report needs test rows: give a --test-fraction above 0.")
    folder, ranks = CheckpointFolder(arguments.out), Ranks.here()
    with ExitStack() as resources:

        def prepare() -> dict[str, Any]:
            _check_destinations(arguments)
            folder.lock(arguments.resume, resources)
            return {"is_begun": folder.is_begun, "reason": reason_for_pieces(arguments)}

        return _run(arguments, ranks, folder, **ranks.from_first(prepare))


def _run(
    arguments: argparse.Namespace, ranks: Ranks, folder: CheckpointFolder, is_begun: bool, reason: str | None
) -> int:
    say = Console(arguments.quiet or not ranks.is_first, data_on_stdout=arguments.json).say
    source = read_table_of(arguments) if reason is None else open_in_pieces(arguments)
    say(source.words() if reason is None else f"{reason} {source.words()}")
    if isinstance(source, WholeTable):
        source.warn_of_test_rows()
    if arguments.resume and not is_begun:
        say(f"There is no checkpoint in {folder.path} to continue from: starting from scratch.")

    start, in_regions = time.perf_counter(), getattr(arguments, "shards", False)
    model = _fitted(arguments, source, folder, ranks)
    if not in_regions:
        ranks.leave()
    seconds = time.perf_counter() - start
    say(f"\nFitted in {seconds:.1f} s.\n{model.fit_report_}")
    interrupted = any(result.interrupted for result in model.fit_results_)
    code = 130 if interrupted else 0
    if not ranks.is_first and not in_regions:
        return code
    rows = "beside" if arguments.rows_beside or (reason is not None and not in_regions) else "inside"
    model.save(arguments.out, dtype="float32" if arguments.store_float32 else None, rows=rows)
    if ranks.is_first and not interrupted:
        folder.remove()

    test, num_missing = source.tested(model, ranks if in_regions else Ranks.alone())
    tally, num_test = None, len(test.frame)
    if num_test:
        tally = tally_of(model)
        tally.add(targets_of(model, test.frame, arguments.table), test.inputs, test.noise)
        say(f"\nOn {count(num_test, 'test row')}, which were not trained on:\n{tally.words()}")
    if in_regions:
        ranks.leave()
        if not ranks.is_first:
            return code
    beside = f", and its rows to {arguments.out}.rows beside it" if rows == "beside" else ""
    if in_regions:
        beside = f", and its regions to {arguments.out}.region-1-of-{ranks.size} and so on beside it"
    saved = size(arguments.out.stat().st_size)
    say(f"\nSaved {arguments.out} ({saved}){beside}; it holds training data, see cagp info {arguments.out}.")
    if arguments.report is not None:
        groups = source.shared_groups() if isinstance(source, WholeTable) else {}
        write_report(model, test.frame, arguments, groups)
        say(f"Wrote {arguments.report}.")
    if interrupted:
        say("Training was interrupted: the same command with --resume continues it.")
    else:
        say(f"Next: cagp predict {arguments.out} new.csv")
    if arguments.json:
        print_json(
            {
                "rows_without_target": num_missing,
                "test_rows": num_test,
                "in_pieces": reason is not None,
                "fit_seconds": seconds,
                "rows_beside": rows == "beside",
                "table": arguments.table,
                "rows": source.num_rows,
                "train_rows": model.n_rows_,
                "inputs": source.inputs,
                "targets": source.targets,
                "classes": getattr(model, "classes_", None),
                "split": str(arguments.split),
                "seed": arguments.seed,
                "method": model.method_,
                "likelihood": model.likelihood,
                "exposure": getattr(model, "exposure", None),
                "choice": model.choice_,
                "tried": model.choices_,
                "mean": "zero" if model.trees_ is None else "trees",
                "status": model.fit_result_.status.value,
                "interrupted": interrupted,
                "fit_report": model.fit_report_,
                "guarantee": model.guarantee_,
                "target_transforms": list(getattr(model, "target_transforms_", [])),
                "metrics": None if tally is None else tally.record(),
                "model": arguments.out,
                "bytes": arguments.out.stat().st_size,
                "report": arguments.report,
            }
        )
    return code


def _check_destinations(arguments: argparse.Namespace) -> None:
    """Notice before hours of training what could not be written at the end."""
    if any(arguments.out.name.lower().endswith(ending) for ending in READABLE):
        raise UsageError(f"--out is {arguments.out}, a table by its name; call the model e.g. model.cagp.")
    for path in filter(None, (arguments.out, arguments.report)):
        try:
            target = checked_destination(path)
        except (ValueError, FileNotFoundError, IsADirectoryError) as error:
            raise UsageError(str(error)) from error
        if not os.access(target.parent, os.W_OK):
            raise PermissionError(f"{path} cannot be written: no permission to write in {target.parent}.")


def _fitted(arguments: argparse.Namespace, source: Source, folder: CheckpointFolder, ranks: Ranks) -> Model:
    """The model, fitted with checkpoints in the folder; it keeps neither their path nor that it showed progress."""
    asked = getattr(arguments, "max_memory", None)
    limit = ranks.from_first(lambda: {"bytes": folder.memory_limit(_key(arguments, source), asked)})["bytes"]
    model = estimator(
        arguments.method, arguments, max_memory=limit, checkpoint_dir=folder.path, verbose=not arguments.quiet
    )
    with redirect_stdout(StringIO()), notices.collected(CopiesWarning) as warned:  # said with the rest
        source.fit(model)
    for warning in warned:
        warn(str(warning))
    return model.set_params(checkpoint_dir=None, verbose=False, max_memory=asked)


def _key(arguments: argparse.Namespace, source: Source) -> str:
    """What a fit depends on, as a short text: the rows, the method, its options."""
    limits = ("max_time", "max_memory")
    options = {name: value for name, value in parameters_of(arguments).items() if name not in limits}
    plain = [arguments.method, kind_of_targets(arguments), options, arguments.categories, str(arguments.split)]
    return fingerprint(plain, *source.key())
