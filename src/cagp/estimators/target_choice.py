"""Whether a target or its logarithm is fitted: as the user says, or what predicts held-out training rows better."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import limits
from cagp.data.row_rules import RowRule
from cagp.data.scaling import Standardizer
from cagp.data.transforms import TRANSFORMS, Transform
from cagp.estimators.rows import TrainingRows
from cagp.estimators.units import Units
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPLocal
from cagp.methods.common import is_gain
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.recipes import Recipe
from cagp.starting import start_from_data
from cagp.training import fit

if TYPE_CHECKING:
    from cagp.estimators.options import FitOptions

SKEWNESS, RANGE = 0.5, 3.0
"""The logarithm of a positive target is tried if its skewness, and its maximum over its median, exceed these."""

LEAST_ROWS, MOST_ROWS, HELD_OUT = 100, 5000, 0.2
"""Rows that a trial needs and takes at most, and the share of them that judges."""

STEPS, NEIGHBOURS, BATCH = 60, 16, 256
"""Of a trial: short, since it compares two scales and nothing else."""

GAIN = 0.02
"""Nats per row that the logarithm must gain, beyond chance."""

LEAST_SECONDS, TRIAL_SHARE = 20.0, 0.05
"""With a shorter ``max_time`` nothing is tried; a trial, of which there are two, takes at most this share of it."""


class Chosen(NamedTuple):
    """The units and rows on the scales that were chosen, and what the fit report says about it."""

    units: Units
    rows: TrainingRows
    notes: list[str]


def choose_transforms(
    model: "FitOptions", recipe: Recipe, units: Units, rows: TrainingRows, seed: int, ranks: Ranks
) -> Chosen:
    """Put every target on the scale that ``model.target`` asks for; "auto" decides for each target.

    Args:
        rows: with every target as it is.
        ranks: the processes that train together; the first decides for all.
    """
    names = units.target_names
    if model.target == "log":
        _check_log(names, rows)
        logs = [True] * len(names)
        notes = [f"{name} is fitted on a log scale: predictions are lognormal." for name in names]
    elif model.target == "auto" and rows.noise is None:
        scaled = getattr(recipe, "local_scale", None) is not None and len(rows.inputs) > limits.EXACT_ROWS
        found = ranks.from_first(
            lambda: {"targets": [_judge(j, units, rows, scaled, model, seed) for j in range(len(names))]}
        )["targets"]
        logs, notes = [log for log, _ in found], [note for _, note in found if note is not None]
    else:
        return Chosen(units, rows, [])
    transforms = tuple(TRANSFORMS["log" if log else "identity"] for log in logs)
    return Chosen(*units.with_transforms(transforms, rows), notes)


def _check_log(names: tuple[str, ...], rows: TrainingRows) -> None:
    """Raise ValueError where a target has no logarithm, or where known noise has no meaning for it."""
    for j, name in enumerate(names):
        wrong = np.flatnonzero(rows.targets[:, j] <= 0)
        if len(wrong):
            raise ValueError(
                f'target is "log", but {name} has {len(wrong):,} values that are not positive (first '
                f"{rows.targets[wrong[0], j]:g} at row {rows.places[wrong[0]]}). Leave these rows out, or use "
                'target="identity".'
            )
    if rows.noise is not None:
        raise ValueError(NO_NOISE)


NO_NOISE = (
    'sample_noise is in squared units of y, and the target is fitted on a log scale. Use target="identity"; or fit '
    "log(y) yourself with sample_noise / y**2, which is right where the noise is small beside y."
)


def _judge(
    j: int, units: Units, rows: TrainingRows, scaled: bool, model: "FitOptions", seed: int
) -> tuple[bool, str | None]:
    """Whether to take the logarithm of a target, and what was found, in words; None if there was no reason to try."""
    name, known = units.target_names[j], np.flatnonzero(~np.isnan(rows.targets[:, j]))
    y = rows.targets[known, j]
    if len(y) < LEAST_ROWS or not is_skewed(y):
        return False, None
    max_time = seconds_of(model.max_time)
    if max_time < LEAST_SECONDS:
        return False, (
            f"{name} is positive and skewed; max_time leaves no time to try its logarithm, so it is fitted as it is. "
            'target="log" fits it on a log scale.'
        )
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))[:MOST_ROWS].numpy()
    X, rule = units.scaled(rows.inputs[known[order]]), rows.rule.take(known[order])
    own, log = (
        _held_out_nll(X, y[order], rule, TRANSFORMS[key], scaled, seed, TRIAL_SHARE * max_time)
        for key in ("identity", "log")
    )
    takes_log = is_gain(own - log, GAIN)
    scales = f"negative log density of {len(own):,} held-out rows: {float(own.mean()):.3f} as it is"
    found = f"{scales}, {float(log.mean()):.3f} by its logarithm"
    if takes_log:
        return True, f"{name} is fitted on a log scale: predictions are lognormal ({found})."
    return False, f"{name} is positive and skewed, but is fitted as it is: its logarithm gains too little ({found})."


def is_skewed(y: np.ndarray) -> bool:
    """Whether a target is positive and skewed enough that its logarithm may be easier to predict."""
    if y.min() <= 0:
        return False
    centred = y / y.max() - (y / y.max()).mean()
    spread = float(np.sqrt((centred**2).mean()))
    if spread == 0:
        return False
    skewness = float(((centred / spread) ** 3).mean())
    return skewness > SKEWNESS and float(y.max()) > RANGE * float(np.median(y))


def _held_out_nll(
    X: Tensor, y: np.ndarray, rule: RowRule, transform: Transform, scaled: bool, seed: int, max_time: float
) -> Tensor:
    """Negative log density of held-out rows in the unit of the target, after a short fit of CaGP-Local to the others.

    Args:
        X: in standard units.
        scaled: whether error bars may follow a local scale, as they may in the fit to come.
    """
    train, test = rule.split(len(y), HELD_OUT, seed)
    values = torch.from_numpy(transform.forward(y))
    scaler = Standardizer.fit(X[train], values[train])
    rows = X[train], scaler.targets(values[train])
    prior = start_from_data(GP(Scale(Matern32(X.shape[1])), noise=GaussianNoise()), *rows)
    method = CaGPLocal(prior, NEIGHBOURS, batch_size=BATCH, seed=seed)
    fit(method, *rows, num_steps=STEPS, max_time=max_time if max_time < float("inf") else None)
    if scaled and method.num_neighbours_predict < len(train):
        learn, inner = rows, rule.take(train.numpy())
        held_out = None
        if inner.kind != "random":
            inside, outside = inner.split(len(train), HELD_OUT, seed)
            learn, held_out = (rows[0][inside], rows[1][inside]), (rows[0][outside], rows[1][outside], None)
        method = method.with_local_scale(method.choose_local_scale(*learn, held_out=held_out).local_scale)
    found = method.condition(*rows).predict(X[test], noise=True)
    location, variance = scaler.restore_mean(found.mean), scaler.restore_variance(found.variance)
    return transform.row_scores(y[test.numpy()], location.numpy(), variance.sqrt().numpy()).nll
