"""SGPR: inducing points with the best Gaussian q(u) in closed form (Titsias, 2009)."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.inducing import (
    INDUCING_RATE,
    Choice,
    InducingPoints,
    InducingStatistics,
    check_columns,
    choose_inducing_points,
    see_through,
)
from cagp.linalg import safe_cholesky
from cagp.methods.base import HYPERPARAMETER_RATE, Method, check_all_rows, trained
from cagp.methods.common import method_findings
from cagp.posteriors import InducingPosterior
from cagp.prior import GP
from cagp.training import Batch, ParameterGroup
from cagp.training.trainable import Terms


@final
class SGPR(Method):
    """Variational inference through m inducing points, on all rows at once. Time O(n m²), memory O(n m).

    Args:
        prior: mean, kernel and noise, learned.
        Z: where the inducing points start; they are learned, unless ``inducing_points.requires_grad_(False)``. Or the
            ``inducing_points`` of another method, to share them.
        max_bytes: limit for temporaries.
    """

    def __init__(self, prior: GP, Z: Float[Tensor, "m d"] | InducingPoints, max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        self.prior = prior
        self.inducing_points = InducingPoints.of(Z)
        self.max_bytes = max_bytes

    @classmethod
    def from_data(
        cls,
        prior: GP,
        X: Float[Tensor, "n d"],
        num_inducing: int,
        *,
        choice: Choice = "greedy",
        seed: int = 0,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> "SGPR":
        """SGPR whose inducing points start as ``choose_inducing_points`` finds them."""
        Z = choose_inducing_points(prior, X, num_inducing, choice, prior.kernel.lengthscales(X.shape[1]), seed)
        return cls(prior, Z, max_bytes)

    def terms(self, data: Data, batch: Batch) -> Terms:
        """-log Normal(y; m(X), Q + D) and ½ tr(D⁻¹(K - Q)) per row, Q = k(X, Z) k(Z, Z)⁻¹ k(Z, X).

        With U = L⁻¹k(Z, X), LLᵀ = k(Z, Z) and B = I + UD⁻¹Uᵀ: |Q + D| = |D||B|, and the quadratic form is
        rᵀD⁻¹r - cᵀB⁻¹c, c = UD⁻¹r. Of all rows.
        """
        check_all_rows(batch, "SGPR")
        s = see_through(self.prior, self.inducing_points(), *data.tensors, self.max_bytes, check=False)
        chol = _inner(s)
        half = torch.linalg.solve_triangular(chol, s.targets[:, None], upper=False)[:, 0]
        nll = 0.5 * (s.log_noise + s.squares - half.square().sum()) + chol.diagonal().log().sum()
        trace = 0.5 * (s.prior_variance - s.gram.trace())
        return {"negative_log_likelihood": nll / data.num_rows, "trace": trace / data.num_rows}

    def check(self, data: Data) -> None:
        """Raise ValueError unless the data suit the prior's noise and the inducing points."""
        super().check(data)
        check_columns(self.inducing_points.points, data.X)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share."""
        return {
            "hyperparameters": trained(self.prior, HYPERPARAMETER_RATE),
            "inducing_points": trained(self.inducing_points, INDUCING_RATE),
        }

    @torch.no_grad()
    def posterior(self, data: Data) -> InducingPosterior:
        """The posterior of the best q, v = L⁻¹u ~ Normal(B⁻¹c, B⁻¹), as a snapshot."""
        Z = self.inducing_points()
        s = see_through(self.prior, Z, *data.tensors, self.max_bytes, check=False)
        chol = _inner(s)
        mean = torch.cholesky_solve(s.targets[:, None], chol)[:, 0]
        eye = torch.eye(len(mean), dtype=torch.float64, device=data.X.device)
        root = torch.linalg.solve_triangular(chol, eye, upper=False).mT
        return InducingPosterior(self.prior, Z.to(data.X), s.chol, mean, root, self.max_bytes)

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know about the fitted method, in words."""
        words = f"SGPR with {len(self.inducing_points):,} inducing points on {data.num_rows:,} rows"
        return method_findings(words, self.prior, data, input_names)


def _inner(s: InducingStatistics) -> Tensor:
    """The Cholesky factor of B = I + UD⁻¹Uᵀ."""
    return safe_cholesky(torch.eye(len(s.gram), dtype=s.gram.dtype, device=s.gram.device) + s.gram, "I + UD⁻¹Uᵀ")
