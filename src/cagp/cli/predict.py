"""``cagp predict``: means and error bars for the rows of a table, a piece at a time."""

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from cagp.cli import options
from cagp.cli.words import UsageError, Voice, check_shared_table, count, names
from cagp.lazy import lazy_module
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch

    from cagp import estimators, shards
    from cagp import progress as progress_bars
    from cagp import ranks as processes
    from cagp.cli import classes, spreadsheets, tables
    from cagp.data import tables as data_tables
else:
    np, pd, torch, progress_bars = map(lazy_module, ("numpy", "pandas", "torch", "cagp.progress"))
    processes, shards = map(lazy_module, ("cagp.ranks", "cagp.shards"))
    estimators, tables = map(lazy_module, ("cagp.estimators", "cagp.cli.tables"))
    spreadsheets, classes = map(lazy_module, ("cagp.cli.spreadsheets", "cagp.cli.classes"))
    data_tables = lazy_module("cagp.data.tables")

INTERVALS = ("model", "conformal")
COLUMNS = ("mean", "std", "lower", "upper")

DESCRIPTION = """\
Predict the rows of a table, in their order, one line for each. Input and output are processed in pieces: both may be
larger than memory. Columns that the model does not know are ignored, and so are targets.

The columns of the result are named after the target: price_mean, price_std, price_lower, price_upper, or price_q0.05
for quantiles. A classifier gives diagnosis_class, the most probable class, and diagnosis_p_flu and so on, the
probability of each class. std is the standard deviation of a new observation, noise included; lower and upper are the
ends of its central interval. A file is written whole or not at all: after an error the old one is still there. Messages
count rows from 0, the first one below the names.

Started by torchrun, the processes share the rows: each predicts every n-th piece, and the first writes all in order.
Model and table are files that every process can read. Of a model in regions (cagp fit --shards), each process loads
some regions, for any number of processes, and answers the rows in them."""

EPILOG = """\
examples:
  cagp predict houses.cagp new.csv
  cagp predict houses.cagp new.csv --out houses.parquet --keep id --level 0.9
  cagp predict houses.cagp new.csv --interval conformal --level 0.9
  cagp predict houses.cagp new.csv --quantiles 0.1 0.5 0.9 --out -
  cat new.csv | cagp predict houses.cagp - --columns mean --out - | head"""


def add_to(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp predict``."""
    command.description, command.epilog = DESCRIPTION, EPILOG
    options.add_pieces(command)
    command.add_argument(
        "--out",
        default="predictions.csv",
        metavar="FILE",
        help='.csv, .csv.gz or .parquet; "-" for CSV on stdout; replaced if it exists (default: %(default)s)',
    )
    command.add_argument(
        "--level",
        type=options.probability,
        default=0.95,
        help="probability of the interval from lower to upper (default: 0.95)",
    )
    command.add_argument(
        "--interval",
        choices=INTERVALS,
        default="model",
        metavar="KIND",
        help="model: as the predicted distribution says; conformal: as wide as training rows need that are predicted "
        "without their own target, for local, hybrid and exact (default: %(default)s)",
    )
    command.add_argument(
        "--columns",
        nargs="+",
        choices=COLUMNS,
        metavar="NAME",
        help=f"any of {', '.join(COLUMNS)} (default: all four, or none beside --quantiles); the mean alone is faster",
    )
    command.add_argument(
        "--quantiles",
        nargs="+",
        type=options.probability,
        default=[],
        metavar="Q",
        help="quantiles of a new observation",
    )
    command.add_argument(
        "--keep", nargs="+", default=[], metavar="COLUMN", help='columns of the table to copy, or "all"'
    )
    command.add_argument(
        "--keep-formulas",
        action="store_true",
        help="copy text that begins with =, +, - or @ as it is; without this, CSV has a ' before it, because "
        "spreadsheets would run it",
    )
    command.add_argument("--quiet", action="store_true", help="print warnings and errors only")
    command.set_defaults(run=run, ranks=True)


def run(arguments: argparse.Namespace) -> int:
    """Predict, write, and say where."""
    paths = (arguments.out, arguments.table)
    if all(map(os.path.exists, paths)) and os.path.samefile(*paths):
        raise UsageError(f"--out is the table itself, {arguments.table}; choose another name.")
    columns: list[str] = arguments.columns or ([] if arguments.quantiles else list(COLUMNS))
    ranks = processes.Ranks.here()
    check_shared_table(arguments.table, ranks.size)
    quiet = arguments.quiet or not ranks.is_first
    voice = Voice(quiet, data_on_stdout=arguments.out == "-")
    # Before the model: a name that cannot be written is found at once.
    ranks.from_first(lambda: {"writable": data_tables.TableWriter(arguments.out) is not None})
    model = estimators.load(arguments.model)
    if ranks.is_first:
        tables.warn_of_noise(model, arguments.noise)
    classifier = isinstance(model, estimators.CaGPClassifier)
    if classifier and (arguments.columns or arguments.quantiles or arguments.interval != "model"):
        raise UsageError(
            f"{arguments.model} is a classifier: it predicts classes and probabilities. Remove --columns, "
            "--quantiles and --interval."
        )
    if not classifier and model.likelihood != GAUSSIAN and arguments.interval == "conformal":
        raise UsageError(
            f"{arguments.model} has the likelihood {model.likelihood}: conformal intervals are for Gaussian noise. "
            "Remove --interval."
        )
    keep, verbatim = _kept(model, arguments.table, arguments.keep)
    results = [f"{t}_{c}" for t in model.target_names_ for c in [*columns, *map(_quantile_name, arguments.quantiles)]]
    if classifier:
        results = classes.probability_columns(model)
    written = [*keep, *([f"{model.target_name_}_class"] if classifier else []), *results]
    if set(results) & set(keep):
        raise UsageError(f"--keep has {names(sorted(set(results) & set(keep)))}, which is also a column of the result.")
    counts = not classifier and model.likelihood in likelihoods_of("counts")
    whole = [name for name in results if counts and not name.endswith(("_mean", "_std"))]
    unknown, lacking = Counter(), Counter()  # rows with levels, and with gaps, that no training row had
    start = time.perf_counter()
    pieces = tables.pieces(model, arguments.table, arguments.rows_at_a_time, verbatim, arguments.noise)
    in_regions = isinstance(model.posteriors_[0], shards.RegionPosterior)

    def answer(piece: "tables.Piece") -> "list[np.ndarray]":
        if classifier:
            return list(model.predict_proba(piece.inputs).T)
        return _answers(model, piece, columns, arguments)

    answered = _answered(pieces, answer, len(results), in_regions, ranks)
    if not ranks.is_first:
        for _ in answered:
            pass
        ranks.leave()
        return 0
    writer = data_tables.TableWriter(arguments.out)
    neutralised = spreadsheets.Neutralised()
    as_it_is = arguments.keep_formulas or arguments.out.lower().endswith(".parquet")
    with progress_bars.TableProgress("predict", enabled=not quiet) as progress, writer:
        for piece, answers in answered:
            unknown += Counter(model.encoder_.num_unknown(piece.inputs.matrix))
            lacking += Counter(model.encoder_.num_missing(piece.inputs.matrix))
            result = pd.DataFrame(dict(zip(results, answers, strict=True)), index=piece.frame.index)
            result = result.astype(dict.fromkeys(whole, "int64"))
            if classifier:
                chosen = np.stack(answers, axis=1).argmax(1)
                result.insert(0, f"{model.target_name_}_class", model.classes_[chosen])
            if keep:
                kept = _columns(piece.frame, keep).astype(dict.fromkeys(verbatim, "string"))
                result = pd.concat([kept if as_it_is else neutralised(kept), result], axis=1)
            writer.write(result)
            progress.advance(len(result), piece.fraction)
    ranks.leave()
    neutralised.tell()
    tables.warn_of_levels(unknown)
    tables.warn_of_missing(lacking)
    seconds = time.perf_counter() - start
    if arguments.out != "-":
        voice.say(f"Wrote {arguments.out}: {count(progress.done, 'row')} in {seconds:.1f} s; {names(written, 12)}.")
    return 0


def _answered(
    pieces: "Iterator[tables.Piece]",
    answer: "Callable[[tables.Piece], list[np.ndarray]]",
    num_columns: int,
    in_regions: bool,
    ranks: "processes.Ranks",
) -> "Iterator[tuple[Any, list[np.ndarray]]]":
    """Pieces with their answers, in order: on process 0, the others yield nothing.

    Process r answers every n-th piece, from the r-th on: with the same numbers as a process that answers all of them.
    Process 0 holds n pieces at a time, the others their own. A model in regions answers each piece by all processes.
    """
    pieces = iter(pieces)
    if in_regions:
        for piece in pieces:
            found = answer(piece)
            if ranks.is_first:
                yield piece, found
        return
    while turn := [piece if ranks.rank in (0, k) else None for k, piece in enumerate(islice(pieces, ranks.size))]:
        own = turn[ranks.rank] if ranks.rank < len(turn) else None
        found = np.zeros((0, num_columns)) if own is None else np.stack(answer(own), axis=1)
        answers = ranks.to_first(torch.from_numpy(found.astype(np.float64)))
        if ranks.is_first:
            for piece, values in zip(turn, answers, strict=False):
                yield piece, list(values.numpy().astype(found.dtype).T)


def _answers(
    model: Any, piece: "tables.Piece", columns: list[str], arguments: argparse.Namespace
) -> "list[np.ndarray]":
    """What the user asks for, target by target; the standard deviation is computed only where it is needed."""
    quantiles, level = arguments.quantiles, arguments.level
    if columns == ["mean"] and not quantiles:
        mean = np.asarray(model.predict(piece.inputs)).reshape(-1, model.n_outputs_)
        return list(mean.T)
    found = model.predictive(piece.inputs, piece.noise)
    ends = found.quantiles([0.5 - level / 2, 0.5 + level / 2])
    if arguments.interval == "conformal":
        ends = found.at(model.fitted.conformal_factors(level)[:, None] * np.array([-1.0, 1.0]))
    columns_of = {"mean": found.mean(), "std": found.std(), "lower": ends[..., 0], "upper": ends[..., 1]}
    asked = found.quantiles(quantiles)
    answers = []
    for j in range(model.n_outputs_):
        answers += [columns_of[name][:, j] for name in columns]
        answers += list(asked[:, j].T)
    return [answer.astype(model.units_.target_dtype, copy=False) for answer in answers]


def _quantile_name(quantile: float) -> str:
    return f"q{quantile:g}"


def _kept(model: Any, table: str, keep: list[str]) -> tuple[list[str], list[str]]:
    """The columns to copy, and those of them to take from a CSV file as they are written there: all but inputs."""
    if not keep:
        return [], []
    is_csv = table == "-" or any(table.lower().endswith(ending) for ending in data_tables.CSV_ENDINGS)
    if keep == ["all"]:
        if table == "-":
            raise UsageError('--keep all needs a file: name the columns to keep of "-".')
        keep = [str(name) for name in next(iter(data_tables.stream_table(table, rows=1000))).frame.columns]
    inputs = set(model.encoder_.names_in or ())
    if model.encoder_.names_in is None:
        return keep, []
    return keep, [name for name in keep if is_csv and name not in inputs]


def _columns(frame: "pd.DataFrame", keep: list[str]) -> "pd.DataFrame":
    absent = [name for name in keep if name not in frame.columns]
    if absent:
        raise UsageError(
            f"--keep names {', '.join(map(repr, absent))}, which the table does not have; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    return frame.loc[:, keep]
