"""K̂ = k(X, X) + D at fixed hyperparameters: what iterative algorithms multiply with."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_matrix
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product
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
