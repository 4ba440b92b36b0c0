"""Posteriors: frozen snapshots that answer mean, variance, covariance and samples."""

import copy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product
from cagp.linalg import row_moments
from cagp.prior import GP
from cagp.projection import Projection


class Prediction(NamedTuple):
    """Mean and variance at each row asked for."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


class CaGPPosterior:
    """Exact inference on the projections Sᵀy (eq. computation-aware GP posterior).

    The variance is never below the exact posterior's, and never grows when actions are added. It holds copies:
    training a method further does not change it. Answers have the dtype of the inputs and are differentiable in them.

    Args:
        max_bytes: limit for temporaries; test rows are answered in tiles that respect it.
    """

    def __init__(self, prior: GP, projection: Projection, max_bytes: int = DEFAULT_MAX_BYTES):
        self.prior = copy.deepcopy(prior).requires_grad_(False)
        self.max_bytes = max_bytes
        self.X = projection.X.detach().clone()
        W = projection.W
        self.W = W._replace(values=W.values.detach()) if isinstance(W, BlockWeights) else W.detach()
        self.chol = projection.chol.detach()
        self.weights = projection.weights.detach()
        # Sṽ on the support: a mean costs one kernel product with a vector.
        self._representer = (
            self.W._replace(values=self.W.values.double()).expand(self.weights)
            if isinstance(self.W, BlockWeights)
            else self.W.double() @ self.weights
        )

    @property
    def num_actions(self) -> int:
        """i, the rank of the update from prior to posterior."""
        return self.chol.shape[0]

    def mean(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"]:
        """m(X) + k(X, X_train) S ṽ. Time O(t m d)."""
        check_new_inputs(X, self.X)
        representer = self._representer.to(X)[:, None]
        update = kernel_product(self.prior.kernel, X, self.X, representer, max_bytes=self.max_bytes)[:, 0]
        return self.prior.mean(X) + update

    def variance(
        self, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
    ) -> Float[Tensor, " t"]:
        """The diagonal of ``covariance``, with the noise variance added if ``noise``. Time O(t m d + t i²)."""
        return self.predict(X, noise=noise, row_noise=row_noise).variance

    def predict(
        self, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
    ) -> Prediction:
        """Mean and variance in one pass over the kernel; of new targets if ``noise``, else of the function."""
        check_new_inputs(X, self.X)
        rows = max(1, self.max_bytes // (4 * 8 * self.num_actions))
        parts = [self._moments(tile) for tile in X.split(rows)]
        mean, variance = (torch.cat(columns) for columns in zip(*parts, strict=True))
        if noise:
            variance = variance + self.prior.noise_variance(X, row_noise)
        elif row_noise is not None:
            raise ValueError("row_noise was given without noise=True, which is what adds it.")
        return Prediction(mean.to(X), variance.to(X))

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        KS = kernel_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        update, explained = row_moments(KS, self.chol, self.weights)
        # Round-off can leave the difference of two almost equal numbers a little below zero.
        variance = (self.prior.kernel.diag(X).double() - explained).clamp_min(0)
        return self.prior.mean(X).double() + update, variance

    def covariance(
        self,
        X: Float[Tensor, "t d"],
        Z: Float[Tensor, "u d"] | None = None,
        *,
        noise: bool = False,
        row_noise: Float[Tensor, " t"] | None = None,
    ) -> Float[Tensor, "t u"]:
        """k(X, Z) - k(X, X_train) S (SᵀK̂S)⁻¹ Sᵀ k(X_train, Z); ``Z`` defaults to ``X``. Memory O(t u + (t + u) i)."""
        check_new_inputs(X, self.X)
        if Z is not None:
            check_new_inputs(Z, self.X, "Z")
            if noise:
                raise ValueError("noise=True needs Z=None: noise is independent between the rows of X and those of Z.")
        return self._covariance(X, Z, noise, row_noise).to(X)

    def _covariance(self, X: Tensor, Z: Tensor | None, noise: bool, row_noise: Tensor | None) -> Tensor:
        root = self._root(X)
        other = root if Z is None else self._root(Z)
        K = kernel_product(self.prior.kernel, X, X if Z is None else Z)
        covariance = K.double() - root.mT @ other
        if Z is None:
            covariance = (covariance + covariance.mT) / 2
        if noise:
            return covariance + torch.diag(self.prior.noise_variance(X, row_noise))
        if row_noise is not None:
            raise ValueError("row_noise was given without noise=True, which is what adds it.")
        return covariance

    def _root(self, X: Tensor) -> Tensor:
        """L⁻¹ Sᵀk(X_train, X), float64."""
        KS = kernel_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KS.double().mT, upper=False)

    def sample(
        self,
        X: Float[Tensor, "t d"],
        num_samples: int,
        *,
        noise: bool = False,
        row_noise: Float[Tensor, " t"] | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s t"]:
        """Joint draws at the rows of ``X``. Time O(t³ + s t²).

        The covariance of nearby rows is singular to working precision: eigenvalues that round-off has made negative
        count as zero.
        """
        check_new_inputs(X, self.X)
        eigenvalues, vectors = torch.linalg.eigh(self._covariance(X, None, noise, row_noise))
        root = vectors * eigenvalues.clamp_min(0).sqrt()
        white = torch.randn(num_samples, X.shape[0], dtype=torch.float64, generator=generator).to(X.device)
        return (self.mean(X).double() + white @ root.mT).to(X)
