"""Which rows are held out (at random, the latest, whole groups), and which another table has, too; the sample data."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int, Shaped
from scipy.spatial import KDTree
from torch import Tensor

from cagp.column_kinds import LEVELS
from cagp.data.cells import as_array
from cagp.data.column_values import ColumnScan, column_codes, first_text


class Split(NamedTuple):
    """Row numbers; every row is in exactly one part."""

    train: Int[Tensor, " n_train"]
    test: Int[Tensor, " n_test"]


def split(num_rows: int, test_fraction: float, seed: int = 0, *, time: Any = None, group: Any = None) -> Split:
    """A split of ``num_rows`` rows, the same for the same arguments; at least one row in each part.

    Without ``time`` and ``group``, the rows are drawn by seed, and both parts are in random order.

    Args:
        time: a number, date or duration for each row, to test on the latest rows. Both parts go from the earliest row
            to the latest, and rows at the same time stay together: the cut is where the test part is nearest to its
            share, or the later of two.
        group: a number, text or date for each row, to keep rows with the same value together; both parts have the
            order of the rows. A group that is drawn is taken if it fits into the share. At the end the smallest one
            that is left comes in if that brings the test part nearer to its share. So a group much larger than the
            test part is trained on.
    """
    return RowRule.of(time, group, num_rows).split(num_rows, test_fraction, seed)


def shared_groups(train: Any, test: Any) -> np.ndarray:
    """Whether each test row has its group in common with a training row; a missing value is no group."""
    tested = _column(test)
    return tested.isin(_column(train).dropna().unique()).to_numpy() & tested.notna().to_numpy()


@dataclass(frozen=True)
class RowRule:
    """How rows are held out."""

    kind: Literal["random", "time", "group"] = "random"
    values: Shaped[np.ndarray, " n"] | None = None  # of each row: a time, or the number of its group
    name: str = ""  # of the values, for messages

    @classmethod
    def of(cls, time: Any = None, group: Any = None, num_rows: int | None = None, kept: Any = slice(None)) -> "RowRule":
        """The rule for the rows that are ``kept``, which all need a time or a group; ValueError if both are given."""
        if time is not None and group is not None:
            raise ValueError("time and group are both given; held-out rows follow one of them.")
        if time is None and group is None:
            return cls()
        kind: Literal["time", "group"] = "group" if time is None else "time"
        values: Any = group if time is None else time
        if num_rows is not None and len(values) != num_rows:
            raise ValueError(f"{kind} has {len(values)} values, expected {num_rows}: one for each row of X.")
        column = _column(values).iloc[kept]
        name = kind if column.name is None else f"column {column.name!r}"
        missing = column.isna().to_numpy()
        if missing.any():
            raise ValueError(
                f"{name} is missing in {int(missing.sum())} of {len(column)} rows (first at row "
                f"{column.index[int(missing.argmax())]}), and a split needs it for each row. Fill it in, or remove "
                "these rows."
            )
        return cls(kind, _times(column, name) if kind == "time" else pd.factorize(column)[0], name)

    def take(self, rows: Int[np.ndarray, " m"]) -> "RowRule":
        """The rule for some of the rows; at random if these no longer differ."""
        if self.values is None:
            return self
        values = self.values[rows]
        return RowRule(self.kind, values, self.name) if len(values) and (values != values[0]).any() else RowRule()

    def split(self, num_rows: int, share: float, seed: int) -> Split:
        """Rows to train on, and about ``share`` of them to test or validate; see ``cagp.data.split``."""
        if num_rows < 2:
            raise ValueError(f"num_rows is {num_rows}, expected at least 2: one row to train on and one to test on.")
        if not 0 < share < 1:
            raise ValueError(f"test_fraction is {share}, expected a number between 0 and 1, e.g. 0.1.")
        num_test = min(max(round(num_rows * share), 1), num_rows - 1)
        if self.values is None:
            order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
            return Split(train=order[num_test:], test=order[:num_test])
        if (self.values == self.values[0]).all():
            what = "no row is later than another" if self.kind == "time" else "there is one group"
            raise ValueError(
                f"{self.name} is the same for all {num_rows} rows: {what}. Choose another column, or split at random."
            )
        train, test = self._latest(num_test) if self.kind == "time" else self._whole_groups(num_test, seed)
        return Split(torch.from_numpy(train), torch.from_numpy(test))

    def _latest(self, num_test: int) -> tuple[np.ndarray, np.ndarray]:
        assert self.values is not None
        order = np.argsort(self.values, kind="stable")
        times = self.values[order]
        cuts = 1 + np.flatnonzero(times[1:] > times[:-1])  # between two times
        distance = np.abs((len(times) - cuts) - num_test)
        cut = int(cuts[np.flatnonzero(distance == distance.min())[-1]])
        return order[:cut], order[cut:]

    def _whole_groups(self, num_test: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        codes = pd.factorize(pd.Series(self.values))[0]
        sizes = np.bincount(codes)
        tested, left, count = [], [], 0
        for drawn in torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed)).numpy():
            fits = count + sizes[drawn] <= num_test
            (tested if fits else left).append(drawn)
            count += int(sizes[drawn]) if fits else 0
        smallest = min(left, key=lambda group: sizes[group])  # the first of several
        if not tested or (len(left) > 1 and count + sizes[smallest] - num_test < num_test - count):
            tested.append(smallest)
        is_tested = np.isin(codes, tested)
        return np.flatnonzero(~is_tested), np.flatnonzero(is_tested)

    def folds(self, num_rows: int, num_folds: int, seed: int) -> Int[np.ndarray, " n"]:
        """The fold of each row, from 0: groups stay together, and the rows of a fold are neighbours in time.

        At most ``num_folds``, and at least two. Time O(n log n).
        """
        if self.values is None:
            return np.random.default_rng(seed).permutation(num_rows) % min(num_folds, num_rows)
        distinct, place = np.unique(self.values, return_inverse=True)
        if self.kind == "group":
            from sklearn.model_selection import GroupKFold  # slow to import

            fold, groups = np.empty(num_rows, dtype=np.int64), GroupKFold(min(num_folds, len(distinct)))
            for number, (_, rows) in enumerate(groups.split(place, groups=place)):
                fold[rows] = number
            return fold
        before = np.concatenate([[0], np.cumsum(np.bincount(place))[:-1]])  # rows that are earlier than each time
        fold = np.unique((before * num_folds // num_rows)[place], return_inverse=True)[1]
        # Where one time has nearly all rows, it is a fold, and the other times are another.
        return fold if fold.any() else (place == len(distinct) - 1).astype(np.int64)


def validation_rule(
    num_rows: int, kept: Int[np.ndarray, " n"], time: Any = None, group: Any = None
) -> tuple[RowRule, list[str]]:
    """The rule that a user asks for, for those rows of a table that are kept, and what the fit report says about it."""
    wanted = RowRule.of(time, group, num_rows, kept)
    rule = wanted.take(np.arange(len(kept)))
    if wanted.kind != rule.kind:
        return rule, [f"All training rows have one {wanted.kind}: validation rows are drawn at random."]
    if rule.values is None:
        return rule, []
    which, others = "the latest rows", "earlier rows"
    if rule.kind == "group":
        which, others = f"whole groups, of {len(np.unique(rule.values)):,}", "rows of other groups"
    return rule, [f"Models are validated on {which}, which they predict from {others}."]


def _column(values: Any) -> pd.Series:
    """Values of rows, an array or a column, as a column."""
    return values if isinstance(values, pd.Series) else pd.Series(as_array(values, "the column of the split"))


def _times(series: pd.Series, name: str) -> Float64[np.ndarray, " n"]:
    """Numbers, or days for dates and durations; text is read as the encoder reads it."""
    scan = ColumnScan(str(series.name), as_levels=False)
    scan.add(series)
    column = scan.without_levels()
    if column.kind == LEVELS:
        raise ValueError(
            f"{name} holds text or categories{first_text(series, 0)}; time needs numbers or dates. Write dates like "
            "2024-03-31, or convert them with pandas.to_datetime."
        )
    return column_codes(column, series, 0)


NEAR = 1e-7
"""Values are the same if they differ by at most this, in standard deviations, or this share of themselves if they are
larger than one. Rounding to float32 changes less; in a million rows of one column, few are this close by chance."""


class RowIndex:
    """Finds rows that differ from one of ``rows`` by at most ``tolerance`` in every column, ``NEAR`` by default.

    A k-d tree of the distinct rows, on a scale that is linear up to one and logarithmic beyond: distances there are
    relative ones. Time O(n d log n) to make, and about O(d log n) for each row that is looked up; memory O(n d).
    """

    def __init__(self, rows: Float64[np.ndarray, "n d"], tolerance: Float64[np.ndarray, " d"] | None = None):
        self._tolerance = np.full(rows.shape[1], NEAR) if tolerance is None else tolerance
        # Many copies of one row would make a leaf of the tree that is searched one by one.
        self._tree = KDTree(self._scaled(rows[distinct_rows(rows)]), balanced_tree=False)

    def holds(self, rows: Float64[np.ndarray, "t d"]) -> Bool[np.ndarray, " t"]:
        """Whether each of these rows is the same as one of the index; a row with a missing value never is."""
        found, complete = np.zeros(len(rows), dtype=bool), ~np.isnan(rows).any(axis=1)
        distance, _ = self._tree.query(self._scaled(rows[complete]), p=np.inf, distance_upper_bound=1.0)
        found[complete] = np.isfinite(distance)
        return found

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        size = np.abs(np.nan_to_num(rows))
        return np.sign(rows) * np.where(size > 1, 1 + np.log(np.maximum(size, 1)), size) / self._tolerance


def distinct_rows(rows: Float64[np.ndarray, "n d"]) -> Int[np.ndarray, " m"]:
    """The rows that are not copies of a row before them, by number. A missing value equals another. Time O(n d)."""
    return np.flatnonzero(~pd.DataFrame(rows).duplicated().to_numpy())


class Dataset(NamedTuple):
    """Inputs and targets in their original units."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    names: tuple[str, ...]  # of the columns of X, then of y


def terrain() -> Dataset:
    """The sample data: 20,000 elevations of the Blanca Peak massif, Colorado. ``terrain.md`` names their source.

    Positions are in km east and north of the south-west corner, elevations in metres, both as float64. The rows are
    sorted from south to north: permute them before you take the first few (``cagp.data.split`` does).
    """
    with files("cagp.data").joinpath("terrain.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        num_rows, num_columns = file["shape"]
        chosen = np.unpackbits(file["chosen"], count=num_rows * num_columns).reshape(num_rows, num_columns)
        row, column = chosen.nonzero()
        places = np.stack([column, row], axis=1) * file["spacing"]
        elevations = file["rises"].cumsum(dtype=np.int64)
    names = ("east (km)", "north (km)", "elevation (m)")
    return Dataset(torch.from_numpy(places), torch.from_numpy(elevations).double(), names)
