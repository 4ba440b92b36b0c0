"""``cagp bench neighbours``: time and memory to index rows and to find the nearest ones.

Each run has a process of its own. On a machine that is busy with other work, the processor time of a run with one
thread still says what the search costs.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp.engine import TORCH
from cagp.memory import current_memory, peak_memory
from cagp.neighbours import NeighbourIndex
from cagp_bench.options import NUMBERS, add_methods, add_tables
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, cell, collect, machine, show

Searcher = Literal["tree", "scipy", "scan"]
Layout = Literal["uniform", "clustered"]

NUM_CLUSTERS, CLUSTER_WIDTH = 1_000, 0.01
CHUNK = 2**17
"""Rows that are made at a time, and test points that are answered at a time."""


class Run(NamedTuple):
    """One measurement."""

    searcher: Searcher
    data: str  # a layout, or a table (.npz with X)
    rows: int | None  # None: all rows of the table
    columns: int | None
    threads: int
    num_points: int
    k: int


COLUMNS = {
    "search": cell("searcher"),
    "data": lambda r: Path(r["data"]).stem,
    "n": cell("rows", "{:,}"),
    "d": cell("columns"),
    "k": cell("k"),
    "threads": cell("threads"),
    "build, s": cell("build_s", "{:.2f}", FAILED),
    "µs a test point": cell("point_us", "{:.1f}"),
    "build, CPU s": cell("build_cpu_s", "{:.2f}"),
    "CPU µs a test point": cell("point_cpu_us", "{:.1f}"),
    "rows, MB": cell("table_bytes", "{:,.0f}", unit=1e6),
    "peak above them, MB": cell("peak_bytes", "{:,.0f}", unit=1e6),
}


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench neighbours``."""
    suite.description = (
        "Index generated rows, or those of tables (.npz with X, standardised), and find the rows nearest to test "
        "points beside random rows; each run in a process of its own."
    )
    suite.epilog = (
        "examples:\n  cagp bench neighbours --rows 1000000\n  cagp bench neighbours bike.npz --methods tree scan"
    )
    add_tables(suite, "*", ".npz files; none for generated rows")
    suite.add_argument("--rows", **NUMBERS, help="rows (default: 100000, of tables all of them)")
    suite.add_argument("--columns", type=int, default=3, metavar="D", help="generated columns (default: %(default)s)")
    suite.add_argument(
        "--data",
        nargs="+",
        choices=("uniform", "clustered"),
        default=["uniform"],
        help="how generated rows lie (default: uniform)",
    )
    words = "tree (the compiled k-d tree), scipy (SciPy's tree), scan (compare with every row)"
    add_methods(suite, ("tree", "scipy", "scan"), ("tree", "scipy"), words)
    suite.add_argument(
        "--n-neighbors", type=int, default=64, metavar="K", help="neighbours of a test point (default: %(default)s)"
    )
    suite.add_argument(
        "--points", type=int, default=100_000, metavar="N", help="number of test points (default: %(default)s)"
    )
    suite.add_argument("--threads", **NUMBERS, default=[1], help="threads (default: 1)")
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Every method on every table or layout, with every number of rows and threads; return 1 if any failed."""
    if arguments.tables:
        data = [(str(table), rows, None) for table in arguments.tables for rows in arguments.rows or [None]]
    else:
        sizes = arguments.rows or [100_000]
        data = [(layout, rows, arguments.columns) for layout in arguments.data for rows in sizes]
    runs = [
        Run(method, *where, threads, arguments.points, arguments.n_neighbors)._asdict()
        for where in data
        for method in arguments.methods
        for threads in arguments.threads
    ]
    return collect(
        [lambda run=run: run | in_new_process("cagp_bench.neighbour_speed", run) for run in runs],
        lambda r: f"{r['searcher']}, {r['data']}, {r['threads']} threads",
        partial(show, columns=COLUMNS, as_json=arguments.json, num_keys=4),
    )


def measure(
    searcher: Searcher, data: str, rows: int | None, columns: int | None, threads: int, num_points: int, k: int
) -> dict[str, Any]:
    """Seconds to build, microseconds a test point, and peak memory above that of the rows and the imports."""
    torch.set_num_threads(threads)
    before = current_memory()
    X = _table(Path(data), rows) if data.endswith(".npz") else _generated(data, rows or 0, columns or 0)
    points = _test_points(X, num_points)
    table_bytes = X.element_size() * X.numel()
    loaded = current_memory()
    start = _clocks()
    kind = "tree" if searcher == "scipy" else searcher
    index = NeighbourIndex(X, None, kind, backend=TORCH if searcher == "scipy" else None)
    built = _clocks()
    for part in points.split(CHUNK):
        index.nearest(part, k)
    done = _clocks()
    sizes = {"rows": len(X), "columns": X.shape[1], "table_bytes": table_bytes, "memory_before": before}
    build, search = built - start, (done - built) * 1e6 / len(points)
    seconds = {"build_s": build[0], "point_us": search[0], "build_cpu_s": build[1], "point_cpu_us": search[1]}
    return {**machine(), **sizes, **seconds, "peak_bytes": max(0, peak_memory() - loaded)}


def _clocks() -> np.ndarray:
    """Seconds on the wall, and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def _generated(layout: str, rows: int, columns: int) -> Tensor:
    """Rows in the unit cube, uniform or around random centres; float32, made in chunks."""
    generator = torch.Generator().manual_seed(0)
    X = torch.empty(rows, columns)
    centres = torch.rand(NUM_CLUSTERS, columns, generator=generator)
    for part in X.split(CHUNK):
        if layout == "uniform":
            part.copy_(torch.rand(part.shape, generator=generator))
        else:
            chosen = centres[torch.randint(NUM_CLUSTERS, (len(part),), generator=generator)]
            part.copy_(chosen + CLUSTER_WIDTH * torch.randn(part.shape, generator=generator))
    return X


def _table(path: Path, rows: int | None) -> Tensor:
    """The inputs of a table, standardised; ``rows`` random ones of them. Columns that do not vary are left out."""
    with np.load(path, allow_pickle=False) as arrays:
        X = torch.as_tensor(arrays["X"]).double()
    X = (X - X.mean(0)) / X.std(0)
    X = X[:, X.isfinite().all(0)].float()
    if rows is None or rows >= len(X):
        return X
    return X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:rows]]


def _test_points(X: Tensor, num_points: int) -> Tensor:
    """Places beside random rows, a thousandth of the columns' spread away."""
    generator = torch.Generator().manual_seed(1)
    chosen = X[torch.randint(len(X), (num_points,), generator=generator)]
    spread = X[:: max(1, len(X) // 10_000)].std(0)
    return chosen + 1e-3 * spread * torch.randn(chosen.shape, generator=generator)


if __name__ == "__main__":
    answer(measure)
