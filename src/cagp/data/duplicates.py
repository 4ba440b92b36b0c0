"""Which rows of a table another table has as well, up to round-off."""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int
from scipy.spatial import KDTree

NEAR = 1e-7
"""Values are the same if they differ by at most this, in standard deviations, or this share of themselves if they are
larger than one. Rounding to float32 changes less; in a million rows of one column, few are this close by chance."""


class RowIndex:
    """Finds rows that are the same as one of ``rows`` in every column.

    A k-d tree of the distinct rows, on a scale that is linear up to one and logarithmic beyond: distances there are
    relative ones. Time O(n d log n) to make, and about O(d log n) for each row that is looked up; memory O(n d).

    Args:
        tolerance: how far the values of each column may differ; ``NEAR`` by default.
    """

    def __init__(self, rows: Float64[np.ndarray, "n d"], tolerance: Float64[np.ndarray, " d"] | None = None):
        self._tolerance = np.full(rows.shape[1], NEAR) if tolerance is None else tolerance
        # Many copies of one row would make a leaf of the tree that is searched one by one.
        self._tree = KDTree(self._scaled(rows[distinct_rows(rows)]), balanced_tree=False)

    def __len__(self) -> int:
        """The number of different rows."""
        return self._tree.n

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
