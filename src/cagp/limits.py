"""The size that several modules agree on. Imports nothing, so that every layer and the command line can use it."""

EXACT_ROWS = 2000
"""Up to this many rows, exact inference takes seconds: it is the default method and the reference for others."""
