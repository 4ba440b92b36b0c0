"""Copies among training rows: how many there are, what they mean for error bars, and training on each row once."""

from typing import NamedTuple

import numpy as np

from cagp.data.duplicates import distinct_rows
from cagp.estimators.units import TrainingRows, Units

MANY, LEAST = 0.1, 50
"""From this share of the rows, and this number, there is a warning: a few copies change little."""


class CopiesWarning(UserWarning):
    """Many training rows are copies of others."""


class Counted(NamedTuple):
    """The rows to learn from, and what was found."""

    units: Units
    rows: TrainingRows
    notes: list[str]  # for the fit report
    warning: str | None = None


def counted(copies: str, units: Units, rows: TrainingRows) -> Counted:
    """The rows to learn from, without further copies of a row if ``copies`` is "once".

    A copy has the same inputs, targets and known noise as another row, to the last bit. Scales are those of the rows
    that stay. Time O(n d + n log n).
    """
    parts = [rows.inputs, rows.targets, *([] if rows.noise is None else [rows.noise])]
    first = distinct_rows(np.concatenate(parts, axis=1))
    number, total = rows.num_rows - len(first), rows.num_rows
    found = (
        f"{number:,} of {total:,} rows ({100 * number / total:.0f} %) are copies of others, inputs and targets alike"
    )
    if copies == "once" and number > 0 and len(first) > 1:
        kept = rows.take(first)
        return Counted(units.scaled_by(kept), kept, [f"{found}; each row is counted once."])
    if number < max(LEAST, MANY * total):
        return Counted(units, rows, [])
    words = (
        f"{found}. Held-out rows then have copies among the rows that predict them, and models are judged by how well "
        "they repeat these: error bars hold for new rows that are copies as often, and are too narrow for others. If "
        'new rows will not be copies, use copies="once" (--copies once), which counts each row once.'
    )
    return Counted(units, rows, [words], words)
