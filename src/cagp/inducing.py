"""The data seen through inducing points Z: computed once, shared by SGPR and SVGP. And how to choose the points."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.checks import check_count, check_matrix
from cagp.dataset import Data
from cagp.engine import kernel_product, precise_product
from cagp.linalg import pivoted_cholesky, safe_cholesky, whitened_gram
from cagp.prior import GP

INDUCING_NOISE = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Inducing variables are u = f(Z) + independent noise of this share of the prior variance, by the dtype of the data:
k(Z, Z) stays well enough conditioned for kernels of that precision when points come close. Bounds remain bounds."""

CHOICE_ROWS = 20_000
"""Inducing points are chosen among this many rows, drawn at random if there are more."""

Choice = Literal["greedy", "kmeans"]


class InducingStatistics(NamedTuple):
    """What SGPR and SVGP need of some rows; LLᵀ = k(Z, Z), u = L⁻¹k(Z, x), r = y - m(x), all float64."""

    chol: Float[Tensor, "m m"]  # L
    gram: Float[Tensor, "m m"]  # Σ u uᵀ / D
    targets: Float[Tensor, " m"]  # Σ u r / D
    squares: Float[Tensor, ""]  # Σ r² / D
    prior_variance: Float[Tensor, ""]  # Σ k(x, x) / D
    log_noise: Float[Tensor, ""]  # Σ log 2πD


class InducingPoints(nn.Module):
    """Z (m, d), learned in units of its own spread, so that one learning rate suits inputs of any scale."""

    scale: Tensor

    def __init__(self, Z: Float[Tensor, "m d"]):
        super().__init__()
        check_matrix(Z, "Z")
        Z = Z.detach().double()
        spread = Z.std(0, correction=0)
        self.register_buffer("scale", torch.where(spread > 0, spread, 1.0))
        self.points = nn.Parameter(Z / self.scale)

    @classmethod
    def of(cls, Z: "Tensor | InducingPoints") -> "InducingPoints":
        """New points at these places, or those of another method, to share them."""
        return Z if isinstance(Z, InducingPoints) else cls(Z)

    def check(self, X: Float[Tensor, "n d"]) -> None:
        """Raise ValueError unless the points have as many columns as ``X``."""
        if X.shape[1] != self.points.shape[1]:
            found = f"X has {X.shape[1]} columns, the inducing points have {self.points.shape[1]}"
            raise ValueError(f"{found}; choose them from X.")

    def forward(self) -> Float[Tensor, "m d"]:
        """Z in float64 and in the units of the inputs."""
        return self.points * self.scale

    def __len__(self) -> int:
        return self.points.shape[0]

    def see(self, prior: GP, data: Data, max_bytes: int) -> InducingStatistics:
        """Sums over the rows, differentiable in hyperparameters and Z. Time O(n m (d + m) + m³), memory O(n m)."""
        X, y, row_noise = data
        noise, Z = prior.noise(X, row_noise), self()
        residual = y.double() - prior.mean(X.double())
        chol = inducing_cholesky(prior, Z, X.dtype)
        KZ = precise_product(prior.kernel, X, Z.to(X), max_bytes=max_bytes)
        gram, targets = whitened_gram(KZ, chol, 1 / noise, residual)
        return InducingStatistics(
            chol,
            gram,
            targets,
            (residual.square() / noise).sum(),
            (prior.kernel.diag(X.double()) / noise).sum(),
            torch.log(2 * math.pi * noise).sum(),
        )


def inducing_cholesky(prior: GP, Z: Float[Tensor, "m d"], dtype: torch.dtype) -> Float[Tensor, "m m"]:
    """L with LLᵀ = k(Z, Z) + noise of the inducing variables in float64, Z rounded to ``dtype``, that of the data."""
    Z = Z.to(dtype)
    K = precise_product(prior.kernel, Z, Z)
    K = (K + K.mT) / 2
    return safe_cholesky(K + INDUCING_NOISE[dtype] * torch.diag(K.diagonal()), "k(Z, Z)")


@torch.no_grad()
def choose_inducing_points(
    prior: GP,
    X: Float[Tensor, "n d"],
    num_inducing: int,
    how: Choice = "greedy",
    lengthscale: Float[Tensor, " d"] | None = None,
    seed: int = 0,
) -> Float[Tensor, "m d"]:
    """Inducing points from the inputs; fewer than asked for if fewer distinct ones already explain them all.

    Args:
        how: "greedy": rows of the largest remaining prior variance, one after the other (pivoted Cholesky; Burt et al.,
            2020); "kmeans": centres of clusters of the inputs in units of ``lengthscale``.
        seed: of the random choices: the rows to choose from, and where k-means starts.

    Time O(n m (d + m)), memory O(n m), n at most ``CHOICE_ROWS``.
    """
    check_matrix(X, "X")
    check_count(num_inducing, "num_inducing", X.shape[0], "the number of rows of X")
    generator = torch.Generator().manual_seed(seed)
    if X.shape[0] > CHOICE_ROWS:
        X = X[torch.randperm(X.shape[0], generator=generator)[: max(CHOICE_ROWS, num_inducing)].to(X.device)]
    if how == "greedy":
        column = lambda row: kernel_product(prior.kernel, X, X[row : row + 1])[:, 0]  # noqa: E731
        return X[pivoted_cholesky(prior.kernel.diag(X), column, num_inducing).pivots]
    if how == "kmeans":
        from sklearn.cluster import KMeans  # slow to import, and few models need it

        scale = torch.ones_like(X[0]) if lengthscale is None else lengthscale.to(X)
        rows = (X / scale).cpu().numpy()
        num_centres = min(num_inducing, len(np.unique(rows, axis=0)))
        centres = KMeans(num_centres, n_init="auto", random_state=seed).fit(rows).cluster_centers_
        return torch.from_numpy(centres).to(X) * scale
    raise ValueError(f'how is {how!r}, expected "greedy" or "kmeans".')
