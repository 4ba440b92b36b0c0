"""The sample data: 20,000 elevations of the Blanca Peak massif, Colorado. ``terrain.md`` names their source."""

from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


class Dataset(NamedTuple):
    """Inputs and targets in their original units."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    names: tuple[str, ...]  # of the columns of X, then of y


def terrain() -> Dataset:
    """Positions in km east and north of the south-west corner, and their elevations in metres, as float64.

    The rows are sorted from south to north: permute them before you take the first few (``cagp.data.split`` does).
    """
    with files("cagp.data").joinpath("terrain.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        num_rows, num_columns = file["shape"]
        chosen = np.unpackbits(file["chosen"], count=num_rows * num_columns).reshape(num_rows, num_columns)
        row, column = chosen.nonzero()
        places = np.stack([column, row], axis=1) * file["spacing"]
        elevations = file["rises"].cumsum(dtype=np.int64)
    return Dataset(
        torch.from_numpy(places),
        torch.from_numpy(elevations).double(),
        names=("east (km)", "north (km)", "elevation (m)"),
    )
