"""Whether a target or its logarithm is fitted: whichever predicts held-out training rows better."""

import math

import numpy as np
import torch
from torch import Tensor

from cagp.comparison import Gains
from cagp.data.splits import RowRule
from cagp.data.transforms import TRANSFORMS, Standardizer
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPLocal
from cagp.prior import GP, GaussianNoise
from cagp.starting import start_from_data
from cagp.training import fit

SKEWNESS, RANGE = 0.5, 3.0
"""The logarithm of a positive target is tried if its skewness, and its maximum over its median, exceed these."""

LEAST_ROWS, MOST_ROWS, HELD_OUT = 100, 5000, 0.2
"""Rows that a trial needs and takes at most, and the share of them that is held out."""

STEPS, NEIGHBOURS, BATCH = 60, 16, 256
"""Of a trial: short, since it compares two scales and nothing else."""

LEAST_SECONDS, TRIAL_SHARE = 20.0, 0.05
"""With a shorter ``max_time`` nothing is tried; a trial, of which there are two, takes at most this share of it."""


def may_take_log(y: np.ndarray) -> bool:
    """Whether a target has enough rows, and is so skewed that its logarithm may be easier to predict."""
    if len(y) < LEAST_ROWS or y.min() <= 0:
        return False
    centred = y / y.max() - (y / y.max()).mean()
    spread = float(np.sqrt((centred**2).mean()))
    if spread == 0:
        return False
    skewness = float(((centred / spread) ** 3).mean())
    return skewness > SKEWNESS and float(y.max()) > RANGE * float(np.median(y))


def drawn_rows(num_rows: int, seed: int) -> np.ndarray:
    """The numbers of rows for ``takes_log``."""
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed))[:MOST_ROWS].numpy()


def takes_log(
    X: Tensor, y: np.ndarray, rule: RowRule, has_local_scale: bool, seed: int, max_time: float
) -> tuple[bool, str]:
    """Whether the logarithm of a target predicts held-out rows better, and why, in words that follow its name.

    The rows are ``drawn_rows`` in standard units; error bars may adapt locally if they may in the fit to come.
    """
    if max_time < LEAST_SECONDS:
        return False, (
            "is positive and skewed; max_time leaves no time to try its logarithm, so it is fitted as it is. "
            'target="log" fits it on a log scale.'
        )
    given = X, y, rule, has_local_scale, seed, TRIAL_SHARE * max_time
    plain, log = (_held_out_nll(key, *given) for key in ("identity", "log"))
    compared = f"negative log density of {len(plain):,} held-out rows: {float(plain.mean()):.3f} as it is"
    compared = f"{compared}, {float(log.mean()):.3f} by its logarithm"
    if Gains(plain - log).exceed("log"):
        return True, f"is fitted on a log scale: predictions are lognormal ({compared})."
    return False, f"is positive and skewed, but is fitted as it is: its logarithm gains too little ({compared})."


def _held_out_nll(
    scale: str, X: Tensor, y: np.ndarray, rule: RowRule, has_local_scale: bool, seed: int, max_time: float
) -> Tensor:
    """Negative log density of held-out rows in the unit of the target, after a short fit to the others."""
    transform, (train, test) = TRANSFORMS[scale], rule.split(len(y), HELD_OUT, seed)
    values = torch.from_numpy(transform.forward(y))
    scaler = Standardizer.fit(X[train], values[train])
    rows = X[train], scaler.targets(values[train])
    prior = start_from_data(GP(Scale(Matern32(X.shape[1])), noise=GaussianNoise()), *rows)
    method = CaGPLocal(prior, NEIGHBOURS, batch_size=BATCH, seed=seed)
    fit(method, *rows, num_steps=STEPS, max_time=max_time if math.isfinite(max_time) else None)
    if has_local_scale and method.num_neighbours_predict < len(train):
        learn, inner, held_out = rows, rule.take(train.numpy()), None
        if inner.kind != "random":
            inside, outside = inner.split(len(train), HELD_OUT, seed)
            learn, held_out = (rows[0][inside], rows[1][inside]), (rows[0][outside], rows[1][outside], None)
        method = method.with_local_scale(method.choose_local_scale(*learn, held_out=held_out).local_scale)
    prediction = method.condition(*rows).predict(X[test], noise=True)
    location, variance = scaler.restore_mean(prediction.mean), scaler.restore_variance(prediction.variance)
    return transform.row_scores(y[test.numpy()], location.numpy(), variance.sqrt().numpy()).nll
