"""Functions of the distance between two inputs, in units of a lengthscale for each column."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import Decay, Kernel, StartingData, for_each
from cagp.parameters import Positive

START = 2.0
"""Lengthscales start at this times √d standard deviations of their input; see docs/training.md for the evidence."""

FARTHEST = 1e9
"""Lengthscales: a kernel that has not vanished there has no end."""


class Stationary(Kernel):
    """k(x, z) = profile(r) with r = ‖(x - z) / lengthscale‖, one lengthscale per input column."""

    lengthscale: Positive = Positive()
    falls: ClassVar[bool] = False  # whether the class's own profile falls with distance and has no parameters
    relative_lengthscale: ClassVar[float] = 1.0  # how long lengthscales are for the same function: a start, not a law

    def __init__(self, num_dims: int, lengthscale: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        self.num_dims = num_dims
        self.lengthscale = for_each(lengthscale, "lengthscale", num_dims)

    @abstractmethod
    def profile(self, r: Tensor) -> Tensor:
        """The covariance at scaled distance r; 1 at r = 0."""

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        # Differences, not the expansion |x|² - 2xz + |z|², which loses close points; moving the origin to the data
        # keeps the digits of inputs far from it (years, map coordinates).
        origin = Z.detach().mean(-2, keepdim=True)
        lengthscale = self.lengthscale.to(X)
        r = torch.cdist(
            (X - origin) / lengthscale, (Z - origin) / lengthscale, compute_mode="donot_use_mm_for_euclid_dist"
        )
        # An infinite distance would make profiles infinity times zero; where r² is finite, they are right.
        return self.profile(r.clamp_max(math.sqrt(torch.finfo(r.dtype).max) / 4))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])

    def decay(self, column: int) -> Decay:
        return Decay.DECAYS

    def support_radius(self, tolerance: float) -> float:
        end = super().support_radius(tolerance)
        # The class itself must say that it falls: a subclass may have another profile.
        return _by_bisection(type(self), tolerance) if tolerance > 0 and vars(type(self)).get("falls") else end

    def start_from(self, data: StartingData) -> None:
        """Typical distances in d columns grow with √d; a column that does not vary keeps its lengthscale."""
        scaled = START * len(data.spread) ** 0.5 * data.spread
        self.lengthscale = torch.where(data.spread > 0, scaled, self.lengthscale.cpu())

    def stretch(self, factor: float) -> None:
        self.lengthscale = factor * self.lengthscale.detach()

    def take_over(self, other: Kernel) -> None:
        if type(self) is type(other) or not isinstance(other, Stationary):
            super().take_over(other)
        else:
            self.lengthscale = other.lengthscale.detach() * (self.relative_lengthscale / other.relative_lengthscale)


class RBF(Stationary):
    """exp(-r² / 2): infinitely smooth functions."""

    falls, relative_lengthscale = True, 0.6

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r.square())


class Matern12(Stationary):
    """exp(-r): continuous, nowhere differentiable functions."""

    falls, relative_lengthscale = True, 2.0

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-r)


class Matern32(Stationary):
    """(1 + √3 r) exp(-√3 r): once differentiable functions; the paper's kernel."""

    falls = True

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(3) * r
        return (1 + s) * torch.exp(-s)


class Matern52(Stationary):
    """(1 + √5 r + 5r²/3) exp(-√5 r): twice differentiable functions."""

    falls, relative_lengthscale = True, 0.9

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return (1 + s + s.square() / 3) * torch.exp(-s)


class RationalQuadratic(Stationary):
    """(1 + r² / (2 alpha))^-alpha: a mixture of RBF kernels over lengthscales; alpha → ∞ is the RBF kernel."""

    relative_lengthscale = 0.8
    alpha: Positive = Positive()

    def __init__(self, num_dims: int, lengthscale: float | Sequence[float] | Tensor = 1.0, alpha: float = 1.0):
        super().__init__(num_dims, lengthscale)
        self.alpha = alpha

    def profile(self, r: Tensor) -> Tensor:
        alpha = self.alpha.to(r)
        return torch.exp(-alpha * torch.log1p(r.square() / (2 * alpha)))

    def support_radius(self, tolerance: float) -> float:
        end = super().support_radius(tolerance)
        if tolerance == 0 or type(self) is not RationalQuadratic:
            return end
        alpha = float(self.alpha.detach())
        power = -math.log(min(tolerance, 1.0)) / alpha  # (1 + r² / 2α)^-α = tolerance
        return math.sqrt(2 * alpha * math.expm1(power)) if power < 600 else end


@lru_cache(maxsize=64)
def _by_bisection(kind: type[Stationary], tolerance: float) -> float:
    """The radius of a profile that falls with distance and has no parameters."""
    kernel = kind(1)

    def too_near(r: float) -> bool:
        return float(kernel.profile(torch.tensor(r, dtype=torch.float64))) > tolerance

    low, high = 0.0, 1.0
    while too_near(high):
        low, high = high, 2 * high
        if high > FARTHEST:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if too_near(middle) else (low, middle)
    return high
