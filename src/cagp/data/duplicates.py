"""Which rows of a table another table has as well, up to round-off."""

import numpy as np
from jaxtyping import Bool, Float64, Int

NEAR = 1e-7
"""Values are the same if they differ by at most this, in standard deviations, or this share of themselves if they are
larger than one. Rounding to float32 changes less; in a million rows of one column, few are this close by chance."""

CELLS = 2_000_000
"""Values that are compared at a time."""

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without pattern, for hashes: 2⁶⁴ divided by the golden ratio."""


class RowIndex:
    """Finds rows that are the same as one of ``rows`` in every column.

    Rows are sorted by a random weighted sum of their values: rows that are the same have almost the same sum, and few
    others have. Time O(n d + n log n) to make, and about O(d log n) for each row that is looked up; memory O(n) beside
    ``rows``, which are not copied.

    Args:
        tolerance: how far the values of each column may differ; ``NEAR`` by default.
    """

    def __init__(self, rows: Float64[np.ndarray, "n d"], tolerance: Float64[np.ndarray, " d"] | None = None):
        d = rows.shape[1]
        self._rows = rows
        self._tolerance = np.full(d, NEAR) if tolerance is None else tolerance
        self._weights = np.random.default_rng(0).uniform(0.5, 1.5, d)
        sums = self._sums(rows)
        order = np.argsort(sums, kind="stable")
        self._order = order[self._is_new(sums, order)]  # many copies of one row would be compared one by one
        self._sorted_sums = sums[self._order]

    def __len__(self) -> int:
        """The number of different rows."""
        return len(self._order)

    def _sums(self, rows: np.ndarray) -> np.ndarray:
        # Column by column, so that equal rows have equal sums to the last bit.
        sums = np.zeros(len(rows))
        for weight, column in zip(self._weights, rows.T, strict=True):
            sums += weight * column
        return sums

    def _is_new(self, sums: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Whether a row differs from the one before it in the order."""
        new = np.ones(len(order), dtype=bool)
        new[1:] = sums[order[1:]] != sums[order[:-1]]
        for part in _parts(np.flatnonzero(~new), self._rows.shape[1]):
            new[part] = (self._rows[order[part]] != self._rows[order[part - 1]]).any(1)
        return new

    def holds(self, rows: Float64[np.ndarray, "t d"]) -> Bool[np.ndarray, " t"]:
        """Whether each of these rows is the same as one of the index."""
        tolerance = self._tolerance * np.maximum(1, np.abs(rows))
        sums, reach = self._sums(rows), tolerance @ self._weights
        first = np.searchsorted(self._sorted_sums, sums - reach, side="left")
        counts = np.searchsorted(self._sorted_sums, sums + reach, side="right") - first
        found = np.zeros(len(rows), dtype=bool)
        asked = np.flatnonzero(counts)
        # Tiles of rows with about as many candidates as may be compared at a time.
        tile = np.cumsum(counts[asked]) * rows.shape[1] // CELLS
        for part in np.split(asked, 1 + np.flatnonzero(np.diff(tile))) if len(asked) else []:
            repeated = np.repeat(part, counts[part])
            starts = np.cumsum(counts[part]) - counts[part]
            place = np.arange(len(repeated)) - np.repeat(starts - first[part], counts[part])
            distance = np.abs(self._rows[self._order[place]] - rows[repeated])
            found[part] = np.logical_or.reduceat((distance <= tolerance[repeated]).all(1), starts)
        return found


def distinct_rows(rows: Float64[np.ndarray, "n d"]) -> Int[np.ndarray, " m"]:
    """The rows that are not copies of a row before them, by number. A missing value equals another.

    Rows are sorted by a hash of their bits, and compared with the one before. Time O(n d + n log n), memory O(n).
    """
    hashes = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        bits = np.where(np.isnan(column), np.nan, column + 0.0).view(np.uint64)  # one zero, one missing value
        hashes = (hashes ^ bits ^ (bits >> np.uint64(32))) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    order = np.argsort(hashes, kind="stable")
    new = np.ones(len(order), dtype=bool)
    new[1:] = hashes[order[1:]] != hashes[order[:-1]]
    for part in _parts(np.flatnonzero(~new), rows.shape[1]):
        one, other = rows[order[part]], rows[order[part - 1]]
        new[part] = ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(1)
    return np.sort(order[new])


def _parts(items: np.ndarray, width: int) -> list[np.ndarray]:
    size = max(1, CELLS // max(1, width))
    return [items[start : start + size] for start in range(0, len(items), size)]
