"""How good the predictions of each target are, as numbers."""

from typing import NamedTuple

import numpy as np

from cagp import metrics
from cagp.metrics import Calibration, Scores
from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Predictions
from cagp.report.subject import Model


class Target(NamedTuple):
    """A target, its predictions and their scores."""

    name: str
    number: int  # from 0
    y: Vector
    mean: Vector
    std: Vector
    scores: Scores
    baseline: Scores  # of predicting the mean and standard deviation of the training targets for every row


def targets_of(model: Model, rows: HeldOutRows, found: Predictions) -> list[Target]:
    """All targets of the model."""
    return [_target(model, j, str(name), rows, found) for j, name in enumerate(model.target_names_)]


def _target(model: Model, j: int, name: str, rows: HeldOutRows, found: Predictions) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, found.mean, found.std))
    centre, spread = (float(np.ravel(part)[j]) for part in (model.scaler_.target_mean, model.scaler_.target_std))
    baseline = scores(y, np.full_like(y, centre), np.full_like(y, spread))
    return Target(name, j, y, mean, std, scores(y, mean, std), baseline)


def scores(y: Vector, mean: Vector, std: Vector) -> Scores:
    """The metrics of predictions in the unit of the target, whatever that is."""
    *scaled, unit = metrics.scaled(y, mean, std)
    return metrics.scores(*scaled).in_unit(unit)


def calibration_of(target: Target) -> Calibration:
    """Nominal and observed coverage of the central intervals at 19 levels, the last of which is 95 %."""
    return metrics.calibration(*metrics.scaled(target.y, target.mean, target.std)[:3])


def mean_coverage_error(y: Vector, mean: Vector, std: Vector) -> tuple[float, float]:
    """The mean coverage error over 19 levels, and its expected value if the predictions are right.

    An observed share is nearly normal about p with variance p (1 - p) / n, so E|share - p| ≈ √(2p (1 - p) / πn).
    """
    found = metrics.calibration(*metrics.scaled(y, mean, std)[:3])
    expected = np.sqrt(2 * found.levels * (1 - found.levels) / (np.pi * len(y))).mean()
    return found.error, float(expected)
