"""``cagp bench structures``: what the default regressor chooses on data with known structure, and how near it comes.

Errors are those to the function without noise, in standard deviations of the training targets. "Nats above the truth"
is the mean of log p(y | x) under the truth minus that of the predictions, over test rows: zero is perfect. It includes
what a finite number of rows cannot tell. Each run has a process of its own, which is killed at the time limit.
"""

import argparse
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console

from cagp.memory import current_memory, peak_memory
from cagp_bench.contenders import add_contenders, answers_of, scores_of
from cagp_bench.options import add_max_time, add_seeds
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, attempt, cell, collect, machine, show
from cagp_bench.structures import STRUCTURES, TEST_ROWS, sample


class Run(NamedTuple):
    """What is fitted to which rows; see ``STRUCTURES`` and ``CONTENDERS``."""

    structure: str
    method: str
    seed: int
    rows: int


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench structures``."""
    suite.description = (
        "Generate data whose function and noise are known, fit the default regressor, and print what it chose, what "
        "would be right, its error and how far its density is from the true one."
    )
    suite.epilog = "example:\n  cagp bench structures --only additive steps --methods default local"
    suite.add_argument("--rows", type=int, default=6000, metavar="N", help="training rows (default: %(default)s)")
    add_seeds(suite)
    add_contenders(suite, ["default"])
    suite.add_argument("--only", nargs="+", metavar="NAME", help="names of structures (default: all)")
    add_max_time(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Fit every structure with every method and seed, and print a record for each fit; return 1 if any failed."""
    names = arguments.only or list(STRUCTURES)
    unknown = [name for name in names if name not in STRUCTURES]
    if unknown:
        raise ValueError(f"--only names {unknown[0]!r}, expected some of {', '.join(STRUCTURES)}.")
    if arguments.rows < 10:
        raise ValueError(f"--rows is {arguments.rows}, expected at least 10 training rows.")
    seeds, methods = arguments.seeds, arguments.methods
    runs = [Run(name, method, seed, arguments.rows) for name in names for seed in seeds for method in methods]
    measurements = [partial(measure_alone, run, arguments.max_time) for run in runs]
    return collect(measurements, _in_words, partial(_show, as_json=arguments.json))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['structure']}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    chosen = f" chose {record['fitted']}" if "fitted" in record else ""
    return f"{start}{chosen}: {record['nats_above_truth']:.3f} nats above the truth, {record['fit_s']:.1f} s"


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    columns = {
        "structure": cell("structure"),
        "seed": cell("seed"),
        "method": cell("method"),
        "chose": lambda r: FAILED if "error" in r else r.get("fitted", ""),
        "RMSE to truth": cell("rmse_to_truth", "{:.4f}"),
        "noise": cell("noise_std", "{:.3f}"),
        "nats above truth": cell("nats_above_truth", "{:.3f}"),
        "best Gaussian": cell("best_gaussian_above_truth", "{:.3f}"),
        "95 % coverage": cell("coverage", "{:.1f} %", unit=0.01),
        "fit, s": cell("fit_s", "{:.1f}"),
    }
    show(records, columns, as_json, num_keys=3)
    if as_json:
        return
    console = Console()
    for name in dict.fromkeys(record["structure"] for record in records):
        structure = STRUCTURES[name]
        console.print(f"\n{name}: {structure.words}.\n  right: {structure.expected}.", highlight=False, markup=False)
        for record in records:
            if record["structure"] == name and record.get("choice"):
                start = f"  {record['method']}, seed {record['seed']}"
                tried = "".join(f"\n    {line}" for line in record.get("choices") or [])
                console.print(f"{start}: {record['choice']}{tried}", highlight=False, markup=False)


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    record = {**machine(), **run._asdict(), "max_time": max_time}
    record |= {"words": STRUCTURES[run.structure].words, "expected": STRUCTURES[run.structure].expected}
    return record | in_new_process("cagp_bench.structure_quality", {"run": run._asdict()}, max_time)


def measure(run: Run) -> dict[str, Any]:
    """Quality, time and peak memory of one run in this process; a failure is a record with ``error``."""
    about = {"cagp": version("cagp"), "imports_bytes": current_memory()}
    return {**about, **attempt(partial(_quality, run)), "peak_bytes": peak_memory()}


def _quality(run: Run) -> dict[str, Any]:
    whole = sample(STRUCTURES[run.structure], run.rows, run.seed)
    test = type(whole)(*(values[-TEST_ROWS:] for values in whole))
    X, y = whole.X[:-TEST_ROWS], whole.y[:-TEST_ROWS]
    frame, points = (pd.DataFrame(part, columns=[f"x{j}" for j in range(X.shape[1])]) for part in (X, test.X))
    answers = answers_of(run.method, frame, y, points, test.y, run.seed)
    unit = float(y.std(ddof=1))
    return {
        "n": len(y),
        "d": X.shape[1],
        "num_test": TEST_ROWS,
        **scores_of(answers, test.y, unit)._asdict(),
        "rmse_to_truth": float(np.sqrt(np.mean((answers.mean - test.f) ** 2))) / unit,
        "noise_std": float(np.sqrt(test.variance.mean())) / unit,
        "nats_above_truth": float(np.mean(test.log_density - answers.log_density)),
        "best_gaussian_above_truth": float(np.mean(test.log_density - test.gaussian_log_density)),
        "fit_s": answers.fit_s,
        "predict_s": answers.predict_s,
        **answers.details,
    }


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
