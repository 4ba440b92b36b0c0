"""CaGP-Opt: hyperparameters and block-sparse actions learned together, end to end."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.actions import Actions, BlockActions
from cagp.engine import DEFAULT_MAX_BYTES, backend_for
from cagp.kernels import Kernel, Product, Scale, Stationary, Sum
from cagp.losses import elbo, projected_nll
from cagp.methods.base import Method
from cagp.parameters import named_values
from cagp.posteriors import CaGPPosterior
from cagp.prior import GP, GaussianNoise
from cagp.projection import project

DEFAULT_REBLOCK_AT = (20, 50, 100, 200)
Loss = Literal["elbo", "projected"]


class CaGPOpt(Method):
    """A computation-aware GP whose actions are parameters.

    Args:
        prior: mean, kernel and noise, learned.
        actions: the projections of the data, learned; usually from ``CaGPOpt.from_data``.
        loss: "elbo" (the paper's recommendation) or "projected" (the projected-data marginal likelihood).
        max_bytes: limit for temporaries.
        reblock_at: steps of a fit, counted from 0, before which blocks are cut again in units of the lengthscales.
    """

    def __init__(
        self,
        prior: GP,
        actions: Actions,
        loss: Loss = "elbo",
        max_bytes: int = DEFAULT_MAX_BYTES,
        reblock_at: Sequence[int] = (),
    ):
        super().__init__()
        if loss not in ("elbo", "projected"):
            raise ValueError(f'loss is {loss!r}, expected "elbo" or "projected".')
        self.prior = prior
        self.actions = actions
        self.loss = loss
        self.max_bytes = max_bytes
        self.reblock_at = tuple(reblock_at)

    @classmethod
    def from_data(
        cls,
        prior: GP,
        X: Float[Tensor, "n d"],
        num_actions: int,
        *,
        loss: Loss = "elbo",
        max_bytes: int = DEFAULT_MAX_BYTES,
        reblock_at: Sequence[int] | None = None,
        **choices,
    ) -> "CaGPOpt":
        """CaGP-Opt with ``num_actions`` blocks of the rows of ``X``.

        Args:
            reblock_at: None for ``DEFAULT_REBLOCK_AT`` with spatial blocks, never with ordered ones.
            choices: passed on to ``BlockActions.from_data``: blocks, start, support_size, generator, and lengthscale
                (by default the kernel's).
        """
        choices.setdefault("kernel", prior.kernel)
        choices.setdefault("lengthscale", lengthscale_of(prior.kernel))
        if reblock_at is None:
            reblock_at = DEFAULT_REBLOCK_AT if choices.get("blocks", "spatial") == "spatial" else ()
        return cls(prior, BlockActions.from_data(X, num_actions, **choices), loss, max_bytes, reblock_at)

    def objective_terms(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """Terms per row whose sum is the loss, to be minimised over all parameters."""
        if self.loss == "elbo":
            bound = elbo(self.prior, self.actions, X, y, row_noise, self.max_bytes)
            terms = {"negative_log_likelihood": -bound.expected_log_likelihood, "kl": bound.kl}
        else:
            terms = {"projected_nll": projected_nll(self.prior, self.actions, X, y, row_noise, self.max_bytes)}
        return {name: term / X.shape[0] for name, term in terms.items()}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the learning rate they share."""
        return {
            "hyperparameters": [p for p in self.prior.parameters() if p.requires_grad],
            "actions": [p for p in self.actions.parameters() if p.requires_grad],
        }

    def hyperparameters(self) -> dict[str, Any]:
        """The prior's parameters as numbers in their own units."""
        return named_values(self.prior)

    def adapt(self, X: Float[Tensor, "n d"], step: int) -> str | None:
        """Cut the blocks again in units of the lengthscales learned so far, at the steps of ``reblock_at``."""
        lengthscale = lengthscale_of(self.prior.kernel)
        if step not in self.reblock_at or lengthscale is None or not isinstance(self.actions, BlockActions):
            return None
        self.actions.reblock(X, lengthscale)
        return f"cut {self.actions.num_actions} blocks again, in units of the learned lengthscales"

    @torch.no_grad()
    def condition(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> CaGPPosterior:
        """The posterior given the data, as a snapshot that further training leaves alone."""
        projection = project(self.prior, self.actions, X, y, row_noise, self.max_bytes)
        return CaGPPosterior(self.prior, projection, self.max_bytes)

    def findings(self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[str]:
        """What a user should know of the fitted method, in words."""
        actions, n = self.actions, X.shape[0]
        share = "all" if len(actions.support) == n else f"{len(actions.support):,} of the"
        found = [
            f"CaGP-Opt with {actions.num_actions:,} actions on {share} {n:,} rows ({n / actions.num_actions:.0f} rows "
            f"each), loss {self.loss}, kernel products by {backend_for(self.prior.kernel, X)}, {X.dtype}."
        ]
        noise = self.prior.noise
        if isinstance(noise, GaussianNoise) and noise.noise.item() < 1.1 * noise.noise_floor:
            found.append(
                f"The noise variance sits at its floor ({noise.noise_floor:g}): the data look noise-free to this "
                "model. A lower floor may fit better; it needs float64 data."
            )
        lengthscale = lengthscale_of(self.prior.kernel)
        if lengthscale is not None:
            extent = X.amax(0) - X.amin(0)
            idle = (lengthscale > 3 * extent.to(lengthscale)).nonzero()[:, 0].tolist()
            if idle:
                found.append(f"Input columns {idle} hardly matter: their lengthscales exceed three times their range.")
        return found


def lengthscale_of(kernel: Kernel) -> Float[Tensor, " d"] | None:
    """The lengthscales of the inputs in a kernel's first stationary part; None where it has none of the package's."""
    if isinstance(kernel, Stationary):
        return kernel.lengthscale.detach()
    if isinstance(kernel, Scale):
        return lengthscale_of(kernel.kernel)
    if isinstance(kernel, Sum | Product):
        return next((found for part in kernel.parts if (found := lengthscale_of(part)) is not None), None)
    return None
