"""``cagp predict``: means and error bars for the rows of a table, a piece at a time."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import final

import numpy as np
import pandas as pd
import torch

from cagp.cli.console import Console, UsageError, check_shared_table, count, names
from cagp.cli.options import PREDICTIONS
from cagp.cli.spreadsheets import Neutralised
from cagp.cli.tables import Model, Piece, check_columns, pieces, warn_of_levels, warn_of_missing, warn_of_noise
from cagp.data import TableWriter, stream_table
from cagp.data.table_files import CSV_ENDINGS
from cagp.estimators import CaGPClassifier, GPRegressor, load
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.progress import TableProgress
from cagp.ranks import Ranks
from cagp.shards import RegionPosterior


def run(arguments: argparse.Namespace) -> int:
    """Predict, write, and say where."""
    paths = (arguments.out, arguments.table)
    if all(map(os.path.exists, paths)) and os.path.samefile(*paths):
        raise UsageError(f"--out is the table itself, {arguments.table}; choose another name.")
    ranks = Ranks.here()
    check_shared_table(arguments.table, ranks.size)
    quiet = arguments.quiet or not ranks.is_first
    # Before the model: a name that cannot be written is found at once.
    ranks.from_first(lambda: {"writable": TableWriter(arguments.out) is not None})
    model = load(arguments.model)
    if ranks.is_first:
        warn_of_noise(model, arguments.noise)
    answers = Probabilities(model, arguments) if isinstance(model, CaGPClassifier) else Moments(model, arguments)
    keep, verbatim = _kept(model, arguments.table, arguments.keep)
    if set(answers.names) & set(keep):
        clash = names(sorted(set(answers.names) & set(keep)))
        raise UsageError(f"--keep has {clash}, which is also a column of the result.")
    unknown, lacking = Counter(), Counter()  # rows with levels, and with gaps, that no training row had
    start = time.perf_counter()
    table = pieces(model, arguments.table, arguments.rows_at_a_time, verbatim, arguments.noise)
    answered = _answered(table, answers, isinstance(model.posteriors_[0], RegionPosterior), ranks)
    if not ranks.is_first:
        for _ in answered:
            pass
        ranks.leave()
        return 0
    writer, neutralised = TableWriter(arguments.out), Neutralised()
    as_it_is = arguments.keep_formulas or arguments.out.lower().endswith(".parquet")
    written = []
    with TableProgress("predict", enabled=not quiet) as progress, writer:
        for piece, values in answered:
            unknown += Counter(model.encoder_.num_unknown(piece.inputs.matrix))
            lacking += Counter(model.encoder_.num_missing(piece.inputs.matrix))
            result = answers.frame(values, piece.frame.index)
            if keep:
                check_columns(piece.frame, "--keep", keep)
                kept = piece.frame.loc[:, keep].astype(dict.fromkeys(verbatim, "string"))
                result = pd.concat([kept if as_it_is else neutralised(kept), result], axis=1)
            writer.write(result)
            written = list(result.columns)
            progress.advance(len(result), piece.fraction)
    ranks.leave()
    neutralised.tell()
    warn_of_levels(unknown)
    warn_of_missing(lacking)
    if arguments.out != "-":
        seconds = time.perf_counter() - start
        words = f"Wrote {arguments.out}: {count(progress.done, 'row')} in {seconds:.1f} s; {names(written, 12)}."
        Console(quiet).say(words)
    return 0


@final
class Probabilities:
    """The most probable class, and the probability of each."""

    def __init__(self, model: CaGPClassifier, arguments: argparse.Namespace):
        if arguments.columns or arguments.quantiles or arguments.interval != "model":
            raise UsageError(
                f"{arguments.model} is a classifier: it predicts classes and probabilities. Remove --columns, "
                "--quantiles and --interval."
            )
        self._model = model
        target, classes = model.target_name_, model.classes_.tolist()
        self.names = [f"{target}_class", *(f"{target}_p_{label}" for label in classes)]
        self.num_numbers = len(classes)

    def of(self, piece: Piece) -> np.ndarray:
        """The probability of each class."""
        return self._model.predict_proba(piece.inputs)

    def frame(self, values: np.ndarray, index: pd.Index) -> pd.DataFrame:
        """The class and the probabilities."""
        result = pd.DataFrame(values, index, self.names[1:])
        result.insert(0, self.names[0], self._model.classes_[values.argmax(1)])
        return result


@final
class Moments:
    """Moments, intervals and quantiles of each target."""

    def __init__(self, model: GPRegressor, arguments: argparse.Namespace):
        if model.likelihood != GAUSSIAN and arguments.interval == "conformal":
            raise UsageError(
                f"{arguments.model} has the likelihood {model.likelihood}: conformal intervals are for Gaussian noise. "
                "Remove --interval."
            )
        self._model, self._quantiles, self._level = model, arguments.quantiles, arguments.level
        self._columns = arguments.columns or ([] if arguments.quantiles else list(PREDICTIONS))
        self._is_conformal = arguments.interval == "conformal"
        columns = [*self._columns, *(f"q{quantile:g}" for quantile in self._quantiles)]
        self.names = [f"{target}_{column}" for target in model.target_names_ for column in columns]
        self.num_numbers = len(self.names)

    def of(self, piece: Piece) -> np.ndarray:
        """What the user asks for; the standard deviation is computed only where it is needed."""
        model, level = self._model, self._level
        if self._columns == ["mean"] and not self._quantiles:
            return np.asarray(model.predict(piece.inputs)).reshape(-1, model.n_outputs_)
        predicted = model.predictive(piece.inputs, piece.noise)
        ends = predicted.quantiles([0.5 - level / 2, 0.5 + level / 2])
        if self._is_conformal:
            ends = predicted.at(model.fitted.conformal_factors(level)[:, None] * np.array([-1.0, 1.0]))
        columns = {"mean": predicted.mean(), "std": predicted.std(), "lower": ends[..., 0], "upper": ends[..., 1]}
        parts = [columns[name][:, :, None] for name in self._columns]
        values = np.concatenate([*parts, predicted.quantiles(self._quantiles)], axis=2)
        return values.reshape(len(values), -1).astype(model.units_.target_dtype, copy=False)

    def frame(self, values: np.ndarray, index: pd.Index) -> pd.DataFrame:
        """These numbers under their names; quantiles of counts are integers."""
        counts = self._model.likelihood in likelihoods_of("counts")
        whole = [name for name in self.names if counts and not name.endswith(("_mean", "_std"))]
        return pd.DataFrame(values, index, self.names).astype(dict.fromkeys(whole, "int64"))


def _answered(
    table: Iterator[Piece], answers: Probabilities | Moments, in_regions: bool, ranks: Ranks
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Pieces with their answers, in order: on process 0, the others yield nothing.

    Process r answers every n-th piece, from the r-th on: with the same numbers as a process that answers all of them.
    Process 0 holds n pieces at a time, the others their own. A model in regions answers each piece by all processes.
    """
    table = iter(table)
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
        keep = [str(name) for name in next(iter(stream_table(table, rows=1000))).frame.columns]
    is_csv = table == "-" or any(table.lower().endswith(ending) for ending in CSV_ENDINGS)
    inputs = model.encoder_.names_in
    return keep, [name for name in keep if is_csv and inputs is not None and name not in inputs]
