"""Data: tables in files, their columns as numbers, the sample data, splits, scaling by the training rows."""

from cagp.data.column_values import MAX_LEVELS
from cagp.data.encoding import Encoder, Target, encode_target
from cagp.data.splits import Dataset, Split, shared_groups, split, terrain
from cagp.data.tables import Chunk, Chunks, TableWriter, open_chunks, read_table, stream_table, table_size
from cagp.data.transforms import Standardizer, standardized

__all__ = [
    "MAX_LEVELS",
    "Chunk",
    "Chunks",
    "Dataset",
    "Encoder",
    "Split",
    "Standardizer",
    "TableWriter",
    "Target",
    "encode_target",
    "open_chunks",
    "read_table",
    "shared_groups",
    "split",
    "standardized",
    "stream_table",
    "table_size",
    "terrain",
]
