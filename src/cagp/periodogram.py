"""The periods that targets seem to have along a column: where the search for a period starts."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_CYCLES, MOST_CYCLES = 2.0, 5000.0
"""Periods that occur at least and at most this many times between the ends of the column are looked for."""

OVERSAMPLING = 5
"""Frequencies tried for each cycle more between the ends; peaks are about one cycle wide."""

MOST_ROWS = 2000
CHANCE = 0.01
"""A peak that noise would reach with this probability is one."""

_TILE = 2**20


class Peak(NamedTuple):
    """A period in the unit of the column, and the share of the targets' variance that a wave of it explains."""

    period: float
    share: float
    by_chance: float  # the probability that noise has such a peak, to first order


def peaks(x: Float[Tensor, " n"], y: Float[Tensor, "n *q"], num_peaks: int = 1) -> list[Peak]:
    """The strongest periods of the targets along a column, the strongest first; fewer where there are fewer.

    Least squares of a constant, a sine and a cosine at each frequency (Lomb and Scargle, with a floating mean), after a
    parabola is taken off. With several targets, the mean of their shares counts. At most ``MOST_ROWS`` rows are looked
    at, always the same ones, drawn at random: a regular choice would make short periods look like long ones.
    """
    x, y = x.detach().double().cpu(), y.detach().double().cpu().view(len(x), -1)
    distinct, span = len(x.unique()), float(x.max() - x.min())
    if len(x) > MOST_ROWS:
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_ROWS]
        x, y = x[rows], y[rows]
    most = min(distinct / 2, MOST_CYCLES)
    if most <= LEAST_CYCLES or not math.isfinite(span) or span <= 0:
        return []
    x = (x - x.min()) / span
    trend = torch.stack([torch.ones_like(x), x, x.square()], 1)
    y = y - trend @ torch.linalg.lstsq(trend, y).solution
    cycles = torch.arange(LEAST_CYCLES, most, 1 / OVERSAMPLING, dtype=torch.float64)
    power = torch.cat([_explained(x, y, part) for part in cycles.split(max(1, _TILE // len(x)))])
    inner = torch.nn.functional.pad(power, (1, 1), value=-1.0)
    tops = ((power >= inner[:-2]) & (power > inner[2:]) & (power > 0)).nonzero()[:, 0]
    best = tops[power[tops].argsort(descending=True, stable=True)][:num_peaks]
    degrees = max(1.0, (len(x) - 3) / 2)
    return [
        Peak(span / float(cycles[j]), float(power[j]), min(1.0, most * (1 - min(1.0, float(power[j]))) ** degrees))
        for j in best
    ]


def _explained(x: Tensor, y: Tensor, cycles: Tensor) -> Tensor:
    """The share of the variance that a wave of each frequency explains, the mean over the targets."""
    phase = 2 * math.pi * cycles[:, None] * x
    C, S = (wave - wave.mean(1, keepdim=True) for wave in (torch.cos(phase), torch.sin(phase)))
    y = y - y.mean(0)
    cc, ss, cs = C.square().sum(1), S.square().sum(1), (C * S).sum(1)
    yc, ys = C @ y, S @ y
    determinant = (cc * ss - cs.square()).clamp_min(1e-10 * (cc * ss + 1e-300))
    explained = yc.square() * ss[:, None] + ys.square() * cc[:, None] - 2 * yc * ys * cs[:, None]
    return (explained / determinant[:, None] / y.square().sum(0).clamp_min(1e-300)).mean(1)
