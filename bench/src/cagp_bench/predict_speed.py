"""``cagp bench predict``: rows per second that each method predicts, with standard deviations.

Each method has a process of its own. It is fitted to a generated table within a time limit: what matters here is what a
prediction costs, not how good it is. Test rows are predicted in pieces until all are done or the time is over, so that
a slow method predicts fewer of them; its rate is that of the rows it predicted.
"""

import time
from pathlib import Path
from typing import Any

import torch

from cagp.estimators import CaGPRegressor
from cagp.memory import peak_memory
from cagp_bench.choices import PREDICTED
from cagp_bench.processes import answer, in_new_process
from cagp_bench.record_files import append_record
from cagp_bench.records import collect, machine, show
from cagp_bench.scale import NUM_DIMS, table

PIECE = 65_536
FIRST_PIECE = 512
"""Rows of the first piece, which is not timed: it builds what later ones use. Then pieces grow."""


def run(
    rows: int,
    test_rows: int,
    methods: list[str],
    fit_time: str,
    seconds: float,
    max_time: str,
    records: Path | None,
    as_json: bool,
) -> int:
    """Measure every method and print a record for each; return 1 if any failed."""

    def measured(method: str) -> dict[str, Any]:
        most = PREDICTED[method] or rows
        options = {"method": method, "rows": min(rows, most), "test_rows": test_rows}
        options |= {"fit_time": fit_time, "seconds": seconds}
        record = {**machine(), **options, **in_new_process("cagp_bench.predict_speed", options, max_time)}
        if records is not None:
            append_record(records, record)
        return record

    return collect(
        [lambda method=method: measured(method) for method in methods],
        lambda r: r["method"],
        lambda found: _show(found, as_json),
    )


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    def number(name: str, form: str = ",.0f", unit: float = 1.0):
        return lambda r: format(r[name] / unit, form) if name in r else ""

    show(
        records,
        {
            "method": lambda r: r["method"],
            "training rows": number("rows"),
            "rows a second": lambda r: "failed" if "error" in r else f"{r['rows_per_second']:,.0f}",
            "rows a CPU second": number("rows_per_cpu_second"),
            "predicted rows": number("predicted_rows"),
            "model": lambda r: r.get("fitted", ""),
            "peak, MB": number("peak_bytes", unit=1e6),
        },
        as_json,
    )


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
