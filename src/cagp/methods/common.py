"""What the methods of this package share: the two losses of actions as named terms, and words about hyperparameters."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from cagp.actions import Actions
from cagp.kernels import Kernel, Product, Scale, Stationary, Sum
from cagp.losses import elbo, projected_nll
from cagp.prior import GP, GaussianNoise

Loss = Literal["elbo", "projected"]
"""The evidence lower bound (the paper's recommendation) or the projected-data marginal likelihood."""


def check_loss(loss: str) -> None:
    """Raise ValueError unless ``loss`` is one of the two."""
    if loss not in ("elbo", "projected"):
        raise ValueError(f'loss is {loss!r}, expected "elbo" or "projected".')


def loss_terms(
    loss: Loss,
    prior: GP,
    actions: Actions,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    max_bytes: int,
) -> dict[str, Float[Tensor, ""]]:
    """Terms per row whose sum is the loss of these actions, to be minimised."""
    if loss == "elbo":
        bound = elbo(prior, actions, X, y, row_noise, max_bytes)
        terms = {"negative_log_likelihood": -bound.expected_log_likelihood, "kl": bound.kl}
    else:
        terms = {"projected_nll": projected_nll(prior, actions, X, y, row_noise, max_bytes)}
    return {name: term / X.shape[0] for name, term in terms.items()}


def prior_findings(prior: GP, X: Float[Tensor, "n d"]) -> list[str]:
    """What a user should know of learned hyperparameters: noise at its floor, inputs that hardly matter."""
    found = []
    noise = prior.noise
    if isinstance(noise, GaussianNoise) and noise.noise.item() < 1.1 * noise.noise_floor:
        found.append(
            f"The noise variance sits at its floor ({noise.noise_floor:g}): the data look noise-free to this "
            "model. A lower floor may fit better; it needs float64 data."
        )
    lengthscale = lengthscale_of(prior.kernel)
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
