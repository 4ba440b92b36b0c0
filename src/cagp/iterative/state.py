"""What Algorithm S1 knows after some steps: actions, search directions, representer weights and residual."""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.system import System


class State:
    """The steps taken so far. Everything is float64; columns are kept as rows of growing buffers.

    With d the search directions, scaled to dᵀK̂d = 1: C = Σ d dᵀ is the approximation of K̂⁻¹ (``directions`` is its
    root), ``weights`` = C(y - m) the representer weights v, ``residual`` = (y - m) - K̂v.

    Memory O(n i): three matrices of the size of S.
    """

    def __init__(self, system: System, targets: Float[Tensor, " n"]):
        self.targets: Float[Tensor, " n"] = targets.detach().double()  # y - m(X)
        self.residual: Float[Tensor, " n"] = self.targets.clone()
        self.weights: Float[Tensor, " n"] = torch.zeros_like(self.targets)
        self.kernel_variance: Float[Tensor, " n"] = system.kernel_diagonal()  # of the function at the rows, so far
        self.target_variance: Float[Tensor, " n"] = self.kernel_variance + system.noise  # of y, given Sᵀy
        self.last_product: Float[Tensor, " n"] | None = None  # K̂ s of the last action
        self.residual_norms: list[float] = [float(self.residual.norm())]
        self.num_dropped = 0
        self.seconds = 0.0
        self.memory: Any = None  # the policy's own
        self.num_steps = 0  # i, the number of actions taken
        self._columns = targets.new_empty(3, 8, len(targets), dtype=torch.float64)  # actions, directions, products

    @property
    def actions(self) -> Float[Tensor, "n i"]:
        """S with columns of unit length, in the order in which they were taken."""
        return self._columns[0, : self.num_steps].mT

    @property
    def directions(self) -> Float[Tensor, "n i"]:
        """d, scaled to dᵀK̂d = 1: the same span as S."""
        return self._columns[1, : self.num_steps].mT

    @property
    def products(self) -> Float[Tensor, "n i"]:
        """K̂ d."""
        return self._columns[2, : self.num_steps].mT

    def append(self, action: Tensor, direction: Tensor, product: Tensor, noise: Tensor) -> None:
        """Take a step along ``direction``, for which dᵀK̂d = 1, with ``product`` = K̂d (lines 9 and 10)."""
        observation = direction @ self.residual
        self.weights = self.weights + observation * direction
        self.residual = self.residual - observation * product
        self.kernel_variance = self.kernel_variance - (product - noise * direction).square()
        self.target_variance = self.target_variance - product.square()
        if self.num_steps == self._columns.shape[1]:  # twice the room: constant cost per column on average
            self._columns = torch.cat([self._columns, torch.empty_like(self._columns)], 1)
        self._columns[:, self.num_steps] = torch.stack([action, direction, product])
        self.num_steps += 1

    def correct(self) -> None:
        """Take out of the residual what round-off left of it in the span of the actions. Time O(n i)."""
        left = self.directions.mT @ self.residual
        self.weights = self.weights + self.directions @ left
        self.residual = self.residual - self.products @ left

    def copy(self) -> "State":
        """Another state with the same contents, which steps of this one leave alone. Memory O(n i)."""
        twin = copy.copy(self)  # the vectors are replaced by steps, never written to
        twin.residual_norms = list(self.residual_norms)
        twin._columns = self._columns.clone()
        return twin
