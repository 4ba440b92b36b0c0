"""What a user asks for, checked against the table before training begins."""

import warnings

from cagp.recipes.options import DEFAULT_NEIGHBORS

MANY_NEIGHBOURS = 256
"""Beyond this many, a training step takes more than about half a second on one core, and a fit minutes."""

STEP_ROWS, OPERATIONS = 1024, 2e10
"""Rows of a training step; operations of a core in a second, measured for matrices of some hundred rows."""


def check_neighbours(n_neighbors: int | str, num_rows: int) -> None:
    """Raise ValueError for more neighbours than rows, and warn of what many neighbours cost.

    Up to the default number, tables with fewer rows are an exception: then all other rows are neighbours.
    """
    if isinstance(n_neighbors, str):  # "auto"
        return
    if num_rows <= n_neighbors and n_neighbors > DEFAULT_NEIGHBORS:
        raise ValueError(
            f"n_neighbors is {n_neighbors:,}, expected fewer than the {num_rows:,} training rows. Take "
            f'{DEFAULT_NEIGHBORS} to 128 neighbours, or method="exact", which uses all rows.'
        )
    if n_neighbors > MANY_NEIGHBOURS:
        seconds = STEP_ROWS * n_neighbors**3 / 3 / OPERATIONS
        # Not by cagp.notices: the fit report comes when the time is spent.
        warnings.warn(
            f"n_neighbors is {n_neighbors:,}: the time of a fit grows with its cube. A training step factorises "
            f"{STEP_ROWS:,} matrices of that size: roughly {max(seconds, 1):,.0f} s on one core, times 300 steps. "
            f"{DEFAULT_NEIGHBORS} to 128 neighbours are mostly enough.",
            UserWarning,
            stacklevel=2,
        )
