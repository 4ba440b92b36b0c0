"""The variational posterior through inducing points, of SGPR and SVGP."""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.engine import DEFAULT_MAX_BYTES, precise_product
from cagp.fields import Fields, checked, factor, float64, values_of
from cagp.posteriors.base import Posterior
from cagp.posteriors.storing import Rounding, Sharing
from cagp.prior import GP
from cagp.storage import State


@final
class InducingPosterior(Posterior):
    """The variational posterior through inducing points: q(v) = Normal(mean, RRᵀ) of v = L⁻¹u, LLᵀ = k(Z, Z).

    With u(x) = L⁻¹k(Z, x): mean m(x) + u(x)ᵀ``whitened_mean``, covariance k(x, z) - u(x)ᵀu(z) + u(x)ᵀRRᵀu(z). The
    variance can be smaller than the exact posterior's. A mean costs O(t m d), a variance O(t m d + t m²).

    Args:
        Z: the inducing points, in the dtype of the data.
        chol: L in float64.
        whitened_root: R, any square root of the covariance of v.
        shares_rows: hold the tensors themselves, which must not be changed, instead of copies.
    """

    FIELDS: ClassVar[Fields] = {
        "chol": factor("m"),
        "whitened_mean": float64("m"),
        "whitened_root": float64("m", "m"),
    }

    def __init__(
        self,
        prior: GP,
        Z: Float[Tensor, "m d"],
        chol: Float[Tensor, "m m"],
        whitened_mean: Float[Tensor, " m"],
        whitened_root: Float[Tensor, "m m"],
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        shares_rows: bool = False,
    ):
        self.chol, self.whitened_mean, self.whitened_root = (
            part.detach() if shares_rows else part.detach().clone() for part in (chol, whitened_mean, whitened_root)
        )
        self._width = len(chol)
        representer = torch.linalg.solve_triangular(self.chol.mT, self.whitened_mean[:, None], upper=True)[:, 0]
        super().__init__(prior, Z, representer, max_bytes, shares_rows=shares_rows)

    def _state(self, rows: Rounding) -> State:
        return {"X": self.X, **values_of(self, self.FIELDS)}  # X is not rounded: ``chol`` is of its covariance

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "InducingPosterior":
        parts = checked(state, cls.FIELDS, {"m": len(X)})
        return cls(prior, X, **parts, max_bytes=max_bytes, shares_rows=True)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        U = self._whitened(X)
        lost = U.square().sum(0) - (self.whitened_root.mT @ U).square().sum(0)
        mean = self.prior.mean(X.double()) + self.whitened_mean @ U
        return mean, self.prior.kernel.diag(X.double()) - lost

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        U = self._whitened(X)
        V = U if Z is None else self._whitened(Z)
        K = precise_product(self.prior.kernel, X, X if Z is None else Z)
        return K - U.mT @ V + (self.whitened_root.mT @ U).mT @ (self.whitened_root.mT @ V)

    def _whitened(self, X: Tensor) -> Tensor:
        """L⁻¹k(Z, X), float64."""
        KZ = precise_product(self.prior.kernel, X, self.X, max_bytes=self.max_bytes)
        return torch.linalg.solve_triangular(self.chol, KZ.mT, upper=False)
