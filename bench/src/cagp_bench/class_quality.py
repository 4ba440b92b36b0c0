"""``cagp bench classes``: the classifier beside what a person would reach for, on your tables.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender is given the training
rows as they come and makes its choices on these alone. For validation, the test rows are put away: a tenth of the
training rows is scored instead. Each run has a process of its own, which is killed at the time limit.
"""

import argparse
import itertools
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from cagp import CaGPClassifier
from cagp.class_metrics import class_scores
from cagp.data import read_table, split
from cagp.memory import peak_memory
from cagp_bench.class_peers import PEERS
from cagp_bench.options import (
    add_fit_time,
    add_max_time,
    add_methods,
    add_records,
    add_rows,
    add_seeds,
    add_tables,
    add_target,
    positive,
)
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, attempt, cell, machine, show
from cagp_bench.resuming import carry_out, key_of

OWN: dict[str, dict[str, Any]] = {
    "default": {},
    "local": {"method": "local", "mean": "zero"},
    "trees": {"method": "local", "mean": "trees"},
    "hybrid": {"method": "hybrid", "mean": "zero"},
    "opt": {"method": "opt", "mean": "zero"},
    "exact": {"method": "exact", "mean": "zero"},
}
"""Options of ``CaGPClassifier`` for each contender that is one."""

TEST_SHARE = 0.1


class Run(NamedTuple):
    """What is fitted to which rows."""

    table: str  # a path
    target: str
    rows: int | None  # of the table, drawn at random; None for all
    above_median: bool  # classes are whether the target is above its median
    validation: bool  # score training rows that are held out, instead of test rows
    method: str
    seed: int
    n_neighbors: int | None = None  # of the contenders of this package; None for their default
    fit_time: str | None = None  # ``max_time`` of these


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench classes``."""
    suite.description = (
        "Fit classifiers to 90 % of the rows of each table and score the probabilities of the others: log loss, "
        "share of wrong classes, Brier score, calibration error, processor seconds. Each run has a process of its own."
    )
    suite.epilog = (
        "examples:\n  OMP_NUM_THREADS=1 cagp bench classes magic.npz --methods local trees lightgbm\n"
        "  cagp bench classes protein.npz --above-median --validation --seeds 100 --n-neighbors 32 64\n"
        "  cagp bench classes ocean_atlas.npz --above-median --rows 1111112 --fit-time 8min"
    )
    add_tables(suite)
    add_target(suite)
    add_methods(suite, (*OWN, *PEERS), ("local", "trees", "lightgbm"))
    add_seeds(suite)
    add_rows(suite)
    suite.add_argument(
        "--above-median", action="store_true", help="the classes are whether the target, a number, is above its median"
    )
    suite.add_argument(
        "--validation", action="store_true", help="put the test rows away, and score a tenth of the training rows"
    )
    suite.add_argument(
        "--n-neighbors",
        type=positive,
        nargs="+",
        default=[None],
        metavar="K",
        help="neighbours in training of the contenders of this package, a run for each (default: theirs)",
    )
    add_fit_time(suite, "max_time of the contenders of this package, e.g. 8min (default: none)")
    add_max_time(suite)
    add_records(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out the runs that the file of records does not have, and show all of them; return 1 if any failed."""
    a = arguments
    cases = itertools.product(a.tables, a.seeds, a.methods, a.n_neighbors)
    runs = []
    for table, seed, method, count in cases:
        ours = (count, a.fit_time) if method in OWN else (None, None)
        runs.append(Run(str(table), a.target, a.rows, a.above_median, a.validation, method, seed, *ours))
    return carry_out(
        {key_of(_named(run), Run._fields): partial(measure_alone, run, a.max_time) for run in runs},
        partial(key_of, names=Run._fields),
        a.max_time,
        a.records,
        _in_words,
        partial(show, columns=COLUMNS, as_json=a.json, num_keys=3),
    )


def _named(run: Run) -> dict[str, Any]:
    return {**run._asdict(), "table": Path(run.table).stem}


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    result = in_new_process("cagp_bench.class_quality", {"run": run._asdict()}, max_time)
    return {**machine(), **_named(run), "max_time": max_time, **result}


def measure(run: Run) -> dict[str, Any]:
    """Scores and times of one run in this process; a failure is a record with ``error``."""
    return {"cagp": version("cagp"), **attempt(partial(_quality, run)), "peak_bytes": peak_memory()}


def _quality(run: Run) -> dict[str, Any]:
    X, codes = load_classes(Path(run.table), run.target, run.rows, run.above_median)
    rows = split(len(codes), TEST_SHARE, run.seed)
    train, test = rows.train.numpy(), rows.test.numpy()
    if run.validation:
        inner = split(len(train), TEST_SHARE, run.seed)
        train, test = train[inner.train.numpy()], train[inner.test.numpy()]
    X_train, X_test = (X.iloc[part].reset_index(drop=True) for part in (train, test))
    began, wall = time.process_time(), time.perf_counter()
    if run.method in PEERS:
        found, details = PEERS[run.method](X_train, codes[train], X_test, run.seed)
    else:
        found, details = _own(run, X_train, codes[train], X_test)
    spent = {"cpu_s": time.process_time() - began, "wall_s": time.perf_counter() - wall}
    scores = class_scores(codes[test], found)._asdict()
    scores["error_share"] = scores.pop("error")  # "error" in a record says that it failed
    counts = {"n": len(train), "d": X.shape[1], "num_test": len(test), "classes": int(codes.max()) + 1}
    return {**counts, **scores, **spent, **details}


def _own(run: Run, X: pd.DataFrame, codes: np.ndarray, X_test: pd.DataFrame) -> tuple[np.ndarray, dict[str, Any]]:
    options = dict(OWN[run.method])
    if run.n_neighbors is not None:
        options["n_neighbors"] = run.n_neighbors
    start = time.perf_counter()
    model = CaGPClassifier(**options, random_state=run.seed, max_time=run.fit_time).fit(X, codes)
    fitted = time.perf_counter()
    found = model.predict_proba(X_test)
    times = {"fit_s": fitted - start, "predict_s": time.perf_counter() - fitted}
    details = {"mean": "zero" if model.trees_ is None else "trees", **times}
    return found, details


def load_classes(
    path: Path, target: str, num_rows: int | None = None, above_median: bool = False
) -> tuple[pd.DataFrame, np.ndarray]:
    """Inputs as they come and the classes of a table as numbers from 0; all rows, or ``num_rows`` random ones."""
    frame = read_table(path)
    if target not in frame.columns:
        listed = ", ".join(map(str, frame.columns))
        raise ValueError(f"{path} has no column {target!r} to predict; name one with --target: {listed}.")
    if num_rows is not None and num_rows < len(frame):
        drawn = torch.randperm(len(frame), generator=torch.Generator().manual_seed(0))[:num_rows].numpy()
        frame = frame.iloc[drawn].reset_index(drop=True)
    labels = frame[target].to_numpy()
    labels = labels > np.median(labels) if above_median else labels
    return frame.drop(columns=target), np.unique(labels, return_inverse=True)[1].reshape(-1)


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: log loss {record['log_loss']:.4f}, {record['cpu_s']:.1f} s"


COLUMNS = {
    "table": cell("table"),
    "seed": cell("seed"),
    "method": cell("method"),
    "neighbours": cell("n_neighbors"),
    "rows": cell("n", "{:,}"),
    "log loss": cell("log_loss", "{:.4f}", FAILED),
    "wrong": cell("error_share", "{:.4f}"),
    "Brier": cell("brier", "{:.4f}"),
    "calibration": cell("calibration_error", "{:.4f}"),
    "CPU, s": cell("cpu_s", "{:.1f}"),
}


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
