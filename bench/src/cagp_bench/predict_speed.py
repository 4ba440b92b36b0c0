"""``cagp bench predict``: rows per second that each method predicts, with standard deviations.

Each method has a process of its own. It is fitted to a generated table within a time limit: what matters here is what a
prediction costs, not how good it is. Test rows are predicted in pieces until all are done or the time is over, so that
a slow method predicts fewer of them; its rate is that of the rows it predicted.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cagp import CaGPRegressor
from cagp.memory import peak_memory
from cagp_bench.options import add_fit_time, add_max_time, add_methods, positive
from cagp_bench.processes import answer, in_new_process
from cagp_bench.record_files import append_record
from cagp_bench.records import FAILED, cell, collect, machine, show
from cagp_bench.scale import NUM_DIMS, table

PIECE = 65_536
FIRST_PIECE = 512
"""Rows of the first piece, which is not timed: it builds what later ones use. Then pieces grow."""


PREDICTED: dict[str, int | None] = {
    "exact": 2_000,
    "local": None,
    "hybrid": None,
    "opt": None,
    "cg": 4_000,
    "sgpr": None,
    "svgp": None,
    "auto": None,
}
"""Methods, and the most training rows that suit them; None: any number."""


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench predict``."""
    suite.description = (
        "Fit each method to a generated table with 3 columns, and count the rows that it predicts in a second, with "
        "standard deviations; each in a process of its own. exact has at most 2,000 training rows, cg 4,000."
    )
    suite.epilog = "example:\n  cagp bench predict --methods local opt --test-rows 100000"
    suite.add_argument(
        "--rows", type=positive, default=100_000, metavar="N", help="training rows (default: %(default)s)"
    )
    suite.add_argument(
        "--test-rows", type=positive, default=1_000_000, metavar="N", help="rows to predict (default: %(default)s)"
    )
    add_methods(suite, PREDICTED, PREDICTED)
    add_fit_time(suite, "max_time of each fit (default: %(default)s)")
    suite.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="predictions end after these: the rate is then that of the rows so far (default: %(default)s)",
    )
    add_max_time(suite)
    suite.add_argument("--records", type=Path, metavar="FILE", help="append a JSON line for each run to FILE")
    suite.set_defaults(run=run, fit_time="30s")


def run(arguments: argparse.Namespace) -> int:
    """Measure every method and print a record for each; return 1 if any failed."""

    def measured(method: str) -> dict[str, Any]:
        rows = min(arguments.rows, PREDICTED[method] or arguments.rows)
        options = {"method": method, "rows": rows, "test_rows": arguments.test_rows}
        options |= {"fit_time": arguments.fit_time, "seconds": arguments.seconds}
        record = {**machine(), **options, **in_new_process("cagp_bench.predict_speed", options, arguments.max_time)}
        if arguments.records is not None:
            append_record(arguments.records, record)
        return record

    return collect(
        [partial(measured, method) for method in arguments.methods],
        cell("method"),
        partial(show, columns=COLUMNS, as_json=arguments.json),
    )


COLUMNS = {
    "method": cell("method"),
    "training rows": cell("rows", "{:,}"),
    "rows a second": cell("rows_per_second", "{:,.0f}", FAILED),
    "rows a CPU second": cell("rows_per_cpu_second", "{:,.0f}"),
    "predicted rows": cell("predicted_rows", "{:,}"),
    "model": cell("fitted"),
    "peak, MB": cell("peak_bytes", "{:,.0f}", unit=1e6),
}


def measure(method: str, rows: int, test_rows: int, fit_time: str, seconds: float) -> dict[str, Any]:
    """The rate at which a model predicts means and standard deviations, and its peak memory."""
    X, y = table(rows)
    model = CaGPRegressor(method=method, max_time=fit_time).fit(X.numpy(), y.numpy())
    test = table(test_rows + FIRST_PIECE, seed=1)[0].numpy()
    model.predict(test[:FIRST_PIECE], return_std=True)
    start, done, size = (time.perf_counter(), time.process_time()), 0, FIRST_PIECE
    while done < test_rows and time.perf_counter() - start[0] < seconds:
        part = test[FIRST_PIECE + done : FIRST_PIECE + min(done + size, test_rows)]
        model.predict(part, return_std=True)
        done, size = done + len(part), min(2 * size, PIECE)
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    return {
        "columns": NUM_DIMS,
        "threads": torch.get_num_threads(),
        "fitted": model.method_ if model.trees_ is None else f"{model.method_}, trees in the mean",
        "predicted_rows": done,
        "predict_seconds": wall,
        "predict_cpu_seconds": cpu,
        "rows_per_second": done / wall,
        "rows_per_cpu_second": done / cpu,
        "peak_bytes": peak_memory(),
    }


if __name__ == "__main__":
    answer(measure)
