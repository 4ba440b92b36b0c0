"""Kernels that link rows at any distance: lines, seasons and waves."""

import math
import operator
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import Decay, InputUnits, Kernel, StartingData, for_each
from cagp.covariances.columns import with_columns
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

    def lengthscales(self, num_dims: int | None = None) -> None:
        return None  # its lengthscales are not distances of inputs

    def decay(self, column: int) -> Decay:
        return Decay.ENDLESS

    def start_from(self, data: StartingData) -> None:
        self.period = _starting_periods(self, data)

    def set_units(self, units: InputUnits) -> None:
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
        if 2 ** len(self.period) > self.MOST_FEATURES:
            return None
        return reduce(lambda F, G: (F.unsqueeze(-1) * G.unsqueeze(-2)).flatten(-2), self._waves(X))

    def decay(self, column: int) -> Decay:
        return Decay.ENDLESS

    def start_from(self, data: StartingData) -> None:
        self.period = _starting_periods(self, data)

    def set_units(self, units: InputUnits) -> None:
        self.unit = _units_of_columns(self, units)


def repeating_parts(kernel: Kernel, num_dims: int) -> list[tuple[Periodic | Cosine, list[int]]]:
    """The parts of a kernel that have periods, each with the columns that it sees."""
    parts = with_columns(kernel, range(num_dims))
    return [(part, columns) for part, columns in parts if isinstance(part, Periodic | Cosine)]


def _starting_periods(kernel: Periodic | Cosine, data: StartingData) -> Float[Tensor, " d"]:
    """The strongest period of the targets along each column; twice the range of a column where there is none.

    Over half a period a periodic function can take any shape: such a column does not repeat.
    """
    periods = kernel.period.detach().cpu().clone()
    for j, x in enumerate(data.X.double().cpu().unbind(1)):
        strongest, span = peaks(x, data.y), float(x.max() - x.min())
        if strongest and strongest[0].by_chance < CHANCE:
            periods[j] = strongest[0].period * kernel.unit[j]
        elif span > 0:
            periods[j] = 2 * span * kernel.unit[j]
    return periods


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
