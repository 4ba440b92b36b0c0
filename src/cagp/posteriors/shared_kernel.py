"""Posteriors of several targets that share kernel and noise: the mean of each, and one variance for all."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.local_inference import local_weights
from cagp.posteriors.base import Posterior
from cagp.posteriors.nearest_rows import LocalPosterior
from cagp.prior import ZeroMean


class ColumnMoments(NamedTuple):
    """The mean of each function, and the variance that all have, or the largest where they differ; float64."""

    mean: Float[Tensor, "t q"]
    variance: Float[Tensor, " t"]


@torch.no_grad()
def predict_columns(posteriors: Sequence[Posterior], X: Float[Tensor, "t d"]) -> ColumnMoments:
    """Mean and variance at each test point, of posteriors that differ in their targets alone.

    With nearest rows alone, one factorisation for each test point serves all of them. The actions of conjugate
    gradients depend on the targets, and so do their variances: the largest counts.
    """
    nearest = [p for p in posteriors if isinstance(p, LocalPosterior) and _is_plain(p)]
    if 1 < len(posteriors) == len(nearest):
        return _from_nearest_rows(nearest, X)
    means, variances = zip(*(posterior.predict(X) for posterior in posteriors), strict=True)
    return ColumnMoments(torch.stack(means, 1).double(), torch.stack(variances, 1).double().amax(1))


def _is_plain(posterior: LocalPosterior) -> bool:
    """Whether nearest rows alone predict, with one scale and prior mean zero."""
    alone = posterior.shared is None and posterior.num_neighbours > 0
    return alone and posterior.local_scale is None and isinstance(posterior.prior.mean, ZeroMean)


def _from_nearest_rows(posteriors: Sequence[LocalPosterior], X: Tensor) -> ColumnMoments:
    first = posteriors[0]
    k, targets = first.num_neighbours, torch.stack([posterior.y.double() for posterior in posteriors], 1)
    noise = first.prior.noise_variance(first.X, first.row_noise)
    parts = []
    for points in X.split(max(1, first.max_bytes // (4 * 8 * k * (k + 8 + targets.shape[1])))):
        near = first.index.nearest(points, k)
        flat = near.clamp_min(0)
        weights, variance = local_weights(first.prior, first.X, noise[flat], points, near)
        parts.append(((weights[:, None, :] @ targets[flat])[:, 0], variance))
    mean, variance = (torch.cat(column) for column in zip(*parts, strict=True))
    return ColumnMoments(mean, variance)
