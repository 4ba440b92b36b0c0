"""Kernels that link rows however far apart: offsets, lines, seasons and waves."""

import math
import operator
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import InputUnits, Kernel, Reach, for_each
from cagp.parameters import Positive


class Constant(Kernel):
    """k(x, z) = variance: an unknown offset."""

    variance: Positive = Positive()

    def __init__(self, variance: float = 1.0):
        super().__init__()
        self.variance = variance

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.variance.to(X).expand(*X.shape[:-1], Z.shape[-2])

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.variance.to(X).expand(X.shape[0])

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        return self.variance.to(X).sqrt().expand(X.shape[0], 1)

    def reach(self, column: int) -> Reach:
        return Reach.NONE


class Linear(Kernel):
    """k(x, z) = Σ_d variance_d x_d z_d: linear functions through the origin; add a Constant for an offset."""

    variance: Positive = Positive()

    def __init__(self, num_dims: int, variance: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        self.num_dims = num_dims
        self.variance = torch.as_tensor(variance, dtype=torch.float64).expand(num_dims).clone()

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return (X * self.variance.to(X)) @ Z.mT

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return (X.square() * self.variance.to(X)).sum(-1)

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X * self.variance.to(X).sqrt()


class Periodic(Kernel):
    """exp(-2 Σ_d sin²(π (x_d - z_d) / period_d) / lengthscale_d²): functions that repeat, of any shape.

    Args:
        period: one for all columns or one for each, in the units of the inputs; in a regressor, in those of the table.
        lengthscale: how smooth the repeated shape is; below 1 it wiggles within a period. It has no unit.
    """

    period: Positive = Positive()
    lengthscale: Positive = Positive()
    unit: Tensor

    def __init__(
        self,
        num_dims: int,
        period: float | Sequence[float] | Tensor = 1.0,
        lengthscale: float | Sequence[float] | Tensor = 1.0,
    ):
        super().__init__()
        self.num_dims = num_dims
        self.period = for_each(period, "period", num_dims)
        self.lengthscale = for_each(lengthscale, "lengthscale", num_dims)
        self.register_buffer("unit", torch.ones(num_dims, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        # On circles of radius 1 / lengthscale, |u(x) - u(z)|² = 4 sin²(π (x - z) / period) / lengthscale².
        r = torch.cdist(self._circles(X), self._circles(Z), compute_mode="donot_use_mm_for_euclid_dist")
        return torch.exp(-0.5 * r.square())

    def _circles(self, X: Tensor) -> Tensor:
        phase, radius = _phase(X, self.period, self.unit), 1 / self.lengthscale.to(X.device)
        return torch.cat([radius * torch.cos(phase), radius * torch.sin(phase)], dim=-1).to(X.dtype)

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])

    def tell(self, units: InputUnits) -> None:
        self.unit = _units_of_columns(self, units)


class Cosine(Kernel):
    """Π_d cos(2π (x_d - z_d) / period_d): a wave of unknown amplitude and phase in each column.

    A spectral mixture is a sum of ``Scale(Cosine(...) * RBF(...))``.

    Args:
        period: one for all columns or one for each, in the units of the inputs; in a regressor, in those of the table.
    """

    MOST_FEATURES = 16

    period: Positive = Positive()
    unit: Tensor

    def __init__(self, num_dims: int, period: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        self.num_dims = num_dims
        self.period = for_each(period, "period", num_dims)
        self.register_buffer("unit", torch.ones(num_dims, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        waves = (
            F @ G.mT for F, G in zip(self._waves(X), self._waves(Z), strict=True)
        )  # cos(a - b) = cos a cos b + sin a sin b
        return reduce(operator.mul, waves)

    def _waves(self, X: Tensor) -> list[Tensor]:
        """Cosine and sine of the phase in each column."""
        phases = _phase(X, self.period, self.unit).unbind(-1)
        return [torch.stack([torch.cos(phase), torch.sin(phase)], dim=-1).to(X.dtype) for phase in phases]

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"] | None:
        if 2**self.num_dims > self.MOST_FEATURES:
            return None
        return reduce(lambda F, G: (F.unsqueeze(-1) * G.unsqueeze(-2)).flatten(-2), self._waves(X))

    def tell(self, units: InputUnits) -> None:
        self.unit = _units_of_columns(self, units)


def _phase(X: Tensor, period: Tensor, unit: Tensor) -> Tensor:
    """2π x / period in float64: after many periods float32 has no digits left for the phase."""
    return X.double() * (2 * math.pi * unit.to(X.device) / period.to(X.device))


def _units_of_columns(kernel: "Periodic | Cosine", units: InputUnits) -> Tensor:
    if len(units.std) != kernel.num_dims:
        raise ValueError(
            f"the inputs have {len(units.std)} columns, the {type(kernel).__name__} kernel was made for "
            f"num_dims = {kernel.num_dims}; ActiveDims(kernel, columns) chooses columns."
        )
    return units.std.to(kernel.unit)
