"""How good predictions and their error bars are. Each function says which direction is better and in what unit.

``Scores`` holds the metrics that reports, the command line and benchmarks show; ``METRICS`` says how to read each one.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Float[Tensor, " n"]
"""A number for each row."""

LEVEL = 0.95
"""The probability of the central intervals whose coverage and width are reported."""


def row_nll(y: Rows, mean: Rows, variance: Rows) -> Rows:
    """Negative log density of each target; lower is better; nats."""
    y, mean, variance = y.double(), mean.double(), variance.double()
    return 0.5 * ((y - mean).square() / variance + torch.log(2 * math.pi * variance))


def nll(y: Rows, mean: Rows, variance: Rows) -> float:
    """Mean negative log density of the targets; lower is better; nats per row."""
    return float(row_nll(y, mean, variance).mean())


def rmse(y: Rows, mean: Rows) -> float:
    """Root mean squared error; lower is better; the unit of the targets."""
    return float((y.double() - mean.double()).square().mean().sqrt())


def row_crps(y: Rows, mean: Rows, variance: Rows) -> Rows:
    """Continuous ranked probability score of each target; lower is better; the unit of the targets."""
    std = variance.double().sqrt()
    z = (y.double() - mean.double()) / std
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))


def crps(y: Rows, mean: Rows, variance: Rows) -> float:
    """Mean continuous ranked probability score; lower is better; the unit of the targets."""
    return float(row_crps(y, mean, variance).mean())


def coverage(y: Rows, mean: Rows, variance: Rows, level: float = LEVEL) -> float:
    """Share of targets inside the central interval of probability ``level``; closer to ``level`` is better."""
    half_width = NormalDist().inv_cdf(0.5 + level / 2) * variance.double().sqrt()
    return float(((y.double() - mean.double()).abs() <= half_width).double().mean())


def coverage_error(y: Rows, mean: Rows, variance: Rows, level: float = LEVEL) -> float:
    """The paper's ε_coverage^α = |α - coverage| with α = ``level``; lower is better, zero is perfect; a share."""
    return abs(level - coverage(y, mean, variance, level))


def interval_width(variance: Rows, level: float = LEVEL) -> float:
    """Mean width of the central intervals of probability ``level``; the unit of the targets.

    Of two models with the same coverage, the one with the narrower intervals is better.
    """
    return float((2 * NormalDist().inv_cdf(0.5 + level / 2) * variance.double().sqrt()).mean())


def pit(y: Rows, mean: Rows, variance: Rows) -> Rows:
    """Probability integral transform Φ((y - μ) / σ) of each target; uniform on [0, 1] if the predictions are right.

    More values at both ends mean that the error bars are too narrow, more in the middle that they are too wide, and
    more on one side that the means are biased.
    """
    return torch.special.ndtr((y.double() - mean.double()) / variance.double().sqrt())


# ---- all metrics together ----


class Metric(NamedTuple):
    """How to read a field of ``Scores``."""

    label: str
    name: str
    unit: Literal["nats", "target", "share", "none"]  # nats per row, the target's unit, a share of rows, no unit
    better: str
    meaning: str


METRICS = {
    "nll": Metric(
        "NLL",
        "negative log-likelihood",
        "nats",
        "lower is better",
        "How surprising the actual values are under the predicted distributions. It judges predictions and error bars "
        "together. A different unit of the target shifts it.",
    ),
    "rmse": Metric(
        "RMSE", "root mean squared error", "target", "lower is better", "Large errors have the greatest weight."
    ),
    "r2": Metric(
        "R²",
        "share of the variance explained",
        "none",
        "higher is better",
        "1 is perfect; 0 is as good as predicting the mean of the test rows.",
    ),
    "crps": Metric(
        "CRPS",
        "continuous ranked probability score",
        "target",
        "lower is better",
        "The absolute error, extended to predictions with error bars.",
    ),
    "coverage": Metric(
        "95 % coverage",
        "share of the actual values inside the 95 % interval",
        "share",
        "closer to 95 % is better",
        "Below 95 %, the intervals are too narrow; above, too wide.",
    ),
    "coverage_error": Metric(
        "Coverage error",
        "|95 % − coverage|",
        "share",
        "lower is better",
        "The distance of the coverage from 95 %, too narrow and too wide alike.",
    ),
    "width": Metric(
        "95 % width",
        "mean width of the 95 % intervals",
        "target",
        "narrower is better",
        "Compare it only between models with about the same coverage.",
    ),
}
"""The fields of ``Scores``, in their order."""


class Scores(NamedTuple):
    """The metrics of predictions of one target; see ``METRICS``. Intervals have probability ``LEVEL``."""

    nll: float
    rmse: float
    r2: float  # NaN if the targets do not vary
    crps: float
    coverage: float
    coverage_error: float
    width: float

    def in_unit(self, unit: float) -> "Scores":
        """The scores after targets, means and standard deviations are multiplied by ``unit``."""
        change = {"nats": lambda v: v + math.log(unit), "target": lambda v: v * unit}
        return Scores(*(change.get(METRICS[k].unit, lambda v: v)(v) for k, v in self._asdict().items()))


def scores(y: Rows, mean: Rows, variance: Rows) -> Scores:
    """All metrics of some predictions. Where squares of the targets may over- or underflow, use ``scaled`` first."""
    total = ScoreSum()
    total.add(y, mean, variance)
    return total.scores()


class RowScores(NamedTuple):
    """What each row adds to ``Scores``."""

    nll: Rows
    error: Rows  # y - mean
    crps: Rows
    inside: Bool[Tensor, " n"]  # whether the central interval of probability ``LEVEL`` contains y
    width: Rows  # of this interval


def row_scores(y: Rows, mean: Rows, variance: Rows) -> RowScores:
    """The scores of each row where predictions are normal."""
    y, mean, variance = y.double(), mean.double(), variance.double()
    half_width = NormalDist().inv_cdf(0.5 + LEVEL / 2) * variance.sqrt()
    error = y - mean
    inside = error.abs() <= half_width
    return RowScores(row_nll(y, mean, variance), error, row_crps(y, mean, variance), inside, 2 * half_width)


def lognormal_row_scores(y: Rows, location: Rows, variance: Rows) -> RowScores:
    """The scores of each row where predictions of log y are normal, with mean ``location``; y in its own unit.

    With z = (log y - μ) / σ, M = exp(μ + σ²/2) and Φ the normal distribution function, the continuous ranked
    probability score is y (2Φ(z) - 1) - 2M (Φ(z - σ) + Φ(σ/√2) - 1). A target that is not positive has density zero.
    """
    y, location, variance = y.double(), location.double(), variance.double()
    std, ndtr = variance.sqrt(), torch.special.ndtr
    log_y = y.clamp_min(0).log()  # -inf where y is not positive
    z, mean = (log_y - location) / std, (location + variance / 2).exp()
    # -log p(y) = -log p(log y) + log y: the density changes by the slope of the logarithm.
    nll = torch.where(y > 0, row_nll(log_y, location, variance) + log_y, math.inf)
    crps = y * (2 * ndtr(z) - 1) - 2 * mean * (ndtr(z - std) + ndtr(std / math.sqrt(2)) - 1)
    half = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    width = 2 * location.exp() * torch.sinh(half * std)
    return RowScores(nll, y - mean, crps, z.abs() <= half, width)


class ScoreSum:
    """The metrics of rows that come in pieces. Memory O(1)."""

    def __init__(self):
        self.num_rows = 0
        self._means = torch.zeros(6, dtype=torch.float64)  # nll, squared error, crps, coverage, width, target
        self._spread = 0.0  # the sum of squared distances of the targets from their mean

    def add(self, y: Rows, mean: Rows, variance: Rows) -> None:
        """Count more rows, whose predictions are normal."""
        self.add_rows(y, row_scores(y, mean, variance))

    def add_rows(self, y: Rows, rows: RowScores) -> None:
        """Count more rows, whatever the distributions that were predicted."""
        if len(y) == 0:
            return
        y, total = y.double().cpu(), self.num_rows + len(y)
        parts = rows.nll, rows.error.square(), rows.crps, rows.inside.double(), rows.width, y
        means = torch.stack([part.mean().cpu() for part in parts])
        old, new = self.num_rows / total, len(y) / total
        # The spread of two pieces together is the sum of their own spreads and that of their means.
        distance = float(means[-1] - self._means[-1])
        self._spread += float((y - means[-1]).square().sum()) + distance**2 * old * len(y)
        self._means = old * self._means + new * means
        self.num_rows = total

    def scores(self) -> Scores:
        """The metrics of all rows so far."""
        if self.num_rows == 0:
            raise ValueError("there are no rows with a known target to test on; add rows before asking for scores.")
        nll, square, crps, coverage, width, _ = self._means.tolist()
        r2 = 1 - self.num_rows * square / self._spread if self._spread > 0 else math.nan
        return Scores(nll, math.sqrt(square), r2, crps, coverage, abs(LEVEL - coverage), width)


class Scaled(NamedTuple):
    """Targets and predictions in a unit of their own."""

    y: Rows
    mean: Rows
    variance: Rows
    unit: float  # multiply by it to return to the unit of the targets; see ``Scores.in_unit``


def scaled(y: Float[np.ndarray, " n"], mean: Float[np.ndarray, " n"], std: Float[np.ndarray, " n"]) -> Scaled:
    """Arrays as float64 tensors in units of the median ``std``, in which squares neither over- nor underflow."""
    unit = float(np.median(std))
    parts = [torch.from_numpy(np.ascontiguousarray(np.asarray(part, float) / unit)) for part in (y, mean, std)]
    return Scaled(parts[0], parts[1], parts[2].square(), unit)


# ---- calibration ----


class Calibration(NamedTuple):
    """How often central intervals of several probabilities contain the targets."""

    levels: Float[np.ndarray, " levels"]  # the nominal probabilities
    coverage: Float[np.ndarray, " levels"]  # the share of targets inside each interval
    error: float  # mean |level - coverage|; lower is better, zero is perfect


def calibration(y: Rows, mean: Rows, variance: Rows, levels: int | Sequence[float] | np.ndarray = 19) -> Calibration:
    """Nominal and observed coverage of central intervals.

    An interval of probability p contains y if |2 PIT - 1| ≤ p. Time O(n log n), whatever the number of levels.

    Args:
        levels: the probabilities of the intervals, or how many of them, evenly spaced between 0 and 1.
    """
    if isinstance(levels, int):
        if levels < 1:
            raise ValueError(f"levels is {levels}, expected at least 1.")
        levels = np.arange(1, levels + 1) / (levels + 1)
    chosen = np.asarray(levels, dtype=float)
    if chosen.ndim != 1 or len(chosen) == 0 or not ((chosen > 0) & (chosen < 1)).all():
        raise ValueError(f"levels are {levels}, expected probabilities between 0 and 1, e.g. [0.5, 0.95].")
    needed = (2 * pit(y, mean, variance) - 1).abs().sort().values  # the smallest interval that contains each target
    counts = torch.searchsorted(needed, torch.from_numpy(chosen).to(needed), right=True)
    observed = counts.double().cpu().numpy() / len(needed)
    return Calibration(chosen, observed, float(np.abs(observed - chosen).mean()))
