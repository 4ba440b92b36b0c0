"""Sizes at which methods change, and what they take. Importable without torch."""

EXACT_ROWS = 2000
"""Up to this many rows exact inference takes seconds, and nothing is better."""


def action_bytes(num_rows: int, num_actions: int) -> int:
    """Bytes that a training step of CaGP-Opt holds at its peak, and eight times what the hybrid keeps."""
    return 64 * num_rows * num_actions
