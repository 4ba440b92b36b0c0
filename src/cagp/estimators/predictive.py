"""The distributions that a regressor predicts, in the units of the targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cagp.data.transforms import TRANSFORMS, Transform
from cagp.fields import Fields, optional, real, that
from cagp.likelihoods import Likelihood, NegativeBinomial, Poisson, StudentT
from cagp.metrics import LEVEL, RowScores, Scores, ScoreSum

Matrix = Float[np.ndarray, "n q"]
Column = Float[np.ndarray, "n 1"]

SEED = 0
"""Of the random part of a count's place in its distribution: the same rows get the same place each time."""

FARTHEST = 38.0
"""Places in a distribution become standard deviations of a normal one, at most this many."""


@final
@dataclass(frozen=True)
class Predictive:
    """The distribution of every target at every row: normal, or lognormal for a target that is fitted as logarithm.

    Its methods answer in the units of the targets, rows by targets. ``location`` and ``scale`` are mean and standard
    deviation on the scale of the fit.
    """

    location: Matrix
    scale: Matrix
    transforms: tuple[Transform, ...]  # of each target

    def take(self, rows: slice | np.ndarray) -> "Predictive":
        """Some of the rows."""
        return Predictive(self.location[rows], self.scale[rows], self.transforms)

    def mean(self) -> Matrix:
        """The mean."""
        return self._each(lambda t, j: t.mean(self.location[:, j], self.scale[:, j]))

    def std(self) -> Matrix:
        """The standard deviation."""
        return self._each(lambda t, j: t.std(self.location[:, j], self.scale[:, j]))

    def quantiles(self, probabilities: Sequence[float]) -> Float[np.ndarray, "n q k"]:
        """The quantiles of these probabilities, in the last axis."""
        return self.at(np.array([NormalDist().inv_cdf(p) for p in probabilities]))

    def at(self, z: Float[np.ndarray, "*q k"]) -> Float[np.ndarray, "n q k"]:
        """The values this many standard deviations from the centre, on the scale of the fit."""
        values = self.location[..., None] + self.scale[..., None] * z
        return self._each(lambda t, j: t.inverse(values[:, j]))

    def log_density(self, y: Matrix) -> Matrix:
        """log p(y), in nats."""
        slope = self._each(lambda t, j: t.log_slope(y[:, j]))
        return -0.5 * self.standardized(y) ** 2 - np.log(self.scale) - 0.5 * np.log(2 * np.pi) + slope

    def standardized(self, y: Matrix) -> Matrix:
        """How many standard deviations the targets lie from the centre, on the scale of the fit."""
        return (self._each(lambda t, j: t.forward(y[:, j])) - self.location) / self.scale

    def row_scores(self, j: int, y: Float[np.ndarray, " n"]) -> RowScores:
        """The scores of the j-th target at each row."""
        return self.transforms[j].row_scores(y, self.location[:, j], self.scale[:, j])

    def scores(self, j: int, y: Float[np.ndarray, " n"]) -> Scores:
        """All metrics of the j-th target, whatever its unit: squares neither over- nor underflow."""
        transform, unit = self.transforms[j], float(np.median(self.std()[:, j]))
        location, scale = transform.rescaled(self.location[:, j], self.scale[:, j], unit)
        total = ScoreSum()
        rows = transform.row_scores(y / unit, location, scale)
        total.add_rows(rows.error.new_tensor(y / unit), rows)
        return total.scores().in_unit(unit)

    def _each(self, answer: Callable[[Transform, int], np.ndarray]) -> np.ndarray:
        """``answer(transform, j)`` of every target, beside each other."""
        return np.stack([answer(transform, j) for j, transform in enumerate(self.transforms)], axis=1)


@final
@dataclass(frozen=True)
class Observations:
    """The distribution of the target at every row: that of its likelihood, integrated over the latent function.

    The latent function is normal at each row. Methods answer as those of ``Predictive`` do, for one target.
    """

    latent_mean: Column
    latent_variance: Column
    likelihood: Likelihood
    centre: float = 0.0  # of the target: what is zero for the likelihood
    unit: float = 1.0  # and what is one
    known: Column | float = 0.0  # the part of the latent mean that is the logarithm of an exposure

    def take(self, rows: slice | np.ndarray) -> "Observations":
        parts = np.broadcast_arrays(self.latent_mean, self.latent_variance, self.known)
        mean, variance, known = (part[rows] for part in parts)
        return replace(self, latent_mean=mean, latent_variance=variance, known=known)

    def mean(self) -> Column:
        return self._column(self.centre + self.unit * self.likelihood.predictive_moments(*self._latent).mean)

    def std(self) -> Column:
        return self._column(self.unit * self.likelihood.predictive_moments(*self._latent).variance.sqrt())

    def noise_variance(self) -> Column:
        """The part of the variance that the function does not explain."""
        return self._column(self.unit**2 * self.likelihood.predictive_noise(*self._latent))

    def quantiles(self, probabilities: Sequence[float]) -> Float[np.ndarray, "n 1 k"]:
        """The quantiles of these probabilities, in the last axis; integers where targets are counts."""
        found = [self.likelihood.predictive_quantile(p, *self._latent).numpy() for p in probabilities]
        values = np.stack(found, axis=-1)[:, None] if found else np.empty((len(self.latent_mean), 1, 0))
        return values if self.likelihood.are_counts else self.centre + self.unit * values

    def log_density(self, y: Column) -> Column:
        """log p(y), in nats; minus infinity for a target that cannot be."""
        standard = self._standard(y)
        whole = (standard >= 0) & (standard == standard.round())
        possible = whole if self.likelihood.are_counts else standard.isfinite()
        found = self.likelihood.log_predictive(torch.where(possible, standard, 0.0), *self._latent)
        return self._column(torch.where(possible, found - np.log(self.unit), -torch.inf))

    def cdf(self, y: Column) -> Column:
        """P(Y ≤ y)."""
        return self._column(self.likelihood.predictive_cdf(self._standard(y), *self._latent))

    def pit(self, y: Column) -> Column:
        """The place of each target in its distribution, uniform on [0, 1] if predictions are right.

        Of a count, it is drawn between P(Y < y) and P(Y ≤ y).
        """
        high = self.cdf(y)
        if not self.likelihood.are_counts:
            return high
        low = self.cdf(y - 1)
        return low + np.random.default_rng(SEED).random(high.shape) * (high - low)

    def standardized(self, y: Column) -> Column:
        """The places as standard deviations of a normal distribution."""
        z = torch.special.ndtri(torch.from_numpy(self.pit(y)).clamp(1e-300, 1.0))
        return z.clamp(-FARTHEST, FARTHEST).numpy()

    def row_scores(self, j: int, y: Float[np.ndarray, " n"]) -> RowScores:
        low, high = self.quantiles([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])[:, 0].T
        crps = self.unit * self.likelihood.predictive_crps(self._standard(y[:, None]), *self._latent)
        parts = -self.log_density(y[:, None])[:, 0], y - self.mean()[:, 0], crps.numpy(), (low <= y) & (y <= high)
        return RowScores(*map(torch.from_numpy, (*parts, high - low)))

    def scores(self, j: int, y: Float[np.ndarray, " n"]) -> Scores:
        total = ScoreSum()
        total.add_rows(torch.from_numpy(np.array(y, float)), self.row_scores(j, y))
        return total.scores()

    def function(self) -> Predictive:
        """The distribution of the mean of a target given the function: lognormal for counts, else normal."""
        transform = TRANSFORMS["log" if self.likelihood.are_counts else "identity"]
        std = np.sqrt(self.latent_variance)
        return Predictive(self.centre + self.unit * self.latent_mean, self.unit * std, (transform,))

    @property
    def _latent(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.latent_mean[:, 0].copy()), torch.from_numpy(self.latent_variance[:, 0].copy())

    def _standard(self, y: Column) -> Tensor:
        return torch.from_numpy((np.asarray(y, float)[:, 0] - self.centre) / self.unit)

    @staticmethod
    def _column(values: Tensor) -> Column:
        return values.numpy()[:, None]


def learned_parameters(likelihood: Likelihood, unit: float) -> dict[str, float]:
    """The parameters of a likelihood in the unit of the target."""
    names = [name.removeprefix("raw_") for name, _ in likelihood.named_parameters(recurse=False)]
    values = {name: float(getattr(likelihood, name).detach()) for name in names}
    return {name: value * unit if name == "scale" else value for name, value in values.items()}


# ---- a constant prediction ----

BASELINE_DF, LEAST_DISPERSION, LARGEST_DISPERSION, LARGEST_LOCATION = 4.0, 1e-4, 1e3, 1e6


@final
@dataclass(frozen=True)
class Baseline:
    """What to predict for every row without a model: the median, or the mean of counts, and how targets vary."""

    location: float  # of the latent function, in standard units
    dispersion: float | None  # of counts; None: numbers

    FIELDS: ClassVar[Fields] = {
        "location": real(-LARGEST_LOCATION, LARGEST_LOCATION),
        "dispersion": optional(that(lambda value: 0 <= value <= LARGEST_DISPERSION, real())),
    }

    @classmethod
    def of(cls, y: Tensor, likelihood: Likelihood, known: Tensor | None) -> "Baseline":
        """That of training targets in standard units; the dispersion of counts is the one that their variance suggests.

        It is Σ ((y - μ)² - μ) / Σ μ², where μ is the mean count for the exposure of a row.
        """
        y = y.double()
        location = likelihood.constant(y, known)
        if not likelihood.are_counts:
            return cls(location, None)
        mu = torch.exp(location + (torch.zeros_like(y) if known is None else known.double()))
        dispersion = (((y - mu).square() - mu).sum() / mu.square().sum()).clamp(0.0, LARGEST_DISPERSION)
        return cls(location, float(dispersion))

    @property
    def likelihood(self) -> Likelihood:
        """Negative binomial for counts that vary more than Poisson ones; of numbers, Student's with the scale one."""
        if self.dispersion is None:
            return StudentT(scale=1.0, df=BASELINE_DF).requires_grad_(False)
        counts = NegativeBinomial(self.dispersion) if self.dispersion > LEAST_DISPERSION else Poisson()
        return counts.requires_grad_(False)
