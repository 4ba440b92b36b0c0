"""``cagp bench small``: cross-validation of a small table beside one local fit of a large one, in processor time.

Both tables are of one structure (``cagp bench structures``), whose function is known: the error to it says whether less
work costs quality. The runs are one after the other in one process, so that they compare.
"""

import time
from typing import Any

import numpy as np
from sklearn.model_selection import cross_val_predict

from cagp.estimators import CaGPRegressor
from cagp_bench.records import machine, show
from cagp_bench.structures import STRUCTURES, sample


def run(structure: str, rows: int, folds: list[int], many_rows: int, as_json: bool) -> int:
    """Measure ``cross_val_predict`` with every number of folds, and a local fit, and print a record for each."""
    if structure not in STRUCTURES:
        raise ValueError(f"--structure is {structure!r}, expected one of {', '.join(STRUCTURES)}.")
    if rows < 10 * max(folds) or min(folds) < 2:
        raise ValueError(f"--rows is {rows} with {max(folds)} folds, expected 2 folds or more of at least 10 rows.")
    warm_up = sample(STRUCTURES[structure], 100, 1)
    CaGPRegressor(max_epochs=1).fit(warm_up.X[:100], warm_up.y[:100])  # imports and threads
    found = [cross_validated(structure, rows, count) for count in folds] + [local_fit(structure, many_rows)]
    columns = {
        "what": lambda r: r["what"],
        "rows": lambda r: f"{r['rows']:,}",
        "CPU, s": lambda r: f"{r['cpu_seconds']:.1f}",
        "s": lambda r: f"{r['seconds']:.1f}",
        "RMSE to truth": lambda r: f"{r['rmse_to_truth']:.4f}",
    }
    show([{**machine(), "structure": structure, **record} for record in found], columns, as_json, num_keys=2)
    return 0


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
