"""``cagp evaluate``: how good a model is on a table with known targets."""

import argparse
import time

import numpy as np
import pandas as pd

from cagp.cli.console import Console, UsageError, count, print_json, warn
from cagp.cli.tables import Unseen, held_out_rows, pieces, tally_of, targets_of, warn_of_noise, write_report
from cagp.estimators import CaGPClassifier, load
from cagp.estimators.overlap import KnownRows
from cagp.progress import Progress

REPORT_ROWS = 20_000
"""A report is on at most this many rows, drawn at random."""


def run(arguments: argparse.Namespace) -> int:
    console = Console(arguments.quiet, data_on_stdout=arguments.json)
    if arguments.split is None and (arguments.test_fraction is not None or arguments.seed is not None):
        raise UsageError("--test-fraction and --seed say which rows were held out: give --split, too.")
    if arguments.test_fraction == 0:
        raise UsageError("--test-fraction is 0: no rows are left to measure; give a share above 0, or no --split.")
    model = load(arguments.model)
    is_classifier = isinstance(model, CaGPClassifier)
    if is_classifier and arguments.noise is not None:
        raise UsageError("--noise cannot be used with a classifier; remove it.")
    warn_of_noise(model, arguments.noise)
    tally, drawn, num_rows, num_tested = tally_of(model), pd.DataFrame(), 0, 0
    known_rows, common = None if is_classifier else KnownRows.of_model(model.fitted), None
    unseen, random, start = Unseen(), np.random.default_rng(0), time.perf_counter()
    with Progress("evaluate", enabled=not arguments.quiet) as progress:
        for piece in pieces(model, arguments) if arguments.split is None else [held_out_rows(model, arguments)]:
            y = targets_of(model, piece.frame, arguments.table)
            known = np.asarray(~np.isnan(y).all(axis=1))
            tested, y = piece.where(known), y[known]
            tally.add(y, tested.inputs, tested.noise)
            unseen.add(tested.inputs)
            num_rows, num_tested = num_rows + len(known), num_tested + len(y)
            if known_rows is not None:
                overlap = known_rows.overlap(tested.inputs.matrix, y)
                common = overlap if common is None else common.plus(overlap)
            if arguments.report is not None:
                numbers = {} if is_classifier else dict(zip(model.target_names_, y.T, strict=True))
                # text like "3,14" need not be in every piece
                drawn = with_some_of(drawn, tested.frame.assign(**numbers), REPORT_ROWS, random)
            progress.advance(len(known), piece.fraction)
    unseen.warn()
    seconds = time.perf_counter() - start
    num_missing = num_rows - num_tested
    if is_classifier and not num_tested:
        raise ValueError(f"{arguments.table} has no row with a label.")
    what = "a label" if is_classifier else "a target"
    missing = f" ({count(num_missing, 'row')} without {what} left out)" if num_missing else ""
    held_out = "" if arguments.split is None else f" that --split {arguments.split} holds out"
    tested = f"{count(num_tested, 'row')} of {arguments.table}{held_out}{missing}, in {seconds:.1f} s"
    console.say(f"{arguments.model} on {tested}:\n{tally.words()}")
    if common is not None and common.is_large:
        warn(common.words())
    if arguments.report is not None:
        write_report(model, drawn.reset_index(drop=True), arguments)
        which = f", on {len(drawn):,} rows drawn at random" if len(drawn) < num_tested else ""
        console.say(f"\nWrote {arguments.report}{which}.")
    if arguments.json:
        print_json(
            {
                "model": arguments.model,
                "table": arguments.table,
                "rows": num_rows,
                "rows_without_target": num_missing,
                "split": None if arguments.split is None else str(arguments.split),
                "rows_with_inputs_of_training_rows": None if common is None else common.num_same_inputs,
                "seconds": seconds,
                "metrics": tally.record(),
                "report": arguments.report,
            }
        )
    return 0


def with_some_of(drawn: pd.DataFrame, piece: pd.DataFrame, most: int, random: np.random.Generator) -> pd.DataFrame:
    """At most ``most`` rows of all pieces of a table so far, every subset equally likely; in the order of the table.

    The index is a random key of each row: those with the smallest ones stay.
    """
    piece = piece.set_axis(random.random(len(piece)))
    rows = pd.concat([drawn, piece]) if len(drawn) else piece
    return rows.iloc[np.sort(np.argsort(rows.index.to_numpy())[:most])]
