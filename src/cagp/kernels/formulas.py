"""The formulas: functions of the distance between two inputs in units of lengthscales, and lines, seasons and waves,
which link rows at any distance."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.kernels.base import ActiveDims, Decay, InputUnits, Kernel, StartingData, for_each
from cagp.parameters import Positive
from cagp.periodogram import CHANCE, peaks

START = 2.0
"""Lengthscales start at this times √d standard deviations of their input; see docs/training.md for the evidence."""

FARTHEST = 1e9  # lengthscales: a kernel that has not vanished there has no end


def _distances(X: Tensor, Z: Tensor) -> Tensor:
    """By differences, not the expansion |x|² - 2xz + |z|², which loses close points."""
    return torch.cdist(X, Z, compute_mode="donot_use_mm_for_euclid_dist")


class Stationary(Kernel):
    """k(x, z) = profile(r) with r = ‖(x - z) / lengthscale‖, one lengthscale per input column."""

    lengthscale: Positive = Positive()
    along_each, has_unit_variance = Decay.DECAYS, True
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
        # Moving the origin to the data keeps the digits of inputs far from it (years, map coordinates).
        origin = Z.detach().mean(-2, keepdim=True)
        lengthscale = self.lengthscale.to(X)
        r = _distances((X - origin) / lengthscale, (Z - origin) / lengthscale)
        # An infinite distance would make profiles infinity times zero; where r² is finite, they are right.
        return self.profile(r.clamp_max(math.sqrt(torch.finfo(r.dtype).max) / 4))

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


class GreatCircle(Kernel):
    """A Matérn kernel on the sphere, for two columns: longitude and latitude, in degrees.

    The distance is the chord 2 sin(θ / 2) through the sphere, θ the angle between two places. With it every Matérn
    kernel is positive definite, across the date line and at the poles.

    Args:
        lengthscale: in degrees along a great circle (1 degree is 111 km on the Earth).
        smoothness: 0.5, 1.5 or 2.5, that of Matern12, Matern32 and Matern52.
    """

    num_dims = 2
    along_each, has_unit_variance = Decay.DECAYS, True  # decays as far as a sphere goes
    lengthscale: Positive = Positive()
    origin: Tensor
    unit: Tensor

    def __init__(self, lengthscale: float = 10.0, smoothness: float = 1.5):
        super().__init__()
        if smoothness not in (0.5, 1.5, 2.5):
            raise ValueError(f"smoothness is {smoothness!r}, expected 0.5, 1.5 or 2.5.")
        self.smoothness = float(smoothness)
        self.lengthscale = lengthscale
        self.register_buffer("origin", torch.zeros(2, dtype=torch.float64))
        self.register_buffer("unit", torch.ones(2, dtype=torch.float64))

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        s = math.sqrt(2 * self.smoothness) * _distances(self._places(X), self._places(Z))
        factor = {0.5: torch.ones_like(s), 1.5: 1 + s, 2.5: 1 + s + s.square() / 3}[self.smoothness]
        return factor * torch.exp(-s)

    def _places(self, X: Tensor) -> Tensor:
        """Points on a sphere whose degrees are as long as 1 / lengthscale."""
        self.check_columns(X)
        degrees = self.origin.to(X.device) + self.unit.to(X.device) * X.double()
        longitude, latitude = torch.deg2rad(degrees).unbind(-1)
        equator = torch.cos(latitude)
        places = torch.stack([equator * torch.cos(longitude), equator * torch.sin(longitude), torch.sin(latitude)], -1)
        return (places * (180 / math.pi) / self.lengthscale.to(X.device)).to(X.dtype)

    def check_columns(self, X: Float[Tensor, "*b n d"]) -> None:
        if X.shape[-1] != 2:
            raise ValueError(
                f"there are {X.shape[-1]} columns, GreatCircle takes 2: longitude and latitude. Choose them by "
                "ActiveDims(GreatCircle(), [longitude, latitude])."
            )

    def lengthscales(self, num_dims: int | None = None) -> Float[Tensor, " d"] | None:
        # Degrees of longitude are shorter by cos(latitude).
        shrunk = torch.stack([torch.deg2rad(self.origin[1]).cos().clamp_min(1e-3), torch.ones_like(self.origin[1])])
        return self.lengthscale.detach() / (self.unit * shrunk)

    def set_units(self, units: InputUnits) -> None:
        mean, std, _ = units
        self.check_columns(mean[None])
        if abs(float(mean[1])) > 90:
            raise ValueError(
                f"GreatCircle takes longitude and latitude in degrees; the mean of its second column is {mean[1]:g}, "
                "not between -90 and 90. Name the two columns in this order: ActiveDims(GreatCircle(), [...])."
            )
        self.origin, self.unit = mean.to(self.origin), std.to(self.unit)

    def plain_arguments(self) -> dict[str, Any]:
        return {"smoothness": self.smoothness}


# ---- kernels without an end ----


class Linear(Kernel):
    """k(x, z) = Σ_d variance_d x_d z_d: linear functions through the origin; add a Constant for an offset."""

    along_each = Decay.ENDLESS
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


class Repeating(Kernel, ABC):
    """A kernel with a period along each column, in the units of the inputs; in a regressor, in those of the table."""

    along_each, has_unit_variance = Decay.ENDLESS, True
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

    The period is in the units of the inputs; in a regressor, in those of the table. The lengthscale, without a unit,
    says how smooth the repeated shape is; below 1 it wiggles within a period.
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
        return torch.exp(-0.5 * _distances(self._circles(X), self._circles(Z)).square())

    def _circles(self, X: Tensor) -> Tensor:
        phase, radius = self._phase(X), 1 / self.lengthscale.to(X.device)
        return torch.cat([radius * torch.cos(phase), radius * torch.sin(phase)], dim=-1).to(X.dtype)

    def lengthscales(self, num_dims: int | None = None) -> None:
        return None  # its lengthscales are not distances of inputs


class Cosine(Repeating):
    """Π_d cos(2π (x_d - z_d) / period_d): a wave of unknown amplitude and phase in each column, its period as in
    ``Periodic``. A spectral mixture is a sum of ``Scale(Cosine(...) * RBF(...))``.
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


def repeating_parts(kernel: Kernel, columns: Sequence[int]) -> list[tuple[Repeating, Sequence[int]]]:
    """The parts of a kernel of these columns that have periods, each with the columns that it sees."""
    inside = [columns[j] for j in kernel.positions] if isinstance(kernel, ActiveDims) else columns
    found = [(kernel, columns)] if isinstance(kernel, Repeating) else []
    return found + [pair for part in kernel.subkernels() for pair in repeating_parts(part, inside)]
