"""How good the predictions of each target are, as numbers, and a verdict on the error bars in words."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cagp import metrics
from cagp.estimators.predictive import Observations
from cagp.metrics import LEVEL, Calibration, Scores
from cagp.plots import Z95, Vector, coverage_band
from cagp.report.page import share
from cagp.report.subject import Subject

MOST_BINS = 30
"""Of counts: with more of them, several share a bin."""

AS_IT_SHOULD = "as it should be, up to chance"


class CountShares(NamedTuple):
    """How many rows have each count, and how many should, by the predicted distributions."""

    start: Vector  # the smallest count of each bin
    width: int  # counts in a bin
    observed: Vector
    expected: Vector


class Verdict(NamedTuple):
    """Whether the error bars are right, up to chance, and what is wrong with them."""

    is_right: bool
    words: str  # after "The 95 % intervals contain 93 % of the actual values: "


@dataclass(frozen=True)
class Target:
    """A target, its predictions and their scores."""

    name: str
    number: int  # from 0
    y: Vector
    mean: Vector
    std: Vector
    z: Vector  # the errors in standard deviations, on the scale of the fit, where they are normal
    interval: tuple[Vector, Vector]  # the ends of the 95 % intervals
    scores: Scores
    baseline: Scores
    baseline_words: str  # what the baseline predicts
    counts: CountShares | None = None  # of a target that is a count
    allows_outliers: bool = False  # whether gross errors among the targets are to be expected

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each actual value lies in its 95 % interval."""
        return (self.interval[0] <= self.y) & (self.y <= self.interval[1])

    @cached_property
    def error(self) -> Vector:
        """Actual minus predicted values."""
        return self.y - self.mean

    @cached_property
    def error_quantiles(self) -> tuple[float, float]:
        """The median and the 90 % quantile of the absolute errors."""
        median, upper = np.quantile(np.abs(self.error), [0.5, 0.9])
        return float(median), float(upper)

    @property
    def worst(self) -> int:
        """The row with the largest absolute error."""
        return int(np.abs(self.error).argmax())

    @property
    def share_in_the_middle(self) -> float:
        """Of the targets, those in the middle 95 % of their distributions; random within a count."""
        return float((np.abs(self.z) <= Z95).mean())

    @property
    def standard(self) -> tuple[Vector, Vector, Vector]:
        """Targets, means and standard deviations where all predictions are standard normal: what calibration needs."""
        return self.z, np.zeros_like(self.z), np.ones_like(self.z)

    @cached_property
    def calibration(self) -> Calibration:
        """Nominal and observed coverage of the central intervals at 19 levels, the last of which is 95 %."""
        return metrics.calibration(*metrics.scaled(*self.standard)[:3])

    @cached_property
    def verdict(self) -> Verdict:
        """What the coverage at 19 levels says about the error bars."""
        return verdict_on(self.calibration, len(self.y))

    @property
    def error_by_chance(self) -> float:
        """The expected mean coverage error if the predictions are right."""
        return error_by_chance(self.calibration.levels, len(self.y))

    @property
    def expected_coverage(self) -> tuple[float, float]:
        """The range of the coverage of the 95 % intervals in which all 19 levels lie together with probability 95 %."""
        low, high = coverage_band(LEVEL, len(self.y))
        return float(low), float(high)


def targets_of(subject: Subject) -> list[Target]:
    """All targets of a regressor."""
    predicted, model = subject.predicted, subject.model
    constant = model.fitted.constant_prediction(predicted)
    mean, std, z = predicted.mean(), predicted.std(), predicted.standardized(subject.y)
    ends = predicted.quantiles([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    counts = None
    if isinstance(predicted, Observations) and predicted.likelihood.are_counts:
        counts = _count_shares(predicted, subject.y[:, 0])
    targets = []
    for j, name in enumerate(model.target_names_):
        y, interval = np.ascontiguousarray(subject.y[:, j]), (ends[:, j, 0], ends[:, j, 1])
        scores = predicted.scores(j, y), constant.scores(j, y)
        outliers = isinstance(predicted, Observations) and counts is None
        values = y, mean[:, j], std[:, j], z[:, j], interval, *scores
        targets.append(Target(str(name), j, *values, model.fitted.constant_words, counts, outliers))
    return targets


def _count_shares(predicted: Observations, y: Vector) -> CountShares:
    """Bins up to the largest count; of many counts, all bins have the same width."""
    width = max(1, int(np.ceil((y.max() + 1) / MOST_BINS)))
    start = np.arange(0, y.max() + 1, width)
    observed = np.histogram(y, bins=[*start, start[-1] + width])[0].astype(float)
    below = [predicted.cdf(np.full((len(y), 1), edge - 1)).sum() for edge in (*start, start[-1] + width)]
    return CountShares(start, width, observed, np.diff(below))


def error_by_chance(levels: Vector, num_rows: int) -> float:
    """The mean coverage error of right predictions, on average.

    An observed share is nearly normal about p with variance p (1 - p) / n, so E|share - p| ≈ √(2p (1 - p) / πn).
    """
    return float(np.sqrt(2 * levels * (1 - levels) / (np.pi * num_rows)).mean())


def verdict_on(curve: Calibration, num_rows: int) -> Verdict:
    """The error bars are right if the whole curve lies in the grey band of its figure."""
    low, high = coverage_band(curve.levels, num_rows)
    distance = curve.coverage - curve.levels
    beyond = (curve.coverage < low) | (curve.coverage > high)
    if not beyond.any():
        return Verdict(True, AS_IT_SHOULD)
    sides = np.where(distance < 0, "narrow", "wide")
    last = int(np.abs(curve.levels - LEVEL).argmin())
    # Of the levels beyond chance, the one that is farthest off; if the last is, of those on the other side.
    others = beyond & (sides != sides[last]) if beyond[last] else beyond
    worst = int(np.where(others, np.abs(distance), -1).argmax())
    level, side = curve.levels[worst], sides[worst]
    other = f"the {100 * level:.0f} % intervals contain {share(curve.coverage[worst])}"
    if not beyond[last]:
        where = "in the middle" if level < 0.85 else "there"
        return Verdict(False, f"{AS_IT_SHOULD}, but {other}, so the error bars are too {side} {where}")
    words = f"the intervals are {'slightly ' if abs(distance[last]) < 0.02 else ''}too {sides[last]}"
    if others.any():
        tails = "; errors have heavier tails than a normal distribution" if side == "wide" else ""
        words += f". But {other} and are too {side}{tails}"
    return Verdict(False, words)
