"""The exact posterior with every solve by conjugate gradients, of CGGP."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product
from cagp.linalg import CGResult
from cagp.posteriors.base import Posterior
from cagp.solver import Solver


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

    @property
    def never_below_exact(self) -> bool:
        return True

    @property
    def _width(self) -> int:
        return 2 * self.X.shape[0]  # the iteration holds five vectors for every test point

    def solve(self, X: Float[Tensor, "t d"]) -> CGResult:
        """K̂⁻¹k(X_train, X), what the variance at ``X`` is made of, with its status."""
        check_new_inputs(X, self.X)
        return self._solve(self._cross(X))

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        cross = self._cross(X)
        S = self._solve(cross).solution
        explained = (S * (2 * cross - self._solver.system.products(S))).sum(0)
        mean = self.prior.mean(X.double()) + self._representer @ cross
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
