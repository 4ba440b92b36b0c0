"""What an input column of a table can hold, and the names of the inputs it becomes. ``cagp.data`` does the encoding."""

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


class Column(NamedTuple):
    """An input column as it was at fit."""

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    common: tuple[str, ...] = ()  # where there are many levels: those with a 0/1 column of their own
    missing: bool = False  # values were missing
    format: str = ""  # of numbers or dates that were text: DECIMAL_COMMA or e.g. "day/month/year"; ISO 8601 needs none
    quantiles: tuple[float, ...] = ()  # of numbers, dates and durations of which none was missing; files may lack them
    time_zone: str = ""  # of dates: AWARE or NAIVE; files may lack it

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

    @property
    def has_stand_ins(self) -> bool:
        """Whether known values can stand in for one that fit has not seen: a missing one, or another level."""
        return bool(self.levels if self.kind == LEVELS else self.quantiles)

    def state(self) -> dict[str, Any]:
        """The column as text, lists and booleans, for ``from_state``."""
        return {
            **self._asdict(),
            "levels": list(self.levels),
            "common": list(self.common),
            "quantiles": list(self.quantiles),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Column":
        """The column whose ``state()`` this is; that of files of version 0.1 is shorter."""
        if state["kind"] not in WORDS:
            raise ValueError(f"column {state['name']!r} has the kind {state['kind']!r}, expected one of {list(WORDS)}.")
        common, missing = tuple(state.get("common", ())), bool(state.get("missing", False))
        texts = tuple(state["levels"]), common, missing, state.get("format", "")
        quantiles, time_zone = tuple(map(float, state.get("quantiles", ()))), state.get("time_zone", "")
        if time_zone not in ("", AWARE, NAIVE):
            raise ValueError(
                f"column {state['name']!r} has the time zone {time_zone!r}, expected {AWARE!r} or {NAIVE!r}."
            )
        return cls(state["name"], state["kind"], *texts, quantiles, time_zone)
