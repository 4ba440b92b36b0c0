"""The scale on which a target is fitted: its own, or that of its logarithm; and the way back."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float

from cagp.metrics import RowScores, lognormal_row_scores, row_scores

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
