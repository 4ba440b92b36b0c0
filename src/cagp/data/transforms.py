"""The scale on which a fit works: standard units of the training rows, and targets as they are or their logarithms."""

import math
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_matrix, check_vector
from cagp.metrics import RowScores, lognormal_row_scores, row_scores

CONSTANT = 32
"""A column counts as constant if its values differ by at most this many rounding errors of their size."""


class Standardizer(NamedTuple):
    """Maps inputs and targets to mean 0 and standard deviation 1, and predictions back; made by ``fit``.

    Targets are a vector, or a matrix with a column for each target. Inputs may be missing (NaN): the statistics are
    those of the others, and a missing input becomes the mean, 0 in standard units.
    """

    input_mean: Float[Tensor, " d"]
    input_std: Float[Tensor, " d"]
    target_mean: Float[Tensor, "*q"]
    target_std: Float[Tensor, "*q"]

    @classmethod
    def fit(cls, X: Float[Tensor, "n d"], y: Float[Tensor, "n *q"]) -> "Standardizer":
        """The statistics of these rows: pass training rows only. Constant columns are centred but not scaled."""
        check_matrix(X, "X", missing=True)
        for column in y.unbind(1) if y.ndim == 2 else [y]:
            check_vector(column, "y", X)
        if X.shape[0] < 2:
            raise ValueError("X has 1 row, expected at least 2: one row has no standard deviation.")
        return cls.from_moments(ColumnMoments.of(X), ColumnMoments.of(y))

    @classmethod
    def from_moments(cls, inputs: "ColumnMoments", targets: "ColumnMoments") -> "Standardizer":
        """The statistics of rows that came in parts; equal to those of ``fit`` up to round-off."""
        return cls(*inputs.scale(), *targets.scale())

    def inputs(self, X: Float[Tensor, "t d"]) -> Float[Tensor, "t d"]:
        """Inputs in standard units; 0 where they are missing."""
        if X.shape[-1] != len(self.input_mean):
            raise ValueError(f"X has {X.shape[-1]} columns, the standardizer was fitted to {len(self.input_mean)}.")
        standard = (X - self.input_mean.to(X)) / self.input_std.to(X)
        return standard.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)

    def targets(self, y: Float[Tensor, "t *q"]) -> Float[Tensor, "t *q"]:
        """Targets in standard units."""
        return (y - self.target_mean.to(y)) / self.target_std.to(y)

    def restore_mean(self, mean: Float[Tensor, "t *q"]) -> Float[Tensor, "t *q"]:
        """Means (or targets) from standard units back to the unit of the targets."""
        return mean * self.target_std.to(mean) + self.target_mean.to(mean)

    def restore_variance(self, variance: Float[Tensor, "t *q"]) -> Float[Tensor, "t *q"]:
        """Variances from standard units back to the squared unit of the targets."""
        return variance * self.target_std.to(variance).square()


class ColumnMoments(NamedTuple):
    """Statistics of the columns of a matrix, float64, that parts of its rows can be joined to; NaN does not count."""

    count: Float[Tensor, "*d"]
    mean: Float[Tensor, "*d"]
    std: Float[Tensor, "*d"]  # zero for fewer than two values
    least: Float[Tensor, "*d"]
    largest: Float[Tensor, "*d"]

    @classmethod
    def of(cls, values: Float[Tensor, "n *d"]) -> "ColumnMoments":
        """The statistics of these rows."""
        n, nothing = len(values), values.new_zeros(values.shape[1:])
        if n == 0:
            return cls(nothing, nothing, nothing, nothing + torch.inf, nothing - torch.inf)
        # Divided by a power of two near their size, no digit changes, and squares neither overflow nor underflow.
        size = values.abs().amax(0)
        unit = torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent)
        mean, std = values.mean(0), unit * (values / unit).std(0) if n > 1 else nothing
        moments = cls(torch.full_like(mean, n), mean, std, values.amin(0), values.amax(0))
        for j in mean.isnan().nonzero().flatten().tolist():
            present = cls.of(values[~values[:, j].isnan(), j])
            for part, value in zip(moments, present, strict=True):
                part[j] = value
        return moments

    def joined(self, other: "ColumnMoments") -> "ColumnMoments":
        """The statistics of the rows of both.

        |x - mean|² = |x₁ - mean₁|² + |x₂ - mean₂|² + (mean₂ - mean₁)² n₁n₂/n (Chan, Golub and LeVeque), as lengths,
        which neither overflow nor underflow.
        """
        n = self.count + other.count
        share = other.count / n.clamp_min(1)
        apart = other.mean - self.mean
        within = torch.hypot(*(part.std * (part.count - 1).clamp_min(0).sqrt() for part in (self, other)))
        length = torch.hypot(within, apart.abs() * (self.count * share).sqrt())
        only = (self.count == 0) | (other.count == 0)  # then nothing is computed, and no bit changes
        return ColumnMoments(
            n,
            torch.where(only, torch.where(other.count == 0, self.mean, other.mean), self.mean + apart * share),
            torch.where(only, torch.maximum(self.std, other.std), length / (n - 1).clamp_min(1).sqrt()),
            torch.minimum(self.least, other.least),
            torch.maximum(self.largest, other.largest),
        )

    def scale(self) -> tuple[Float[Tensor, "*d"], Float[Tensor, "*d"]]:
        """Mean and standard deviation of each column; the latter is 1 where a column is constant, or has one value."""
        size = torch.maximum(self.least.abs(), self.largest.abs())
        spread = torch.maximum(self.largest - self.mean, self.mean - self.least)
        constant = (self.count < 2) | (spread <= CONSTANT * torch.finfo(self.mean.dtype).eps * size)
        return self.mean, torch.where(constant, 1.0, self.std)


def standardized(
    X: Float[Tensor, "n d"], y: Float[Tensor, " n"], *parts: Int[Tensor, " _"], dtype: torch.dtype | None = None
) -> list[tuple[Tensor, Tensor]]:
    """The inputs and targets of each part of the rows, in the standard units of the first part: the training rows."""
    scaler = Standardizer.fit(X[parts[0]], y[parts[0]])
    return [(scaler.inputs(X[rows]).to(dtype=dtype), scaler.targets(y[rows]).to(dtype=dtype)) for rows in parts]


Array = Float[np.ndarray, "..."]


@final
class Identity:
    """The target as it is. A transform is an increasing function of the target, on whose scale predictions are normal.

    ``location`` and ``scale`` are the mean and the standard deviation on that scale.
    """

    name = "identity"  # as users write it

    def forward(self, y: Array) -> Array:
        """Targets on the scale of the fit."""
        return y

    def inverse(self, z: Array) -> Array:
        """Values on the scale of the fit (quantiles, draws) in the unit of the target."""
        return z

    def log_slope(self, y: Array) -> Array:
        """log of the derivative of ``forward``: what the log density gains on the way back."""
        return np.zeros_like(y)

    def mean(self, location: Array, scale: Array) -> Array:
        """The mean in the unit of the target."""
        return location

    def std(self, location: Array, scale: Array) -> Array:
        """The standard deviation in the unit of the target."""
        return scale

    def covariance(self, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """The joint covariance in the unit of the target, from that on the scale of the fit and the means."""
        return covariance

    def variance_parts(self, mean: Array, parts: dict[str, Array]) -> dict[str, Array]:
        """The parts "noise", "latent" and "computational" of the variance, in squared units of the target.

        Args:
            mean: in the unit of the target.
            parts: of the variance on the scale of the fit; NaN where a part is not known.
        """
        return parts

    def row_scores(self, y: Array, location: Array, scale: Array) -> RowScores:
        """The scores of predictions of ``y``, which is in its own unit."""
        return row_scores(*_tensors(y, location, scale))

    def rescaled(self, location: Array, scale: Array, unit: float) -> tuple[Array, Array]:
        """``location`` and ``scale`` after the target is divided by ``unit``."""
        return location / unit, scale / unit


@final
class Log:
    """The logarithm of a positive target: predictions are lognormal. A mean beyond the range of float64 is infinite."""

    name = "log"

    def forward(self, y: Array) -> Array:
        with np.errstate(divide="ignore"):  # a target that is not positive has density zero
            return np.log(np.maximum(y, 0.0))

    def inverse(self, z: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.exp(z)

    def log_slope(self, y: Array) -> Array:
        # Density zero where y is not positive: that of log y = -inf is zero already, and stays so.
        return np.where(y > 0, -self.forward(np.where(y > 0, y, 1.0)), 0.0)

    def mean(self, location: Array, scale: Array) -> Array:
        """exp(μ + σ²/2)."""
        return self.inverse(location + scale**2 / 2)

    def std(self, location: Array, scale: Array) -> Array:
        """The mean times √(exp(σ²) - 1)."""
        with np.errstate(over="ignore"):
            return self.mean(location, scale) * np.sqrt(np.expm1(scale**2))

    def covariance(self, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Mᵢ Mⱼ (exp(Cᵢⱼ) - 1)."""
        with np.errstate(over="ignore"):
            return mean[:, None] * mean * np.expm1(covariance)

    def variance_parts(self, mean: Array, parts: dict[str, Array]) -> dict[str, Array]:
        """By the law of total variance, for log y = a + b + e: e the noise, b what data leave open, a computation.

        With their variances n, l, c and the mean M of y, Var(E[y | a]) = M²(exp(c) - 1), what b adds is
        M² exp(c) (exp(l) - 1), and what e adds M² exp(c + l) (exp(n) - 1). The sum is the variance of y.
        """
        noise, latent, computational = parts["noise"], parts["latent"], parts["computational"]
        computed = np.where(np.isnan(computational), 0.0, computational)
        with np.errstate(over="ignore"):
            square = mean**2
            return {
                "noise": square * np.exp(computed + latent) * np.expm1(noise),
                "latent": square * np.exp(computed) * np.expm1(latent),
                "computational": square * np.expm1(computational),
            }

    def row_scores(self, y: Array, location: Array, scale: Array) -> RowScores:
        return lognormal_row_scores(*_tensors(y, location, scale))

    def rescaled(self, location: Array, scale: Array, unit: float) -> tuple[Array, Array]:
        return location - np.log(unit), scale


Transform = Identity | Log
TRANSFORMS: dict[str, Transform] = {transform.name: transform for transform in (Identity(), Log())}


def _tensors(y: Array, location: Array, scale: Array) -> list[torch.Tensor]:
    """Targets, means and variances."""
    parts = [torch.from_numpy(np.array(part, dtype=np.float64)) for part in (y, location, scale)]
    return [parts[0], parts[1], parts[2].square()]
