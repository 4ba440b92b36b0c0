"""The section on the rows that are predicted worst."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cagp.report.columns import InputColumn
from cagp.report.html import NBSP, number, table, text
from cagp.report.rows import HeldOutRows
from cagp.report.targets import Target

NUM_ROWS = 5
NUM_INPUTS = 6


def worst_rows(rows: HeldOutRows, target: Target, columns: Sequence[InputColumn]) -> list[str]:
    """Tables of the rows with the largest errors, in standard deviations and in the unit of the target.

    Args:
        columns: the columns that matter most, first; their values are shown.
    """
    error = target.y - target.mean
    standardised = np.argsort(-np.abs(target.standardized), kind="stable")[:NUM_ROWS]
    absolute = np.argsort(-np.abs(error), kind="stable")[:NUM_ROWS]
    if set(standardised.tolist()) == set(absolute.tolist()):
        parts = [_table(rows, target, columns, absolute, "The rows with the largest errors of both kinds.")]
    else:
        parts = [
            _table(rows, target, columns, standardised, "Largest errors in standard deviations."),
            _table(rows, target, columns, absolute, "Largest errors in the unit of the target."),
        ]
    return [
        "<p>A row that is many standard deviations off surprises the model: its target or an input may be wrong, or "
        "something matters that the table does not say. Rows have the labels of the table's index, or numbers from "
        "0.</p>",
        *parts,
    ]


def _table(
    rows: HeldOutRows,
    target: Target,
    columns: Sequence[InputColumn],
    chosen: NDArray[np.intp],
    caption: str,
) -> str:
    low, high = target.interval
    cells, notes = [], []
    for row in chosen:
        cells.append(
            [
                text(rows.label(int(row)), 30),
                number(float(target.y[row])),
                number(float(target.mean[row])),
                f"{target.standardized[row]:+.1f}".replace("-", "−"),
            ]
        )
        inputs = ", ".join(
            f"{text(column.name, 30)} {text(column.shown(int(row)), 30)}" for column in columns[:NUM_INPUTS]
        )
        interval = f"95 % interval {number(float(low[row]))} to {number(float(high[row]))}"
        notes.append(f"{interval}; {inputs}" if inputs else interval)
    return table(["Row", "Actual", "Predicted", f"Error{NBSP}/{NBSP}std"], cells, caption, notes)
