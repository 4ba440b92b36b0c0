"""How good predicted probabilities of classes are. Each function says which direction is better."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

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
    brier: float  # squared distance of the probabilities from zeros and a one, summed over classes
    calibration_error: float


def log_loss(codes: Codes, probabilities: Probabilities) -> float:
    """Mean negative log probability of the observed classes; lower is better; nats per row."""
    observed = probabilities[np.arange(len(codes)), codes]
    return float(-np.log(np.maximum(observed, LEAST_PROBABILITY)).mean())


def brier(codes: Codes, probabilities: Probabilities) -> float:
    """Mean of Σ_c (p_c - 1[y = c])²; lower is better, from 0 to 2."""
    observed = codes[:, None] == np.arange(probabilities.shape[1])
    return float(np.square(probabilities - observed).sum(1).mean())


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


def calibration_error(codes: Codes, probabilities: Probabilities) -> float:
    """Expected calibration error; with more than two classes, the mean over them; lower is better."""
    places = [1] if probabilities.shape[1] == 2 else range(probabilities.shape[1])
    return float(np.mean([reliability(codes, probabilities, place).error for place in places]))


def class_scores(codes: Codes, probabilities: Probabilities) -> ClassScores:
    """All metrics of these probabilities.

    Args:
        codes: the place of each row's class among the columns of ``probabilities``.
    """
    wrong = float((probabilities.argmax(1) != codes).mean())
    loss, score = log_loss(codes, probabilities), brier(codes, probabilities)
    return ClassScores(loss, wrong, score, calibration_error(codes, probabilities))
