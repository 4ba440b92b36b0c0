"""What an input column of a table can hold, and the names of the inputs it becomes. ``cagp.data`` does the encoding."""

from typing import NamedTuple

NUMBER, DATETIME, TIMEDELTA, LEVELS = "number", "datetime", "timedelta", "levels"

WORDS = {NUMBER: "numbers", DATETIME: "dates", TIMEDELTA: "durations", LEVELS: "levels (text or categories)"}


class Column(NamedTuple):
    """An input column as it was at fit."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()

    @property
    def coded_levels(self) -> tuple[str, ...]:
        """The levels with a 0/1 column. Of two levels only the second has one: the first would be its mirror image."""
        return self.levels[1:] if len(self.levels) == 2 else self.levels

    @property
    def names_out(self) -> list[str]:
        """The names of the columns it becomes."""
        return [f"{self.name}={level}" for level in self.coded_levels] if self.kind == LEVELS else [self.name]
