"""Posteriors: frozen snapshots that answer mean, variance, covariance and samples."""

import copy
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, kernel_product
from cagp.linalg import CGResult, row_moments
from cagp.prior import GP
from cagp.projection import Projection
from cagp.solver import Solver


class Prediction(NamedTuple):
    """Mean and variance at each row asked for."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


class Posterior(ABC):
    """What every posterior answers; a class of its own gives ``_moments`` of a tile of rows and ``_covariance``.

    It holds copies: training a method further does not change it. Answers have the dtype of the inputs and are
    differentiable in them. The mean is m(x) + k(x, X) ``representer``.

    Args:
        prior: copied, without gradients.
        X: the inputs that the kernel is taken with: training rows or inducing points.
        representer: the weight of each of these inputs in the mean.
        max_bytes: limit for temporaries; test rows are answered in tiles that respect it.
    """

    def __init__(
        self, prior: GP, X: Float[Tensor, "m d"], representer: Float[Tensor, " m"], max_bytes: int = DEFAULT_MAX_BYTES
    ):
        self.prior = copy.deepcopy(prior).requires_grad_(False)
        self.max_bytes = max_bytes
        self.X = X.detach().clone()
        self._representer = representer.detach()

    @property
    @abstractmethod
    def _width(self) -> int:
        """Float64 numbers that ``_moments`` holds for each row asked for, up to a factor of about four."""

    @abstractmethod
    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance of the function at a tile of rows, float64; a third number is that of ``scale``."""

    def scale(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"] | None:
        """What learned kernel and noise are multiplied by around each row; None where they are the same everywhere."""
        return None

    def order(self, X: Float[Tensor, "t d"]) -> Int[Tensor, " t"] | None:
        """An order of the rows in which answers to many of them cost less; None where it does not matter."""
        return None

    @abstractmethod
    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Covariance of the function between the rows of ``X`` and those of ``Z``, or of ``X`` itself, float64."""

    def mean(self, X: Float[Tensor, "t d"]) -> Float[Tensor, " t"]:
        """m(X) + k(X, X_train) times the representer weights. Time O(t m d)."""
        check_new_inputs(X, self.X)
        representer = self._representer.to(X)[:, None]
        update = kernel_product(self.prior.kernel, X, self.X, representer, max_bytes=self.max_bytes)[:, 0]
        return self.prior.mean(X) + update

    def variance(
        self, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
    ) -> Float[Tensor, " t"]:
        """The diagonal of ``covariance``, with the noise variance added if ``noise``."""
        return self.predict(X, noise=noise, row_noise=row_noise).variance

    def predict(
        self, X: Float[Tensor, "t d"], *, noise: bool = False, row_noise: Float[Tensor, " t"] | None = None
    ) -> Prediction:
        """Mean and variance in one pass over the kernel; of new targets if ``noise``, else of the function."""
        check_new_inputs(X, self.X)
        _check_row_noise(noise, row_noise)
        mean, variance, *scale = self._moments_in_tiles(X)
        # Round-off can leave the difference of two almost equal numbers a little below zero.
        variance = variance.clamp_min(0)
        if noise:
            variance = variance + self._noise(X, row_noise, scale[0] if scale else None)
        return Prediction(mean.to(X), variance.to(X))

    def _moments_in_tiles(self, X: Tensor) -> tuple[Tensor, ...]:
        rows = max(1, self.max_bytes // (4 * 8 * self._width))
        order = self.order(X)
        parts = [self._moments(tile) for tile in (X if order is None else X[order]).split(rows)]
        columns = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        return columns if order is None else tuple(column[order.argsort()] for column in columns)

    def _noise(self, X: Tensor, row_noise: Tensor | None, scale: Tensor | None) -> Tensor:
        """The noise variance of each row: the learned one is scaled, what is known of the row is not."""
        noise = self.prior.noise_variance(X, row_noise)
        return noise if scale is None else noise + (scale - 1) * self.prior.noise.learned(X)

    def covariance(
        self,
        X: Float[Tensor, "t d"],
        Z: Float[Tensor, "u d"] | None = None,
        *,
        noise: bool = False,
        row_noise: Float[Tensor, " t"] | None = None,
    ) -> Float[Tensor, "t u"]:
        """The posterior covariance of the rows of ``X`` with those of ``Z``, which defaults to ``X``."""
        check_new_inputs(X, self.X)
        if Z is not None:
            check_new_inputs(Z, self.X, "Z")
            if noise:
                raise ValueError("noise=True needs Z=None: noise is independent between the rows of X and those of Z.")
        return self._covariance_of_targets(X, Z, noise, row_noise).to(X)

    def _covariance_of_targets(self, X: Tensor, Z: Tensor | None, noise: bool, row_noise: Tensor | None) -> Tensor:
        _check_row_noise(noise, row_noise)
        covariance = self._covariance(X, Z)
        if Z is None:
            covariance = (covariance + covariance.mT) / 2
        return covariance + torch.diag(self._noise(X, row_noise, self.scale(X))) if noise else covariance

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
        eigenvalues, vectors = torch.linalg.eigh(self._covariance_of_targets(X, None, noise, row_noise))
        root = vectors * eigenvalues.clamp_min(0).sqrt()
        white = torch.randn(num_samples, X.shape[0], dtype=torch.float64, generator=generator).to(X.device)
        return (self._joint_mean(X).double() + white @ root.mT).to(X)

    def _joint_mean(self, X: Tensor) -> Tensor:
        """The mean of joint draws; another than ``mean`` where each row alone is answered from other projections."""
        return self.mean(X)


def _check_row_noise(noise: bool, row_noise: Tensor | None) -> None:
    if row_noise is not None and not noise:
        raise ValueError("row_noise was given without noise=True, which is what adds it.")


class CaGPPosterior(Posterior):
    """Exact inference on the projections Sᵀy (eq. computation-aware GP posterior); with S = I, the exact GP.

    The variance is never below the exact posterior's, and never grows when actions are added. A mean costs O(t m d),
    a variance O(t m d + t i²), a covariance of t with u rows memory O(t u + (t + u) i).
    """

    def __init__(self, prior: GP, projection: Projection, max_bytes: int = DEFAULT_MAX_BYTES):
        self._hold(prior, projection.X, projection.W, projection.chol, projection.weights, max_bytes)

    @classmethod
    def from_parts(
        cls,
        prior: GP,
        X: Float[Tensor, "m d"],
        W: Float[Tensor, "m i"] | BlockWeights,
        chol: Float[Tensor, "i i"],
        weights: Float[Tensor, " i"],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> "CaGPPosterior":
        """The posterior of a projection of which nothing else is known, as of a saved one."""
        posterior = cls.__new__(cls)
        posterior._hold(prior, X, W, chol, weights, max_bytes)
        return posterior

    def _hold(
        self, prior: GP, X: Tensor, W: Tensor | BlockWeights, chol: Tensor, weights: Tensor, max_bytes: int
    ) -> None:
        self.W = W._replace(values=W.values.detach()) if isinstance(W, BlockWeights) else W.detach()
        self.chol = chol.detach()
        self.weights = weights.detach()
        # Sṽ on the support: a mean costs one kernel product with a vector.
        representer = (
            self.W._replace(values=self.W.values.double()).expand(self.weights)
            if isinstance(self.W, BlockWeights)
            else self.W.double() @ self.weights
        )
        super().__init__(prior, X, representer, max_bytes)

    @property
    def num_actions(self) -> int:
        """i, the rank of the update from prior to posterior."""
        return self.chol.shape[0]

    @property
    def _width(self) -> int:
        return self.num_actions

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        KS = kernel_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        update, explained = row_moments(KS, self.chol, self.weights)
        return self.prior.mean(X).double() + update, self.prior.kernel.diag(X).double() - explained

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """k(X, Z) - k(X, X_train) S (SᵀK̂S)⁻¹ Sᵀ k(X_train, Z)."""
        root = self._root(X)
        other = root if Z is None else self._root(Z)
        K = kernel_product(self.prior.kernel, X, X if Z is None else Z)
        return K.double() - root.mT @ other

    def _root(self, X: Tensor) -> Tensor:
        """L⁻¹ Sᵀk(X_train, X), float64."""
        KS = kernel_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KS.double().mT, upper=False)


class InducingPosterior(Posterior):
    """The variational posterior through inducing points: q(v) = Normal(mean, RRᵀ) of v = L⁻¹u, LLᵀ = k(Z, Z).

    With u(x) = L⁻¹k(Z, x): mean m(x) + u(x)ᵀ``whitened_mean``, covariance k(x, z) - u(x)ᵀu(z) + u(x)ᵀRRᵀu(z). The
    variance can be smaller than the exact posterior's. A mean costs O(t m d), a variance O(t m d + t m²).

    Args:
        Z: the inducing points, in the dtype of the data.
        chol: L in float64.
        whitened_root: R, any square root of the covariance of v.
    """

    def __init__(
        self,
        prior: GP,
        Z: Float[Tensor, "m d"],
        chol: Float[Tensor, "m m"],
        whitened_mean: Float[Tensor, " m"],
        whitened_root: Float[Tensor, "m m"],
        max_bytes: int = DEFAULT_MAX_BYTES,
    ):
        self.chol = chol.detach().clone()
        self.whitened_mean = whitened_mean.detach().clone()
        self.whitened_root = whitened_root.detach().clone()
        representer = torch.linalg.solve_triangular(self.chol.mT, self.whitened_mean[:, None], upper=True)[:, 0]
        super().__init__(prior, Z, representer, max_bytes)

    @property
    def num_inducing(self) -> int:
        """m, the number of inducing points."""
        return self.chol.shape[0]

    @property
    def _width(self) -> int:
        return self.num_inducing

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        U = self._whitened(X)
        lost = U.square().sum(0) - (self.whitened_root.mT @ U).square().sum(0)
        mean = self.prior.mean(X).double() + self.whitened_mean @ U
        return mean, self.prior.kernel.diag(X).double() - lost

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        U = self._whitened(X)
        V = U if Z is None else self._whitened(Z)
        K = kernel_product(self.prior.kernel, X, X if Z is None else Z)
        return K.double() - U.mT @ V + (self.whitened_root.mT @ U).mT @ (self.whitened_root.mT @ V)

    def _whitened(self, X: Tensor) -> Tensor:
        """L⁻¹k(Z, X), float64."""
        KZ = kernel_product(self.prior.kernel, X, self.X, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KZ.double().mT, upper=False)


class CGPosterior(Posterior):
    """The exact posterior with every solve by preconditioned conjugate gradients, up to their tolerance.

    With s = K̂⁻¹k(X_train, x) up to an error e, the variance k(x, x) - 2 sᵀk(X_train, x) + sᵀK̂s exceeds the exact one
    by eᵀK̂e: second order in the error, and never negative. Solves that do not converge are warned of (``CGWarning``).
    A mean costs O(t n d); a variance, for every row asked for, as many products of K̂ with a vector as the solve has
    iterations, O(n²) each.

    Args:
        X: the training inputs, in their own dtype; answers are computed in float64.
        solver: for K̂ of these inputs in float64; its system is a copy that nobody else changes.
        representer: K̂⁻¹(y - m(X)) as solved for.
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
    ):
        super().__init__(solver.system.prior, X, representer.solution[:, 0], max_bytes)
        self.representer_status = representer
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self._solver = solver

    @property
    def _width(self) -> int:
        return 2 * self.X.shape[0]  # the iteration holds five vectors for every row

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
