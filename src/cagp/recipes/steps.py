"""Steps that several recipes share: actions, held-out rows, local scales, calibrated noise, inducing points."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cagp import limits, metrics
from cagp.actions import BlockActions
from cagp.data.splits import split
from cagp.inducing import InducingPoints, choose_inducing_points
from cagp.kernels import Kernel
from cagp.methods import SGPR, SVGP, CaGPLocal, Method, Several
from cagp.methods.common import is_gain, lengthscale_of
from cagp.noise_tuning import calibrate_noise
from cagp.posteriors import Posterior
from cagp.prior import GP
from cagp.recipes.task import Fitted, Task
from cagp.training import FitResult

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""Beyond this many rows, shared actions weigh at most this many rows of each block: their cost is then linear in n."""

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000
MARGIN = 0.02
"""Nats per row that a more expensive method must gain on the validation rows, beyond chance, to be chosen."""


MakeInducing = Callable[[GP, Tensor | InducingPoints], SGPR | SVGP]
"""Makes a method from a prior and inducing points, its own or another method's."""


# ---- actions ----


def number_of_actions(n_actions: int | str, task: Task) -> int:
    """The number of actions that a user asks for; "auto" is one for eight rows, at most 512, as memory allows."""
    if not isinstance(n_actions, str):
        return min(int(n_actions), task.num_rows)
    num_actions = max(1, min(MOST_ACTIONS, task.num_rows // ROWS_PER_ACTION))
    while num_actions > 1 and limits.action_bytes(task.num_rows, num_actions) > task.memory:
        num_actions //= 2
    return num_actions


def support_size(num_rows: int) -> int | None:
    """Rows of each block that carry weight; None for all."""
    return SUPPORT_SIZE if num_rows > SUPPORT_ROWS else None


def constant_actions(kernel: Kernel, X: Tensor, num_actions: int, seed: int) -> BlockActions:
    """Equal weights on blocks of nearby rows, shared by all test points."""
    return BlockActions.from_data(
        X,
        num_actions,
        lengthscale=lengthscale_of(kernel),
        support_size=support_size(len(X)),
        generator=torch.Generator().manual_seed(seed),
    )


# ---- held-out rows ----


class Parts(NamedTuple):
    """A task in two: rows to learn from, and rows to judge by."""

    rows: Tensor  # of the whole task, those of ``train``
    train: Task
    held_out: Task


def hold_out(task: Task) -> Parts:
    """A tenth of the rows, at most ``VALIDATION_ROWS``, drawn with the task's seed."""
    n, device = task.num_rows, task.X.device
    train, test = split(n, min(VALIDATION_SHARE, VALIDATION_ROWS / n), task.seed)
    return Parts(train.to(device), task.rows(train.to(device)), task.rows(test.to(device)))


@torch.no_grad()
def held_out_nll(method: Several, train: Task, held_out: Task) -> float:
    """Negative log density of the held-out targets, the mean over all targets."""
    posteriors = method.condition(*train.data)
    return sum(float(_row_nll(p, held_out.column(j)).mean()) for j, p in enumerate(posteriors)) / len(posteriors)


def _row_nll(posterior: Posterior, held_out: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
    X, y, row_noise = held_out
    return metrics.row_nll(y, *posterior.predict(X, noise=True, row_noise=row_noise))


def calibrate(method: Method, train: Task, held_out: Task, j: int) -> float:
    """Calibrate the noise of the method of the j-th target on held-out rows; return the factor it changes by."""
    (X, y, row_noise), (X_held_out, y_held_out, row_noise_held_out) = train.column(j), held_out.column(j)
    before = noise_of(method)
    calibrate_noise(method, X, y, X_held_out, y_held_out, row_noise, row_noise_held_out)
    return noise_of(method) / before


def noise_of(method: Method) -> float:
    """The learned noise variance."""
    return method.hyperparameters()["noise.noise"]


# ---- nearest rows ----


def local_methods(
    task: Task,
    priors: list[GP],
    n_neighbors: int,
    local_scale: float | str | None = None,
    shared: BlockActions | None = None,
) -> list[CaGPLocal]:
    """CaGP-Local for each target; with ``shared`` actions, the hybrid. A scale of "auto" is still to be chosen."""
    scale = None if local_scale is None or isinstance(local_scale, str) else float(local_scale)
    return [
        CaGPLocal(prior, int(n_neighbors), shared=shared, seed=task.seed, max_bytes=task.max_bytes, local_scale=scale)
        for prior in priors
    ]


def with_local_scales(methods: list[CaGPLocal], task: Task) -> tuple[list[CaGPLocal], list[str]]:
    """The methods with the local scale that suits each target, and what was found, in words.

    Where predictions see all rows, nothing is local.
    """
    scaled, notes = [], []
    for j, method in enumerate(methods):
        if method.num_neighbours_predict >= task.num_rows:
            scaled.append(method)
            continue
        scale, nll, without, num_rows = method.choose_local_scale(*task.column(j))
        scaled.append(method.with_local_scale(scale))
        found = f"negative log density of {num_rows:,} rows, each predicted from others: {without:.3f}"
        if scale is None:
            notes.append(f"One scale everywhere ({found}; no local scale gains enough).")
        else:
            notes.append(
                "Local scale: error bars follow the neighbours of each test point, and the learned scale counts as "
                f"much as {scale:g} of them ({found}, with it {nll:.3f})."
            )
    return scaled, notes


def train_local(task: Task, n_neighbors: int, priors: list[GP]) -> FitResult:
    """Learn the hyperparameters of the priors from nearest rows."""
    return task.run(Several(local_methods(task, priors, n_neighbors)), "local")


def condition_local(
    task: Task,
    priors: list[GP],
    n_neighbors: int,
    local_scale: float | str | None,
    num_shared: int | None,
    result: FitResult,
) -> Fitted:
    """CaGP-Local at these hyperparameters, or with ``num_shared`` shared actions the hybrid."""
    shared, notes = None, []
    if num_shared is not None:
        shared = constant_actions(priors[0].kernel, task.X, num_shared, task.seed)
        notes.append(f"All test points share {shared.num_actions:,} actions of equal weights on nearby rows.")
    methods = local_methods(task, priors, n_neighbors, local_scale, shared)
    if local_scale == "auto":
        methods, found = with_local_scales(methods, task)
        notes += found
    posteriors = Several(methods).condition(*task.data)
    return Fitted("local" if shared is None else "hybrid", posteriors, result, notes, task.every_row())


# ---- inducing points ----


def train_inducing(task: Task, n_inducing: int, name: str, make: MakeInducing) -> Fitted:
    """A method for each target, all with the same inducing points; fewer points where there are fewer rows."""
    priors, m = task.priors(), min(int(n_inducing), task.num_rows)
    Z = task.points
    if Z is None or len(Z) != m:
        Z = choose_inducing_points(priors[0], task.X, m, "greedy", lengthscale_of(priors[0].kernel), task.seed)
    first = make(priors[0], Z)
    several = Several([first, *(make(prior, first.inducing_points) for prior in priors[1:])])
    result = task.run(several, "inducing")
    return Fitted(name, several.condition(*task.data), result, [], None)


# ---- the choice between local, shared actions, and both ----


class Choice(NamedTuple):
    """A method and the reason for it."""

    method: str
    reason: str


class Candidates(NamedTuple):
    """Negative log density of each validation row, given the other rows, at the same hyperparameters."""

    local: Tensor
    opt: Tensor  # shared actions alone
    hybrid: Tensor

    def choose(self) -> Choice:
        """The simplest method that is as good as the best: local, then shared actions alone, then both.

        As good means within ``MARGIN`` of the best, or within what the best may gain by chance.
        """
        found = self._asdict()
        means = {name: float(values.mean()) for name, values in found.items()}
        best = found[min(means, key=lambda name: means[name])]
        method = next(name for name, values in found.items() if not is_gain(values - best, MARGIN))
        listed = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        reason = {
            "local": "nearest rows alone do as well as anything here",
            "opt": "shared actions do as well without any neighbours",
            "hybrid": "nearest rows and shared actions together are better than either",
        }[method]
        return Choice(method, f"{reason} (negative log density of {len(self.local):,} held-out rows: {listed})")


@torch.no_grad()
def compare(
    local: CaGPLocal,
    hybrid: CaGPLocal,
    train: tuple[Tensor, Tensor, Tensor | None],
    held_out: tuple[Tensor, Tensor, Tensor | None],
) -> Candidates:
    """How well nearest rows, shared actions, and both predict held-out rows, at the same hyperparameters and scale."""
    return Candidates(
        _row_nll(local.condition(*train), held_out),
        _row_nll(hybrid.condition(*train, num_neighbours=0), held_out),
        _row_nll(hybrid.condition(*train), held_out),
    )


def choose(methods: list[CaGPLocal], shared: BlockActions, train: Task, held_out: Task) -> Choice:
    """The choice for all targets together, by the mean of their negative log densities.

    Args:
        methods: CaGP-Local for each target; the hybrids differ from them by the shared actions alone.
    """
    found = []
    for j, local in enumerate(methods):
        (hybrid,) = local_methods(train, [local.prior], local.num_neighbours, local.local_scale, shared)
        found.append(compare(local, hybrid, train.column(j), held_out.column(j)))
    return Candidates(*(torch.stack(part).mean(0) for part in zip(*found, strict=True))).choose()
