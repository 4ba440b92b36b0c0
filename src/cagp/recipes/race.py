"""The models that "auto" tries, how they are trained a little, and how held-out rows judge them."""

import time
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import kernel_registry, metrics
from cagp.kernels import Kernel, Scale, Stationary, entry_of
from cagp.methods import Several
from cagp.prior import GP, GaussianNoise
from cagp.recipes import means, steps
from cagp.recipes.steps import Neighbours, Parts
from cagp.recipes.task import Task
from cagp.training import FitResult, FitStatus
from cagp.trees import OutOfFold

Mean = Literal["zero", "trees"]

CLIPPED = 4.0
"""Nats: a row counts for at most this much of the difference between two models, so that no single one decides."""

CLEARLY, LEAST_GAIN = 2.0, 0.005
"""Standard errors by which a model is clearly behind, and the nats per row that a less simple model must gain."""

SCALE_ROWS = 1_000
"""Rows that choose the local scale of a model that is only compared."""


DEFAULT = Neighbours()


@dataclass(frozen=True)
class Candidate:
    """A model that can be tried."""

    kernel: str | None  # its name; None for the kernel that the user gave
    mean: Mean = "zero"
    start: float = 1.0  # its lengthscales start at this times those that the data suggest
    neighbours: Neighbours = DEFAULT  # exact inference has none

    @property
    def words(self) -> str:
        """What sets the candidate apart, in a few words."""
        name = "the kernel given" if self.kernel is None else kernel_registry.KERNELS[self.kernel].words.split(" (")[0]
        parts, near = [f"{name} on trees" if self.mean == "trees" else name], self.neighbours
        if self.start != 1.0:
            parts.append(f"lengthscales from {self.start:g}")
        if near.objective == "ordered":
            parts.append("ordered")
        if near.in_training != DEFAULT.in_training:
            parts.append(f"{near.in_training} neighbours")
        if near.in_predictions is not None:
            parts.append(f"{near.in_predictions} neighbours in predictions")
        return ", ".join(parts)


class Score(NamedTuple):
    """How well held-out rows are predicted: means over the targets for each row."""

    nll: Tensor
    crps: Tensor


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained for some steps, and its score."""

    candidate: Candidate
    priors: list[GP]
    results: list[FitResult]  # of the fits one after the other
    score: Score
    seconds: float  # for training and judging it

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return sum(len(result.steps) for result in self.results)


class Difference(NamedTuple):
    """What one model gains over another, in nats per row, and the standard error of that."""

    gain: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether the gain is large enough to matter, and more than chance explains."""
        return self.gain > LEAST_GAIN and self.gain > self.error


def difference(new: Score, old: Score, unit: float) -> Difference:
    """What ``new`` gains over ``old`` on the same rows: half in log density, half in CRPS.

    A relative change of the CRPS is a change of its logarithm, in nats like a log density: both change by log c if
    predictions and targets become c times as precise. ``unit`` is the mean CRPS that makes it relative.
    """
    # A model that cannot be computed has infinite scores: any other gains as much as can be, and two such are equal.
    nats = (old.nll - new.nll).nan_to_num(0.0, torch.inf, -torch.inf).clamp(-CLIPPED, CLIPPED)
    relative = ((old.crps - new.crps) / unit).nan_to_num(0.0, torch.inf, -torch.inf).clamp(-CLIPPED, CLIPPED)
    rows = (nats + relative) / 2
    return Difference(float(rows.mean()), float(rows.std(correction=0)) / len(rows) ** 0.5)


class Race:
    """Tries candidates on the same rows; keeps what was tried, with what it cost.

    Args:
        parts: rows to learn from, and rows to judge by.
        local_scale: the option of the recipe.
    """

    def __init__(self, parts: Parts, local_scale: float | str | None):
        self.parts, self.local_scale = parts, local_scale
        self.trees: OutOfFold | None = None
        self.tried: list[dict[str, Any]] = []
        self.unit: float | None = None  # the mean CRPS of the first trial
        self.interrupted = False  # by Ctrl-C: nothing further is tried then
        self.trees_at_held_out: np.ndarray | None = None

    # ---- what is left of the targets ----

    def learning(self, mean: Mean) -> Task:
        """The rows to learn from, without what the mean explains."""
        train = self.parts.train
        if mean == "zero":
            return train
        if self.trees is None:
            self.trees = means.trees_of(train)
            self.trees_at_held_out = self.trees.trees.mean(self.parts.held_out.inputs)
        return train.without_mean(self.trees.mean)

    def judging(self, mean: Mean) -> Task:
        """The held-out rows, without what the mean explains."""
        held_out = self.parts.held_out
        if mean == "zero":
            return held_out
        assert self.trees_at_held_out is not None
        return held_out.without_mean(self.trees_at_held_out)

    # ---- trials ----

    def start(self, candidate: Candidate, num_steps: int, like: Trial | None = None) -> Trial:
        """A new trial: from the data, or from the hyperparameters of another one."""
        began = time.perf_counter()
        task = self.learning(candidate.mean).with_kernel(candidate.kernel)
        priors = task.priors()
        if like is not None:
            for prior, known in zip(priors, like.priors, strict=True):
                take_over(prior, known)
        elif task.from_data:
            for part in priors[0].modules():
                if isinstance(part, Stationary):
                    part.lengthscale = candidate.start * part.lengthscale.detach()
        return self._trained(candidate, task, priors, [], num_steps, began, 0.0)

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        """The same trial after ``num_steps`` further steps."""
        began, task = time.perf_counter(), self.learning(trial.candidate.mean)
        return self._trained(trial.candidate, task, trial.priors, trial.results, num_steps, began, trial.seconds)

    def judge_again(self, trial: Trial, neighbours: Neighbours) -> Trial:
        """The same hyperparameters with other neighbours."""
        began, candidate = time.perf_counter(), replace(trial.candidate, neighbours=neighbours)
        score = self._score(candidate, self.learning(candidate.mean), trial.priors)
        return replace(trial, candidate=candidate, score=score, seconds=time.perf_counter() - began)

    def _trained(
        self,
        candidate: Candidate,
        task: Task,
        priors: list[GP],
        before: list[FitResult],
        num_steps: int,
        began: float,
        seconds: float,
    ) -> Trial:
        method = Several(steps.local_methods(task, priors, candidate.neighbours))
        done = sum(len(result.steps) for result in before)
        name = f"try-{_name(candidate)}-{task.num_rows}-{done + num_steps}"
        half = 0.5 * task.time_left() if task.max_time is not None else 0.0
        result = task.run(method, name, most_steps=num_steps, reserve=half)
        self.interrupted |= result.interrupted
        score = self._score(candidate, task, priors)
        if self.unit is None:
            self.unit = float(score.crps.mean())
        return Trial(candidate, priors, [*before, result], score, seconds + time.perf_counter() - began)

    @torch.no_grad()
    def _score(self, candidate: Candidate, train: Task, priors: list[GP]) -> Score:
        methods = steps.local_methods(train, priors, candidate.neighbours, self.local_scale)
        if self.local_scale == "auto":
            methods, _ = steps.with_local_scales(methods, replace(train, max_time=None), SCALE_ROWS)
        held_out, nll, crps = self.judging(candidate.mean), [], []
        for j, method in enumerate(methods):
            X, y, row_noise = held_out.column(j)
            found = method.condition(*train.column(j)).predict(X, noise=True, row_noise=row_noise)
            nll.append(metrics.row_nll(y, *found))
            crps.append(metrics.row_crps(y, *found))
        return Score(torch.stack(nll).mean(0), torch.stack(crps).mean(0))

    # ---- the record ----

    def difference(self, new: Trial, old: Trial) -> Difference:
        """What one trial gains over another."""
        assert self.unit is not None
        return difference(new.score, old.score, self.unit)

    def note(self, trial: Trial, against: Trial | None, outcome: str) -> None:
        """Add a trial to what was tried."""
        found = None if against is None else self.difference(trial, against)
        self.tried.append(record(trial.candidate, trial.score, found, trial.num_steps, trial.seconds, outcome))


def record(
    candidate: Candidate, score: Score, found: Difference | None, num_steps: int, seconds: float, outcome: str
) -> dict[str, Any]:
    """A model that was tried, as plain values."""
    return {
        "model": candidate.words,
        "nll": float(score.nll.mean()),
        "crps": float(score.crps.mean()),
        "gain": None if found is None else found.gain,
        "gain_error": None if found is None else found.error,
        "steps": num_steps,
        "seconds": seconds,
        "outcome": outcome,
    }


def left_out(candidate: Candidate, why: str) -> dict[str, Any]:
    """A model that was not tried, as plain values."""
    return {"model": candidate.words, "outcome": f"not tried: {why}"}


def as_interrupted(result: FitResult) -> FitResult:
    """The result of a fit whose choice Ctrl-C ended."""
    return replace(result, status=FitStatus.INTERRUPTED, reason=f"Interrupted after {len(result.steps):,} steps.")


# ---- hyperparameters of one kernel for another ----

REACH = {"matern12": 2.0, "matern32": 1.0, "matern52": 0.9, "rbf": 0.6, "rational_quadratic": 0.8}
"""A start, not a law: lengthscales of these kernels for the same function are about in this proportion."""


@torch.no_grad()
def take_over(prior: GP, known: GP) -> None:
    """Start a prior at the hyperparameters of another one, whose kernel may be of another kind."""
    if type(_inner(prior.kernel)) is type(_inner(known.kernel)):
        prior.load_state_dict(known.state_dict())
        return
    new, old = _inner(prior.kernel), _inner(known.kernel)
    assert isinstance(new, Stationary)
    assert isinstance(old, Stationary)
    new.lengthscale = old.lengthscale.detach() * (_reach(new) / _reach(old))
    if isinstance(prior.kernel, Scale) and isinstance(known.kernel, Scale):
        prior.kernel.outputscale = known.kernel.outputscale.detach()
    if isinstance(prior.noise, GaussianNoise) and isinstance(known.noise, GaussianNoise):
        prior.noise.noise = known.noise.noise.detach()


def _inner(kernel: Kernel) -> Kernel:
    return kernel.kernel if isinstance(kernel, Scale) else kernel


def _reach(kernel: Kernel) -> float:
    entry = entry_of(kernel)
    return 1.0 if entry is None else REACH.get(entry.name, 1.0)


def _name(candidate: Candidate) -> str:
    """The candidate as a part of a file name."""
    near = candidate.neighbours
    kernel = "given" if candidate.kernel is None else candidate.kernel
    return f"{kernel}-{candidate.mean}-{candidate.start:g}-{near.objective}-{near.in_training}"
