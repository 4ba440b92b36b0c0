"""Exact inference on projections of the data: the computation-aware posterior."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, precise_product
from cagp.fields import checked, factor, float64
from cagp.linalg import row_moments
from cagp.posteriors.base import LeftOut, Posterior
from cagp.posteriors.storing import Rounding, Sharing
from cagp.prior import GP
from cagp.projection import Projection
from cagp.storage import State


@final
class CaGPPosterior(Posterior):
    """Exact inference on the projections Sᵀy (eq. computation-aware GP posterior); with S = I, the exact GP.

    The variance is never below the exact posterior's, and never grows when actions are added. A mean costs O(t m d),
    a variance O(t m d + t i²), a covariance of t with u rows memory O(t u + (t + u) i).
    """

    never_below_exact = True

    def __init__(self, prior: GP, projection: Projection, max_bytes: int = DEFAULT_MAX_BYTES):
        self._hold(prior, projection.X, projection.W, projection.chol, projection.weights, max_bytes)

    def _state(self, rows: Rounding) -> State:
        return {"X": rows(self.X, "X"), "W": rows(self.W, "W"), "chol": self.chol, "weights": self.weights}

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "CaGPPosterior":
        fields = {"W": sharing.weights(X.dtype), "chol": factor("i"), "weights": float64("i")}
        posterior = cls.__new__(cls)
        posterior._hold(prior, X, **checked(state, fields, {"n": len(X)}), max_bytes=max_bytes, shares_rows=True)
        return posterior

    def _hold(
        self,
        prior: GP,
        X: Float[Tensor, "m d"],
        W: Float[Tensor, "m i"] | BlockWeights,
        chol: Float[Tensor, "i i"],
        weights: Float[Tensor, " i"],
        max_bytes: int,
        shares_rows: bool = False,
    ) -> None:
        """Keep what predictions need of a projection."""
        self.chol, self.weights = chol.detach(), weights.detach()
        self.num_actions = self._width = len(chol)  # i, the rank of the update from prior to posterior
        # The representer weights Sṽ on the support: a mean costs one kernel product with a vector.
        if isinstance(W, BlockWeights):
            self.W = W._replace(values=W.values.detach())
            representer = W._replace(values=self.W.values.double()).expand(self.weights)
        else:
            self.W = W.detach()
            representer = self.W.double() @ self.weights
        super().__init__(prior, X, representer, max_bytes, shares_rows=shares_rows)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        KS = precise_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        update, explained = row_moments(KS, self.chol, self.weights)
        return self.prior.mean(X.double()) + update, self.prior.kernel.diag(X.double()) - explained

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """For as many actions as rows, that is for exact inference: [K̂⁻¹(y - m)]ᵢ / [K̂⁻¹]ᵢᵢ and 1 / [K̂⁻¹]ᵢᵢ. O(n³)."""
        if self.num_actions != len(self.X):
            return None
        W = torch.diag(self.W.values) if isinstance(self.W, BlockWeights) else self.W  # a block for each row
        root = torch.linalg.solve_triangular(self.chol, W.double().mT, upper=False)  # K̂⁻¹ = rootᵀ root
        precision = root.square().sum(0)[rows]
        assert self._representer is not None
        return LeftOut(self._representer[rows] / precision, 1 / precision)

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """k(X, Z) - k(X, X_train) S (SᵀK̂S)⁻¹ Sᵀ k(X_train, Z)."""
        root = self._root(X)
        other = root if Z is None else self._root(Z)
        K = precise_product(self.prior.kernel, X, X if Z is None else Z)
        return K - root.mT @ other

    def _root(self, X: Tensor) -> Tensor:
        """L⁻¹ Sᵀk(X_train, X), float64."""
        KS = precise_product(self.prior.kernel, X, self.X, self.W, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KS.mT, upper=False)
