"""The noise that suits a method: by its loss before training, by held-out rows after it."""

import math
import time
from collections.abc import Callable
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor

from cagp import metrics
from cagp.dataset import Data
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.methods import Method
from cagp.notices import collected
from cagp.prior import GaussianNoise
from cagp.training import Trainable
from cagp.training.trainable import Rows

RAISED_BY = 4.0
CALIBRATED_BY = 2**0.5


@torch.no_grad()
def raise_noise(
    method: Trainable,
    X: Float[Tensor, "n d"] | Data,
    y: Float[Tensor, "n *q"] | None = None,
    row_noise: Float[Tensor, "n *q"] | None = None,
    *,
    rows: Rows | None = None,
    until: float = math.inf,
) -> None:
    """Multiply the noise of the method by ``RAISED_BY`` as long as its loss falls; for the start of a fit.

    What a method does not explain is noise to it, at most the variance of the targets. If the noise is far too small,
    training would spend its first steps on it alone. A noise that is not trained stays as it is.

    Args:
        rows: the rows to estimate the loss from; None for all rows.
        until: a time of ``time.perf_counter()`` after which nothing more is tried.
    """
    data = Data.of(X, y, row_noise)
    limit = float(data.y.double().var(correction=0))
    for noise in _trained_noises(method):
        _follow(noise, RAISED_BY, lambda: float(method.objective(data, rows=rows)), limit, until)


@torch.no_grad()
def calibrate_noise(
    method: Method,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    X_held_out: Float[Tensor, "t d"],
    y_held_out: Float[Tensor, " t"],
    row_noise: Float[Tensor, " n"] | None = None,
    row_noise_held_out: Float[Tensor, " t"] | None = None,
    *,
    until: float = math.inf,
) -> None:
    """Change the noise of a fitted method, by factors of √2, as long as held-out rows become more likely.

    In the ELBO the noise also pays for variance that was not computed, and comes out too large if there is much of it.
    Predictions add this variance to the noise, so it would count twice. Each factor costs one ``condition``.

    Args:
        X: what the posterior is conditioned on; held-out rows are not in it.
        until: a time of ``time.perf_counter()`` after which nothing more is tried.
    """
    data = method.checked(X, y, row_noise)

    def score() -> float:
        posterior = method.posterior(data)
        return metrics.nll(y_held_out, *posterior.predict(X_held_out, noise=True, row_noise=row_noise_held_out))

    for noise in _trained_noises(method):
        before = noise.noise.clone()
        _follow(noise, 1 / CALIBRATED_BY, score, until=until)
        if torch.equal(noise.noise, before):
            _follow(noise, CALIBRATED_BY, score, until=until)


def _trained_noises(method: Trainable) -> list[GaussianNoise]:
    return [part for part in method.modules() if isinstance(part, GaussianNoise) and part.raw_noise.requires_grad]


def _follow(
    noise: GaussianNoise, factor: float, score: Callable[[], float], limit: float = math.inf, until: float = math.inf
) -> None:
    """Multiply the noise by the factor as long as the score falls and the noise is below the limit, above its floor."""

    def scored() -> float:
        """Infinity if a matrix cannot be factorised. To compare scores, jitter does no harm."""
        with collected(JitterWarning), suppress(NotPositiveDefiniteError):
            return score()
        return math.inf

    lowest = scored() if time.perf_counter() < until else math.inf
    while time.perf_counter() < until and float(noise.noise) < limit and factor * noise.noise > noise.noise_floor:
        before = noise.noise.clone()
        noise.noise = factor * before
        value = scored()
        if math.isfinite(lowest) and not value < lowest:
            noise.noise = before
            return
        lowest = value
