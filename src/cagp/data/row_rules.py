"""Which training rows a fit holds out to validate models: drawn at random, the latest ones, or whole groups."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int, Shaped

from cagp.data.splits import Split, as_column, group_codes, split, times_of


@dataclass(frozen=True)
class RowRule:
    """How rows are held out. Rows that all have one time, or one group, are drawn at random."""

    kind: Literal["random", "time", "group"] = "random"
    values: Shaped[np.ndarray, " n"] | None = None  # of each row: a time, or the number of its group

    @classmethod
    def of(cls, time: Any = None, group: Any = None) -> "RowRule":
        """The rule for rows with these times or groups; ValueError if both are given, or some are missing."""
        if time is not None and group is not None:
            raise ValueError("time and group are both given; held-out rows follow one of them.")
        if time is not None:
            return cls("time", times_of(time))
        return cls() if group is None else cls("group", group_codes(group)[0])

    def take(self, rows: Int[np.ndarray, " m"]) -> "RowRule":
        """The rule for some of the rows; at random if these no longer differ."""
        if self.values is None:
            return self
        values = self.values[rows]
        return RowRule(self.kind, values) if len(values) and (values != values[0]).any() else RowRule()

    def split(self, num_rows: int, share: float, seed: int) -> Split:
        """Rows to train on, and about ``share`` of them for validation; see ``cagp.data.split``."""
        return split(num_rows, share, seed, **({} if self.values is None else {self.kind: self.values}))

    def folds(self, num_rows: int, num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
        """The fold of each row, from 0: groups stay together, and the rows of a fold are neighbours in time.

        At most ``num_folds``, and at least two. Time O(n log n).
        """
        if self.values is None:
            return np.random.default_rng(seed).permutation(num_rows) % min(num_folds, num_rows)
        distinct, place = np.unique(self.values, return_inverse=True)
        if self.kind == "group":
            from sklearn.model_selection import GroupKFold  # slow to import

            fold = np.empty(num_rows, dtype=np.int64)
            folds = GroupKFold(min(num_folds, len(distinct))).split(place, groups=place)
            for number, (_, rows) in enumerate(folds):
                fold[rows] = number
            return fold
        before = np.concatenate([[0], np.cumsum(np.bincount(place))[:-1]])  # rows that are earlier than each time
        fold = np.unique((before * num_folds // num_rows)[place], return_inverse=True)[1]
        # Where one time has nearly all rows, it is a fold, and the other times are another.
        return fold if fold.any() else (place == len(distinct) - 1).astype(np.int64)

    def words(self) -> list[str]:
        """Which rows validate models, for the fit report; nothing for random rows."""
        if self.values is None:
            return []
        if self.kind == "time":
            return ["Models are validated on the latest rows, which they predict from earlier rows."]
        return [
            f"Models are validated on whole groups, of {len(np.unique(self.values)):,}, which they predict from rows "
            "of other groups."
        ]


def validation_rule(
    num_rows: int, kept: Int[np.ndarray, " n"], time: Any = None, group: Any = None
) -> tuple[RowRule, list[str]]:
    """The rule that a user asks for, and what the fit report says about it.

    Args:
        num_rows: of the user's table, each with a time or a group.
        kept: the numbers of those rows of the table that are trained on.
    """
    columns = {name: as_column(values) for name, values in (("time", time), ("group", group)) if values is not None}
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ValueError(f"{name} has {len(column)} values, expected {num_rows}: one for each row of X.")
    asked = RowRule.of(**{name: column.iloc[kept] for name, column in columns.items()})
    rule = asked.take(np.arange(len(kept)))
    if asked.kind != rule.kind:
        return rule, [f"All training rows have one {asked.kind}: validation rows are drawn at random."]
    return rule, rule.words()
