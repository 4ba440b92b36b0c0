"""Which method suits a table, and how many actions: rules, with the reason in words."""

from typing import NamedTuple

import torch
from torch import Tensor

from cagp import metrics
from cagp.actions import BlockActions
from cagp.data.splits import split
from cagp.estimators.task import Task
from cagp.methods import CaGPLocal, Method, Several
from cagp.methods.common import is_gain, lengthscale_of
from cagp.noise_tuning import calibrate_noise
from cagp.posteriors import Posterior

EXACT_ROWS = 2000
"""Up to so many rows exact inference takes seconds, and nothing is better."""

MOST_ACTIONS, ROWS_PER_ACTION = 512, 8
SUPPORT_ROWS, SUPPORT_SIZE = 50_000, 32
"""With more rows than this, shared actions weigh at most so many rows of each block: their cost is linear in n then."""

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000
MARGIN = 0.02
"""Nats per row that a more costly method must gain on the validation rows to be chosen, if that is not by chance."""


def number_of_actions(num_rows: int, memory: int) -> int:
    """One action for eight rows, at most 512, and no more than ``memory`` bytes allow at 64 bytes for row and action.

    That is what a training step of CaGP-Opt holds at its peak, and eight times what the hybrid keeps.
    """
    num_actions = max(1, min(MOST_ACTIONS, num_rows // ROWS_PER_ACTION))
    while num_actions > 1 and 64 * num_rows * num_actions > memory:
        num_actions //= 2
    return num_actions


def constant_actions(kernel, X: Tensor, num_actions: int, seed: int) -> BlockActions:
    """Equal weights on blocks of nearby rows, for all questions to share."""
    return BlockActions.from_data(
        X,
        num_actions,
        lengthscale=lengthscale_of(kernel),
        support_size=SUPPORT_SIZE if len(X) > SUPPORT_ROWS else None,
        generator=torch.Generator().manual_seed(seed),
    )


class Parts(NamedTuple):
    """A task in two: what is learned from, and what judges it."""

    rows: Tensor  # of the whole task, those of ``train``
    train: Task
    held_out: Task


def hold_out(task: Task) -> Parts:
    """A tenth of the rows, at most ``VALIDATION_ROWS``, drawn with the task's seed."""
    n, device = len(task.X), task.X.device
    train, test = split(n, min(VALIDATION_SHARE, VALIDATION_ROWS / n), task.seed)
    return Parts(train.to(device), task.rows(train.to(device)), task.rows(test.to(device)))


@torch.no_grad()
def held_out_nll(method: Several, train: Task, held_out: Task) -> float:
    """Negative log density of the held-out targets, the mean of all."""
    posteriors = method.condition(train.X, train.y, train.row_noise)
    return sum(_nll(p, held_out.column(j)) for j, p in enumerate(posteriors)) / len(posteriors)


def _nll(posterior: Posterior, held_out: tuple[Tensor, Tensor, Tensor | None]) -> float:
    X, y, row_noise = held_out
    return metrics.nll(y, *posterior.predict(X, noise=True, row_noise=row_noise))


def calibrate(method: Method, train: Task, held_out: Task, j: int) -> float:
    """Calibrate the noise of the method of the j-th target; the factor that it changes by."""
    (X, y, row_noise), (X_held_out, y_held_out, row_noise_held_out) = train.column(j), held_out.column(j)
    before = noise_of(method)
    calibrate_noise(method, X, y, X_held_out, y_held_out, row_noise, row_noise_held_out)
    return noise_of(method) / before


def noise_of(method: Method) -> float:
    """The learned noise variance."""
    return method.hyperparameters()["noise.noise"]


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

        As good is within ``MARGIN``, or what the best may gain by chance.
        """
        found = self._asdict()
        means = {name: float(values.mean()) for name, values in found.items()}
        best = found[min(means, key=lambda name: means[name])]
        method = next(name for name, values in found.items() if not is_gain(values - best, MARGIN))
        listed = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
        reason = {
            "local": "nearest rows alone do as well as anything here",
            "opt": "actions that all questions share do as well without any neighbours",
            "hybrid": "nearest rows and shared actions together are better than either",
        }[method]
        return Choice(method, f"{reason} (negative log density of {len(self.local):,} held-out rows: {listed})")


@torch.no_grad()
def compare(
    local: Method,
    hybrid: Method,
    train: tuple[Tensor, Tensor, Tensor | None],
    held_out: tuple[Tensor, Tensor, Tensor | None],
) -> Candidates:
    """How well the three ways predict held-out rows at the same hyperparameters; the hybrid takes local's scale."""
    X, y, row_noise = held_out
    assert isinstance(local, CaGPLocal)
    assert isinstance(hybrid, CaGPLocal)
    hybrid = hybrid.with_local_scale(local.local_scale)

    def nll(posterior: Posterior) -> Tensor:
        return metrics.row_nll(y, *posterior.predict(X, noise=True, row_noise=row_noise))

    return Candidates(
        nll(local.condition(*train)),
        nll(hybrid.condition(*train, num_neighbours=0)),
        nll(hybrid.condition(*train)),
    )


def with_local_scales(method: Several, task: Task) -> tuple[Several, list[str]]:
    """The method with the local scale that suits each target; what was found, in words.

    If predictions see all rows, nothing is local.
    """
    parts, notes = [], []
    for j, part in enumerate(method.parts):
        assert isinstance(part, CaGPLocal)
        if part.num_neighbours_predict >= len(task.X):
            parts.append(part)
            continue
        scale, nll, without, num_rows = part.choose_local_scale(*task.column(j))
        parts.append(part.with_local_scale(scale))
        found = f"negative log density of {num_rows:,} rows, each predicted from others: {without:.3f}"
        if scale is None:
            notes.append(f"One scale everywhere ({found}; no local scale gains enough).")
        else:
            notes.append(
                f"Local scale: error bars follow the neighbours of each question, the learned scale counts as much as "
                f"{scale:g} of them ({found}, with it {nll:.3f})."
            )
    return Several(parts), notes
