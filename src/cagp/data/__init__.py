"""Data: the embedded sample, seeded splits, and scaling by the training rows."""

from cagp.data.sample import Dataset, terrain
from cagp.data.scaling import Standardizer, standardized
from cagp.data.splits import Split, split

__all__ = ["Dataset", "Split", "Standardizer", "split", "standardized", "terrain"]
