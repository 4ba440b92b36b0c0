"""How good the predictions of each target are, as numbers."""

from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from cagp import metrics
from cagp.estimators import GPRegressor
from cagp.metrics import Scores
from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Predictions


class Target(NamedTuple):
    """A target, its predictions and their scores."""

    name: str
    number: int  # from 0
    y: Vector
    mean: Vector
    std: Vector
    scores: Scores
    baseline: Scores  # of predicting the mean and standard deviation of the training targets for every row


def targets_of(model: GPRegressor, rows: HeldOutRows, found: Predictions) -> list[Target]:
    """All targets of the model."""
    return [_target(model, j, str(name), rows, found) for j, name in enumerate(model.target_names_)]


def _target(model: GPRegressor, j: int, name: str, rows: HeldOutRows, found: Predictions) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, found.mean, found.std))
    centre, spread = (float(np.ravel(part)[j]) for part in (model.scaler_.target_mean, model.scaler_.target_std))
    baseline = scores(y, np.full_like(y, centre), np.full_like(y, spread))
    return Target(name, j, y, mean, std, scores(y, mean, std), baseline)


def scores(y: Vector, mean: Vector, std: Vector) -> Scores:
    """The metrics of predictions in the unit of the target, whatever that is."""
    *scaled, unit = metrics.scaled(y, mean, std)
    return metrics.scores(*scaled).in_unit(unit)


def expected_coverage(level: float, num_rows: int) -> tuple[float, float]:
    """The range in which the observed coverage lies with probability 95 % if the intervals are right.

    Rows are taken to be independent.
    """
    low, high = binom.ppf([0.025, 0.975], num_rows, level) / num_rows
    return float(low), float(high)


def mean_coverage_error(y: Vector, mean: Vector, std: Vector) -> tuple[float, float]:
    """The mean coverage error over 19 levels, and its expected value if the predictions are right.

    An observed share is nearly normal about p with variance p (1 - p) / n, so E|share - p| ≈ √(2p (1 - p) / πn).
    """
    found = metrics.calibration(*metrics.scaled(y, mean, std)[:3])
    expected = np.sqrt(2 * found.levels * (1 - found.levels) / (np.pi * len(y))).mean()
    return found.error, float(expected)


def is_calibrated(target: Target) -> bool:
    """Whether the coverage of the 95 % intervals differs from 95 % by no more than chance explains."""
    low, high = expected_coverage(metrics.LEVEL, len(target.y))
    return low <= target.scores.coverage <= high


def verdict(target: Target) -> str:
    """What the coverage says about the 95 % intervals, in words."""
    if is_calibrated(target):
        return "as it should be, up to chance"
    distance = target.scores.coverage - metrics.LEVEL
    slightly = "slightly " if abs(distance) < 0.02 else ""
    return f"the intervals are {slightly}too {'narrow' if distance < 0 else 'wide'}"
