"""How good the predictions of each target are, as numbers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cagp import metrics
from cagp.estimators.observations import Observations
from cagp.estimators.predictive import Predictive
from cagp.metrics import Calibration, Scores
from cagp.plots import Vector
from cagp.report.rows import HeldOutRows, Predictions
from cagp.report.subject import Model, regressor_of

MOST_BINS = 30
"""Of counts: with more of them, several share a bin."""


class CountShares(NamedTuple):
    """How many rows have each count, and how many should, by the predicted distributions."""

    start: Vector  # the smallest count of each bin
    width: int  # counts in a bin
    observed: Vector
    expected: Vector


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
    baseline_words: str  # what the baseline predicts
    counts: "CountShares | None" = None  # of a target that is a count
    allows_outliers: bool = False  # whether gross errors among the targets are to be expected

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
    if model.likelihood_ is not None:
        return [_observed_target(model, rows, found)]
    predicted = Predictive.from_moments(found.mean, found.std, model.target_transforms_)
    constant = regressor_of(model).fitted.constant_prediction(len(rows.y))
    assert isinstance(constant, Predictive)
    return [_target(j, str(name), rows, found, predicted, constant) for j, name in enumerate(model.target_names_)]


def _target(
    j: int, name: str, rows: HeldOutRows, found: Predictions, predicted: Predictive, constant: Predictive
) -> Target:
    y, mean, std = (np.ascontiguousarray(part[:, j]) for part in (rows.y, found.mean, found.std))
    normal = predicted.transforms[j].forward(y), predicted.location[:, j], predicted.scale[:, j]
    low, high = predicted.quantiles([0.5 - metrics.LEVEL / 2, 0.5 + metrics.LEVEL / 2])[:, j].T
    scores = predicted.scores(j, y), constant.scores(j, y)
    words = "the mean of the training targets for every row, with their standard deviation"
    return Target(name, j, y, mean, std, *scores, normal, (low, high), words)


def _observed_target(model: Model, rows: HeldOutRows, found: Predictions) -> Target:
    """The target of a model whose likelihood is not Gaussian: its place in its distribution stands for its error."""
    predicted, regressor = model.predictive(rows.X), regressor_of(model)
    assert isinstance(predicted, Observations)
    y, mean, std = (np.ascontiguousarray(part[:, 0]) for part in (rows.y, found.mean, found.std))
    constant = regressor.fitted.constant_prediction(len(y), predicted)
    normal = predicted.standardized(rows.y)[:, 0], np.zeros(len(y)), np.ones(len(y))
    low, high = predicted.quantiles([0.5 - metrics.LEVEL / 2, 0.5 + metrics.LEVEL / 2])[:, 0].T
    scores = predicted.scores(0, y), constant.scores(0, y)
    words = f"{regressor.fitted.constant_words} of the training targets for every row"
    counts = _count_shares(predicted, y) if predicted.likelihood.are_counts else None
    ends = low, high
    return Target(model.target_names_[0], 0, y, mean, std, *scores, normal, ends, words, counts, counts is None)


def _count_shares(predicted: Observations, y: Vector) -> CountShares:
    """Bins up to the largest count; of many counts, all bins have the same width."""
    width = max(1, int(np.ceil((y.max() + 1) / MOST_BINS)))
    start = np.arange(0, y.max() + 1, width)
    observed = np.histogram(y, bins=[*start, start[-1] + width])[0].astype(float)
    below = [predicted.cdf(np.full((len(y), 1), edge - 1)).sum() for edge in (*start, start[-1] + width)]
    return CountShares(start, width, observed, np.diff(below))


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
