"""``cagp bench local`` with tables: how well CaGP-Local predicts, beside other methods.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Inputs and targets are standardised with
the training rows; the kernel is Matérn 3/2. Nothing is chosen by looking at test rows: every method runs with fixed
settings. Each run has a process of its own, which is killed at the time limit.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp import metrics
from cagp.bench.choices import METHODS, NUM_ACTIONS
from cagp.bench.peers import Outcome, gpboost_outcome
from cagp.bench.processes import answer, in_new_process
from cagp.bench.protocol import load_table, new_method
from cagp.bench.records import collect, in_one_line, machine, score_columns, show
from cagp.data import split, standardized
from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods.cagp_local import CaGPLocal, Objective
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.recipes.steps import constant_actions
from cagp.starting import start_from_data
from cagp.training import fit

NOISE_FLOOR = 1e-9
"""Of local and hybrid, in float64: without noise in the table, the usual 1e-6 would determine the intervals' width."""


class Run(NamedTuple):
    """What is fitted to which rows; see ``METHODS``."""

    table: str
    method: str
    seed: int
    num_neighbours: int = 32
    num_actions: int = NUM_ACTIONS
    num_rows: int | None = None
    objective: Objective = "loo"


def run_all(runs: list[Run], max_time: str, as_json: bool) -> int:
    """Carry out each run in a process of its own and print a record for each; return 1 if any failed."""
    seconds_of(max_time)  # an invalid limit is an error now, not after the first table
    return collect([partial(measure_alone, run, max_time) for run in runs], _in_words, partial(_show, as_json=as_json))


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    def number(key: str, digits: int, scale: float = 1.0) -> Callable[[dict[str, Any]], str]:
        return lambda r: f"{r[key] / scale:,.{digits}f}" if key in r else ""

    show(
        records,
        {
            "table": lambda r: r["table"],
            "seed": lambda r: str(r["seed"]),
            "method": lambda r: r["method"],
            **score_columns(),
            "fit, s": number("fit_s", 1),
            "predict, s": number("predict_s", 1),
            "MB": number("peak_bytes", 0, 1e6),
        },
        as_json,
        num_keys=3,
    )


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.3f}, fit {record['fit_s']:.1f} s, predictions {record['predict_s']:.1f} s"


def measure_alone(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run in a process of its own; a failure is a record too, with ``error``."""
    record = {**machine(), "table": Path(run.table).stem, "method": run.method, "seed": run.seed, "max_time": max_time}
    start = time.perf_counter()
    result = in_new_process("cagp.bench.local_quality", {"run": run._asdict()}, max_time)
    return {**record, **result, "total_s": time.perf_counter() - start}


def measure(run: Run) -> dict[str, Any]:
    """Quality, times and peak memory of one run in this process; a failure is a record with ``error``."""
    imports = {"imports_bytes": current_memory()}
    try:
        return {**machine(), **imports, **_quality(run), "peak_bytes": peak_memory()}
    except Exception as error:
        return {**machine(), **imports, "error": in_one_line(error), "peak_bytes": peak_memory()}


def _quality(run: Run) -> dict[str, Any]:
    X, y = load_table(Path(run.table), run.num_rows)
    rows = split(len(y), 0.1, run.seed)
    dtype = torch.float32 if run.method == "opt" else torch.float64
    (X, y), (X_test, y_test) = standardized(X, y, rows.train, rows.test, dtype=dtype)
    outcome = _outcome(run, X, y, X_test)
    return {
        "n": len(y),
        "d": X.shape[1],
        "num_test": len(y_test),
        "dtype": str(dtype).removeprefix("torch."),
        **metrics.scores(y_test, *outcome.prediction)._asdict(),
        "fit_s": outcome.fit_s,
        "predict_s": outcome.predict_s,
        **outcome.details,
    }


def _outcome(run: Run, X: Tensor, y: Tensor, X_test: Tensor) -> Outcome:
    if run.method not in METHODS:
        raise ValueError(f"method is {run.method!r}, expected one of {', '.join(METHODS)}.")
    return gpboost_outcome(X, y, X_test, run.seed) if run.method == "gpboost" else _ours(run, X, y, X_test)


def _ours(run: Run, X: Tensor, y: Tensor, X_test: Tensor) -> Outcome:
    """CaGP-Opt or CaGP-Local, the latter also with a local scale or with constant actions on blocks of rows."""
    start = time.perf_counter()
    details: dict[str, Any] = {"i": run.num_actions} if run.method in ("hybrid", "opt") else {}
    if run.method == "opt":
        method = new_method(X, y, run.num_actions, "spatial", "neighbours", run.seed)
        result = fit(method, X, y)
    else:
        prior = start_from_data(GP(Scale(Matern32(X.shape[1])), noise=GaussianNoise(noise_floor=NOISE_FLOOR)), X, y)
        method = CaGPLocal(prior, run.num_neighbours, objective=run.objective, seed=run.seed)
        result = fit(method, X, y)
        if run.method == "hybrid":
            shared = constant_actions(prior.kernel, X, run.num_actions, run.seed)
            method = CaGPLocal(prior, run.num_neighbours, shared=shared, seed=run.seed)
        elif run.method == "local-scale":
            choice = method.choose_local_scale(X, y)
            method = method.with_local_scale(choice.local_scale)
            details |= {"local_scale": choice.local_scale, "scale_rows": choice.num_rows, "scale_rows_nll": choice.nll}
        details |= {"k": run.num_neighbours, "k_predict": method.num_neighbours_predict, "noise_floor": NOISE_FLOOR}
        details |= {"objective": run.objective}
    posterior = method.condition(X, y)
    conditioned = time.perf_counter()
    prediction = posterior.predict(X_test, noise=True)
    predicted = time.perf_counter()
    details |= {"steps": len(result.steps), "train_s": result.seconds, "failures": len(result.failures)}
    details |= {"hyperparameters": method.hyperparameters(), "report": str(result)}
    return Outcome(prediction, conditioned - start, predicted - conditioned, details)


if __name__ == "__main__":
    answer(lambda run: measure(Run(**run)))
