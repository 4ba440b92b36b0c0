"""CaGP-Opt: hyperparameters and block-sparse actions learned together, end to end."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.actions import Actions, BlockActions
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.losses import elbo, projected_nll
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP
from cagp.projection import project

Loss = Literal["elbo", "projected"]


class CaGPOpt(nn.Module):
    """A computation-aware GP whose actions are parameters.

    Args:
        prior: mean, kernel and noise, learned.
        actions: the projections of the data, learned; usually from ``CaGPOpt.from_data``.
        loss: "elbo" (the paper's recommendation) or "projected" (the projected-data marginal likelihood).
        max_bytes: limit for temporaries.
    """

    def __init__(self, prior: GP, actions: Actions, loss: Loss = "elbo", max_bytes: int = DEFAULT_MAX_BYTES):
        super().__init__()
        if loss not in ("elbo", "projected"):
            raise ValueError(f'loss is {loss!r}, expected "elbo" or "projected".')
        self.prior = prior
        self.actions = actions
        self.loss = loss
        self.max_bytes = max_bytes

    @classmethod
    def from_data(
        cls,
        prior: GP,
        X: Float[Tensor, "n d"],
        num_actions: int,
        *,
        loss: Loss = "elbo",
        max_bytes: int = DEFAULT_MAX_BYTES,
        **choices,
    ) -> "CaGPOpt":
        """CaGP-Opt with ``num_actions`` blocks of the rows of ``X``.

        Args:
            choices: passed on to ``BlockActions.from_data``: blocks, start, support_size, lengthscale, generator.
        """
        choices.setdefault("kernel", prior.kernel)
        return cls(prior, BlockActions.from_data(X, num_actions, **choices), loss, max_bytes)

    def objective(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> Float[Tensor, ""]:
        """The loss per row, to be minimised over all parameters."""
        if self.loss == "elbo":
            return -elbo(self.prior, self.actions, X, y, row_noise, self.max_bytes).value / X.shape[0]
        return projected_nll(self.prior, self.actions, X, y, row_noise, self.max_bytes) / X.shape[0]

    @torch.no_grad()
    def condition(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> CaGPPosterior:
        """The posterior given the data, as a snapshot that further training leaves alone."""
        projection = project(self.prior, self.actions, X, y, row_noise, self.max_bytes)
        return CaGPPosterior(self.prior, projection, self.max_bytes)
