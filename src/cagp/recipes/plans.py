"""What training on rows that stay on disk holds in memory, in bytes; upper bounds, by purpose."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cagp.lazy import lazy_module

if TYPE_CHECKING:
    from cagp import engine
else:
    engine = lazy_module("cagp.engine")

INTEGER = 8
TREE_COLUMN, TREE_ROW = 5, 8
"""Bytes of the compiled tree, for each number in the rows and for each row: a float32 copy, boxes, numbers of rows."""

INDEX_COLUMN, INDEX_ROW = 20, 48
"""The same for the other neighbour indices, SciPy's and that of faiss, while they are built."""

STEP = 2**28 + 2**27
"""What a training step or a tile of predictions takes besides, and the neighbours that are kept from step to step."""


def local_bytes(num_rows: int, num_inputs: int, num_targets: int, ordered: bool) -> dict[str, int]:
    """Of CaGP-Local; the ordered objective needs the order of the rows in the tree, or further indices."""
    if engine.COMPILED.available and find_spec("faiss") is None:  # a tree, or a scan, which takes less
        index = num_rows * (TREE_COLUMN * num_inputs + TREE_ROW)
        of_order = num_rows * (4 * num_inputs + 2 * INTEGER)  # a scan sorts a copy of the rows
    else:
        index = num_rows * (INDEX_COLUMN * num_inputs + INDEX_ROW)
        of_order = 2 * index  # indices of 1/2, 1/4, ... of the rows
    found = {
        "the index of the rows": index * num_targets,
        "the order of the rows": INTEGER * num_rows,
        "a training step or a tile of predictions": STEP,
    }
    return {**found, "the indices of the ordered objective": of_order * num_targets} if ordered else found
