"""K̂⁻¹ without a factorisation: conjugate gradients, preconditioned by a pivoted Cholesky factor of k(X, X)."""

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.engine import kernel_product
from cagp.linalg import CGResult, conjugate_gradients, pivoted_cholesky, safe_cholesky
from cagp.notices import warn
from cagp.system import System


class CGWarning(UserWarning):
    """Conjugate gradients ended before they reached their tolerance."""


class Solver:
    """Solves with K̂ = k(X, X) + D, preconditioned by M = LLᵀ + D, L the first ``rank`` columns of a pivoted Cholesky
    factor of k(X, X). Time O(n rank (d + rank)) to make, memory O(n rank).
    """

    @torch.no_grad()
    def __init__(self, system: System, rank: int, tolerance: float, max_iterations: int):
        self.system, self.rank = system, rank
        self.tolerance, self.max_iterations = tolerance, max_iterations
        kernel, X = system.prior.kernel, system.X

        column = lambda row: kernel_product(kernel, X, X[row : row + 1])[:, 0]  # noqa: E731
        self.L = pivoted_cholesky(system.kernel_diagonal(), column, rank).L
        self._scaled = self.L / system.noise[:, None]
        eye = torch.eye(self.L.shape[1], dtype=torch.float64, device=X.device)
        self._inner = safe_cholesky(eye + self.L.mT @ self._scaled, "I + LᵀD⁻¹L")

    def precondition(self, V: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """M⁻¹V = D⁻¹V - D⁻¹L (I + LᵀD⁻¹L)⁻¹ LᵀD⁻¹V. Time O(n rank c)."""
        correction = self._scaled @ torch.cholesky_solve(self._scaled.mT @ V, self._inner)
        return V / self.system.noise[:, None] - correction

    def precondition_log_det(self) -> Float[Tensor, ""]:
        """log|M| = log|D| + log|I + LᵀD⁻¹L|."""
        return self.system.noise.log().sum() + 2 * self._inner.diagonal().log().sum()

    def color(self, white: Float[Tensor, "p c"]) -> Float[Tensor, "n c"]:
        """[L, D^½] white: columns of covariance M from columns of covariance I, where p = rank + n."""
        r = self.L.shape[1]
        return self.L @ white[:r] + self.system.noise.sqrt()[:, None] * white[r:]

    def solve(self, B: Float[Tensor, "n c"], name: str) -> CGResult:
        """K̂⁻¹B and its status, with a warning where columns, called ``name``, did not converge."""
        options = {"tolerance": self.tolerance, "max_iterations": self.max_iterations}
        result = conjugate_gradients(self.system.products, B, precondition=self.precondition, **options)
        if not bool(result.converged.all()):
            broke = int(result.broke_down.sum())
            cause = f"; K̂ was not positive definite to working precision for {broke}" if broke else ""
            warn(
                f"Conjugate gradients did not converge for {int((~result.converged).sum())} of {B.shape[1]} {name} in "
                f"{result.num_iterations} iterations: relative residuals up to "
                f"{float(result.residual_norms.max()):.1e}, tolerance {self.tolerance:.0e}{cause}. Raise "
                "max_iterations or precondition_rank, use float64 data, or raise the noise floor.",
                CGWarning,
                stacklevel=3,
            )
        return result
