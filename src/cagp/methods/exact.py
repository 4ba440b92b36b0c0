"""The exact Gaussian process: by factorising the matrix K̂, or by conjugate gradients (CGGP; Gardner et al., 2018)."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.actions import BlockActions, Partition
from cagp.checks import check_count, check_first_order
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES, kernel_product, precise_product
from cagp.linalg import safe_cholesky
from cagp.memory import available_memory
from cagp.methods.base import Method, RowNoise, Targets
from cagp.posteriors import CaGPPosterior, CGPosterior
from cagp.prior import GP
from cagp.projection import project
from cagp.quantities import size
from cagp.solver import Solver
from cagp.system import System
from cagp.training import Batch
from cagp.training.trainable import Inputs, Terms

MATRICES = 6
"""Float64 matrices of n x n values that objective and gradient, or conditioning, hold at once; measured."""


@final
class CholeskyGP(Method):
    """Exact inference: the loss is -log p(y), the posterior is CaGP's with S = I. Time O(n³), memory O(n²).

    It raises MemoryError if the matrices would not fit into the memory available.
    """

    def __init__(self, prior: GP, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self.prior = prior
        self.max_bytes = max_bytes

    def check(self, data: Data) -> None:
        super().check(data)
        available = torch.cuda.mem_get_info(data.X.device)[0] if data.X.is_cuda else available_memory()
        needed, n = memory_needed(data.num_rows), data.num_rows
        if available is not None and needed > available:
            largest = math.isqrt(available // (MATRICES * 8))
            raise MemoryError(
                f"CholeskyGP needs about {needed / 1e9:.1f} GB for {n:,} rows, {available / 1e9:.1f} GB are available, "
                f"enough for about {largest:,} rows. Use fewer rows, or a method whose cost is linear in "
                "them: CaGPOpt, SGPR, SVGP; or CGGP, which needs no n x n matrix."
            )

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-log p(y) / n, y ~ Normal(m(X), K̂), of all rows."""
        batch.check_all_rows("CholeskyGP")
        X, y, row_noise = data
        residual = y.double() - self.prior.mean(X.double())
        K = precise_product(self.prior.kernel, X, X)
        nll = _GaussianNLL.apply(K, self.prior.noise(X, row_noise), residual)
        return {"negative_log_marginal_likelihood": nll / data.num_rows}

    @torch.no_grad()
    def posterior(self, data: Data) -> CaGPPosterior:
        rows = torch.arange(data.num_rows + 1, device=data.X.device)
        unit_vectors = BlockActions(Partition(rows[:-1], rows), torch.ones_like(data.X[:, 0]))  # a block for each row
        projection = project(self.prior, unit_vectors, *data.tensors, self.max_bytes, check=False)
        return CaGPPosterior(self.prior, projection, self.max_bytes)

    def words(self, data: Data) -> str:
        return f"Exact GP on {data.num_rows:,} rows by Cholesky (about {size(memory_needed(data.num_rows))})"


class _GaussianNLL(torch.autograd.Function):
    """½(rᵀK̂⁻¹r + log|K̂| + n log 2π) with K̂ = K + D; ∂K = ½(K̂⁻¹ - wwᵀ), ∂D its diagonal, ∂r = w, w = K̂⁻¹r."""

    @staticmethod
    def forward(ctx, K: Tensor, noise: Tensor, residual: Tensor) -> Tensor:
        chol = safe_cholesky((K + K.mT).div_(2).diagonal_scatter(K.diagonal() + noise), "K̂")
        weights = torch.cholesky_solve(residual[:, None], chol)[:, 0]
        ctx.save_for_backward(chol, weights)
        return 0.5 * (residual @ weights + len(residual) * math.log(2 * math.pi)) + chol.diagonal().log().sum()

    @staticmethod
    def backward(ctx, *grad_outputs: Tensor):
        check_first_order()
        chol, weights = ctx.saved_tensors
        grad_K = torch.cholesky_inverse(chol).addr_(weights, weights, alpha=-1).mul_(0.5 * grad_outputs[0])
        return grad_K, grad_K.diagonal().clone(), grad_outputs[0] * weights


def memory_needed(num_rows: int) -> int:
    """Bytes that exact inference takes at its peak."""
    return MATRICES * 8 * num_rows**2


@final
class CGGP(Method):
    """Numerical approximation of the exact GP: -log p(y) with a log-determinant estimated from random probes.

    The probes are those of ``seed`` at every step, so the loss is a function of the parameters; its gradient is an
    unbiased estimate of that of -log p(y), not the derivative of the estimated loss. Time per step: one product of
    k(X, X) with ``num_probes`` + 1 columns for every iteration, O(n²) each; memory O(n (rank + probes)), and n² values
    if k(X, X) fits into ``max_bytes``. A solve that does not converge gives a ``CGWarning``.

    All of it is computed in float64: vectors in float32 leave residuals of about 1e-7 times the condition number.

    Args:
        tolerance: of the residuals of conjugate gradients, relative to the right-hand sides.
        num_probes: random vectors for the log-determinant; its standard error falls with their square root.
        precondition_rank: columns of the pivoted Cholesky factor in the preconditioner.
        max_bytes: limit for temporaries, and for keeping k(X, X).
    """

    def __init__(
        self,
        prior: GP,
        *,
        tolerance: float = 1e-4,
        num_probes: int = 16,
        precondition_rank: int = 100,
        max_iterations: int = 1000,
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
        batch.check_all_rows("CGGP")
        n, (X, y, row_noise) = data.num_rows, data.double()
        solver = self._solver(X, row_noise)
        quadratic, log_det = self.estimates(solver, X, y, row_noise, self._probes(solver))
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
        result = solver.solve(torch.cat([residual.detach()[:, None], Z], 1), "right-hand sides of the loss")
        right = torch.cat([result.solution[:, :1], solver.precondition(Z)], 1)
        kernel_part = kernel_product(self.prior.kernel, X, X, right, max_bytes=self.max_bytes)
        noise = self.prior.noise(X, row_noise)
        forms = (result.solution * (kernel_part + noise[:, None] * right)).sum(0)
        quadratic = 2 * residual @ result.solution[:, 0] - forms[0]
        slope = forms[1:].mean()
        value = solver.precondition_log_det() + result.quadrature(torch.log)[1:].mean()
        return quadratic, value + (slope - slope.detach())

    def _solver(self, X: Tensor, row_noise: Tensor | None) -> Solver:
        system = System(self.prior, X, row_noise, self.max_bytes, check=False)
        return Solver(system, self.precondition_rank, self.tolerance, self.max_iterations)

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
        representer = solver.solve((y - self.prior.mean(inputs))[:, None], "representer weights")
        return CGPosterior(data.X, solver, representer, self.max_bytes)

    def words(self, data: Data) -> str:
        return (
            f"CGGP on {data.num_rows:,} rows: conjugate gradients to {self.tolerance:.0e}, {self.num_probes} probes, "
            f"preconditioner of rank {min(self.precondition_rank, data.num_rows)}"
        )

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        return super().findings(data.double(), input_names)
