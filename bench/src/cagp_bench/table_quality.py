"""``cagp bench tables``: the default regressor beside what a person with a table would reach for.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender is given the training
rows as they come and makes its choices on these alone. Predictions are scored in units of the standard deviation of
the training targets. Each run has a process of its own, which is killed at the time limit.
"""

import argparse
import json
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from cagp.cli.plugins import UsageError
from cagp.data import read_table, split
from cagp.memory import current_memory, peak_memory
from cagp_bench.choices import CONTENDERS
from cagp_bench.contenders import add_contenders, answers_of, half_coverage_error, scores_of, settings_of
from cagp_bench.options import add_fit_time, add_max_time, add_records, add_rows, add_seeds, add_tables, add_target
from cagp_bench.processes import answer, in_new_process
from cagp_bench.record_files import read_records
from cagp_bench.records import attempt, machine
from cagp_bench.resuming import carry_out, key_of
from cagp_bench.summaries import summarize, summary_text, table_name

TEST_SHARE = 0.1


class Run(NamedTuple):
    """What is fitted to which rows; see ``CONTENDERS``."""

    table: str  # a path
    target: str
    rows: int | None
    method: str
    seed: int
    fit_time: str | None = None  # how long a fit may take


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench tables``."""
    suite.description = (
        "Fit the default regressor and others to tables: 90/10 splits by seed, each run in a process of its own. Print "
        "means over the splits and paired differences to the default, with standard errors. Errors are in standard "
        "deviations of the training targets."
    )
    suite.epilog = (
        "examples:\n  cagp bench tables bike.npz protein.npz --seeds 0 1 2 3 4 --records runs.jsonl\n"
        "  cagp bench tables houses.csv --target price --methods default lightgbm\n"
        "  cagp bench tables --records runs.jsonl"
    )
    add_tables(suite, "*", "NPZ, CSV or Parquet files; none to show --records")
    add_target(suite)
    add_seeds(suite)
    add_contenders(suite, ["default", "lightgbm", "catboost", "gpboost"])
    add_rows(suite)
    unlimited = [name for name, contender in CONTENDERS.items() if not contender.takes_limit]
    words = f"how long a fit may take, e.g. 10min (default: any time); {', '.join(unlimited)} have no such limit"
    add_fit_time(suite, words)
    add_max_time(suite)
    add_records(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Every method on every table with every seed, unless it is recorded; without tables, what was recorded."""
    if not arguments.tables and arguments.records is None:
        raise UsageError("name tables to fit, or --records FILE to show what was measured.")
    if not arguments.tables:
        stored = read_records(arguments.records)
        _show(stored, arguments.json)
        return int(any("error" in record for record in stored))
    runs = [
        Run(str(table), arguments.target, arguments.rows, method, seed, limit)
        for table in arguments.tables
        for seed in arguments.seeds
        for method in arguments.methods
        for limit in [arguments.fit_time if CONTENDERS[method].takes_limit else None]
    ]
    _check_names(runs)
    return carry_out(
        {_key(run): partial(measure_alone, run, arguments.max_time) for run in runs},
        _key_of,
        arguments.max_time,
        arguments.records,
        _in_words,
        partial(_show, as_json=arguments.json),
    )


def _check_names(runs: list[Run]) -> None:
    paths = {}
    for run in runs:
        first = paths.setdefault(Path(run.table).stem, run.table)
        if first != run.table:
            raise ValueError(f"{first} and {run.table} have the same name, which records know tables by; rename one.")


def _key(run: Run) -> str:
    """What makes two runs the same, whichever version of the code carried them out."""
    return _key_of({**run._asdict(), "table": Path(run.table).stem, "settings": settings_of(run.method)})


def _key_of(record: dict[str, Any]) -> str:
    return key_of(record, (*Run._fields, "settings"))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{table_name(record)}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.3f}, RMSE {record['rmse']:.4g}, {record['fit_s'] + record['predict_s']:.1f} s"


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    """All records and their summary as JSON, or the summary as text."""
    lines = summarize(records)
    if as_json:
        print(json.dumps({"records": records, "summary": [line.as_record() for line in lines]}, indent=1))
        return
    if not records:
        print("no records")
        return
    console = Console()
    found = {name: dict.fromkeys(str(record.get(name)) for record in records) for name in machine()}
    console.print("  ".join(f"{name} {', '.join(values)}" for name, values in found.items()), style="dim")
    print(summary_text(lines, console.width))
    for record in records:
        if "error" in record:
            console.print(f"failed: {_in_words(record)}", style="red", soft_wrap=True, markup=False)


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    names = {**run._asdict(), "table": Path(run.table).stem, "settings": settings_of(run.method)}
    result = in_new_process("cagp_bench.table_quality", {"run": run._asdict()}, max_time)
    return {**machine(), **names, "max_time": max_time, **result}


def measure(run: Run) -> dict[str, Any]:
    """Quality, times and peak memory of one run in this process; a failure is a record with ``error``."""
    about = {"cagp": version("cagp"), "imports_bytes": current_memory()}
    return {**about, **attempt(partial(_quality, run)), "peak_bytes": peak_memory()}


def _quality(run: Run) -> dict[str, Any]:
    X, y = load_frame(Path(run.table), run.target, run.rows)
    rows = split(len(y), TEST_SHARE, run.seed)
    train, test = rows.train.numpy(), rows.test.numpy()
    y_train, y_test = y[train], y[test]
    X_train, X_test = (X.iloc[part].reset_index(drop=True) for part in (train, test))
    began = time.process_time()
    answers = answers_of(run.method, X_train, y_train, X_test, y_test, run.seed, run.fit_time)
    spent = time.process_time() - began  # of all threads: other work on the machine does not count
    return {
        "n": len(train),
        "d": X.shape[1],
        "num_test": len(test),
        **scores_of(answers, y_test, float(y_train.std(ddof=1)))._asdict(),
        "coverage_error_50": half_coverage_error(answers, y_test),
        "gaussian": answers.quantiles is None,
        "fit_s": answers.fit_s,
        "predict_s": answers.predict_s,
        "cpu_s": spent,
        **answers.details,
    }


def load_frame(path: Path, target: str, num_rows: int | None = None) -> tuple[pd.DataFrame, np.ndarray]:
    """Inputs as they come and targets of a table, without rows whose target is missing.

    All such rows, or ``num_rows`` random ones, the same each time.
    """
    frame = read_table(path)
    if target not in frame.columns:
        listed = ", ".join(map(str, frame.columns))
        raise ValueError(f"{path} has no column {target!r} to predict; name one with --target: {listed}.")
    y = np.asarray(frame[target], dtype=np.float64)
    rows = np.flatnonzero(~np.isnan(y))
    if num_rows is not None and num_rows < len(rows):
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:num_rows].numpy()]
    return frame.drop(columns=target).iloc[rows].reset_index(drop=True), y[rows]


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
