"""Choosing a local scale: whether error bars should follow the neighbours of each test point. See docs/local.md."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.comparison import Gains
from cagp.local_inference import Moments, local_answers
from cagp.metrics import row_nll
from cagp.neighbours import NeighbourIndex
from cagp.posteriors.nearest_rows import closeness, scale_around
from cagp.prior import GP

LOCAL_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""What ``choose_local_scale`` tries."""

SCALE_ROWS = 10_000
"""Rows that choose among the scales: many, because a few improbable ones weigh much."""


class ScaleChoice(NamedTuple):
    """The choice of a local scale, with the mean negative log density of rows, each predicted from others."""

    local_scale: float | None
    nll: float
    nll_without: float
    num_rows: int


@torch.no_grad()
def choose_local_scale(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    index: NeighbourIndex,
    num_neighbours: int,
    *,
    seed: int,
    max_bytes: int,
    num_rows: int = SCALE_ROWS,
    held_out: tuple[Tensor, Tensor, Tensor | None] | None = None,
) -> ScaleChoice:
    """The local scale with which rows are predicted best from their neighbours, at the hyperparameters of ``prior``.

    At most ``num_rows`` rows, each predicted from others alone, choose among ``LOCAL_SCALES``: rows of ``X``, or those
    that are held out. If the best does not gain the margin of ``cagp.comparison``, the choice is None: one scale
    everywhere.
    """
    generator = torch.Generator().manual_seed(seed)
    asked_X, asked_y, asked_noise = (X, y, row_noise) if held_out is None else held_out
    rows = torch.randperm(asked_X.shape[0], generator=generator)[:num_rows].to(X.device)
    k = min(num_neighbours, X.shape[0] - (held_out is None))
    if k == 0:
        raise ValueError("a local scale needs neighbours; expected num_neighbours_predict and rows to have some.")
    points = asked_X[rows]
    near = index.nearest(points, k, left_out=rows if held_out is None else None)
    tile = max(1, max_bytes // (4 * 8 * k * (k + 8)))
    tiles = [
        local_answers(prior, X, y, row_noise, part, of_part)
        for part, of_part in zip(points.split(tile), near.split(tile), strict=True)
    ]
    moments = Moments(*(torch.cat(columns) for columns in zip(*tiles, strict=True)))
    close = closeness(prior, points, X, near)
    noise = 0.0 if asked_noise is None else asked_noise[rows].double()
    variance = moments.variance.clamp_min(0) + prior.noise.learned(points)

    def nll(scale: Tensor | float) -> Tensor:
        return row_nll(asked_y[rows], moments.mean, scale * variance + noise)

    without = nll(1.0)
    nlls = {value: nll(scale_around(moments, close, value)) for value in LOCAL_SCALES}
    best = min(nlls, key=lambda value: float(nlls[value].mean()))
    gains = without - nlls[best]
    before = float(without.mean())
    if Gains(gains).exceed("local scale"):
        return ScaleChoice(best, before - float(gains.mean()), before, len(rows))
    return ScaleChoice(None, before, before, len(rows))
