"""What training on rows that stay on disk holds in memory, in bytes; upper bounds, by purpose."""

INTEGER = 8
INDEX_COLUMN, INDEX_ROW = 20, 48
"""Bytes of a neighbour index, for each number in the rows and for each row, while it is built."""

STEP = 2**28 + 2**27
"""What a training step or a tile of predictions takes besides, and the neighbours that are kept from step to step."""


def local_bytes(num_rows: int, num_inputs: int, num_targets: int, ordered: bool) -> dict[str, int]:
    """Of CaGP-Local; the ordered objective has further indices, of 1/2, 1/4, ... of the rows."""
    index = num_rows * (INDEX_COLUMN * num_inputs + INDEX_ROW)
    found = {
        "the index of the rows": index * num_targets,
        "the order of the rows": INTEGER * num_rows,
        "a training step or a tile of predictions": STEP,
    }
    return {**found, "the indices of the ordered objective": 2 * index * num_targets} if ordered else found
