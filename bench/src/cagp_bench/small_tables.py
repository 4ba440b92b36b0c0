"""``cagp bench small``: cross-validation of a small table beside one local fit of a large one, in processor time.

Both tables are of one structure (``cagp bench structures``), whose function is known: the error to it says whether less
work costs quality. The runs are one after the other in one process, so that they compare.
"""

import argparse
import time
from typing import Any

import numpy as np
from sklearn.model_selection import cross_val_predict

from cagp import CaGPRegressor
from cagp_bench.options import positive
from cagp_bench.records import cell, machine, show
from cagp_bench.structures import STRUCTURES, sample


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench small``."""
    suite.description = (
        "Cross-validate the default regressor on a small generated table, and fit nearest rows to a large one, in one "
        "process: processor seconds of both."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench small --folds 3 5"
    suite.add_argument(
        "--structure", default="product", metavar="NAME", help="of cagp bench structures (default: %(default)s)"
    )
    suite.add_argument("--rows", type=positive, default=3000, metavar="N", help="rows (default: %(default)s)")
    suite.add_argument(
        "--folds", type=positive, nargs="+", default=[3, 5], metavar="K", help="numbers of folds (default: 3 5)"
    )
    suite.add_argument(
        "--many-rows", type=positive, default=300_000, metavar="N", help="rows of the local fit (default: %(default)s)"
    )
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure ``cross_val_predict`` with every number of folds, and a local fit, and print a record for each."""
    structure, rows, folds = arguments.structure, arguments.rows, arguments.folds
    if structure not in STRUCTURES:
        raise ValueError(f"--structure is {structure!r}, expected one of {', '.join(STRUCTURES)}.")
    if rows < 10 * max(folds) or min(folds) < 2:
        raise ValueError(f"--rows is {rows} with {max(folds)} folds, expected 2 folds or more of at least 10 rows.")
    warm_up = sample(STRUCTURES[structure], 100, 1)
    CaGPRegressor(max_epochs=1).fit(warm_up.X[:100], warm_up.y[:100])  # imports and threads
    found = [cross_validated(structure, rows, count) for count in folds] + [local_fit(structure, arguments.many_rows)]
    columns = {
        "what": cell("what"),
        "rows": cell("rows", "{:,}"),
        "CPU, s": cell("cpu_seconds", "{:.1f}"),
        "s": cell("seconds", "{:.1f}"),
        "RMSE to truth": cell("rmse_to_truth", "{:.4f}"),
    }
    records = [{**machine(), "structure": structure, **record} for record in found]
    return show(records, columns, arguments.json, num_keys=2)


def cross_validated(structure: str, rows: int, folds: int) -> dict[str, Any]:
    """The default regressor, cross-validated; the error is that of rows predicted out of fold."""
    table, clocks = sample(STRUCTURES[structure], rows, 0), _Clocks()
    predicted = np.asarray(cross_val_predict(CaGPRegressor(), table.X[:rows], table.y[:rows], cv=folds))
    return {
        "what": f"cross_val_predict, cv={folds}",
        "rows": rows,
        **clocks.read(),
        **_error(predicted, table.f[:rows]),
    }


def local_fit(structure: str, rows: int) -> dict[str, Any]:
    """A fit of "local"; the error is that of new rows."""
    table, clocks = sample(STRUCTURES[structure], rows, 0), _Clocks()
    model = CaGPRegressor(method="local").fit(table.X[:rows], table.y[:rows])
    spent = clocks.read()
    return {"what": "a local fit", "rows": rows, **spent, **_error(model.predict(table.X[rows:]), table.f[rows:])}


class _Clocks:
    """The time since the object was made."""

    def __init__(self):
        self._began = time.process_time(), time.perf_counter()

    def read(self) -> dict[str, float]:
        return {
            "cpu_seconds": time.process_time() - self._began[0],
            "seconds": time.perf_counter() - self._began[1],
        }


def _error(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    return {"rmse_to_truth": float(np.sqrt(np.mean((predicted - truth) ** 2)))}
