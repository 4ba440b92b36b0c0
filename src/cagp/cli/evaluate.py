"""``cagp evaluate``: how good a model is on a table with known targets."""

import argparse
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cagp.cli import options
from cagp.cli.words import UsageError, Voice, count, print_json, warn
from cagp.lazy import lazy_module

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from cagp import estimators
    from cagp import progress as progress_bars
    from cagp.cli import classes, scores, tables
    from cagp.estimators import overlap as overlaps
else:
    np, pd, progress_bars = map(lazy_module, ("numpy", "pandas", "cagp.progress"))
    estimators, scores, tables = map(lazy_module, ("cagp.estimators", "cagp.cli.scores", "cagp.cli.tables"))
    overlaps, classes = map(lazy_module, ("cagp.estimators.overlap", "cagp.cli.classes"))

REPORT_ROWS = 20_000
"""A report is on at most this many rows, drawn at random."""

DESCRIPTION = """\
Measure a model on a table with known targets: rows that it was not trained on. The table is read in pieces and may be
larger than memory. Rows without a target are left out. --report writes an HTML page on at most 20,000 of the rows,
drawn at random.

For the table that the model was fitted to, give --split, and --test-fraction and --seed if cagp fit had them: only the
rows are measured that cagp fit held out with the same options. The table must then fit into memory."""

EPILOG = """\
examples:
  cagp evaluate houses.cagp sold.csv
  cagp evaluate houses.cagp sold.csv --report report.html
  cagp evaluate houses.cagp houses.csv --split random --test-fraction 0.2
  cagp evaluate houses.cagp sold.parquet --json"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp evaluate``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_pieces(command)
    options.add_split(command, default=None)
    command.add_argument(
        "--test-fraction",
        type=options.fraction,
        metavar="SHARE",
        help="with --split: the share of the rows that was held out (default: 0.1)",
    )
    command.add_argument(
        "--seed", type=options.seed, metavar="N", help="with --split: the random seed of the fit (default: 0)"
    )
    command.add_argument("--report", type=options.page, metavar="FILE", help="an HTML page with figures")
    command.add_argument("--json", action="store_true", help="print one JSON object on stdout, words on stderr")
    command.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and say how good."""
    voice = Voice(arguments.quiet, data_on_stdout=arguments.json)
    if arguments.split is None and (arguments.test_fraction is not None or arguments.seed is not None):
        raise UsageError("--test-fraction and --seed say which rows were held out: give --split, too.")
    if arguments.test_fraction == 0:
        raise UsageError("--test-fraction is 0: no rows are left to measure; give a share above 0, or no --split.")
    model = estimators.load(arguments.model)
    if isinstance(model, estimators.CaGPClassifier):
        return classes.evaluate_classes(model, arguments)
    tables.warn_of_noise(model, arguments.noise)
    tallies, sample, num_rows, num_missing = scores.Tallies(model), Sample(REPORT_ROWS), 0, 0
    known_rows, common = overlaps.KnownRows.of_model(model.fitted), None
    unknown, lacking = Counter(), Counter()  # rows with levels, and with gaps, that no training row had
    start = time.perf_counter()
    with progress_bars.TableProgress("evaluate", enabled=not arguments.quiet) as progress:
        for piece in _pieces(model, arguments):
            y = tables.targets_of(model, piece.frame, arguments.table)
            known = np.asarray(~np.isnan(y).all(axis=1))
            tested = piece.where(known)
            tallies.add(y[known], tested.inputs, tested.noise)
            unknown += Counter(model.encoder_.num_unknown(tested.inputs.matrix))
            lacking += Counter(model.encoder_.num_missing(tested.inputs.matrix))
            num_rows, num_missing = num_rows + len(y), num_missing + int((~known).sum())
            if known_rows is not None:
                found = known_rows.overlap(tested.inputs.matrix, y[known])
                common = found if common is None else common.plus(found)
            if arguments.report is not None:
                targets = pd.DataFrame(y[known], columns=list(model.target_names_))
                inputs = tables.inputs_of(model, tested.frame, arguments.table, arguments.noise)
                noise = pd.DataFrame({"noise": np.zeros(len(targets)) if tested.noise is None else tested.noise})
                sample.add(pd.DataFrame(inputs).reset_index(drop=True), targets, noise)
            progress.advance(len(y), piece.fraction)
    tables.warn_of_levels(unknown)
    tables.warn_of_missing(lacking)
    seconds = time.perf_counter() - start
    record = tallies.record()
    missing = f" ({count(num_missing, 'row')} without a target left out)" if num_missing else ""
    tested = count(num_rows - num_missing, "row")
    held_out = "" if arguments.split is None else f" that --split {arguments.split} holds out"
    voice.say(
        f"{arguments.model} on {tested} of {arguments.table}{held_out}{missing}, in {seconds:.1f} s:\n{tallies.words()}"
    )
    if common is not None and common.is_large:
        warn(common.words())
    if arguments.report is not None:
        inputs, targets, noise = sample.rows()
        known = None if arguments.noise is None else noise["noise"].to_numpy()
        model.report(_typed(model, inputs), tables.as_target(targets), arguments.report, sample_noise=known)
        drawn = f", on {len(targets):,} rows drawn at random" if len(targets) < num_rows - num_missing else ""
        voice.say(f"\nWrote {arguments.report}{drawn}.")
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
                "metrics": record,
                "report": None if arguments.report is None else str(arguments.report),
            }
        )
    return 0


def _pieces(model: "estimators.GPRegressor", arguments: argparse.Namespace) -> "Iterable[tables.Piece]":
    """All rows of the table a piece at a time, or at once those that a split holds out."""
    if arguments.split is None:
        return tables.pieces(model, arguments.table, arguments.rows_at_a_time, noise=arguments.noise)
    share = 0.1 if arguments.test_fraction is None else arguments.test_fraction
    seed = 0 if arguments.seed is None else arguments.seed
    return [tables.held_out_piece(model, arguments.table, arguments.split, share, seed, arguments.noise)]


def _typed(model: "estimators.GPRegressor", inputs: "pd.DataFrame") -> "pd.DataFrame | np.ndarray":
    """The inputs as at fit: a frame or an array."""
    return inputs.to_numpy() if model.encoder_.names_in is None else inputs


class Sample:
    """At most ``most`` rows of a table that comes in pieces, every subset equally likely; in the order of the table."""

    def __init__(self, most: int, seed: int = 0):
        self._most, self._random = most, np.random.default_rng(seed)
        self._keys, self._frames = np.empty(0), []

    def add(self, *frames: "pd.DataFrame") -> None:
        """More rows, in several frames of the same length: their inputs, their targets, and so on."""
        # Every row has a random key, and those with the smallest ones stay.
        keys = np.concatenate([self._keys, self._random.random(len(frames[0]))])
        if self._frames:
            frames = tuple(pd.concat(pair, ignore_index=True) for pair in zip(self._frames, frames, strict=True))
        kept = np.arange(len(keys))
        if len(keys) > self._most:
            kept = np.sort(np.argpartition(keys, self._most)[: self._most])
        self._keys, self._frames = keys[kept], [frame.iloc[kept] for frame in frames]

    def rows(self) -> "list[pd.DataFrame]":
        """The rows drawn, in the frames that were added."""
        return [frame.reset_index(drop=True) for frame in self._frames]
