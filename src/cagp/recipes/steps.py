"""Steps that several recipes share: actions, held-out rows, local scales, calibrated noise, inducing points."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cagp import limits, metrics
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.inducing import InducingPoints, choose_inducing_points
from cagp.kernels import Kernel
from cagp.methods import SGPR, SVGP, CaGPLocal, Method, MultiTarget
from cagp.methods.cagp_local import Objective
from cagp.methods.common import is_gain
from cagp.methods.local_scale import SCALE_ROWS, ScaleChoice
from cagp.noise_tuning import calibrate_noise
from cagp.posteriors import Posterior
from cagp.prior import GP
from cagp.quantities import seconds_of
from cagp.recipes.options import DEFAULT_NEIGHBORS
from cagp.recipes.task import Fitted, Task
from cagp.training import FitResult

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""Beyond this many rows, shared actions weigh at most this many rows of each block: their cost is then linear in n."""

BATCH_SIZE, MINIBATCH_ROWS = 1024, 10_000
FULL_STEP, FULL_STEPS = 5e-9, 10
"""CaGP-Opt learns from minibatches of ``BATCH_SIZE`` rows beyond ``SUPPORT_ROWS`` rows, and beyond ``MINIBATCH_ROWS``
where ``max_time`` allows fewer than ``FULL_STEPS`` steps with all rows, each of about ``FULL_STEP`` n² seconds.
Heuristics; docs/benchmarks.md has the evidence."""

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000
LOCAL_RESERVE, FEW_SCALE_ROWS = 0.25, 250
"""The share of ``max_time`` that training with nearest rows leaves for the local scale and the posterior, and the rows
by which the time for a local scale is estimated."""

START_SHARE = 0.3
"""The share of the time that is left which the choice of inducing points may take."""

MARGIN = 0.02
"""Nats per row that a more expensive method must gain on the validation rows, beyond chance, to be chosen."""


MakeInducing = Callable[[GP, Tensor | InducingPoints], SGPR | SVGP]
"""Makes a method from a prior and inducing points, its own or another method's."""


# ---- actions ----


def number_of_actions(n_actions: int | str, task: Task, most_rows: int | None = None) -> int:
    """The number of actions that a user asks for; "auto" is one for eight rows, at most 512, as memory allows.

    Args:
        most_rows: the rows that a step holds, if it does not hold all.
    """
    if not isinstance(n_actions, str):
        return min(int(n_actions), task.num_rows)
    held = task.num_rows if most_rows is None else min(most_rows, task.num_rows)
    num_actions = max(1, min(MOST_ACTIONS, task.num_rows // ROWS_PER_ACTION))
    while num_actions > 1 and limits.action_bytes(held, num_actions) > task.memory:
        num_actions //= 2
    return num_actions


class Minibatches(NamedTuple):
    """How CaGP-Opt is trained on many rows."""

    batch_size: int | None  # rows of a step; None for all
    support_size: int | None  # rows of each block that carry weight; None for all

    @classmethod
    def of(cls, task: Task) -> "Minibatches":
        """None where a step with all rows is affordable; with them, a step costs the same whatever their number."""
        n = task.num_rows
        short = n > MINIBATCH_ROWS and seconds_of(task.max_time) < FULL_STEPS * FULL_STEP * n**2
        return cls(BATCH_SIZE, SUPPORT_SIZE) if short or support_size(n) is not None else cls(None, None)


def support_size(num_rows: int) -> int | None:
    """Rows of each block that carry weight; None for all."""
    return SUPPORT_SIZE if num_rows > SUPPORT_ROWS else None


def constant_actions(kernel: Kernel, data: Data, num_actions: int, seed: int) -> BlockActions:
    """Equal weights on blocks of nearby rows, shared by all test points."""
    return BlockActions.from_data(
        data,
        num_actions,
        lengthscale=kernel.lengthscales(data.X.shape[1]),
        support_size=support_size(data.num_rows),
        generator=torch.Generator().manual_seed(seed),
    )


# ---- held-out rows ----


class Parts(NamedTuple):
    """A task in two: rows to learn from, and rows to judge by."""

    rows: Tensor  # of the whole task, those of ``train``
    train: Task
    held_out: Task
    held_rows: Tensor  # of the whole task, those of ``held_out``


def hold_out(task: Task, most_rows: int = VALIDATION_ROWS, share: float = VALIDATION_SHARE) -> Parts:
    """A tenth of the rows, at most ``most_rows``, by the rule and the seed of the task.

    Where a group, or the rows of one time, are more than ``most_rows``, some of them judge and none is learned from.
    """
    n, device = task.num_rows, task.X.device
    train, test = task.rule.split(n, min(share, most_rows / n), task.seed)
    if len(test) > most_rows and task.rule.kind != "random":
        test = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(task.seed))[:most_rows]]
    train, test = train.to(device), test.to(device)
    return Parts(train, task.rows(train), task.rows(test), test)


@torch.no_grad()
def held_out_nll(method: MultiTarget, train: Task, held_out: Task) -> float:
    """Negative log density of the held-out targets, the mean over all targets."""
    posteriors = method.condition(train.data)
    return sum(float(_row_nll(p, held_out.column(j)).mean()) for j, p in enumerate(posteriors)) / len(posteriors)


def _row_nll(posterior: Posterior, held_out: Data) -> Tensor:
    X, y, row_noise = held_out
    return metrics.row_nll(y, *posterior.predict(X, noise=True, row_noise=row_noise))


def calibrate(method: Method, train: Task, held_out: Task, j: int) -> float:
    """Calibrate the noise of the method of the j-th target on held-out rows; return the factor it changes by."""
    (X, y, row_noise), (X_held_out, y_held_out, row_noise_held_out) = train.column(j), held_out.column(j)
    before = noise_of(method)
    held = X_held_out, y_held_out, row_noise, row_noise_held_out
    calibrate_noise(method, X, y, *held, until=train.deadline)
    return noise_of(method) / before


def noise_of(method: Method) -> float:
    """The learned noise variance."""
    return method.hyperparameters()["noise.noise"]


# ---- nearest rows ----


class Neighbours(NamedTuple):
    """How nearest rows are used."""

    in_training: int = DEFAULT_NEIGHBORS
    in_predictions: int | None = None  # None: twice as many as in training
    objective: Objective = "loo"

    @classmethod
    def of(cls, n_neighbors: int | str, objective: str = "auto") -> "Neighbours":
        """What a user asks for; "auto" is the default."""
        count = DEFAULT_NEIGHBORS if isinstance(n_neighbors, str) else int(n_neighbors)
        return cls(count, None, "ordered" if objective == "ordered" else "loo")


def local_methods(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: float | str | None = None,
    shared: BlockActions | None = None,
) -> list[CaGPLocal]:
    """CaGP-Local for each target; with ``shared`` actions, the hybrid. A scale of "auto" is still to be chosen."""
    scale = None if local_scale is None or isinstance(local_scale, str) else float(local_scale)
    return [
        CaGPLocal(
            prior,
            neighbours.in_training,
            num_neighbours_predict=neighbours.in_predictions,
            shared=shared,
            local_scale=scale,
            objective=neighbours.objective,
            seed=task.seed,
            max_bytes=task.max_bytes,
        )
        for prior in priors
    ]


def with_local_scales(
    methods: list[CaGPLocal], task: Task, num_rows: int = SCALE_ROWS
) -> tuple[list[CaGPLocal], list[str]]:
    """The methods with the local scale that suits each target, and what was found, in words.

    Where predictions see all rows, nothing is local. Rows that choose are predicted from all others, or by the rule of
    the task from earlier rows or other groups.

    Args:
        num_rows: rows that choose, at most; fewer where the time is short.
    """
    scaled, notes = [], []
    parts = None if task.rule.kind == "random" else hold_out(task, num_rows)
    for j, method in enumerate(methods):
        if method.num_neighbours_predict >= task.num_rows:
            scaled.append(method)
            continue
        if task.max_time is not None:
            num_rows = _scale_rows_in_time(method, task, parts, j, len(methods) - j, num_rows)
            if num_rows == 0:
                scaled.append(method)
                notes.append("One scale everywhere: no time was left to choose a local one.")
                continue
        scale, nll, without, num_used = _agreed_scale(method, task, parts, j, num_rows)
        scaled.append(method.with_local_scale(scale))
        found = f"negative log density of {num_used:,} rows, each predicted from others: {without:.3f}"
        if scale is None:
            notes.append(f"One scale everywhere ({found}; no local scale gains enough).")
        else:
            notes.append(
                "Local scale: error bars follow the neighbours of each test point, and the learned scale counts as "
                f"much as {scale:g} of them ({found}, with it {nll:.3f})."
            )
    return scaled, notes


def _scale(method: CaGPLocal, task: Task, parts: Parts | None, j: int, num_rows: int) -> ScaleChoice:
    """The choice by rows of the task, or by those that its rule holds out."""
    if parts is None:
        return method.choose_local_scale(task.column(j), num_rows=num_rows)
    return method.choose_local_scale(parts.train.column(j), num_rows=num_rows, held_out=parts.held_out.column(j))


def _agreed_scale(method: CaGPLocal, task: Task, parts: Parts | None, j: int, num_rows: int) -> ScaleChoice:
    """What process 0 chooses, for all processes."""
    if task.ranks.size == 1:
        return _scale(method, task, parts, j, num_rows)
    return ScaleChoice(**task.ranks.from_first(lambda: _scale(method, task, parts, j, num_rows)._asdict()))


def _scale_rows_in_time(
    method: CaGPLocal, task: Task, parts: Parts | None, j: int, num_left: int, num_rows: int
) -> int:
    """The number of rows, at most ``num_rows``, whose local scales half of the time that is left allows to compare."""
    few = min(FEW_SCALE_ROWS, num_rows)
    if task.time_left() <= 0:
        return 0
    start = time.perf_counter()
    _scale(method, task, parts, j, few)  # builds the index, which is kept
    first = time.perf_counter() - start
    start = time.perf_counter()
    _scale(method, task, parts, j, few)
    pace = (time.perf_counter() - start) / few
    allowed = task.ranks.broadcast((task.time_left() - first) / 2 / num_left / pace)
    return min(num_rows, int(allowed)) if allowed >= few else 0


def train_local(task: Task, neighbours: Neighbours, priors: list[GP]) -> FitResult:
    """Learn the hyperparameters of the priors from nearest rows; a part of ``max_time`` is left for what follows."""
    reserve = 0.0 if task.max_time is None else LOCAL_RESERVE * seconds_of(task.max_time)
    return task.run(MultiTarget(local_methods(task, priors, neighbours)), "local", reserve=reserve)


def condition_local(
    task: Task,
    priors: list[GP],
    neighbours: Neighbours,
    local_scale: float | str | None,
    num_shared: int | None,
    result: FitResult,
) -> Fitted:
    """CaGP-Local at these hyperparameters, or with ``num_shared`` shared actions the hybrid."""
    shared, notes = None, []
    if num_shared is not None:
        shared = constant_actions(priors[0].kernel, task.data, num_shared, task.seed)
        notes.append(f"All test points share {shared.num_actions:,} actions of equal weights on nearby rows.")
    methods = local_methods(task, priors, neighbours, local_scale, shared)
    if local_scale == "auto":
        methods, found = with_local_scales(methods, task)
        notes += found
    # The rows of a task never change: posteriors hold them, and no copies.
    posteriors: list[Posterior] = [
        method.condition(task.column(j), shares_rows=True) for j, method in enumerate(methods)
    ]
    return Fitted("local" if shared is None else "hybrid", posteriors, result, notes, slice(None))


# ---- inducing points ----


def train_inducing(task: Task, n_inducing: int, name: str, make: MakeInducing) -> Fitted:
    """A method for each target, all with the same inducing points; fewer points where there are fewer rows."""
    priors, m = task.priors(), min(int(n_inducing), task.num_rows)
    Z = task.points
    if Z is None or len(Z) != m:
        Z = _first_points(task, priors[0], m)
    first = make(priors[0], Z)
    several = MultiTarget([first, *(make(prior, first.inducing_points) for prior in priors[1:])])
    result = task.run(several, "inducing")
    return Fitted(name, several.condition(task.data), result, [], None)


def _first_points(task: Task, prior: GP, num_points: int) -> Tensor:
    """Inducing points to start from, chosen among all rows, or among as many as ``START_SHARE`` of the time allows."""

    def chosen(num_rows: int) -> Tensor:
        X = task.X
        if num_rows < len(X):
            rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(task.seed))[:num_rows]
            X = X[rows.to(X.device)]
        return choose_inducing_points(prior, X, num_points, "greedy", prior.kernel.lengthscales(X.shape[1]), task.seed)

    few = 2 * num_points
    if task.max_time is None or task.num_rows <= 2 * few:
        return chosen(task.num_rows)
    began, allowed = time.perf_counter(), START_SHARE * task.time_left()
    found = chosen(few)
    rows = int(
        task.ranks.broadcast(few * allowed / max(time.perf_counter() - began, 1e-9))
    )  # the cost is linear in them
    return found if rows < 2 * few else chosen(min(rows, task.num_rows))


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
def compare(local: CaGPLocal, hybrid: CaGPLocal, train: Data, held_out: Data) -> Candidates:
    """How well nearest rows, shared actions, and both predict held-out rows, at the same hyperparameters and scale."""
    return Candidates(
        _row_nll(local.condition(train), held_out),
        _row_nll(hybrid.condition(train, num_neighbours=0), held_out),
        _row_nll(hybrid.condition(train), held_out),
    )


def choose(methods: list[CaGPLocal], shared: BlockActions, train: Task, held_out: Task) -> Choice:
    """The choice for all targets together, by the mean of their negative log densities.

    Args:
        methods: CaGP-Local for each target; the hybrids differ from them by the shared actions alone.
    """
    found = []
    for j, local in enumerate(methods):
        near = Neighbours(local.num_neighbours, local.num_neighbours_predict, local.objective_name)
        (hybrid,) = local_methods(train, [local.prior], near, local.local_scale, shared)
        found.append(compare(local, hybrid, train.column(j), held_out.column(j)))
    means = Candidates(*(torch.stack(part).mean(0) for part in zip(*found, strict=True)))
    return Candidates(**train.ranks.from_first(means._asdict)).choose()
