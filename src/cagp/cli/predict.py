"""``cagp predict``: means and error bars for the rows of a table, a piece at a time."""

import argparse
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from cagp.cli.commands import PREDICTIONS
from cagp.cli.console import Console, UsageError, count, names, warn
from cagp.cli.tables import Model, Rows, Unseen, check_columns, pieces, warn_of_noise
from cagp.data import TableWriter, stream_table
from cagp.data.cells import COMMA_NUMBER, PLAIN_NUMBER
from cagp.data.table_files import CSV_ENDINGS, ending_of
from cagp.estimators import CaGPClassifier, GPRegressor, load
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.progress import Progress
from cagp.ranks import Ranks
from cagp.shards import RegionPosterior

FORMULA = re.compile(r"[=+\-@\t\r\n].", re.DOTALL)
NUMBER = re.compile(f"{PLAIN_NUMBER}|{COMMA_NUMBER}")


def run(arguments: argparse.Namespace) -> int:
    paths = (arguments.out, arguments.table)
    if all(map(os.path.exists, paths)) and os.path.samefile(*paths):
        raise UsageError(f"--out is the table itself, {arguments.table}; choose another name.")
    ranks = Ranks.here()
    quiet = arguments.quiet or not ranks.is_first
    # Before the model: a name that cannot be written is found at once.
    ranks.from_first(lambda: {"writable": TableWriter(arguments.out) is not None})
    model = load(arguments.model)
    warn_of_noise(model, arguments.noise)
    answers = _probabilities(model, arguments) if isinstance(model, CaGPClassifier) else _moments(model, arguments)
    keep, verbatim = _kept(model, arguments.table, arguments.keep)
    if clash := sorted(set(answers.names) & set(keep)):
        raise UsageError(f"--keep has {names(clash)}, which is also a column of the result.")
    unseen, start = Unseen(), time.perf_counter()
    table = pieces(model, arguments, verbatim)
    answered = _answered(table, answers, isinstance(model.posteriors_[0], RegionPosterior), ranks)
    if not ranks.is_first:
        for _ in answered:
            pass
        ranks.leave()
        return 0
    formulas, written = Counter(), []
    as_it_is = arguments.keep_formulas or arguments.out.lower().endswith(".parquet")
    with Progress("predict", enabled=not quiet) as progress, TableWriter(arguments.out) as writer:
        for piece, values in answered:
            unseen.add(piece.inputs)
            result = answers.frame(values, piece.frame.index)
            if keep:
                check_columns(piece.frame, "--keep", keep)
                kept = piece.frame.loc[:, keep].astype(dict.fromkeys(verbatim, "string"))
                result = pd.concat([kept if as_it_is else _neutralised(kept, formulas), result], axis=1)
            writer.write(result)
            written = list(result.columns)
            progress.advance(len(result), piece.fraction)
    ranks.leave()
    for name, found in formulas.items():
        warn(
            f"{count(found, 'cell')} of column {name!r} would run as {'a formula' if found == 1 else 'formulas'} in a "
            "spreadsheet and got a ' in front; --keep-formulas copies them as they are"
        )
    unseen.warn()
    if arguments.out != "-":
        seconds = time.perf_counter() - start
        words = f"Wrote {arguments.out}: {count(progress.done, 'row')} in {seconds:.1f} s; {names(written, 12)}."
        Console(quiet).say(words)
    return 0


class Answers(NamedTuple):
    """What is predicted of rows: numbers, which processes send each other, and the columns that these become."""

    names: list[str]  # of the columns
    num_numbers: int  # for each row
    of: Callable[[Rows], np.ndarray]
    frame: Callable[[np.ndarray, pd.Index], pd.DataFrame]


def _probabilities(model: CaGPClassifier, arguments: argparse.Namespace) -> Answers:
    """The most probable class, and the probability of each."""
    if arguments.columns or arguments.quantiles or arguments.interval != "model":
        raise UsageError(
            f"{arguments.model} is a classifier: it predicts classes and probabilities. Remove --columns, "
            "--quantiles and --interval."
        )
    target, classes = model.target_name_, model.classes_
    first, *others = [f"{target}_class", *(f"{target}_p_{label}" for label in classes.tolist())]

    def frame(values: np.ndarray, index: pd.Index) -> pd.DataFrame:
        result = pd.DataFrame(values, index, others)
        result.insert(0, first, classes[values.argmax(1)])
        return result

    return Answers([first, *others], len(classes), lambda rows: model.predict_proba(rows.inputs), frame)


def _moments(model: GPRegressor, arguments: argparse.Namespace) -> Answers:
    """Moments, intervals and quantiles of each target."""
    is_conformal, level, quantiles = arguments.interval == "conformal", arguments.level, arguments.quantiles
    if model.likelihood != GAUSSIAN and is_conformal:
        raise UsageError(
            f"{arguments.model} has the likelihood {model.likelihood}: conformal intervals are for Gaussian noise. "
            "Remove --interval."
        )
    asked = arguments.columns or ([] if quantiles else list(PREDICTIONS))
    listed = [f"{t}_{c}" for t in model.target_names_ for c in (*asked, *(f"q{quantile:g}" for quantile in quantiles))]
    # Quantiles of counts are integers.
    counts = model.likelihood in likelihoods_of("counts")
    whole = [name for name in listed if counts and not name.endswith(("_mean", "_std"))]

    def of(rows: Rows) -> np.ndarray:
        if asked == ["mean"] and not quantiles:  # without the time for standard deviations
            return np.asarray(model.predict(rows.inputs)).reshape(-1, model.n_outputs_)
        predicted = model.predictive(rows.inputs, rows.noise)
        ends = predicted.quantiles([0.5 - level / 2, 0.5 + level / 2])
        if is_conformal:
            ends = model.fitted.conformal_ends(predicted, level)
        columns = {"mean": predicted.mean(), "std": predicted.std(), "lower": ends[..., 0], "upper": ends[..., 1]}
        parts = [columns[name][:, :, None] for name in asked]
        values = np.concatenate([*parts, predicted.quantiles(quantiles)], axis=2)
        return values.reshape(len(values), -1).astype(model.units_.target_dtype, copy=False)

    def frame(values: np.ndarray, index: pd.Index) -> pd.DataFrame:
        return pd.DataFrame(values, index, listed).astype(dict.fromkeys(whole, "int64"))

    return Answers(listed, len(listed), of, frame)


def _answered(
    table: Iterator[Rows], answers: Answers, in_regions: bool, ranks: Ranks
) -> Iterator[tuple[Rows, np.ndarray]]:
    """Pieces with their answers, in order: on process 0, the others yield nothing.

    Process r answers every n-th piece, from the r-th on: with the same numbers as a process that answers all of them.
    Process 0 holds n pieces at a time, the others their own. A model in regions answers each piece by all processes.
    """
    if in_regions:
        for piece in table:
            values = answers.of(piece)
            if ranks.is_first:
                yield piece, values
        return
    while turn := [piece if ranks.rank in (0, k) else None for k, piece in enumerate(islice(table, ranks.size))]:
        own = turn[ranks.rank] if ranks.rank < len(turn) else None
        values = np.zeros((0, answers.num_numbers)) if own is None else answers.of(own)
        received = ranks.to_first(torch.from_numpy(values.astype(np.float64)))
        if ranks.is_first:
            for piece, others in zip(turn, received, strict=False):
                if piece is not None:
                    yield piece, others.numpy().astype(values.dtype)


def _kept(model: Model, table: str, keep: list[str]) -> tuple[list[str], list[str]]:
    """The columns to copy, and those of them to take from a CSV file as they are written there: all but inputs."""
    if keep == ["all"]:
        if table == "-":
            raise UsageError('--keep all needs a file: name the columns to keep of "-".')
        keep = [str(name) for name in next(stream_table(table, rows=1000)).frame.columns]
    is_csv, inputs = ending_of(table) in CSV_ENDINGS, model.encoder_.names_in
    return keep, [name for name in keep if is_csv and inputs is not None and name not in inputs]


def is_formula(cell: object) -> bool:
    """Whether text begins like a formula and is not a number; a sign alone is text as well."""
    return isinstance(cell, str) and FORMULA.match(cell) is not None and NUMBER.fullmatch(cell) is None


def _neutralised(frame: pd.DataFrame, counts: Counter[str]) -> pd.DataFrame:
    """The frame with a ' before cells and names that a spreadsheet would run; ``counts`` grows by these cells."""
    changed = {}
    for name, column in frame.items():
        if column.dtype.kind in "biufcmM":
            continue
        cells = column.astype(object)
        found = cells.map(is_formula).to_numpy(dtype=bool)
        if found.any():
            changed[name] = cells.where(~found, "'" + cells.astype(str))
            counts[str(name)] += int(found.sum())
    return frame.assign(**changed).rename(columns=lambda name: f"'{name}" if is_formula(name) else name)
