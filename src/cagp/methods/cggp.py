"""CGGP: the exact model with every solve by preconditioned conjugate gradients (Gardner et al., 2018)."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_count
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product
from cagp.methods.base import Method, RowNoise, Targets, check_all_rows
from cagp.posteriors import CGPosterior
from cagp.prior import GP
from cagp.solver import Solver
from cagp.system import System
from cagp.training import Batch
from cagp.training.trainable import Inputs, Terms

TOLERANCE = 1e-4
NUM_PROBES = 16
PRECONDITION_RANK = 100
MAX_ITERATIONS = 1000


@final
class CGGP(Method):
    """Numerical approximation of the exact GP: -log p(y) with a log-determinant estimated from random probes.

    The probes are those of ``seed`` at every step, so the loss is a function of the parameters; its gradient is an
    unbiased estimate of that of -log p(y), not the derivative of the estimated loss. Time per step: one product of
    k(X, X) with ``num_probes`` + 1 columns for every iteration, O(n²) each; memory O(n (rank + probes)), and n² values
    if k(X, X) fits into ``max_bytes``. A solve that does not converge gives a ``CGWarning``.

    All of it is computed in float64: vectors in float32 leave residuals of about 1e-7 times the condition number.

    Args:
        prior: mean, kernel and noise, learned.
        tolerance: of the residuals of conjugate gradients, relative to the right-hand sides.
        num_probes: random vectors for the log-determinant; its standard error falls with their square root.
        precondition_rank: columns of the pivoted Cholesky factor in the preconditioner.
        max_iterations: of conjugate gradients.
        seed: of the probes.
        max_bytes: limit for temporaries, and for keeping k(X, X).
    """

    def __init__(
        self,
        prior: GP,
        *,
        tolerance: float = TOLERANCE,
        num_probes: int = NUM_PROBES,
        precondition_rank: int = PRECONDITION_RANK,
        max_iterations: int = MAX_ITERATIONS,
        seed: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        super().__init__()
        check_count(num_probes, "num_probes", 2**31, "a size that can be computed")
        if not tolerance > 0:
            raise ValueError(f"tolerance is {tolerance}, expected a positive number.")
        self.prior = prior
        self.tolerance, self.num_probes, self.precondition_rank = tolerance, num_probes, precondition_rank
        self.max_iterations, self.seed, self.max_bytes = max_iterations, seed, max_bytes

    def terms(self, data: Data, batch: Batch) -> Terms:
        check_all_rows(batch, "CGGP")
        n, (X, y, row_noise) = data.num_rows, data.double()
        solver = self._solver(X, row_noise)
        white = self._probes(solver)
        quadratic, log_det = self.estimates(solver, X, y, row_noise, white)
        return {
            "quadratic": 0.5 * quadratic / n,
            "log_determinant": 0.5 * log_det / n,
            "constant": torch.full_like(log_det, 0.5 * math.log(2 * math.pi)).detach(),
        }

    def estimates(
        self, solver: Solver, X: Inputs, y: Targets, row_noise: RowNoise, white: Float[Tensor, "p c"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """rᵀK̂⁻¹r and log|K̂| of float64 data, differentiable in the prior's parameters.

        One batch of conjugate gradients gives w = K̂⁻¹r and, for probes z of covariance M, the preconditioner, u = K̂⁻¹z:
            rᵀK̂⁻¹r = 2rᵀw - wᵀK̂w up to the square of w's error; with w constant this has the gradient, too;
            log|K̂| = log|M| + E[zᵀM^-½ log(M^-½K̂M^-½) M^-½z], by Lanczos quadrature from the iteration's coefficients;
            ∂log|K̂| = E[uᵀ ∂K̂ M⁻¹z].
        With all columns of √p I as ``white``, instead of random ones, the expectations are exact.
        """
        Z = solver.color(white)
        residual = y - self.prior.mean(X)
        B = torch.cat([residual.detach()[:, None], Z], 1)
        result = solver.solve(B, self.tolerance, self.max_iterations, "right-hand sides of the loss")
        right = torch.cat([result.solution[:, :1], solver.precondition(Z)], 1)
        kernel_part = kernel_product(self.prior.kernel, X, X, right, max_bytes=self.max_bytes)
        noise = self.prior.noise(X, row_noise)
        forms = (result.solution * (kernel_part + noise[:, None] * right)).sum(0)
        quadratic = 2 * residual @ result.solution[:, 0] - forms[0]
        slope = forms[1:].mean()
        value = solver.precondition_log_det() + result.quadrature(torch.log)[1:].mean()
        return quadratic, value + (slope - slope.detach())

    def _solver(self, X: Tensor, row_noise: Tensor | None) -> Solver:
        return Solver(System(self.prior, X, row_noise, self.max_bytes, check=False), self.precondition_rank)

    def _probes(self, solver: Solver) -> Tensor:
        """Signs at random: of covariance I, and of less variance in quadratic forms than normal ones."""
        generator = torch.Generator().manual_seed(self.seed)
        n, rank = solver.system.num_rows, solver.L.shape[1]
        signs = torch.randint(2, (n + rank, self.num_probes), generator=generator, dtype=torch.float64) * 2 - 1
        return signs.to(solver.L.device)

    @torch.no_grad()
    def posterior(self, data: Data) -> CGPosterior:
        """The posterior with K̂⁻¹(y - m) computed, as a snapshot; ``representer_status`` says how the solve ended."""
        inputs, (_, y, row_noise) = data.X.to(torch.float64, copy=True), data.double()
        solver = self._solver(inputs, row_noise)
        residual = y - self.prior.mean(inputs)
        representer = solver.solve(residual[:, None], self.tolerance, self.max_iterations, "representer weights")
        limits = {"tolerance": self.tolerance, "max_iterations": self.max_iterations, "max_bytes": self.max_bytes}
        return CGPosterior(data.X, solver, representer, **limits)

    def words(self, data: Data) -> str:
        return (
            f"CGGP on {data.num_rows:,} rows: conjugate gradients to {self.tolerance:.0e}, {self.num_probes} probes, "
            f"preconditioner of rank {min(self.precondition_rank, data.num_rows)}"
        )

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        return super().findings(data.double(), input_names)
