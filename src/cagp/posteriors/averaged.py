"""The average of several Gaussian processes that learned the same targets in different ways."""

import copy
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.posteriors.base import LeftOut, Points, Posterior, Values
from cagp.prior import GaussianNoise
from cagp.storage import State


class Pooled(NamedTuple):
    """How much each process counts in the average at each test point."""

    shares: Float[Tensor, "j t"]  # aⱼ(x), with the sum 1
    squares: Float[Tensor, "j t"]  # aⱼ(x)² / wⱼ: what the variances of the processes count for

    @classmethod
    def of(cls, variances: Float[Tensor, "j t"], weights: Sequence[float]) -> "Pooled":
        """aⱼ ∝ wⱼ / vⱼ with the variances vⱼ of new targets."""
        fixed = variances.new_tensor(weights)[:, None]
        precision = fixed / variances.clamp_min(torch.finfo(variances.dtype).tiny)
        shares = precision / precision.sum(0)
        return cls(shares, shares.square() / fixed)


@final
class AveragedPosterior(Posterior):
    """f̄(x) = Σ aⱼ(x) fⱼ(x), in which each process counts most where it is sure: aⱼ(x) ∝ wⱼ / vⱼ(x).

    vⱼ(x) is the variance of a new target at x, so that the density of a new target is ∏ pⱼ^wⱼ, normalised.

    The processes fⱼ learn from the same rows, so they are not independent, and nothing says how they depend on each
    other. Whatever their joint distribution is, the covariance of f̄ is at most Σ aⱼ(x) Cⱼ(x, z) aⱼ(z) / wⱼ, because
    squares are convex. That bound is the covariance here. Derivation: docs/derivations.md, "Averages of processes".

    ``prior`` has the kernel of the component with the largest weight, and the average of the noise variances.

    Args:
        components: posteriors at inputs of the same columns.
        weights: wⱼ, positive, with the sum 1.
        offset_of: the components that an ``offset`` belongs to: those that learned the residuals.
    """

    def __init__(self, components: Sequence[Posterior], weights: Sequence[float], offset_of: Sequence[int] = (0,)):
        if len(components) != len(weights) or not components:
            raise ValueError(f"there are {len(components)} components and {len(weights)} weights, expected as many.")
        if not all(0 < weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-9:
            raise ValueError(f"weights are {list(weights)}, expected positive numbers whose sum is 1.")
        if not offset_of or not all(0 <= j < len(components) for j in offset_of):
            raise ValueError(f"offset_of is {list(offset_of)}, expected numbers of the {len(components)} components.")
        columns = sorted({component.X.shape[1] for component in components})
        if len(columns) > 1:
            raise ValueError(f"the components have {columns} columns, expected the same number.")
        self.components, self.weights = tuple(components), tuple(map(float, weights))
        self.offset_of = tuple(sorted(set(offset_of)))
        main = self.components[max(range(len(weights)), key=lambda j: self.weights[j])]
        prior, parts = copy.deepcopy(main.prior), [component.prior.noise for component in components]
        noises = [part.noise.detach() for part in parts if isinstance(part, GaussianNoise)]
        if isinstance(prior.noise, GaussianNoise) and len(noises) == len(parts):
            noise = sum(weight * float(noise) for weight, noise in zip(self.weights, noises, strict=True))
            if noise > prior.noise.noise_floor:  # else all are at their floor, and so is that of the main component
                prior.noise.noise = noise
        super().__init__(prior, main.X, main._representer, main.max_bytes, shares_rows=True)  # a snapshot already
        self.never_below_exact = all(component.never_below_exact for component in components)
        self.has_local_scale = any(component.has_local_scale for component in components)
        self._width = sum(component._width for component in components)

    def state(self, dtype: torch.dtype | None = None) -> State:
        return {
            "class": type(self).__name__,
            "prior": self.prior.state(),  # it follows from the others; for those who read it without a model
            "weights": list(self.weights),
            "offset_of": list(self.offset_of),
            "components": [component.state(dtype) for component in self.components],
        }

    def order(self, X: Points) -> Int[Tensor, " t"] | None:
        """The order of the first component that has one."""
        found = (component.order(X) for component in self.components)
        return next((order for order in found if order is not None), None)

    def pooled(self, X: Points) -> Pooled:
        """How much each component counts at each test point."""
        return Pooled.of(torch.stack([part.variance(X, noise=True).double() for part in self.components]), self.weights)

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        found = []
        for component in self.components:
            mean, variance, *scale = component._moments(X)
            learned = component.prior.noise.learned(X)
            found.append((mean, variance.clamp_min(0), learned * scale[0] if scale else learned))
        mean, variance, noise = map(torch.stack, zip(*found, strict=True))
        shares, squares = Pooled.of(variance + noise, self.weights)
        own = self.prior.noise.learned(X)
        scale = torch.where(own > 0, (squares * noise).sum(0) / own, 1.0)
        return (shares * mean).sum(0), (squares * variance).sum(0), scale, shares[list(self.offset_of)].sum(0)

    def mean(self, X: Points, offset: Values | None = None) -> Values:
        return self.predict(X, offset=offset).mean

    def scale(self, X: Points) -> Values:
        """What the averaged noise is multiplied by around each test point."""
        return self._moments_in_tiles(X)[2]

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """The averages of what the components say, if every one holds the same rows and leaves rows out."""
        same_rows = len({len(component.X) for component in self.components}) == 1
        found = [component.left_out(rows) for component in self.components] if same_rows else []
        known = [part for part in found if part is not None]
        if len(known) < len(self.components):
            return None
        error, variance = (torch.stack(column) for column in zip(*known, strict=True))
        shares, squares = Pooled.of(variance, self.weights)
        return LeftOut((shares * error).sum(0), (squares * variance).sum(0))

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        rows = self.pooled(X).shares
        columns = rows if Z is None else self.pooled(Z).shares
        parts = zip(self.components, self.weights, rows, columns, strict=True)
        found = [row[:, None] * part._covariance(X, Z) * column / weight for part, weight, row, column in parts]
        return torch.stack(found).sum(0)

    def _joint_mean(self, X: Tensor, offset: Tensor | None = None) -> Tensor:
        means = [component._joint_mean(X).double() for component in self.components]
        if offset is not None:
            for j in self.offset_of:
                means[j] = means[j] + offset
        return (self.pooled(X).shares * torch.stack(means)).sum(0)
