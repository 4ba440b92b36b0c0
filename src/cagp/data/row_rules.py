"""Which training rows judge the models that a fit compares: drawn at random, the latest ones, or whole groups."""

import heapq
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
        """Rows to learn from, and about ``share`` of them to judge by; see ``cagp.data.split``."""
        return split(num_rows, share, seed, **({} if self.values is None else {self.kind: self.values}))

    def folds(self, num_rows: int, num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
        """The fold of each row, from 0: groups stay together, and the rows of a fold are neighbours in time.

        At most ``num_folds``, and at least two. Time O(n log n).
        """
        if self.kind == "group":
            return self._whole_groups(num_folds, seed)
        if self.kind == "time":
            assert self.values is not None
            times, place = np.unique(self.values, return_inverse=True)
            before = np.concatenate([[0], np.cumsum(np.bincount(place))[:-1]])  # rows that are earlier than each time
            fold = np.unique((before * num_folds // num_rows)[place], return_inverse=True)[1]
            # Where one time has nearly all rows, it is a fold, and the other times are another.
            return fold if fold.any() else (place == len(times) - 1).astype(np.int64)
        return np.random.default_rng(seed).permutation(num_rows) % min(num_folds, num_rows)

    def _whole_groups(self, num_folds: int, seed: int) -> np.ndarray:
        """Groups in random order, the largest first, each to the fold that is smallest so far."""
        assert self.values is not None
        codes = np.unique(self.values, return_inverse=True)[1]
        sizes = np.bincount(codes)
        order = np.random.default_rng(seed).permutation(len(sizes))
        order = order[np.argsort(-sizes[order], kind="stable")]
        smallest = [(0, fold) for fold in range(min(num_folds, len(sizes)))]
        fold_of = np.empty(len(sizes), dtype=np.int64)
        for group in order:
            count, fold = smallest[0]
            fold_of[group] = fold
            heapq.heapreplace(smallest, (count + int(sizes[group]), fold))
        return fold_of[codes]

    def words(self) -> str | None:
        """Which rows judge, in a sentence for the fit report; None for random rows."""
        if self.values is None:
            return None
        if self.kind == "time":
            return (
                "The rows that judge are the latest ones: models are compared by what they predict from earlier rows."
            )
        return (
            f"The rows that judge are whole groups, of {len(np.unique(self.values)):,}: models are compared by what "
            "they predict from rows of other groups."
        )


def judging_rule(
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
    if asked.kind == rule.kind:
        words = rule.words()
        return rule, [] if words is None else [words]
    return rule, [f"All training rows have one {asked.kind}: the rows that judge are drawn at random."]
