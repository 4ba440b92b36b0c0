"""Data: tables in files, their columns as numbers, the sample data, splits, scaling by the training rows."""

from cagp.data.chunks import Chunks, open_chunks
from cagp.data.column_values import MAX_LEVELS
from cagp.data.encoding import Encoder
from cagp.data.sample import Dataset, terrain
from cagp.data.scaling import Standardizer, standardized
from cagp.data.splits import Split, shared_groups, split
from cagp.data.tables import Chunk, TableWriter, read_table, stream_table, table_size
from cagp.data.targets import Target, encode_target

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
