"""The protocol that benchmarks of quality share: tables, what each row is for, and how CaGP-Opt starts."""

import math
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp.data import split
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.prior import GP, GaussianNoise
from cagp.starting import raise_noise, start_from_data, start_from_neighbours

Blocks = Literal["spatial", "ordered"]
Start = Literal["neighbours", "data", "paper"]

VALIDATION_ROWS = 2000
PAPER_START = math.log(2)
"""Where GPyTorch's lengthscales, outputscale and noise variance start."""


def load_table(table: Path, num_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """X and y of an .npz file in float64: all rows, or ``num_rows`` random ones, the same each time."""
    with np.load(table, allow_pickle=False) as file:
        X, y = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
    if num_rows is not None and num_rows < len(y):
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:num_rows]
        X, y = X[chosen], y[chosen]
    return X.double(), y.double()


class Rows(NamedTuple):
    """Row numbers by purpose; every row has exactly one."""

    train: Tensor
    validation: Tensor
    test: Tensor


def rows_by_purpose(num_rows: int, seed: int) -> Rows:
    """A tenth for testing, and a tenth of the others, at most ``VALIDATION_ROWS``, for validation."""
    outer = split(num_rows, 0.1, seed)
    inner = split(len(outer.train), min(0.1, VALIDATION_ROWS / len(outer.train)), seed)
    return Rows(outer.train[inner.train], outer.train[inner.test], outer.test)


def new_method(
    X: Tensor, y: Tensor, num_actions: int, blocks: Blocks, start: Start, seed: int, noise_floor: float = 1e-6
) -> CaGPOpt:
    """CaGP-Opt with a Matérn 3/2 kernel; "ordered" blocks are those of the paper, with its random weights."""
    noise = GaussianNoise(PAPER_START, noise_floor)
    prior = GP(Scale(Matern32(X.shape[1], PAPER_START), PAPER_START), noise=noise)
    if start == "neighbours":
        start_from_neighbours(prior, X, y, seed=seed)
    elif start == "data":
        start_from_data(prior, X, y)
    weights = "constant" if blocks == "spatial" else "random"
    generator = torch.Generator().manual_seed(seed)
    # After a start from neighbours the lengthscales are known, and blocks are cut once.
    reblock_at = () if start == "neighbours" else None
    choices = {"blocks": blocks, "start": weights, "generator": generator, "reblock_at": reblock_at}
    method = CaGPOpt.from_data(prior, X, num_actions, **choices)
    if start == "neighbours":
        raise_noise(method, X, y)
    return method
