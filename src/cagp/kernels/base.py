"""What a kernel is: a matrix k(X, Z), and what it says about itself; and kernels that are made of others."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import reduce
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.parameters import Positive


class Decay(Enum):
    """How a kernel varies along a column of the inputs."""

    DECAYS = "decays"  # the covariance goes to zero with distance: nearest rows say nearly all
    ENDLESS = "endless"  # it does not, so that rows far away matter as well
    NONE = "none"  # the kernel does not depend on the column
    UNKNOWN = "unknown"  # the class of the kernel does not say


class InputUnits(NamedTuple):
    """Where the inputs of a kernel come from: they are (x - mean) / std, x the columns of a table."""

    mean: Float[Tensor, " d"]
    std: Float[Tensor, " d"]
    names: tuple[str, ...] | None = None


class StartingData(NamedTuple):
    """What a kernel takes its starting values from: the columns that it sees, and the targets."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    spread: Float[Tensor, " d"]  # the standard deviation of each column, on the CPU
    variance: float  # of the targets


class Kernel(nn.Module, ABC):
    """A positive semi-definite function of two inputs; add and multiply kernels with ``+`` and ``*``.

    A class of your own defines ``forward`` alone: what it does not say counts as unknown, never as no.
    """

    num_dims: int | None = None  # the number of input columns that it was made for; None for any number
    along_each: ClassVar[Decay] = Decay.UNKNOWN  # how it varies along every column
    has_unit_variance: ClassVar[bool] = False  # whether k(x, x) = 1

    @abstractmethod
    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        """The matrix k(X, Z)."""

    def __call__(self, X: Tensor, Z: Tensor) -> Tensor:
        """``forward(X, Z)``, checked, in the dtype of ``X`` whatever dtype ``forward`` computes in."""
        K = super().__call__(X, Z)
        shape = (*torch.broadcast_shapes(X.shape[:-2], Z.shape[:-2]), X.shape[-2], Z.shape[-2])
        if K.shape != shape:
            raise ValueError(
                f"{type(self).__name__}.forward returned shape {tuple(K.shape)} for inputs of shapes {tuple(X.shape)} "
                f"and {tuple(Z.shape)}, expected {shape}; count axes from the end, e.g. X.unsqueeze(-2) - "
                "Z.unsqueeze(-3), because inputs may come in batches."
            )
        return K.to(X.dtype)

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The diagonal of k(X, X), in O(n)."""
        if self.has_unit_variance:
            return X.new_ones(X.shape[0])
        rows = X.unsqueeze(-2)
        return self(rows, rows)[:, 0, 0]

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"] | None:
        """F(X) with k(X, Z) = F(X) F(Z)ᵀ where that is cheaper than k(X, Z), otherwise None."""
        return None

    def subkernels(self) -> "list[Kernel]":
        """The kernels that this one contains."""
        inside = [[child] if isinstance(child, Kernel) else list(child.children()) for child in self.children()]
        return [part for parts in inside for part in parts if isinstance(part, Kernel)]

    def linear_parts(self, coefficient: Tensor | None = None) -> "Iterator[tuple[Tensor | None, Kernel]]":
        """(c, k') with ``coefficient`` k = Σ c k', so that each part takes its own fastest path; c is None for one."""
        yield coefficient, self

    def check_columns(self, X: Float[Tensor, "*b n d"]) -> None:
        """Raise ValueError unless the kernel was made for as many columns as ``X`` has."""
        if self.num_dims not in (None, X.shape[-1]):
            raise ValueError(
                f"X has {X.shape[-1]} columns, the {type(self).__name__} kernel was made for num_dims = "
                f"{self.num_dims}; ActiveDims(kernel, columns) chooses columns."
            )

    def lengthscales(self, num_dims: int | None = None) -> Float[Tensor, " d"] | None:
        """The lengthscale along each column, float64, detached; None where the class does not say.

        An infinite one stands for a column on which the kernel, or its first part with lengthscales, does not depend.
        By default a parameter called ``lengthscale`` with one positive value for each column, or one for all.
        """
        values = getattr(self, "lengthscale", None)
        if not isinstance(values, Tensor) or not bool((values > 0).all()):
            return None
        num_dims = num_dims or self.num_dims or (values.numel() if values.numel() > 1 else None)
        if num_dims is None or values.numel() not in (1, num_dims):
            return None
        return values.detach().double().reshape(-1).expand(num_dims)

    def decay(self, column: int) -> Decay:
        """How the kernel varies along a column; ``Decay.UNKNOWN`` unless the class says more."""
        return self.along_each

    def decays(self, num_dims: int) -> bool | None:
        """Whether the kernel goes to zero along each column: if not, rows far away matter too; None if unknown."""
        along = {self.decay(column) for column in range(num_dims)}
        if along & {Decay.ENDLESS, Decay.NONE}:
            return False
        return None if Decay.UNKNOWN in along else True

    def endless_parameters(self, num_dims: int) -> list[nn.Parameter]:
        """The parameters that nearest rows cannot tell: those of the scaled or added parts that do not decay."""
        if self.decays(num_dims) is not False:
            return []
        if not isinstance(self, Scale | Sum):
            return list(self.parameters())
        inside = [parameter for part in self.subkernels() for parameter in part.endless_parameters(num_dims)]
        return [*self.parameters(recurse=False), *inside]

    def support_radius(self, tolerance: float) -> float:
        """The distance in lengthscales beyond which the kernel is at most ``tolerance`` times its variance, if known.

        Infinity for a tolerance of zero, and for kernels that are not known to fall with distance.
        """
        if tolerance < 0:
            raise ValueError(f"tolerance is {tolerance}, expected 0 (leave nothing out) or more.")
        return math.inf

    def start_from(self, data: StartingData) -> None:
        """Take starting values from data; by default the kernels inside do."""
        for part in self.subkernels():
            part.start_from(data)

    def stretch(self, factor: float) -> None:
        """Multiply the lengthscales by a factor; by default those of the kernels inside."""
        for part in self.subkernels():
            part.stretch(factor)

    def rescale(self, outputscale: float) -> None:
        """Set each outputscale; by default those of the kernels inside."""
        for part in self.subkernels():
            part.rescale(outputscale)

    def take_over(self, other: "Kernel") -> None:
        """Start at the hyperparameters of another kernel; ``Stationary`` takes those of another family too."""
        if type(self) is not type(other):
            raise ValueError(
                f"a {type(self).__name__} kernel cannot take over the hyperparameters of a {type(other).__name__}."
            )
        self.load_state_dict(other.state_dict())

    def set_units(self, units: InputUnits) -> None:
        """Take the units by which a regressor standardised its inputs: periods are in those of the table."""
        for part in self.subkernels():
            part.set_units(units)

    def plain_arguments(self) -> dict[str, Any]:
        """The plain arguments, besides kernels, that make a kernel of this package again with the same shapes."""
        return {} if self.num_dims is None else {"num_dims": self.num_dims}

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)


class Constant(Kernel):
    """k(x, z) = variance: an unknown offset."""

    variance: Positive = Positive()
    along_each = Decay.NONE

    def __init__(self, variance: float = 1.0):
        super().__init__()
        self.variance = variance

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.variance.to(X).expand(*X.shape[:-1], Z.shape[-2])

    def features(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        return self.variance.to(X).sqrt().expand(X.shape[0], 1)


class Combination(Kernel, ABC):
    """A kernel made of others that see the same columns."""

    combine: ClassVar[Any]  # what values of the parts become, two at a time

    @abstractmethod
    def __init__(self, *kernels: Kernel):
        super().__init__()
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise ValueError(f"the parts are {list(kernels)}, expected one or more kernels.")

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return reduce(self.combine, (k(X, Z) for k in self.subkernels()))

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return reduce(self.combine, (k.diag(X) for k in self.subkernels()))

    def check_columns(self, X: Float[Tensor, "*b n d"]) -> None:
        for part in self.subkernels():
            part.check_columns(X)

    def lengthscales(self, num_dims: int | None = None) -> Float[Tensor, " d"] | None:
        """Along each column, the lengthscale of the first part that has a finite one."""
        each = [values for part in self.subkernels() if (values := part.lengthscales(num_dims)) is not None]
        return reduce(lambda first, other: torch.where(first.isinf(), other, first), each) if each else None


class Scale(Combination):
    """outputscale · k(x, z): the prior variance of the function is ``outputscale`` times that of ``kernel``."""

    outputscale: Positive = Positive()

    def __init__(self, kernel: Kernel, outputscale: float = 1.0):
        super().__init__(kernel)
        self.kernel = kernel
        self.outputscale = outputscale

    def forward(self, X: Float[Tensor, "*b n d"], Z: Float[Tensor, "*b m d"]) -> Float[Tensor, "*b n m"]:
        return self.outputscale.to(X) * self.kernel(X, Z)

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.outputscale.to(X) * self.kernel.diag(X)

    def linear_parts(self, coefficient: Tensor | None = None) -> Iterator[tuple[Tensor | None, Kernel]]:
        scale = self.outputscale
        yield from self.kernel.linear_parts(scale if coefficient is None else coefficient * scale)

    def decay(self, column: int) -> Decay:
        return self.kernel.decay(column)

    def start_from(self, data: StartingData) -> None:
        self.outputscale = data.variance
        self.kernel.start_from(data)

    def rescale(self, outputscale: float) -> None:
        self.outputscale = outputscale
        self.kernel.rescale(outputscale)

    def take_over(self, other: Kernel) -> None:
        if not isinstance(other, Scale):
            return super().take_over(other)
        self.get_parameter("raw_outputscale").data.copy_(other.get_parameter("raw_outputscale"))
        self.kernel.take_over(other.kernel)


class Sum(Combination):
    """k₁(x, z) + k₂(x, z) + …: independent effects that add up."""

    combine = operator.add

    def __init__(self, *kernels: Kernel):
        super().__init__(*kernels)
        self.parts = nn.ModuleList(kernels)

    def linear_parts(self, coefficient: Tensor | None = None) -> Iterator[tuple[Tensor | None, Kernel]]:
        for part in self.subkernels():
            yield from part.linear_parts(coefficient)

    def decay(self, column: int) -> Decay:
        """Decays if every part does: a part that does not depend on the column links rows at any distance."""
        along = {part.decay(column) for part in self.subkernels()}
        if len(along) == 1:
            return along.pop()
        return Decay.ENDLESS if Decay.ENDLESS in along or {Decay.DECAYS, Decay.NONE} <= along else Decay.UNKNOWN


class Product(Combination):
    """k₁(x, z) · k₂(x, z) · …: effects that modulate each other."""

    combine = operator.mul

    def __init__(self, *kernels: Kernel):
        super().__init__(*kernels)
        self.parts = nn.ModuleList(kernels)

    def linear_parts(self, coefficient: Tensor | None = None) -> Iterator[tuple[Tensor | None, Kernel]]:
        others = [part for part in self.subkernels() if not isinstance(part, Constant)]
        for number in (part.variance for part in self.subkernels() if isinstance(part, Constant)):
            coefficient = number if coefficient is None else coefficient * number
        if len(others) == 1:
            yield from others[0].linear_parts(coefficient)
        else:
            yield coefficient, Product(*others) if others else Constant().requires_grad_(False)

    def decay(self, column: int) -> Decay:
        """Endless if a part is, even beside one that decays: a season that fades over many periods is not local."""
        along = {part.decay(column) for part in self.subkernels()}
        return next(decay for decay in (Decay.ENDLESS, Decay.UNKNOWN, Decay.DECAYS, Decay.NONE) if decay in along)


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
        """Also turns columns into positions; a name stands for all inputs called ``name=level``, too."""
        names, inside = units.names or (), list[int]()
        for column in self.columns:
            if not isinstance(column, str):
                here = [column] if column < len(units.mean) else []
            else:
                here = [j for j, name in enumerate(names) if name == column or name.startswith(f"{column}=")]
            if not here:
                known = (
                    f"the inputs are {', '.join(names)}" if names else f"there are {len(units.mean)} inputs, unnamed"
                )
                raise ValueError(f"the kernel is for column {column!r}, but {known}.")
            inside += here
        self.columns, self.num_dims = tuple(inside), len(units.mean)
        names = None if units.names is None else tuple(names[j] for j in inside)
        self.kernel.set_units(InputUnits(units.mean[inside], units.std[inside], names))

    def plain_arguments(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "num_dims": self.num_dims}


def for_each(value: float | Sequence[float] | Tensor, name: str, num_dims: int) -> Tensor:
    """A value for each column: the one given for all, or those given."""
    values = torch.as_tensor(value, dtype=torch.float64)
    if values.numel() not in (1, num_dims):
        raise ValueError(f"{name} has {values.numel()} values, expected 1 or num_dims = {num_dims}.")
    return values.expand(num_dims).clone()
