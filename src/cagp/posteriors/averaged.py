"""The average of several Gaussian processes that learned the same targets in different ways."""

import copy
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.posteriors.base import LeftOut, Posterior, Prediction
from cagp.prior import GP, GaussianNoise


@final
class AveragedPosterior(Posterior):
    """f̄ = Σ wⱼ fⱼ with the mean Σ wⱼ mⱼ and the covariance Σ wⱼ Cⱼ, which is an upper bound.

    The processes fⱼ learn from the same rows, so they are not independent, and nothing says how they depend on each
    other. Whatever their joint distribution is, Cov(Σ wⱼ fⱼ) ≼ Σ wⱼ Cov(fⱼ), because squares are convex: averaging
    lowers errors and never adds to them. Derivation: docs/derivations.md, "Averages of processes".

    ``prior`` has the kernel of the component with the largest weight, and the average of the noise variances.

    Args:
        components: posteriors at inputs of the same columns.
        weights: positive, with the sum 1.
    """

    def __init__(self, components: Sequence[Posterior], weights: Sequence[float]):
        if len(components) != len(weights) or not components:
            raise ValueError(f"there are {len(components)} components and {len(weights)} weights, expected as many.")
        if not all(0 < weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-9:
            raise ValueError(f"weights are {list(weights)}, expected positive numbers whose sum is 1.")
        columns = sorted({component.X.shape[1] for component in components})
        if len(columns) > 1:
            raise ValueError(f"the components have {columns} columns, expected the same number.")
        self.components, self.weights = tuple(components), tuple(float(weight) for weight in weights)
        main = self.components[max(range(len(weights)), key=lambda j: self.weights[j])]
        prior = self._averaged_prior(main.prior)
        super().__init__(prior, main.X, main._representer, main.max_bytes, shares_rows=True)  # a snapshot already

    def _averaged_prior(self, prior: GP) -> GP:
        parts = [component.prior.noise for component in self.components]
        noises = [part.noise.detach() for part in parts if isinstance(part, GaussianNoise)]
        prior = copy.deepcopy(prior)
        if isinstance(prior.noise, GaussianNoise) and len(noises) == len(parts):
            prior.noise.noise = self.average(noises)
        return prior

    def average(self, values: Sequence[Tensor]) -> Tensor:
        """Σ wⱼ vⱼ of a value for each component."""
        return torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)]).sum(0)

    @property
    def never_below_exact(self) -> bool:
        return all(component.never_below_exact for component in self.components)

    @property
    def has_local_scale(self) -> bool:
        return any(component.has_local_scale for component in self.components)

    @property
    def _width(self) -> int:
        return sum(component._width for component in self.components)

    def predict(
        self, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
    ) -> Prediction:
        """The averages of means and variances."""
        found = [component.predict(X, noise=noise, row_noise=row_noise) for component in self.components]
        return Prediction(*(self.average(column) for column in zip(*found, strict=True)))

    def mean(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"]:
        """The average of the means."""
        return self.average([component.mean(X) for component in self.components])

    def scale(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"] | None:
        """What the averaged noise is multiplied by around each test point."""
        check_new_inputs(X, self.X)
        if not self.has_local_scale:
            return None
        noises = []
        for component in self.components:
            own, scale = component.prior.noise.learned(X), component.scale(X)
            noises.append(own if scale is None else own * scale)
        return self.average(noises) / self.prior.noise.learned(X)

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """The averages of errors and variances, if every component holds the same rows and has them."""
        if len({len(component.X) for component in self.components}) > 1:
            return None
        found = [component.left_out(rows) for component in self.components]
        known = [part for part in found if part is not None]
        if len(known) < len(found):
            return None
        return LeftOut(*(self.average(column) for column in zip(*known, strict=True)))

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        found = [component._moments(X)[:2] for component in self.components]
        return tuple(self.average(column) for column in zip(*found, strict=True))

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        return self.average([component._covariance(X, Z) for component in self.components])

    def _covariance_of_targets(self, X: Tensor, Z: Tensor | None, noise: bool, row_noise: Tensor | None) -> Tensor:
        return self.average([c._covariance_of_targets(X, Z, noise, row_noise) for c in self.components])

    def _joint_mean(self, X: Tensor) -> Tensor:
        return self.average([component._joint_mean(X) for component in self.components])
