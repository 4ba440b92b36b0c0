"""``cagp bench classes``: the classifier beside what a person would reach for, on your tables.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender is given the training
rows as they come and makes its choices on these alone. For validation, the test rows are put away: a tenth of the
training rows is scored instead. Each run has a process of its own, which is killed at the time limit.
"""

import copy
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from cagp.class_metrics import class_scores
from cagp.data import split
from cagp.data.tables import read_table
from cagp.estimators import CaGPClassifier
from cagp.memory import peak_memory
from cagp.posteriors import LocalPosterior
from cagp.quantities import seconds_of
from cagp.recipes import with_scores
from cagp_bench.class_peers import PEERS
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import Columns, in_one_line, machine, show
from cagp_bench.resuming import carry_out, key_of, stored_records, with_enough_time

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
PREDICTING = (1, 2, 4)
"""Neighbours in predictions that validation compares, times those of training."""


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


def run_all(runs: list[Run], max_time: str, records: Path | None, as_json: bool) -> int:
    """Carry out the runs that the file of records does not have, and show all of them; return 1 if any failed."""
    seconds_of(max_time)
    stored = stored_records(records)
    found = {key_of(record, Run._fields): record for record in stored if with_enough_time(record, max_time)}
    return carry_out(
        [key_of(_named(run), Run._fields) for run in runs],
        found,
        lambda number: measure_alone(runs[number], max_time),
        records,
        _in_words,
        partial(show, columns=_columns(), as_json=as_json, num_keys=3),
    )


def _named(run: Run) -> dict[str, Any]:
    return {**run._asdict(), "table": Path(run.table).stem}


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    start = time.perf_counter()
    result = in_new_process("cagp_bench.class_quality", {"run": run._asdict()}, max_time)
    return {**machine(), **_named(run), "max_time": max_time, **result, "total_s": time.perf_counter() - start}


def measure(run: Run) -> dict[str, Any]:
    """Scores and times of one run in this process; a failure is a record with ``error``."""
    about = {"cagp": version("cagp")}
    try:
        return {**about, **_quality(run), "peak_bytes": peak_memory()}
    except Exception as error:
        return {**about, "error": in_one_line(error)}


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
    tried = details.pop("more_neighbours", {})
    details["predicting"] = {times: class_scores(codes[test], p)._asdict() for times, p in tried.items()}
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
    if run.validation:
        details["more_neighbours"] = _more_neighbours(model, X_test)
    return found, details


def _more_neighbours(model: CaGPClassifier, X_test: pd.DataFrame) -> dict[str, np.ndarray]:
    """Probabilities with more or fewer neighbours in predictions, times those of training."""
    other, found = copy.copy(model), {}
    for times in PREDICTING:
        own = [p for p in model.posteriors_ if isinstance(p, LocalPosterior)]
        if len(own) < len(model.posteriors_):
            return {}
        other.posteriors_ = [p.with_neighbours(times * p.num_neighbours // with_scores.PREDICTING) for p in own]
        found[str(times)] = other.predict_proba(X_test)
    return found


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


def _columns() -> Columns:
    def column(name: str, form: str):
        otherwise = "failed" if name == "log_loss" else ""
        return lambda record: form.format(record[name]) if record.get(name) is not None else otherwise

    return {
        "table": lambda record: record["table"],
        "seed": lambda record: str(record["seed"]),
        "method": lambda record: record["method"],
        "neighbours": column("n_neighbors", "{}"),
        "rows": column("n", "{:,}"),
        "log loss": column("log_loss", "{:.4f}"),
        "wrong": column("error_share", "{:.4f}"),
        "Brier": column("brier", "{:.4f}"),
        "calibration": column("calibration_error", "{:.4f}"),
        "CPU, s": column("cpu_s", "{:.1f}"),
    }


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
