"""Copies among training rows: how many there are, what they mean for error bars, and training on each row once."""

import numpy as np

from cagp.data.duplicates import distinct_rows
from cagp.estimators.rows import TrainingRows
from cagp.estimators.units import Units

MANY, LEAST = 0.1, 50
"""From this share of the rows, and this number, there is a warning: a few copies change little."""


class CopiesWarning(UserWarning):
    """Many training rows are copies of others."""


def distinct(copies: str, units: Units, rows: TrainingRows) -> tuple[Units, TrainingRows, list[str], str | None]:
    """The rows to learn from, each once if ``copies`` is "once"; what the fit report says of it, and a warning.

    A copy has the same inputs, targets and known noise as another row, to the last bit. Scales are those of the rows
    that stay. Time O(n d + n log n).
    """
    parts = [rows.inputs, rows.targets, *([] if rows.noise is None else [rows.noise])]
    first = distinct_rows(np.concatenate(parts, axis=1))
    number, total = rows.num_rows - len(first), rows.num_rows
    share = f"{number:,} of {total:,} rows ({100 * number / total:.0f} %)"
    words = f"{share} are copies of others, inputs and targets alike"
    if copies == "once" and number > 0 and len(first) > 1:
        kept = rows.take(first)
        return units.scaled_by(kept), kept, [f"{words}; each row is counted once."], None
    if number < max(LEAST, MANY * total):
        return units, rows, [], None
    words = (
        f"{words}. Held-out rows then have copies among the rows that predict them, so that scores say how well models "
        "repeat these: error bars hold for new rows that are copies as often, and are too narrow for others. If "
        'new rows will not be copies, use copies="once" (--copies once), which counts each row once.'
    )
    return units, rows, [words], words
