"""Cells that a spreadsheet would run as formulas when it opens a CSV file."""

import re
from collections import Counter

import pandas as pd

from cagp.cli.console import count as counted
from cagp.cli.console import warn
from cagp.data.text_values import COMMA_NUMBER, PLAIN_NUMBER

FORMULA = re.compile(r"[=+\-@\t\r\n].", re.DOTALL)
NUMBER = re.compile(f"{PLAIN_NUMBER}|{COMMA_NUMBER}")


def is_formula(cell: object) -> bool:
    """Whether text begins like a formula and is not a number; a sign alone is text as well."""
    return isinstance(cell, str) and FORMULA.match(cell) is not None and NUMBER.fullmatch(cell) is None


class Neutralised:
    """Puts a ' before text that a spreadsheet would run, and counts the cells."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame with such cells, and names of columns, as text."""
        changed = {}
        for name in frame.columns:
            column = frame[name]
            if column.dtype.kind in "biufcmM":
                continue
            cells = column.astype(object)
            found = cells.map(is_formula).to_numpy(dtype=bool)
            if found.any():
                changed[name] = cells.where(~found, "'" + cells.astype(str))
                self.counts[str(name)] += int(found.sum())
        frame = frame.assign(**changed) if changed else frame
        return frame.rename(columns={name: f"'{name}" for name in frame.columns if is_formula(name)})

    def tell(self) -> None:
        """Warn of the columns that were changed."""
        for name, count in self.counts.items():
            warn(
                f"{counted(count, 'cell')} of column {name!r} would run as {'a formula' if count == 1 else 'formulas'} "
                "in a spreadsheet and got a ' in front; --keep-formulas copies them as they are"
            )
