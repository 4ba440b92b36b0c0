"""Where the variance of a prediction comes from: the noise, the data, or what was not computed."""

import warnings
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.linalg import JitterWarning
from cagp.methods import CaGPLocal, CholeskyGP
from cagp.posteriors import CaGPPosterior, LocalPosterior, Posterior

EXACT_ROWS = 2000
"""Up to so many rows the exact posterior's variance is computed."""

NEIGHBOURS = 256
"""Beyond, the variance given this many of the nearest rows stands for it: an upper bound."""

Kind = Literal["exact", "estimate", "unknown"]


class Components(NamedTuple):
    """Variances that add up to that of a new observation."""

    noise: Float[Tensor, " t"]
    latent: Float[Tensor, " t"]  # of the exact posterior: more data would lower it
    computational: Float[Tensor, " t"]  # what the exact posterior would be more certain of; NaN where it is unknown


class Reference(NamedTuple):
    """What stands for the exact posterior: its variance is an upper bound of the exact one."""

    posterior: Posterior | None  # None for the posterior in question itself
    kind: Kind  # of the computational variance: "exact", or "estimate" from below


@torch.no_grad()
def reference_for(posterior: Posterior, row_noise: Float[Tensor, " m"] | None, num_rows: int) -> Reference:
    """The exact posterior at the same hyperparameters, or what comes close to it at a bounded cost.

    Args:
        row_noise: known noise of the rows that the posterior holds.
        num_rows: rows that it was conditioned on, of which it may hold only some.
    """
    if not isinstance(posterior, CaGPPosterior | LocalPosterior):
        return Reference(None, "unknown")
    if isinstance(posterior, CaGPPosterior) and posterior.num_actions == num_rows:
        return Reference(None, "exact")
    held, targets = posterior.X, posterior.X.new_zeros(len(posterior.X))  # a variance does not depend on targets
    if len(held) == num_rows <= EXACT_ROWS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", JitterWarning)
            exact = CholeskyGP(posterior.prior).condition(held, targets, row_noise)
        # Jitter is further noise: what it leaves is a bound again.
        return Reference(exact, "estimate" if caught else "exact")
    k = min(NEIGHBOURS, len(held))
    local = CaGPLocal(posterior.prior).condition(held, targets, row_noise, num_neighbours=k)
    return Reference(local, "estimate")


@torch.no_grad()
def variance_components(posterior: Posterior, reference: Reference, X: Float[Tensor, "t d"]) -> Components:
    """The variance at the rows of ``X``, taken apart, in float64."""
    variance = posterior.variance(X).double()
    noise, scale = posterior.prior.noise_variance(X), posterior.scale(X)
    if scale is not None:
        noise = scale * noise
    if reference.kind == "unknown":
        return Components(noise, variance, torch.full_like(variance, torch.nan))
    exact = variance if reference.posterior is None else reference.posterior.variance(X).double()
    if scale is not None and reference.posterior is not None:
        exact = scale * exact
    exact = torch.minimum(variance, exact)  # both are bounds from above
    return Components(noise, exact, variance - exact)
