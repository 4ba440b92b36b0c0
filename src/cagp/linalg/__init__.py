"""Linear algebra in float64 that says what it did: dense factorisations, and iterations that return their status."""

from cagp.linalg.dense import (
    JitterWarning,
    NotPositiveDefiniteError,
    RowMoments,
    WhitenedGram,
    row_moments,
    safe_cholesky,
    whitened_gram,
)
from cagp.linalg.iterative import CGResult, PivotedCholesky, conjugate_gradients, pivoted_cholesky

__all__ = [
    "CGResult",
    "JitterWarning",
    "NotPositiveDefiniteError",
    "PivotedCholesky",
    "RowMoments",
    "WhitenedGram",
    "conjugate_gradients",
    "pivoted_cholesky",
    "row_moments",
    "safe_cholesky",
    "whitened_gram",
]
