"""Starting values of the hyperparameters from the data, and the noise that suits a method before and after training."""

import math
import time
from collections.abc import Callable
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor

from cagp import metrics
from cagp.dataset import Data, column_statistics
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.kernels import StartingData
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.methods import CaGPLocal, Method
from cagp.notices import collected
from cagp.prior import GP, ConstantMean, GaussianNoise, LinearMean
from cagp.training import Trainable, fit
from cagp.training.trainable import Rows

NOISE = 0.3
"""The noise variance starts at this share of the targets' variance."""

LOCAL_STEPS = 100
"""Steps on the nearest neighbours, whose cost hardly depends on n."""

RAISED_BY = 4.0
CALIBRATED_BY = 2**0.5


@torch.no_grad()
def start_from_data(
    prior: GP,
    X: Float[Tensor, "n d"] | Data,
    y: Float[Tensor, " n"] | None = None,
    *,
    stretch: float = 1.0,
    outputscale: float | None = None,
) -> GP:
    """Set the prior's lengthscales, outputscales, noise and mean to values that suit the data; return the prior.

    Typical distances between points in d dimensions grow with √d, hence so do lengthscales. Inputs that do not vary
    keep their lengthscale. Periods start at the strongest ones of the targets.

    Args:
        stretch: multiplies the lengthscales.
        outputscale: where outputscales start; None for the variance of the targets.
    """
    data = Data.of(X, y)
    spread = column_statistics(data.X).variance.sqrt().cpu()
    variance = float(column_statistics(data.y[:, None]).variance) or 1.0
    prior.kernel.start_from(StartingData(data.X, data.y, spread, variance))
    if stretch != 1.0:
        prior.kernel.stretch(stretch)
    if outputscale is not None:
        prior.kernel.rescale(outputscale)
    for part in prior.modules():
        if isinstance(part, GaussianNoise):
            part.noise = max(NOISE * variance, 2 * part.noise_floor)
        elif isinstance(part, ConstantMean | LinearMean):
            part.constant.fill_(float(data.y.double().mean()))
    return prior


def start_from_neighbours(
    prior: GP,
    X: Float[Tensor, "n d"] | Data,
    y: Float[Tensor, " n"] | None = None,
    row_noise: Float[Tensor, " n"] | None = None,
    *,
    num_steps: int = LOCAL_STEPS,
    seed: int = 0,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> GP:
    """``start_from_data``, then ``num_steps`` of CaGP-Local, which take seconds for any number of rows.

    It finds the inputs that matter and how smooth the function is. The noise that it finds suits many neighbours; a
    method that explains less, with fewer actions or inducing points, needs more of it (``raise_noise``).
    """
    data = Data.of(X, y, row_noise)
    start_from_data(prior, data)
    local = CaGPLocal(prior, seed=seed, max_bytes=max_bytes)
    fit(local, data.double(), num_steps=num_steps)
    return prior


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
