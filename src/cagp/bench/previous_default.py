"""The default of version 0.1.0 with every setting written out, so that later defaults can be compared with it.

Matérn 3/2, zero mean, 32 neighbours, one start. Up to 2,000 rows: exact inference. Beyond: local, compared on held-out
rows with shared actions alone and with both.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp import metrics
from cagp.actions import BlockActions
from cagp.kernels import Matern32, Scale
from cagp.memory import default_memory_limit
from cagp.methods import CaGPLocal, CaGPOpt, CholeskyGP
from cagp.methods.common import lengthscale_of
from cagp.noise_tuning import raise_noise
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise, ZeroMean
from cagp.training import FitResult, Settings, fit

SEED = 0
EXACT_ROWS, EXACT_BYTES_PER_ENTRY = 2000, 6 * 8
NEIGHBOURS, NEIGHBOURS_PREDICT = 32, 64
BATCH_SIZE = 1024
REFRESH_AT = (5, 10, 20, 40, 80, 160)
NOISE_FLOOR = 1e-9
MOST_ACTIONS, ROWS_PER_ACTION, BYTES_PER_ENTRY = 512, 8, 64
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
HELD_OUT_SHARE, HELD_OUT_ROWS = 0.1, 2000
MARGIN = 0.02
LOCAL = Settings(optimizer="adam", num_steps=300, lr={"hyperparameters": 0.2, "actions": 1.0}, schedule="linear")
OPT = LOCAL.with_changes(num_steps=50)
EXACT = Settings(optimizer="lbfgs", num_steps=100, lr=1.0, schedule="linear", min_improvement=1e-4, window=5)


class Fitted(NamedTuple):
    """A posterior in standard units, and how it came about."""

    posterior: Posterior
    method: str
    details: dict[str, Any]


def fit_previous_default(X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> Fitted:
    """What ``CaGPRegressor()`` of version 0.1.0 learned from standardised float64 rows."""
    n, memory = len(y), default_memory_limit()
    if n <= EXACT_ROWS and EXACT_BYTES_PER_ENTRY * n**2 <= memory:
        method = CholeskyGP(_prior(X, y))
        result = fit(method, X, y, settings=EXACT)
        return Fitted(method.condition(X, y), "exact", _details(method, result))
    train, held_out = _split(n)
    prior = _prior(X[train], y[train])
    local = _local(prior)
    result = fit(local, X[train], y[train], settings=LOCAL)
    details: dict[str, Any] = {}
    name = "local"
    if BYTES_PER_ENTRY * n * _num_actions(n, memory) <= memory:
        losses = _held_out_losses(local, X, y, train, held_out, memory)
        name = _simplest_of_the_best(losses)
        details = {"held_out_nll": {key: float(values.mean()) for key, values in losses.items()}}
    if name == "opt":
        method = _opt(prior, X, y, _num_actions(n, memory))
        posterior = method.condition(X, y)
    else:
        shared = _shared(prior, X, _num_actions(n, memory)) if name == "hybrid" else None
        method = _with_scale(_local(prior, shared), X, y)
        details |= {"local_scale": method.local_scale}
        posterior = method.condition(X, y)
    return Fitted(posterior, name, _details(method, result) | details)


def _prior(X: Tensor, y: Tensor) -> GP:
    """Lengthscales start at 2√d standard deviations, the noise at 0.3 of the targets' variance."""
    spread, variance = X.std(0, correction=0), float(y.var(correction=0)) or 1.0
    lengthscale = torch.where(spread > 0, 2.0 * X.shape[1] ** 0.5 * spread, 1.0)
    kernel = Scale(Matern32(X.shape[1], lengthscale), variance)
    return GP(kernel, mean=ZeroMean(), noise=GaussianNoise(max(0.3 * variance, 2 * NOISE_FLOOR), NOISE_FLOOR))


def _split(num_rows: int) -> tuple[Tensor, Tensor]:
    """A tenth of the rows, at most ``HELD_OUT_ROWS``, to judge by."""
    share = min(HELD_OUT_SHARE, HELD_OUT_ROWS / num_rows)
    count = min(max(round(num_rows * share), 1), num_rows - 1)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(SEED))
    return order[count:], order[:count]


def _local(prior: GP, shared: BlockActions | None = None, local_scale: float | None = None) -> CaGPLocal:
    return CaGPLocal(
        prior,
        NEIGHBOURS,
        num_neighbours_predict=NEIGHBOURS_PREDICT,
        shared=shared,
        local_scale=local_scale,
        objective="loo",
        batch_size=BATCH_SIZE,
        seed=SEED,
        index_kind="auto",
        refresh_at=REFRESH_AT,
    )


def _with_scale(method: CaGPLocal, X: Tensor, y: Tensor) -> CaGPLocal:
    return method.with_local_scale(method.choose_local_scale(X, y).local_scale)


def _num_actions(num_rows: int, memory: int) -> int:
    """One for eight rows, at most 512, halved until they fit into memory."""
    count = max(1, min(MOST_ACTIONS, num_rows // ROWS_PER_ACTION))
    while count > 1 and BYTES_PER_ENTRY * num_rows * count > memory:
        count //= 2
    return count


def _shared(prior: GP, X: Tensor, num_actions: int) -> BlockActions:
    return BlockActions.from_data(
        X,
        num_actions,
        lengthscale=lengthscale_of(prior.kernel),
        blocks="spatial",
        start="constant",
        support_size=SUPPORT_SIZE if len(X) > SUPPORT_ROWS else None,
        generator=torch.Generator().manual_seed(SEED),
    )


@torch.no_grad()
def _held_out_losses(
    local: CaGPLocal, X: Tensor, y: Tensor, train: Tensor, held_out: Tensor, memory: int
) -> dict[str, Tensor]:
    """Negative log density of each held-out row by nearest rows, by shared actions alone, and by both."""
    data = X[train], y[train]
    scaled = _with_scale(local, *data)
    shared = _shared(local.prior, X[train], _num_actions(len(train), memory))
    hybrid = _local(local.prior, shared, scaled.local_scale)
    posteriors = {
        "local": scaled.condition(*data),
        "opt": hybrid.condition(*data, num_neighbours=0),
        "hybrid": hybrid.condition(*data),
    }
    return {
        name: metrics.row_nll(y[held_out], *posterior.predict(X[held_out], noise=True))
        for name, posterior in posteriors.items()
    }


def _simplest_of_the_best(losses: dict[str, Tensor]) -> str:
    """The first that loses less than ``MARGIN`` nats to the best, or no more than it may by chance."""
    best = min(losses.values(), key=lambda values: float(values.mean()))
    return next(name for name, values in losses.items() if not _is_gain(values - best))


def _is_gain(gains: Tensor) -> bool:
    """Whether the gain is beyond two standard errors; for these, no row counts for more than one nat."""
    typical = gains.clamp(-1, 1)
    error = float(typical.std(correction=0)) / len(typical) ** 0.5
    return float(gains.mean()) > MARGIN and float(typical.mean()) > 2 * error


def _opt(prior: GP, X: Tensor, y: Tensor, num_actions: int) -> CaGPOpt:
    """Learned actions, from the hyperparameters of local."""
    method = CaGPOpt(prior, _shared(prior, X, num_actions), "elbo")
    raise_noise(method, X, y)
    fit(method, X, y, settings=OPT)
    return method


def _details(method: CaGPLocal | CaGPOpt | CholeskyGP, result: FitResult) -> dict[str, Any]:
    return {"steps": len(result.steps), "train_s": result.seconds, "hyperparameters": method.hyperparameters()}
