"""Kernels that link rows at any distance: lines, seasons and waves."""

import math
import operator
from abc import ABC
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import Decay, InputUnits, Kernel, StartingData, for_each
from cagp.covariances.columns import ActiveDims
from cagp.parameters import Positive
from cagp.periodogram import CHANCE, peaks


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

    def decay(self, column: int) -> Decay:
        return Decay.ENDLESS


class Repeating(Kernel, ABC):
    """A kernel with a period along each column."""

    period: Positive = Positive()
    unit: Tensor

    def __init__(self, num_dims: int, period: float | Sequence[float] | Tensor = 1.0):
        super().__init__()
        self.num_dims = num_dims
        self.period = for_each(period, "period", num_dims)
        self.register_buffer("unit", torch.ones(num_dims, dtype=torch.float64))

    def _phase(self, X: Tensor) -> Tensor:
        """2π x / period in float64: after many periods float32 has no digits left for the phase."""
        return X.double() * (2 * math.pi * self.unit.to(X.device) / self.period.to(X.device))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])

    def decay(self, column: int) -> Decay:
        return Decay.ENDLESS

    def start_from(self, data: StartingData) -> None:
        """The strongest period of the targets along each column; twice the range of a column where there is none.

        Over half a period a periodic function can take any shape: such a column does not repeat.
        """
        periods = self.period.detach().cpu().clone()
        for j, x in enumerate(data.X.double().cpu().unbind(1)):
            strongest, span = peaks(x, data.y), float(x.max() - x.min())
            if strongest and strongest[0].by_chance < CHANCE:
                periods[j] = strongest[0].period * self.unit[j]
            elif span > 0:
                periods[j] = 2 * span * self.unit[j]
        self.period = periods

    def set_units(self, units: InputUnits) -> None:
        self.check_columns(units.std[None])
        self.unit = units.std.to(self.unit)


class Periodic(Repeating):
    """exp(-2 Σ_d sin²(π (x_d - z_d) / period_d) / lengthscale_d²): functions that repeat, of any shape.

    Args:
        period: one for all columns or one for each, in the units of the inputs; in a regressor, in those of the table.
        lengthscale: how smooth the repeated shape is; below 1 it wiggles within a period. It has no unit.
    """

    lengthscale: Positive = Positive()

    def __init__(
        self,
        num_dims: int,
        period: float | Sequence[float] | Tensor = 1.0,
        lengthscale: float | Sequence[float] | Tensor = 1.0,
    ):
        super().__init__(num_dims, period)
        self.lengthscale = for_each(lengthscale, "lengthscale", num_dims)

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        # On circles of radius 1 / lengthscale, |u(x) - u(z)|² = 4 sin²(π (x - z) / period) / lengthscale².
        r = torch.cdist(self._circles(X), self._circles(Z), compute_mode="donot_use_mm_for_euclid_dist")
        return torch.exp(-0.5 * r.square())

    def _circles(self, X: Tensor) -> Tensor:
        phase, radius = self._phase(X), 1 / self.lengthscale.to(X.device)
        return torch.cat([radius * torch.cos(phase), radius * torch.sin(phase)], dim=-1).to(X.dtype)

    def lengthscales(self, num_dims: int | None = None) -> None:
        return None  # its lengthscales are not distances of inputs


class Cosine(Repeating):
    """Π_d cos(2π (x_d - z_d) / period_d): a wave of unknown amplitude and phase in each column.

    A spectral mixture is a sum of ``Scale(Cosine(...) * RBF(...))``.

    Args:
        period: one for all columns or one for each, in the units of the inputs; in a regressor, in those of the table.
    """

    MOST_FEATURES = 16

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        # cos(a - b) = cos a cos b + sin a sin b
        return reduce(operator.mul, (F @ G.mT for F, G in zip(self._waves(X), self._waves(Z), strict=True)))

    def _waves(self, X: Tensor) -> list[Tensor]:
        """Cosine and sine of the phase in each column."""
        return [torch.stack([torch.cos(w), torch.sin(w)], dim=-1).to(X.dtype) for w in self._phase(X).unbind(-1)]

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"] | None:
        if 2 ** len(self.period) > self.MOST_FEATURES:
            return None
        return reduce(lambda F, G: (F.unsqueeze(-1) * G.unsqueeze(-2)).flatten(-2), self._waves(X))


def repeating_parts(kernel: Kernel, num_dims: int) -> list[tuple[Repeating, list[int]]]:
    """The parts of a kernel that have periods, each with the columns that it sees."""

    def parts(kernel: Kernel, columns: list[int]) -> list[tuple[Repeating, list[int]]]:
        inside = [columns[j] for j in kernel.positions] if isinstance(kernel, ActiveDims) else columns
        found = [(kernel, columns)] if isinstance(kernel, Repeating) else []
        return found + [pair for part in kernel.subkernels() for pair in parts(part, inside)]

    return parts(kernel, list(range(num_dims)))
