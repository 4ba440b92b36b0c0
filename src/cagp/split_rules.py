"""How a table is split, as a user says it: "random", "time:COLUMN" or "group:COLUMN"."""

from typing import NamedTuple

EXPECTED = '"random", "time:COLUMN" or "group:COLUMN", e.g. "time:date"'


class SplitRule(NamedTuple):
    """Which rows are held out for testing; ``split_rule`` makes it from text."""

    kind: str  # "random", "time" or "group"
    column: str | None = None  # of "time" and "group"

    def __str__(self) -> str:
        return self.kind if self.column is None else f"{self.kind}:{self.column}"

    @property
    def group_column(self) -> str | None:
        """The column of groups, which is not an input: the name of a new group tells a model nothing."""
        return self.column if self.kind == "group" else None


RANDOM = SplitRule("random")


def split_rule(text: str) -> SplitRule:
    """The rule that a text stands for; ValueError if there is none."""
    kind, _, column = text.partition(":")
    if text == "random":
        return RANDOM
    if kind in ("time", "group") and column:
        return SplitRule(kind, column)
    raise ValueError(f"the split is {text!r}, expected {EXPECTED}.")
