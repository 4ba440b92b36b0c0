"""How good predictions and their error bars are. Each function says which direction is better and in what unit."""

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


def row_nll(y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Negative log density of each target; lower is better; nats."""
    y, mean, variance = y.double(), mean.double(), variance.double()
    return 0.5 * ((y - mean).square() / variance + torch.log(2 * math.pi * variance))


def nll(y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> float:
    """Mean negative log density of the targets; lower is better; nats per row."""
    return float(row_nll(y, mean, variance).mean())


def rmse(y: Float[Tensor, " n"], mean: Float[Tensor, " n"]) -> float:
    """Root mean squared error; lower is better; the unit of the targets."""
    return float((y.double() - mean.double()).square().mean().sqrt())


def crps(y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> float:
    """Mean continuous ranked probability score; lower is better; the unit of the targets."""
    std = variance.double().sqrt()
    z = (y.double() - mean.double()) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return float((std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))).mean())


def coverage(
    y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"], level: float = 0.95
) -> float:
    """Share of targets inside the central interval of probability ``level``; closer to ``level`` is better."""
    half_width = NormalDist().inv_cdf(0.5 + level / 2) * variance.double().sqrt()
    return float(((y.double() - mean.double()).abs() <= half_width).double().mean())


def interval_width(variance: Float[Tensor, " n"], level: float = 0.95) -> float:
    """Mean width of the central intervals of probability ``level``; narrower is better where coverage is as good.

    The unit of the targets.
    """
    return float(2 * NormalDist().inv_cdf(0.5 + level / 2) * variance.double().sqrt().mean())


def pit(y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Probability integral transform Φ((y - μ) / σ) of each target; uniform on [0, 1] where the predictions are right.

    Heaped at both ends, the error bars are too narrow; heaped in the middle, too wide; to one side, the means are off.
    """
    return torch.special.ndtr((y.double() - mean.double()) / variance.double().sqrt())


class Calibration(NamedTuple):
    """How often central intervals hold the targets, for several probabilities."""

    levels: Float[Tensor, " levels"]  # what the intervals promise
    observed: Float[Tensor, " levels"]  # the share of targets inside
    error: float  # mean |observed - promised|; lower is better, zero is perfect


def calibration(
    y: Float[Tensor, " n"], mean: Float[Tensor, " n"], variance: Float[Tensor, " n"], num_levels: int = 19
) -> Calibration:
    """Coverage of central intervals of ``num_levels`` probabilities, evenly spaced between 0 and 1.

    An interval of probability p holds y where |2 PIT - 1| ≤ p. Time O(n log n), whatever the number of levels.
    """
    if num_levels < 1:
        raise ValueError(f"num_levels is {num_levels}, expected at least 1.")
    levels = torch.arange(1, num_levels + 1, dtype=torch.float64, device=y.device) / (num_levels + 1)
    needed = (2 * pit(y, mean, variance) - 1).abs().sort().values  # the smallest interval that holds each target
    observed = torch.searchsorted(needed, levels, right=True).double() / len(needed)
    return Calibration(levels, observed, float((observed - levels).abs().mean()))
