"""What an input column of a table can hold, and the names of the inputs it becomes. ``cagp.data`` does the encoding."""

import math
from typing import Any, NamedTuple

NUMBER, DATETIME, TIMEDELTA, LEVELS, EXPOSURE = "number", "datetime", "timedelta", "levels", "exposure"

WORDS = {
    NUMBER: "numbers",
    DATETIME: "dates",
    TIMEDELTA: "durations",
    LEVELS: "levels (text or categories)",
    EXPOSURE: "the exposure, to which the mean of a count is proportional",
}

AWARE, NAIVE = "with a time zone", "without a time zone"
"""What dates can be: instants, or readings of a clock somewhere."""

DECIMAL_COMMA = "decimal comma"
"""The format of text like "3,14"."""

DATE_FORMATS = [
    "day.month.year",
    "day/month/year",
    "month/day/year",
    "day-month-year",
    "month-day-year",
    "year/month/day",
    "year.month.day",
]
"""Dates besides those of ISO 8601, each with or without a time of day. Numbers with points have the day first."""


class Column(NamedTuple):
    """An input column as it was at fit."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    common: tuple[str, ...] = ()  # where there are many levels: those with a 0/1 column of their own
    missing: bool = False  # values were missing
    format: str = ""  # of numbers or dates that were text: DECIMAL_COMMA or e.g. "day/month/year"; ISO 8601 needs none
    quantiles: tuple[float, ...] = ()  # of numbers, dates and durations of which none was missing
    time_zone: str = ""  # of dates: AWARE or NAIVE

    @property
    def coded_levels(self) -> tuple[str, ...]:
        """The levels with a 0/1 column. Of two levels only the second has one: the first would be its mirror image."""
        return self.common or (self.levels[1:] if len(self.levels) == 2 else self.levels)

    @property
    def names_out(self) -> list[str]:
        """The names of the inputs it becomes; an exposure is not an input."""
        if self.kind == EXPOSURE:
            return []
        names = [f"{self.name}={level}" for level in self.coded_levels] if self.kind == LEVELS else [self.name]
        names += [f"{self.name}=other levels"] if self.common else []
        return names + ([f"{self.name} is missing"] if self.missing else [])

    def state(self) -> dict[str, Any]:
        """The column as text, lists and booleans, for ``from_state``."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Column":
        """The column whose ``state()`` this is; ValueError for what no column can be."""
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in state.items()}
        if values.keys() != set(cls._fields) or not (column := cls(**values))._is_valid():
            raise ValueError(
                f"the state does not have column {state.get('name')!r} as cagp stores it; save the model again."
            )
        return column

    def _is_valid(self) -> bool:
        lists = (self.levels, self.common, self.quantiles)
        return (
            all(isinstance(values, tuple) for values in lists)
            and all(isinstance(text, str) for text in (self.name, self.kind, *self.levels, *self.common))
            and all(isinstance(value, float) and math.isfinite(value) for value in self.quantiles)
            and all(len(set(values)) == len(values) for values in (self.levels, self.common))
            and set(self.common) <= set(self.levels)
            and sorted(self.quantiles) == list(self.quantiles)
            and self.kind in WORDS
            and (self.kind == LEVELS or not self.levels)
            and isinstance(self.missing, bool)
            and (self.kind in (LEVELS, EXPOSURE) or self.missing or len(self.quantiles) > 0)
            and self.format in ("", DECIMAL_COMMA, *DATE_FORMATS)
            and self.time_zone in ((AWARE, NAIVE) if self.kind == DATETIME else ("",))
        )
