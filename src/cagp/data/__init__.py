"""Data: the embedded sample, seeded splits, and scaling by the training rows."""

from cagp.data.encoding import MAX_LEVELS, Encoder, Target, encode_target
from cagp.data.sample import Dataset, terrain
from cagp.data.scaling import Standardizer, standardized
from cagp.data.splits import Split, split

__all__ = [
    "MAX_LEVELS",
    "Dataset",
    "Encoder",
    "Split",
    "Standardizer",
    "Target",
    "encode_target",
    "split",
    "standardized",
    "terrain",
]
