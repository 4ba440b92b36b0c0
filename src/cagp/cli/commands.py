"""What each command is and takes: its description, examples and options. Importing this loads nothing heavy."""

import argparse
from pathlib import Path
from typing import Any

from cagp.cli.options import MODEL, PIECES, TABLE, add, methods_in_words, picture

COMPARED = ("local", "hybrid", "opt", "sgpr", "svgp")
MOST_EXACT_ROWS = 5000
"""What ``cagp compare`` compares by default; up to this many training rows the exact method, too."""


def fit(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp fit``."""
    command.description = FIT
    command.epilog = f"{FIT_EXAMPLES}\n\n{methods_in_words()}"
    add(command, *TABLE, "--method", "--classify", "--likelihood", "--exposure", *MODEL)
    _add_out(command, Path("model.cagp"), "the model")
    add(command, "--resume", "--report", "--store-float32", "--rows-beside", "--json", "--quiet")
    command.set_defaults(ranks=True)


def predict(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp predict``."""
    command.description, command.epilog = PREDICT, PREDICT_EXAMPLES
    add(command, *PIECES)
    _add_out(command, "predictions.csv", '.csv, .csv.gz or .parquet; "-" for CSV on stdout')
    add(command, "--level", "--interval", "--columns", "--quantiles", "--keep", "--keep-formulas", "--quiet")
    command.set_defaults(ranks=True)


def evaluate(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp evaluate``."""
    command.description, command.epilog = EVALUATE, EVALUATE_EXAMPLES
    add(command, *PIECES)
    add(command, "--split", default=None, help="the split of cagp fit, to test on the rows that it held out")
    share = "with --split: the share of the rows that was held out (default: 0.1)"
    add(command, "--test-fraction", default=None, help=share)
    add(command, "--seed", default=None, help="with --split: the random seed of the fit (default: 0)")
    add(command, "--report", "--json", "--quiet")


def compare(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp compare``."""
    command.description = COMPARE
    command.epilog = f"{COMPARE_EXAMPLES}\n\n{methods_in_words()}"
    add(command, *TABLE, "--methods", *(flag for flag in MODEL if flag != "--max-time"))
    add(command, "--max-time", default="10min")
    _add_out(command, Path("compare.png"), "the picture", type=picture)
    add(command, "--json")
    add(command, "--quiet", help="do not show progress")


def info(command: argparse.ArgumentParser) -> None:
    """The options of ``cagp info``."""
    command.description, command.epilog = INFO, INFO_EXAMPLES
    add(command, "model")
    add(command, "--json", help="print one JSON object on stdout")


def _add_out(command: argparse.ArgumentParser, default: str | Path, what: str, **more: Any) -> None:
    """Where the result goes."""
    words = f"{what}; replaced if it exists (default: %(default)s)"
    command.add_argument("--out", metavar="FILE", default=default, help=words, **{"type": type(default), **more})


# ---- texts ----

FIT = """\
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

FIT_EXAMPLES = """\
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
  torchrun --nproc-per-node 4 -m cagp fit dir --target y --method local --shards"""

PREDICT = """\
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

PREDICT_EXAMPLES = """\
examples:
  cagp predict houses.cagp new.csv
  cagp predict houses.cagp new.csv --out houses.parquet --keep id --level 0.9
  cagp predict houses.cagp new.csv --interval conformal --level 0.9
  cagp predict houses.cagp new.csv --quantiles 0.1 0.5 0.9 --out -
  cat new.csv | cagp predict houses.cagp - --columns mean --out - | head"""

EVALUATE = """\
Measure a model on a table with known targets: rows that it was not trained on. The table is read in pieces and may be
larger than memory. Rows without a target are left out. --report writes an HTML page on at most 20,000 of the rows,
drawn at random.

For the table that the model was fitted to, give --split, and --test-fraction and --seed if cagp fit had them: only the
rows are measured that cagp fit held out with the same options. The table must then fit into memory."""

EVALUATE_EXAMPLES = """\
examples:
  cagp evaluate houses.cagp sold.csv
  cagp evaluate houses.cagp sold.csv --report report.html
  cagp evaluate houses.cagp houses.csv --split random --test-fraction 0.2
  cagp evaluate houses.cagp sold.parquet --json"""

COMPARE = f"""\
Fit several methods to one table, one after the other, and test all on the same held-out rows. A method that fails is a
row of the result with its reason, and the exit code is 1. Without --methods: {", ".join(COMPARED)}, and exact up to
{MOST_EXACT_ROWS:,} rows. The table and the picture show quality against time. Nothing is saved: cagp fit does that."""

COMPARE_EXAMPLES = """\
examples:
  cagp compare houses.csv --target price
  cagp compare houses.csv --target price --methods local sgpr --max-time 1min
  cagp compare sales.csv --target units --split time:day --test-fraction 0.2
  cagp compare bike.npz --json > bike.json"""

INFO = """\
Say what is in a model file: where it comes from, what it was trained on and which rows it holds, its inputs, its
hyperparameters and the report of its fit. The whole file is read and its checksum verified; nothing in it is run."""

INFO_EXAMPLES = """\
examples:
  cagp info houses.cagp
  cagp info houses.cagp --json"""
