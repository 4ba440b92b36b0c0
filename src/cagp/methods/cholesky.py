"""CholeskyGP: the exact Gaussian process, by a factorisation of the n x n matrix K̂. For a few thousand rows."""

import math
from typing import final

import torch
from torch import Tensor

from cagp.actions import BlockActions, Partition
from cagp.checks import check_first_order
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES, precise_product
from cagp.linalg import safe_cholesky
from cagp.memory import available_memory
from cagp.methods.base import Method, check_all_rows
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP
from cagp.projection import project
from cagp.quantities import size
from cagp.training import Batch
from cagp.training.trainable import Terms

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
        """Raise MemoryError if the matrices do not fit into the memory available."""
        super().check(data)
        available = torch.cuda.mem_get_info(data.X.device)[0] if data.X.is_cuda else available_memory()
        needed, n = memory_needed(data.num_rows), data.num_rows
        if available is not None and needed > available:
            largest = math.isqrt(available // (MATRICES * 8))
            raise MemoryError(
                f"CholeskyGP needs about {needed / 1e9:.1f} GB for {n:,} rows, {available / 1e9:.1f} GB are available, "
                f" enough for about {largest:,} rows. Use fewer rows, or a method whose cost is linear in "
                "them: CaGPOpt, SGPR, SVGP; or CGGP, which needs no n x n matrix."
            )

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-log p(y) / n, y ~ Normal(m(X), K̂), of all rows."""
        check_all_rows(batch, "CholeskyGP")
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
