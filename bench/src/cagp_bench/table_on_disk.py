"""``cagp bench disk``: a generated table in Parquet files, fitted in pieces and predicted; its truth is known.

The function is a sum of waves that vary over a thirtieth to a hundredth of the unit cube, so that neighbours matter.
The NLL of the true function and noise is what no model can beat on average.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cagp import CaGPRegressor, metrics
from cagp.data import open_chunks
from cagp.files import replacing
from cagp.memory import peak_memory
from cagp_bench.options import add_max_time, positive
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, cell, machine, show

COLUMNS = ("x", "y", "z")
TARGET = "value"
PART_ROWS = 2_000_000
"""Rows of a file."""

NOISE, NUM_WAVES = 0.1, 24
SEED = 0


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench disk``."""
    suite.description = (
        "Generate a table with 3 columns in Parquet files, fit CaGP-Local to it in pieces, and predict new rows. "
        "Function and noise are known. The files stay in the folder, for the next run."
    )
    suite.epilog = "example:\n  cagp bench disk --rows 100000000 --folder big --max-memory 12GB"
    suite.add_argument("--rows", type=positive, default=1_000_000, metavar="N", help="rows (default: %(default)s)")
    suite.add_argument(
        "--test-rows", type=positive, default=100_000, metavar="N", help="new rows to predict (default: %(default)s)"
    )
    suite.add_argument("--folder", type=Path, required=True, metavar="DIR", help="for the files: 16 bytes a row")
    suite.add_argument("--max-memory", default="4GB", metavar="SIZE", help="of the fit (default: %(default)s)")
    add_max_time(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the table in a subfolder that does not have it yet, fit and predict in a new process, print the record."""
    start, folder = time.perf_counter(), arguments.folder / f"{arguments.rows}-rows"
    make_table(folder, arguments.rows)
    options = {name: getattr(arguments, name) for name in ("rows", "test_rows", "max_memory")}
    made = {"max_time": arguments.max_time, "make_s": time.perf_counter() - start}
    options |= {"folder": str(folder)}
    found = in_new_process("cagp_bench.table_on_disk", options, arguments.max_time)
    columns = {
        "rows": cell("rows", "{:,}"),
        "NLL": cell("nll", "{:.4f}", FAILED),
        "of the truth": cell("true_nll", "{:.4f}"),
        "RMSE": cell("rmse", "{:.4f}"),
        "95 % coverage": cell("coverage", "{:.1%}"),
        "fit, s": cell("fit_s", "{:,.0f}"),
        "predict, s": cell("predict_s", "{:,.0f}"),
        "CPU, s": cell("cpu_s", "{:,.0f}"),
        "peak, MB": cell("peak_bytes", "{:,.0f}", unit=1e6),
    }
    return show([{**machine(), **options, **made, **found}], columns, arguments.json)


def make_table(folder: Path, rows: int) -> None:
    """Write the files of the table that are not there; each depends on its number alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, rows, PART_ROWS)):
        path = folder / f"part-{number:05d}.parquet"
        if not path.exists():
            X, y, _ = sample(min(PART_ROWS, rows - first), number)
            with replacing(path) as file:
                pd.DataFrame({**dict(zip(COLUMNS, X.T, strict=True)), TARGET: y}).to_parquet(file, index=False)


def sample(rows: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets and the function without noise, float32; ``number`` -1 is for test rows."""
    waves = np.random.default_rng(SEED)
    directions = waves.normal(size=(len(COLUMNS), NUM_WAVES))
    directions *= waves.uniform(30, 100, size=NUM_WAVES) / np.linalg.norm(directions, axis=0)
    phases = waves.uniform(0, 2 * math.pi, size=NUM_WAVES)
    rng = np.random.default_rng([SEED, number + 1])
    X = rng.random((rows, len(COLUMNS)), dtype=np.float32)
    f = np.zeros(rows, dtype=np.float32)
    for wave, phase in zip(directions.T.astype(np.float32), phases, strict=True):
        f += np.sin(X @ wave + np.float32(phase))
    f *= np.float32(math.sqrt(2 / NUM_WAVES))
    return X, f + NOISE * rng.standard_normal(rows, dtype=np.float32), f


def measure(rows: int, test_rows: int, folder: str, max_memory: str) -> dict[str, Any]:
    """Scores in the units of the table, times and peak memory of a fit to the files and of predictions of new rows."""
    began, cpu = time.perf_counter(), time.process_time()
    model = CaGPRegressor(method="local", max_memory=max_memory).fit(open_chunks(f"{folder}/*.parquet", TARGET))
    fitted = time.perf_counter()
    X, y, f = sample(test_rows, -1)
    mean, std = model.predict(pd.DataFrame(X, columns=COLUMNS), return_std=True)
    predicted = time.perf_counter()
    values = (torch.from_numpy(np.asarray(v, dtype=np.float64)) for v in (y, mean, std**2))
    scores = metrics.scores(*values)
    truth = (torch.from_numpy(v.astype(np.float64)) for v in (y, f, np.full_like(y, NOISE**2)))
    return {
        "n": model.n_rows_,
        **scores._asdict(),
        "true_nll": metrics.nll(*truth),
        "fit_s": fitted - began,
        "predict_s": predicted - fitted,
        "cpu_s": time.process_time() - cpu,
        "peak_bytes": peak_memory(),
        "report": model.fit_report_,
    }


if __name__ == "__main__":
    answer(measure)
