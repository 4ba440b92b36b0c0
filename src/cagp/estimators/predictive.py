"""The distributions that a regressor predicts, in the units of the targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import final

import numpy as np
from jaxtyping import Float

from cagp.data.transforms import TRANSFORMS, Transform
from cagp.metrics import RowScores, Scores, ScoreSum

Matrix = Float[np.ndarray, "n q"]


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

    @classmethod
    def from_moments(cls, mean: Matrix, std: Matrix, names: Sequence[str]) -> "Predictive":
        """The distributions with this mean and standard deviation, both in the units of the targets.

        Args:
            names: of the transform of each target.
        """
        location, scale = mean.astype(float), std.astype(float)
        for j, name in enumerate(names):
            if name == "log":
                variance = np.log1p((scale[:, j] / location[:, j]) ** 2)
                location[:, j], scale[:, j] = np.log(location[:, j]) - variance / 2, np.sqrt(variance)
        return cls(location, scale, tuple(TRANSFORMS[name] for name in names))

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

    def _each(self, answer) -> np.ndarray:
        """``answer(transform, j)`` of every target, beside each other."""
        return np.stack([answer(transform, j) for j, transform in enumerate(self.transforms)], axis=1)
