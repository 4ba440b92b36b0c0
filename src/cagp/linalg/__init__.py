"""Linear algebra in float64 that says what it did: dense factorisations, and iterations that return their status."""

from cagp.linalg.dense import (
    JitterWarning,
    NotPositiveDefiniteError,
    RowMoments,
    row_moments,
    safe_cholesky,
)
from cagp.linalg.iterative import CGResult, PivotedCholesky, conjugate_gradients, pivoted_cholesky

__all__ = [
    "CGResult",
    "JitterWarning",
    "NotPositiveDefiniteError",
    "PivotedCholesky",
    "RowMoments",
    "conjugate_gradients",
    "pivoted_cholesky",
    "row_moments",
    "safe_cholesky",
]
