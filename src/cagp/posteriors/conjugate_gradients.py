"""The exact posterior with every solve by conjugate gradients, of CGGP."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product
from cagp.fields import Fields, checked, float64, integer, numbers, optional, real, record, tensor
from cagp.linalg import CGResult
from cagp.posteriors.base import Posterior
from cagp.posteriors.storing import Rounding, Sharing
from cagp.prior import GP
from cagp.solver import Solver
from cagp.storage import State
from cagp.system import System

MOST_ITERATIONS = 10**6
"""Of conjugate gradients, in a file."""


@final
class CGPosterior(Posterior):
    """The exact posterior with every solve by preconditioned conjugate gradients, up to their tolerance.

    With s = K̂⁻¹k(X_train, x) up to an error e, the variance k(x, x) - 2 sᵀk(X_train, x) + sᵀK̂s exceeds the exact one
    by eᵀK̂e: second order in the error, and never negative. A solve that does not converge gives a ``CGWarning``.
    A mean costs O(t n d); a variance, for every test point, as many products of K̂ with a vector as the solve has
    iterations, O(n²) each.

    Args:
        X: the training inputs, in their own dtype; answers are computed in float64.
        solver: for K̂ of these inputs in float64; its system is a copy that nothing else changes.
        representer: the solution K̂⁻¹(y - m(X)) and its status.
    """

    never_below_exact = True

    def __init__(
        self,
        X: Float[Tensor, "n d"],
        solver: Solver,
        representer: CGResult,
        *,
        tolerance: float,
        max_iterations: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
        shares_rows: bool = False,
    ):
        super().__init__(solver.system.prior, X, representer.solution[:, 0], max_bytes, shares_rows=shares_rows)
        self.representer_status = representer
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self._solver = solver
        self._width = 2 * X.shape[0]  # the iteration holds five vectors for every test point

    REPRESENTER: ClassVar[Fields] = {
        "solution": float64("n", 1),
        "num_iterations": integer(),
        "converged": tensor(1, dtype=torch.bool),
        "broke_down": tensor(1, dtype=torch.bool),
        "residual_norms": float64(1),
        "squared_norms": float64(1),
        "diagonal": float64("iterations", 1),
        "off_diagonal": float64("iterations", 1),
    }
    FIELDS: ClassVar[Fields] = {
        "row_noise": optional(numbers("n")),
        "rank": integer(),
        "system_max_bytes": integer(),
        "tolerance": real(above=0.0, below=1.0),
        "max_iterations": integer(1, MOST_ITERATIONS),
        "representer": record(REPRESENTER),
    }

    def _state(self, rows: Rounding) -> State:
        system = self._solver.system
        return {
            "X": rows(self.X, "X"),
            "row_noise": rows(system.row_noise, "row_noise"),
            "rank": self._solver.rank,
            "system_max_bytes": int(system.max_bytes),
            "tolerance": float(self.tolerance),
            "max_iterations": self.max_iterations,
            "representer": self.representer_status._asdict(),
        }

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "CGPosterior":
        parts = checked(state, cls.FIELDS, {"n": len(X)})
        row_noise = None if parts["row_noise"] is None else parts["row_noise"].double()
        solver = Solver(
            System(prior, sharing.rows(X, torch.float64), row_noise, parts["system_max_bytes"]), parts["rank"]
        )
        limits = {"tolerance": parts["tolerance"], "max_iterations": parts["max_iterations"], "max_bytes": max_bytes}
        return cls(X, solver, CGResult(**parts["representer"]), **limits, shares_rows=True)

    def solve(self, X: Float[Tensor, "t d"]) -> CGResult:
        """K̂⁻¹k(X_train, X), what the variance at ``X`` is made of, with its status."""
        check_new_inputs(X, self.X)
        return self._solve(self._cross(X))

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        cross = self._cross(X)
        S = self._solve(cross).solution
        explained = (S * (2 * cross - self._solver.system.products(S))).sum(0)
        mean = self.prior.mean(X.double()) + self.representer_status.solution[:, 0] @ cross
        return mean, self.prior.kernel.diag(X.double()) - explained

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        cross = self._cross(X)
        S = self._solve(cross).solution
        other = cross if Z is None else self._cross(Z)
        T = S if Z is None else self._solve(other).solution
        K = kernel_product(self.prior.kernel, X.double(), (X if Z is None else Z).double())
        return K - cross.mT @ T - S.mT @ other + S.mT @ self._solver.system.products(T)

    def _cross(self, X: Tensor) -> Tensor:
        """k(X_train, X), float64."""
        return kernel_product(self.prior.kernel, X.double(), self._solver.system.X).mT

    def _solve(self, cross: Tensor) -> CGResult:
        return self._solver.solve(cross.detach(), self.tolerance, self.max_iterations, "columns of the variance")
