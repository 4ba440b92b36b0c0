"""Which rows are used for training and which for testing."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor


class Split(NamedTuple):
    """Row numbers, in random order; every row is in exactly one part."""

    train: Int[Tensor, " n_train"]
    test: Int[Tensor, " n_test"]


def split(num_rows: int, test_fraction: float, seed: int) -> Split:
    """A random split of ``num_rows`` rows, the same for the same arguments; at least one row in each part."""
    if num_rows < 2:
        raise ValueError(f"num_rows is {num_rows}, expected at least 2: one row to train on and one to test on.")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}, expected a number between 0 and 1, e.g. 0.1.")
    num_test = min(max(round(num_rows * test_fraction), 1), num_rows - 1)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))
    return Split(train=order[num_test:], test=order[:num_test])
