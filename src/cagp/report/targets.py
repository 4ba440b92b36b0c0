"""How good the predictions of each target are, as numbers."""

from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from cagp import metrics
from cagp.estimators import GPRegressor
from cagp.estimators.predictive import Predictive, constant_prediction
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
    normal: tuple[Vector, Vector, Vector]  # y, mean and std on the scale of the fit, where predictions are normal
    interval: tuple[Vector, Vector]  # the ends of the 95 % intervals


def targets_of(model: GPRegressor, rows: HeldOutRows, found: Predictions) -> list[Target]:
    """All targets of the model."""
    predicted = Predictive.from_moments(found.mean, found.std, model.target_transforms_)
    constant = constant_prediction(model, len(rows.y))
    return [_target(j, str(name), rows, found, predicted, constant) for j, name in enumerate(model.target_names_)]


def _target(
    j: int, name: str, rows: HeldOutRows, found: Predictions, predicted: Predictive, constant: Predictive
) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, found.mean, found.std))
    normal = predicted.transforms[j].forward(y), predicted.location[:, j], predicted.scale[:, j]
    low, high = predicted.quantiles([0.5 - metrics.LEVEL / 2, 0.5 + metrics.LEVEL / 2])[:, j].T
    return Target(name, j, y, mean, std, predicted.scores(j, y), constant.scores(j, y), normal, (low, high))


def scores(y: Vector, mean: Vector, std: Vector) -> Scores:
    """The metrics of normal predictions in the unit of the target, whatever that is."""
    one = Predictive.from_moments(mean[:, None], std[:, None], ["identity"])
    return one.scores(0, y)


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
