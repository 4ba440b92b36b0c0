"""Where the variance of a prediction comes from: the noise, the data, or what was not computed."""

from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cagp.methods import CaGPLocal, CholeskyGP, LocalPosterior
from cagp.posteriors import CaGPPosterior, Posterior

EXACT_ROWS = 2000
"""Up to so many rows the exact posterior's variance is computed."""

NEIGHBOURS = 256
"""Beyond, the variance given this many of the nearest rows stands for it: an upper bound."""

Kind = Literal["exact", "estimate", "unknown"]


class Components(NamedTuple):
    """Variances that add up to that of a new observation."""

    noise: np.ndarray
    latent: np.ndarray  # of the exact posterior: more data would lower it
    computational: np.ndarray  # what the exact posterior would be more certain of
    kind: Kind  # of ``computational``: an estimate is a lower bound; NaN where it is unknown


def variance_components(
    posterior: Posterior, X: Float[Tensor, "t d"], row_noise: Float[Tensor, " m"] | None, num_rows: int
) -> Components:
    """The variance at the rows of ``X``, taken apart.

    Args:
        row_noise: known noise of the rows that the posterior holds.
        num_rows: rows that it was conditioned on, of which it may hold only some.
    """
    variance = posterior.variance(X).double()
    noise = posterior.prior.noise_variance(X)
    kind: Kind
    if not isinstance(posterior, CaGPPosterior | LocalPosterior):
        exact, kind = variance, "unknown"
    elif isinstance(posterior, CaGPPosterior) and posterior.num_actions == num_rows:
        exact, kind = variance, "exact"
    else:
        held, none = posterior.X, posterior.X.new_zeros(len(posterior.X))
        if len(held) == num_rows <= EXACT_ROWS:
            better, kind = CholeskyGP(posterior.prior).condition(held, none, row_noise), "exact"
        else:
            k = min(NEIGHBOURS, len(held))
            better, kind = CaGPLocal(posterior.prior).condition(held, none, row_noise, num_neighbours=k), "estimate"
        # Both are bounds from above.
        exact = torch.minimum(variance, better.variance(X).double())
    computational = torch.full_like(variance, torch.nan) if kind == "unknown" else variance - exact
    return Components(noise.cpu().numpy(), exact.cpu().numpy(), computational.cpu().numpy(), kind)
