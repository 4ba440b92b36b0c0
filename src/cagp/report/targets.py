"""How good the predictions of each target are, as numbers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cagp import metrics
from cagp.estimators.predictive import Predictive, constant_prediction
from cagp.metrics import Calibration, Scores
from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Predictions
from cagp.report.subject import Model, regressor_of


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

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each actual value lies in its 95 % interval."""
        return (self.interval[0] <= self.y) & (self.y <= self.interval[1])

    @property
    def standardized(self) -> Vector:
        """The errors in standard deviations, on the scale of the fit."""
        y, mean, std = self.normal
        return (y - mean) / std


def targets_of(model: Model, rows: HeldOutRows, found: Predictions) -> list[Target]:
    """All targets of the model."""
    predicted = Predictive.from_moments(found.mean, found.std, model.target_transforms_)
    constant = constant_prediction(regressor_of(model), len(rows.y))
    return [_target(j, str(name), rows, found, predicted, constant) for j, name in enumerate(model.target_names_)]


def _target(
    j: int, name: str, rows: HeldOutRows, found: Predictions, predicted: Predictive, constant: Predictive
) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, found.mean, found.std))
    normal = predicted.transforms[j].forward(y), predicted.location[:, j], predicted.scale[:, j]
    low, high = predicted.quantiles([0.5 - metrics.LEVEL / 2, 0.5 + metrics.LEVEL / 2])[:, j].T
    return Target(name, j, y, mean, std, predicted.scores(j, y), constant.scores(j, y), normal, (low, high))


def calibration_of(target: Target) -> Calibration:
    """Nominal and observed coverage of the central intervals at 19 levels, the last of which is 95 %."""
    return metrics.calibration(*metrics.scaled(*target.normal)[:3])


def mean_coverage_error(y: Vector, mean: Vector, std: Vector) -> tuple[float, float]:
    """The mean coverage error over 19 levels, and its expected value if the predictions are right.

    An observed share is nearly normal about p with variance p (1 - p) / n, so E|share - p| ≈ √(2p (1 - p) / πn).
    """
    found = metrics.calibration(*metrics.scaled(y, mean, std)[:3])
    expected = np.sqrt(2 * found.levels * (1 - found.levels) / (np.pi * len(y))).mean()
    return found.error, float(expected)
