"""The leading eigenvectors of the kernel matrix: exactly for few rows, by Lanczos iterations for many."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from cagp.checks import check_count
from cagp.system import System


class TopEigenvectorsResult(NamedTuple):
    """Leading solutions of K s = λ D s, largest first, and how far they are from being so."""

    values: Float[Tensor, " i"]  # λ
    vectors: Float[Tensor, "n i"]  # s = D^-½ u, with u orthonormal
    residual_norms: Float[Tensor, " i"]  # ‖D^-½KD^-½ u - λ u‖
    num_products: int  # with K; 0 where the matrix was factorised


@torch.no_grad()
def top_eigenvectors(
    system: System, count: int, dense_up_to: int = 2000, tolerance: float = 1e-6, seed: int = 0
) -> TopEigenvectorsResult:
    """The leading ``count`` eigenvectors of K̂; of K s = λ D s where the noise differs between rows.

    Time O(n³) up to ``dense_up_to`` rows; beyond, a few times ``count`` products with K.
    """
    n = system.num_rows
    check_count(count, "the number of eigenvectors", n, "the number of rows of X")
    root = system.noise.sqrt()

    def whitened(V: Tensor) -> Tensor:
        return system.kernel_products(V / root[:, None]) / root[:, None]

    num_products = 0
    if n <= dense_up_to or count > n // 2:
        M = system.kernel_matrix() / root / root[:, None]
        values, U = torch.linalg.eigh((M + M.mT) / 2)
        values, U = values.flip(0)[:count], U.flip(1)[:, :count]
    else:

        def multiply(v: np.ndarray) -> np.ndarray:
            nonlocal num_products
            num_products += 1
            column = torch.from_numpy(np.ascontiguousarray(v).reshape(n)).to(root.device)
            product = system.product(column / root) / root - column  # D^-½ K̂ D^-½ = I + M: one vector, one block
            return product.cpu().numpy()

        start = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy()
        operator = LinearOperator((n, n), matvec=multiply, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        try:
            found, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)  # pyright: ignore[reportArgumentType]
        except ArpackNoConvergence as error:
            raise RuntimeError(
                f"{len(error.eigenvalues)} of {count} eigenvectors converged to {tolerance:g}; raise tolerance, or "
                "take fewer."
            ) from error
        values = torch.from_numpy(found[::-1].copy()).to(root)
        U = torch.from_numpy(vectors[:, ::-1].copy()).to(root)
    residual_norms = (whitened(U) - values * U).norm(dim=0)
    return TopEigenvectorsResult(values, U / root[:, None], residual_norms, num_products)
