"""Kernels of some columns: any that a user lists, or the two that say where on the Earth a row is."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.covariances.base import Decay, InputUnits, Kernel, StartingData
from cagp.parameters import Positive


class ActiveDims(Kernel):
    """A kernel of some columns of the inputs; the other columns do not matter to it.

    Args:
        kernel: made for the columns that are listed.
        columns: their positions, from 0. In a regressor also names of columns; that of a column with categories stands
            for all the inputs it is encoded as.
        num_dims: the number of all columns; regressors set it.
    """

    def __init__(self, kernel: Kernel, columns: Sequence[int | str], num_dims: int | None = None):
        super().__init__()
        if isinstance(columns, str) or len(columns) == 0 or len(set(columns)) < len(columns):
            raise ValueError(f"columns is {columns!r}, expected a list of different columns, e.g. [0, 2].")
        for column in columns:
            if not isinstance(column, str) and (isinstance(column, bool) or operator.index(column) < 0):
                raise ValueError(f"columns has {column!r}, expected positions from 0, or names.")
        self.kernel = kernel
        self.columns = tuple(column if isinstance(column, str) else operator.index(column) for column in columns)
        self.num_dims = num_dims

    @property
    def positions(self) -> list[int]:
        """The columns by their positions; ValueError for names that no regressor has explained."""
        names = [column for column in self.columns if isinstance(column, str)]
        if names:
            raise ValueError(
                f"the kernel is for a column called {names[0]!r}, but these inputs have no names: use positions in "
                "ActiveDims, or a data frame in a regressor."
            )
        return [int(column) for column in self.columns]

    def take(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n c"]:
        """The columns that matter."""
        positions = self.positions
        if max(positions) >= X.shape[-1] or self.num_dims not in (None, X.shape[-1]):
            least = f"num_dims = {self.num_dims}" if self.num_dims else f"column {max(positions)}"
            raise ValueError(f"X has {X.shape[-1]} columns, the ActiveDims kernel was made for {least}.")
        return X[..., positions]

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.kernel(self.take(X), self.take(Z))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.kernel.diag(self.take(X))

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"] | None:
        return self.kernel.features(self.take(X))

    def check_columns(self, X: Float[Tensor, "*b n d"]) -> None:
        self.kernel.check_columns(self.take(X))

    def lengthscales(self, num_dims: int | None = None) -> Float[Tensor, " d"] | None:
        inside = self.kernel.lengthscales(len(self.columns))
        num_dims = num_dims or self.num_dims
        if inside is None or num_dims is None:
            return None
        return inside.new_full((num_dims,), math.inf).index_copy(0, inside.new_tensor(self.positions).long(), inside)

    def decay(self, column: int) -> Decay:
        positions = self.positions
        return self.kernel.decay(positions.index(column)) if column in positions else Decay.NONE

    def start_from(self, data: StartingData) -> None:
        inside = self.positions
        self.kernel.start_from(data._replace(X=data.X[:, inside], spread=data.spread[inside]))

    def set_units(self, units: InputUnits) -> None:
        self.columns, self.num_dims = _positions(self.columns, units), len(units.mean)
        inside = self.positions
        names = None if units.names is None else tuple(units.names[j] for j in inside)
        self.kernel.set_units(InputUnits(units.mean[inside], units.std[inside], names))

    def plain_arguments(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "num_dims": self.num_dims}


def _positions(columns: Sequence[int | str], units: InputUnits) -> tuple[int, ...]:
    """Columns by their positions among the inputs; a name also stands for all inputs called ``name=level``."""
    names, found = units.names or (), []
    for column in columns:
        if not isinstance(column, str):
            here = [column] if column < len(units.mean) else []
        else:
            here = [j for j, name in enumerate(names) if name == column or name.startswith(f"{column}=")]
        if not here:
            known = f"the inputs are {', '.join(names)}" if names else f"there are {len(units.mean)} inputs, unnamed"
            raise ValueError(f"the kernel is for column {column!r}, but {known}.")
        found += here
    return tuple(found)


class GreatCircle(Kernel):
    """A Matérn kernel on the sphere, for two columns: longitude and latitude, in degrees.

    The distance is the chord 2 sin(θ / 2) through the sphere, θ the angle between two places. With it every Matérn
    kernel is positive definite, across the date line and at the poles.

    Args:
        lengthscale: in degrees along a great circle (1 degree is 111 km on the Earth).
        smoothness: 0.5, 1.5 or 2.5, that of Matern12, Matern32 and Matern52.
    """

    num_dims = 2
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
        places = self._places(X), self._places(Z)
        s = math.sqrt(2 * self.smoothness) * torch.cdist(*places, compute_mode="donot_use_mm_for_euclid_dist")
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

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return X.new_ones(X.shape[0])

    def lengthscales(self, num_dims: int | None = None) -> Float[Tensor, " d"] | None:
        # Degrees of longitude are shorter by cos(latitude).
        shrunk = torch.stack([torch.deg2rad(self.origin[1]).cos().clamp_min(1e-3), torch.ones_like(self.origin[1])])
        return self.lengthscale.detach() / (self.unit * shrunk)

    def decay(self, column: int) -> Decay:
        return Decay.DECAYS  # as far as a sphere goes

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
