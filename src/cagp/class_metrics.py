"""How good predicted probabilities of classes are. Each function says which direction is better."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

BINS = 15
"""Of equal width, in which predicted and observed frequencies are compared."""

LEAST_PROBABILITY = 1e-15
"""Probabilities below count as this in the log loss, so that one impossible row does not make it infinite."""

Codes = Int[np.ndarray, " n"]
Probabilities = Float[np.ndarray, "n c"]


class ClassScores(NamedTuple):
    """The metrics of a classifier; lower is better for all."""

    log_loss: float  # nats per row
    error: float  # share of rows whose most probable class is wrong
    brier: float  # squared distance of the probabilities from zeros and a one, summed over classes; from 0 to 2
    calibration_error: float  # expected difference of predicted and observed frequencies


class ClassRows(NamedTuple):
    """What each row adds to ``ClassScores``."""

    log_loss: Float[np.ndarray, " n"]
    error: Bool[np.ndarray, " n"]
    brier: Float[np.ndarray, " n"]


def row_scores(codes: Codes, probabilities: Probabilities) -> ClassRows:
    """The scores of each row: -log p_y, whether its most probable class is wrong, and Σ_c (p_c - 1[y = c])²."""
    observed = codes[:, None] == np.arange(probabilities.shape[1])
    log_loss = -np.log(np.maximum(probabilities[observed], LEAST_PROBABILITY))
    return ClassRows(log_loss, probabilities.argmax(1) != codes, np.square(probabilities - observed).sum(1))


class Reliability(NamedTuple):
    """Predicted and observed frequencies of a class, by bins of the predicted probability."""

    predicted: Float[np.ndarray, " b"]
    observed: Float[np.ndarray, " b"]
    count: Int[np.ndarray, " b"]

    @property
    def error(self) -> float:
        """The mean difference of the two over all rows; lower is better."""
        return float(np.abs(self.predicted - self.observed) @ self.count / self.count.sum())


def reliability(codes: Codes, probabilities: Probabilities, place: int = 1, num_bins: int = BINS) -> Reliability:
    """Of the class at ``place``: rows with a probability of 0.3 should be of this class three times in ten."""
    p = probabilities[:, place]
    bins = np.minimum((p * num_bins).astype(np.int64), num_bins - 1)
    count = np.bincount(bins, minlength=num_bins)
    used = count > 0
    sums = [np.bincount(bins, weights=part, minlength=num_bins)[used] for part in (p, codes == place)]
    return Reliability(sums[0] / count[used], sums[1] / count[used], count[used])


def class_scores(codes: Codes, probabilities: Probabilities) -> ClassScores:
    """All metrics of these probabilities; the calibration error of more than two classes is the mean over them.

    Args:
        codes: the place of each row's class among the columns of ``probabilities``.
    """
    places = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    calibration = float(np.mean([reliability(codes, probabilities, place).error for place in places]))
    return ClassScores._make([*(float(values.mean()) for values in row_scores(codes, probabilities)), calibration])
