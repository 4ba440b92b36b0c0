"""Sizes that several modules agree on. Imports nothing, so that every layer and the command line can use it."""

EXACT_ROWS = 2000
"""Up to this many rows, exact inference takes seconds: it is the default method and the reference for others."""


def action_bytes(num_rows: int, num_actions: int) -> int:
    """The bytes that a training step of CaGP-Opt holds at its peak: 64 n i. The hybrid keeps an eighth of it."""
    return 64 * num_rows * num_actions
