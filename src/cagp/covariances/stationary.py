"""Functions of the distance between two inputs, in units of a lengthscale for each column."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import Kernel, Reach, for_each
from cagp.parameters import Positive


class Stationary(Kernel):
    """k(x, z) = profile(r) with r = ‖(x - z) / lengthscale‖, one lengthscale per input column."""

    lengthscale: Positive = Positive()

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

    def reach(self, column: int) -> Reach:
        return Reach.DECAYS


class RBF(Stationary):
    """exp(-r² / 2): infinitely smooth functions."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r.square())


class Matern12(Stationary):
    """exp(-r): continuous, nowhere differentiable functions."""

    def profile(self, r: Tensor) -> Tensor:
        return torch.exp(-r)


class Matern32(Stationary):
    """(1 + √3 r) exp(-√3 r): once differentiable functions; the paper's kernel."""

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(3) * r
        return (1 + s) * torch.exp(-s)


class Matern52(Stationary):
    """(1 + √5 r + 5r²/3) exp(-√5 r): twice differentiable functions."""

    def profile(self, r: Tensor) -> Tensor:
        s = math.sqrt(5) * r
        return (1 + s + s.square() / 3) * torch.exp(-s)


class RationalQuadratic(Stationary):
    """(1 + r² / (2 alpha))^-alpha: a mixture of RBF kernels over lengthscales; alpha → ∞ is the RBF kernel."""

    alpha: Positive = Positive()

    def __init__(self, num_dims: int, lengthscale: float | Sequence[float] | Tensor = 1.0, alpha: float = 1.0):
        super().__init__(num_dims, lengthscale)
        self.alpha = alpha

    def profile(self, r: Tensor) -> Tensor:
        alpha = self.alpha.to(r)
        return torch.exp(-alpha * torch.log1p(r.square() / (2 * alpha)))
