"""CaGP-CG: hyperparameters learned with the actions of an iterative policy, by default those of conjugate gradients."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.checks import check_count
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.iterative import Iteration, Lanczos, Policy, Stopping, iterate
from cagp.iterative.policies import check_policy
from cagp.methods.base import Loss, Method, RowNoise, Targets, check_all_rows, check_loss, loss_terms
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP
from cagp.training import Batch
from cagp.training.trainable import Inputs, Terms


@final
class CaGPCG(Method):
    """A computation-aware GP whose actions a policy chooses at the current hyperparameters.

    The paper's actions are the CG residuals, orthonormalised. These are the Lanczos vectors started at y - m, and are
    computed as such (the default policy): when the mean has converged, they still find what is left of the variance.

    The gradient takes the actions as constants. They are computed at every evaluation of the objective, which is
    therefore a function of parameters and data alone; docs/iterative.md has what else was tried.

    Args:
        prior: mean, kernel and noise, learned.
        num_actions: i, the budget.
        loss: "elbo" (the paper's recommendation), "projected" (the projected-data marginal likelihood) or "loo" (each
            target's density given the projections without it; the actions still depend on it).
        relative_residual: stop adding actions when ‖(y - m) - K̂v‖ is this share of ‖y - m‖: faster, but a looser
            bound. The paper stops at 1e-4. Zero: use the whole budget.
        max_bytes: k(X, X) is kept during the iterations if it takes no more than this. Otherwise it is evaluated again
            for every product, and this is the limit for temporaries.
        policy: chooses the actions: any policy of ``cagp.iterative``, or one of your own; None for ``Lanczos()``.

    Time per evaluation O(n² i) with k(X, X) kept, O(n² (d + 1) i) without; memory O(n i), and n² if k(X, X) is kept.
    """

    def __init__(
        self,
        prior: GP,
        num_actions: int,
        loss: Loss = "elbo",
        relative_residual: float = 0.0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        policy: Policy | None = None,
    ):
        super().__init__()
        check_loss(loss)
        self.prior = prior
        self.num_actions = num_actions
        self.loss: Loss = loss
        self.relative_residual = relative_residual
        self.max_bytes = max_bytes
        self.policy = Lanczos() if policy is None else policy
        check_policy(self.policy)

    @classmethod
    def from_data(cls, prior: GP, X: Float[Tensor, "n d"], num_actions: int, **choices) -> "CaGPCG":
        """CaGP-CG for the rows of ``X``, called like the other methods; ``choices`` go to the class."""
        check_count(num_actions, "num_actions", X.shape[0], "the number of rows of X")
        return cls(prior, num_actions, **choices)

    def iteration(self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None) -> Iteration:
        """The iterations at the current hyperparameters, with their actions and status."""
        return self._iteration(self.checked(X, y, row_noise))

    def _iteration(self, data: Data) -> Iteration:
        X, y, row_noise = data
        stopping = Stopping(self.num_actions, relative_residual=self.relative_residual)
        options = {"reorthogonalise": True, "max_bytes": self.max_bytes, "check": False}
        return iterate(self.prior, X, y, self.policy, stopping, row_noise, **options)

    def check(self, data: Data) -> None:
        super().check(data)
        check_count(self.num_actions, "num_actions", data.num_rows, "the number of rows of X")

    def terms(self, data: Data, batch: Batch) -> Terms:
        check_all_rows(batch, "CaGPCG")
        found = self._iteration(data)
        actions = found.actions if self.policy.orthogonal else found.orthonormal_actions
        return loss_terms(self.loss, self.prior, actions, data, self.max_bytes)

    @torch.no_grad()
    def posterior(self, data: Data) -> CaGPPosterior:
        return self._iteration(data).posterior()

    def words(self, data: Data) -> str:
        n = data.num_rows
        kept = "kept in memory" if 8 * n * n <= self.max_bytes else "evaluated again for every product"
        tolerance = f" or a residual of {self.relative_residual:g}" if self.relative_residual > 0 else ""
        name = "CaGP-CG" if isinstance(self.policy, Lanczos) else f"CaGP ({type(self.policy).__name__})"
        return f"{name} with {self.num_actions:,} actions{tolerance} on {n:,} rows, loss {self.loss}, k(X, X) {kept}"
