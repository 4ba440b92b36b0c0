"""``cagp fit --classify``: learn classes from a table, test on rows held out, save the model."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cagp import report
from cagp.class_metrics import ClassScores, class_scores
from cagp.cli.options import options_of
from cagp.cli.tables import pieces, read_columns, split_rows
from cagp.cli.words import UsageError, Voice, count, names, print_json
from cagp.estimators import CaGPClassifier
from cagp.estimators.labels import codes_of
from cagp.estimators.target_kinds import SITE_METHODS as METHODS
from cagp.quantities import size
from cagp.recipes import OPTIONS


def check_classify(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that a classifier does not have."""
    if arguments.method not in METHODS:
        raise UsageError(f"--method is {arguments.method}, with --classify it is one of {', '.join(METHODS)}.")
    others = [OPTIONS[name].flag for name in options_of(arguments) if "classes" not in OPTIONS[name].targets]
    given = {
        "--noise": arguments.noise is not None,
        "--target-transform": arguments.target_transform != "auto",
        "--copies": arguments.copies != "keep",
    }
    others += [flag for flag, is_given in given.items() if is_given]
    if others:
        raise UsageError(f"{', '.join(others)} cannot be used with --classify; remove it.")
    if arguments.target is not None and len(arguments.target) > 1:
        raise UsageError(f"--target names {len(arguments.target)} columns; --classify takes one.")


def fit_classes(arguments: argparse.Namespace, folder: Path, done: Callable[[], None]) -> int:
    """Fit, test, save, and say what was done; 130 if Ctrl-C ended the training.

    Args:
        folder: for checkpoints.
        done: called when the model is saved; it removes the folder.
    """
    voice = Voice(arguments.quiet, data_on_stdout=arguments.json)
    rule = arguments.split
    drop = [*arguments.drop, *([] if rule.group_column in (None, *arguments.drop) else [rule.group_column])]
    read = read_columns(arguments.table, arguments.target, drop, None, rule, arguments.categories)
    frame, inputs, labels = read[0], read[1], read[2].iloc[:, 0]
    kept = np.flatnonzero(~labels.isna().to_numpy())
    train, test = np.arange(len(kept)), np.arange(0)
    if arguments.test_fraction > 0 and len(kept) > 1:
        train, test = split_rows(frame.iloc[kept], rule, arguments.test_fraction, arguments.seed)
    train, test, num_missing = kept[train], kept[test], len(frame) - len(kept)
    left_out = f" Left out {count(num_missing, 'row')} without a label." if num_missing else ""
    voice.say(
        f"{count(len(frame), 'row')}, {count(inputs.shape[1], 'input')} ({names(inputs.columns)}), classes of "
        f"{labels.name}.{left_out} {len(train):,} to train on, {len(test):,} to test on (seed {arguments.seed})."
    )
    model = _classifier(arguments, folder)
    start = time.perf_counter()
    model.fit(inputs.iloc[train], labels.iloc[train])
    seconds = time.perf_counter() - start
    model.set_params(checkpoint_dir=None, verbose=False)
    voice.say(f"\nFitted in {seconds:.1f} s.\n{model.fit_report_}")
    model.save(
        arguments.out,
        dtype="float32" if arguments.store_float32 else None,
        rows="beside" if arguments.rows_beside else "inside",
    )
    interrupted = model.fit_result_.interrupted
    if not interrupted:
        done()
    found = None
    if len(test):
        found = model.scores(inputs.iloc[test], labels.iloc[test])
        voice.say(f"\nOn {count(len(test), 'test row')}, which were not trained on:\n{scores_in_words(found)}")
        if arguments.report is not None:
            report.write_class_report(model, inputs.iloc[test], labels.iloc[test], arguments.report)
            voice.say(f"Wrote {arguments.report}.")
    num_bytes = arguments.out.stat().st_size
    voice.say(f"\nSaved {arguments.out} ({size(num_bytes)}); it holds training data, see cagp info {arguments.out}.")
    voice.say(
        "Training was interrupted: the same command with --resume continues it."
        if interrupted
        else f"Next: cagp predict {arguments.out} new.csv"
    )
    if arguments.json:
        record: dict[str, Any] = {
            "table": arguments.table,
            "rows": len(frame),
            "rows_without_target": num_missing,
            "train_rows": model.n_rows_,
            "test_rows": len(test),
            "inputs": [str(name) for name in inputs.columns],
            "target": str(labels.name),
            "classes": model.classes_.tolist(),
            "split": str(arguments.split),
            "seed": arguments.seed,
            "method": model.method_,
            "likelihood": model.likelihood,
            "mean": "zero" if model.trees_ is None else "trees",
            "fit_seconds": seconds,
            "status": model.fit_result_.status.value,
            "interrupted": interrupted,
            "fit_report": model.fit_report_,
            "guarantee": model.guarantee_,
            "metrics": None if found is None else found._asdict(),
            "model": str(arguments.out),
            "bytes": num_bytes,
        }
        print_json(record)
    return 130 if interrupted else 0


def _classifier(arguments: argparse.Namespace, folder: Path) -> CaGPClassifier:
    """A classifier that is not fitted yet, with the options that were given."""
    return CaGPClassifier(
        arguments.method,
        kernel=arguments.kernel,
        mean=arguments.mean,
        categories=tuple(arguments.categories),
        max_epochs=arguments.max_epochs,
        max_time=arguments.max_time,
        max_memory=arguments.max_memory,
        device=arguments.device,
        random_state=arguments.seed,
        checkpoint_dir=folder,
        **options_of(arguments),
    )


def scores_in_words(found: ClassScores) -> str:
    """The scores of a classifier, a line for each."""
    return (
        f"  log loss           {found.log_loss:.4f} nats per row\n"
        f"  wrong              {found.error:.2%}\n"
        f"  Brier score        {found.brier:.4f}\n"
        f"  calibration error  {found.calibration_error:.4f}"
    )


def evaluate_classes(model: CaGPClassifier, arguments: argparse.Namespace) -> int:
    """Say how good the probabilities are on all rows of a table that have a label."""
    given = {"--split": arguments.split, "--report": arguments.report, "--noise": arguments.noise}
    others = [flag for flag, value in given.items() if value is not None]
    if others:
        raise UsageError(f"{', '.join(others)} cannot be used with a classifier; remove it.")
    voice, codes, probabilities = Voice(arguments.quiet, data_on_stdout=arguments.json), [], []
    num_missing = 0
    for piece in pieces(model, arguments.table, arguments.rows_at_a_time):
        if model.target_name_ not in piece.frame.columns:
            raise UsageError(f"{arguments.table} lacks the labels, a column {model.target_name_!r}.")
        labels = piece.frame[model.target_name_]
        known = ~labels.isna().to_numpy()
        num_missing += int((~known).sum())
        if known.any():
            codes.append(codes_of(model.classes_, labels[known]))
            probabilities.append(model.predict_proba(piece.inputs.take(known)))
    if not codes:
        raise ValueError(f"{arguments.table} has no row with a label.")
    found = class_scores(np.concatenate(codes), np.concatenate(probabilities))
    num_rows = sum(map(len, codes))
    missing = f" ({count(num_missing, 'row')} without a label left out)" if num_missing else ""
    voice.say(f"{arguments.model} on {count(num_rows, 'row')} of {arguments.table}{missing}:\n{scores_in_words(found)}")
    if arguments.json:
        record = {"model": str(arguments.model), "table": arguments.table, "rows": num_rows}
        print_json({**record, "rows_without_target": num_missing, "metrics": found._asdict()})
    return 0


def probability_columns(model: CaGPClassifier) -> list[str]:
    """The names of the columns of probabilities in a table of predictions."""
    return [f"{model.target_name_}_p_{label}" for label in model.classes_.tolist()]
