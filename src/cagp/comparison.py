"""Whether one model is better than another: paired scores of the same rows, and one table of margins.

Every choice that a fit makes is a comparison of two models on rows that neither was fitted to, by ``Gains.exceed``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp import metrics
from cagp.posteriors.base import Pooled
from cagp.ranks import Ranks


class Margin(NamedTuple):
    """What a model must gain over the best one so far to be chosen instead."""

    least: float  # nats per row
    errors: float = 1.0  # standard errors of the gain
    clip: float = 20.0  # nats: no row counts for more in the gain
    clip_error: float = 20.0  # the same where the gain is compared with its standard error


MARGINS = {
    # Another kernel, mean or objective, or an average: less simple, and predictions cost as much or twice as much.
    "model": Margin(0.005),
    # More neighbours: predictions take several times as long.
    "neighbours": Margin(0.02),
    # Shared actions instead of nearest rows, or beside them: another posterior, with a cost that grows with n.
    "method": Margin(0.02, errors=2.0, clip=math.inf, clip_error=1.0),
    # Error bars that adapt locally lose the bound on the variance. A few improbable rows matter and are not clipped.
    "local scale": Margin(0.01, errors=2.0, clip=math.inf, clip_error=1.0),
    # The logarithm of a target changes what the mean and the error bars of predictions are.
    "log": Margin(0.02, errors=2.0, clip=math.inf, clip_error=1.0),
    # The prior mean with another likelihood: both are trained in full, and whichever is better is taken.
    "likelihood mean": Margin(0.0, errors=0.0, clip=math.inf),
    # So far behind that further training cannot make up for it.
    "far": Margin(0.2, errors=2.0),
    # A period: the exact likelihood per row of training data, of which no row is held out.
    "period": Margin(0.02, errors=0.0),
}
"""Heuristics; docs/benchmarks.md has the evidence."""


@dataclass(frozen=True)
class Gains:
    """What one model gains over another at each row, in nats."""

    rows: Float[Tensor, " n"]

    @property
    def mean(self) -> float:
        """The gain per row."""
        return self._mean_and_error()[0]

    @property
    def error(self) -> float:
        """The standard error of the gain."""
        return self._mean_and_error()[1]

    def exceed(self, kind: str) -> bool:
        """Whether the gain is larger than a margin of ``MARGINS``, and larger than chance explains."""
        margin = MARGINS[kind]
        typical, error = self._mean_and_error(margin.clip_error)
        return self._mean_and_error(margin.clip)[0] > margin.least and typical > margin.errors * error

    def _mean_and_error(self, clip: float = MARGINS["model"].clip) -> tuple[float, float]:
        rows = self.rows.clamp(-clip, clip)
        return float(rows.mean()), float(rows.std(correction=0)) / len(rows) ** 0.5


class Score(NamedTuple):
    """How well rows are predicted: means over the targets for each row, and what they follow from."""

    nll: Tensor
    crps: Tensor
    error: Tensor  # (q, n), of the mean of each target
    variance: Tensor  # (q, n)

    @classmethod
    def of(cls, targets: Iterable[tuple[Tensor, Tensor, Tensor]]) -> "Score":
        """The score of actual values, means and variances of each target."""
        columns = [((y - mean).double(), variance.double()) for y, mean, variance in targets]
        return cls.of_errors(*(torch.stack(part) for part in zip(*columns, strict=True)))

    @classmethod
    def of_errors(cls, error: Tensor, variance: Tensor) -> "Score":
        """The score of errors of the mean and variances, each (q, n)."""
        flat = error.flatten()
        rows = flat, torch.zeros_like(flat), variance.flatten()
        nll, crps = (score(*rows).view_as(error).mean(0) for score in (metrics.row_nll, metrics.row_crps))
        return cls(nll, crps, error, variance)

    def broadcast(self, ranks: Ranks) -> "Score":
        """The score of process 0, on all processes: scores decide."""
        return Score(**{name: values.to(self.nll.device) for name, values in ranks.from_first(self._asdict).items()})


def compare(new: Score, old: Score) -> Gains:
    """What ``new`` gains over ``old`` on the same rows: half in log density, half in CRPS.

    A relative change of the CRPS is a change of its logarithm, in nats like a log density: both change by log c if
    predictions and targets become c times as precise. It is relative to the mean CRPS of the two.
    """
    # A model that cannot be computed has infinite scores: any other gains as much as can be, and two such are equal.
    finite = [mean for mean in (float(old.crps.mean()), float(new.crps.mean())) if math.isfinite(mean)]
    unit = sum(finite) / len(finite) if finite else 1.0
    clip = MARGINS["model"].clip
    nats, relative = old.nll - new.nll, (old.crps - new.crps) / unit
    parts = torch.stack([nats, relative]).nan_to_num(0.0, torch.inf, -torch.inf).clamp(-clip, clip)
    return Gains(parts.mean(0))


WEIGHTS = (0.25, 0.5, 0.75)
"""Weights of the second model that an average of two is tried with."""


class Average(NamedTuple):
    """A model beside the best one, and its weight in the average of the two."""

    weight: float
    score: Score
    gain: Gains  # over the best one alone


def best_average(best: Score, other: Score) -> Average:
    """The average of two models that predicts held-out rows best, see ``AveragedPosterior``. Time O(rows)."""
    error, variance = torch.stack([best.error, other.error]), torch.stack([best.variance, other.variance])
    tried = []
    for weight in WEIGHTS:
        shares, squares = Pooled.of(variance.flatten(1), (1 - weight, weight))
        pairs = (shares, error), (squares, variance)
        score = Score.of_errors(*((factor.view_as(part) * part).sum(0) for factor, part in pairs))
        tried.append(Average(weight, score, compare(score, best)))
    return max(tried, key=lambda average: average.gain.mean)
