"""K̂ = k(X, X) + D at fixed hyperparameters: products with it, and solves by preconditioned conjugate gradients."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_matrix
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product
from cagp.linalg import CGResult, conjugate_gradients, pivoted_cholesky, safe_cholesky
from cagp.notices import warn
from cagp.prior import GP


class System:
    """Products with K̂ for the training inputs ``X``, kept as a matrix where that fits and streamed where not.

    It holds a copy of the prior: training further does not change it. Products are float64, whatever the dtype of
    ``X``: variances are small differences of them. k(X, X) is kept if it takes no more than ``max_bytes``, which
    otherwise limits the temporaries of a product.
    """

    def __init__(
        self,
        prior: GP,
        X: Float[Tensor, "n d"],
        row_noise: Float[Tensor, " n"] | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        check: bool = True,
    ):
        if check:
            check_matrix(X, "X")
            prior.check_noise(X, row_noise)
        self.prior = copy.deepcopy(prior).requires_grad_(False)
        self.X = X.detach()
        self._rows = self.X.double()
        self.max_bytes = max_bytes
        self.row_noise = None if row_noise is None else row_noise.detach().clone()
        self.noise: Float[Tensor, " n"] = self.prior.noise(self.X, self.row_noise).detach()
        n = X.shape[0]
        self._K = self.columns(self._rows) if 8 * n * n <= max_bytes else None
        self._one_block = torch.tensor([0, n], device=X.device)

    @property
    def num_rows(self) -> int:
        """n."""
        return self.X.shape[0]

    def product(self, v: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """K̂ v. Time O(n k) with k(X, X) kept, else O(n k d), for k non-zero values of ``v``; memory O(n)."""
        rows, values = v.nonzero()[:, 0], v.double()
        is_sparse = 2 * len(rows) < self.num_rows
        if len(rows) == 0:
            product = torch.zeros_like(values)
        elif self._K is not None:
            # K[rows]ᵀ: whole rows of the matrix are read, which is faster than picking columns.
            product = values[rows] @ self._K[rows] if is_sparse else self._K @ values
        elif is_sparse:
            product = self._kernel(self._rows[rows], values[rows, None])[:, 0]
        else:  # a vector is a single block: the compiled kernels then evaluate each pair of rows once
            product = self._kernel(self._rows, BlockWeights(values, self._one_block))[:, 0]
        return product + self.noise * values

    def products(self, V: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """K̂ V. Time O(n² c) with k(X, X) kept, else O(n² (d + c)); memory O(n c + tile)."""
        return self.kernel_products(V) + self.noise[:, None] * V.double()

    def kernel_products(self, V: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
        """k(X, X) V, without the noise."""
        V = V.double()
        return self._kernel(self._rows, V) if self._K is None else self._K @ V

    def kernel_matrix(self) -> Float[Tensor, "n n"]:
        """k(X, X) as a matrix, whether or not it is kept."""
        return self.columns(self._rows) if self._K is None else self._K

    def columns(self, Z: Float[Tensor, "t d"]) -> Float[Tensor, "n t"]:
        """k(X, Z), the covariances of the rows with other inputs."""
        return kernel_product(self.prior.kernel, self._rows, Z.double())

    def kernel_diagonal(self) -> Float[Tensor, " n"]:
        """The diagonal of k(X, X)."""
        return self.prior.kernel.diag(self._rows)

    def _kernel(self, Z: Tensor, W: Tensor | BlockWeights) -> Tensor:
        """k(X, Z) W, streamed."""
        return kernel_product(self.prior.kernel, self._rows, Z, W, max_bytes=self.max_bytes)


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
