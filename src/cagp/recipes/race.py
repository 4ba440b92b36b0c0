"""The models that "auto" tries, how they are trained a little, and how held-out rows judge them."""

import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import kernel_registry, metrics, trees
from cagp.actions import BlockActions
from cagp.methods import CaGPLocal, MultiTarget
from cagp.posteriors.averaged import Pooled
from cagp.prior import GP
from cagp.ranks import Ranks
from cagp.recipes import means, steps
from cagp.recipes.steps import Neighbours, Parts
from cagp.recipes.task import Task
from cagp.training import FitResult, FitStatus
from cagp.trees import OutOfFold

Mean = Literal["zero", "trees"]

CLIPPED = 20.0
"""Nats: a row counts for at most this much of the difference between two models, so that no single one decides."""

LEAST_GAIN, FAR = 0.005, 0.2
"""Nats per row that a less simple model must gain, and those that a model does not make up for by further training."""

TREES_BEHIND = 2.0
"""Trees are not tried in the mean if a few of them alone err more than this many times as much as the model so far."""

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
    """How well held-out rows are predicted: means over the targets for each row, and what they follow from."""

    nll: Tensor
    crps: Tensor
    square: Tensor  # of the error of the mean
    error: Tensor  # (q, n), of each target
    variance: Tensor  # (q, n)

    @classmethod
    def of(cls, targets: Iterable[tuple[Tensor, Tensor, Tensor]]) -> "Score":
        """The score of actual values, means and variances of each target."""
        columns = [((y - mean).double(), variance.double()) for y, mean, variance in targets]
        return cls._of_errors(*(torch.stack(part) for part in zip(*columns, strict=True)))

    @classmethod
    def average(cls, first: "Score", second: "Score", weight: float) -> "Score":
        """The score of an average of two models, ``weight`` is that of the second; see ``AveragedPosterior``."""
        error, variance = torch.stack([first.error, second.error]), torch.stack([first.variance, second.variance])
        shares, squares = Pooled.of(variance.flatten(1), (1 - weight, weight))
        pairs = (shares, error), (squares, variance)
        return cls._of_errors(*((factor.view_as(part) * part).sum(0) for factor, part in pairs))

    @classmethod
    def _of_errors(cls, error: Tensor, variance: Tensor) -> "Score":
        rows = (
            error.reshape(-1),
            torch.zeros(error.numel(), dtype=error.dtype, device=error.device),
            variance.reshape(-1),
        )
        parts = metrics.row_nll(*rows), metrics.row_crps(*rows), error.square()
        nll, crps, square = (part.view_as(error).mean(0) for part in parts)
        return cls(nll, crps, square, error, variance)

    def agreed(self, ranks: Ranks) -> "Score":
        """The score of process 0, on all processes: scores decide."""
        return Score(**{name: values.to(self.nll.device) for name, values in ranks.from_first(self._asdict).items()})


WEIGHTS = (0.25, 0.5, 0.75)
"""Weights of the second model that an average of two is tried with."""


class Average(NamedTuple):
    """A model beside the best one, and its weight in the average of the two."""

    weight: float
    score: Score
    gain: "Difference"  # over the best one alone


def best_average(best: Score, other: Score) -> Average:
    """The average of two models that predicts held-out rows best."""
    found = {weight: Score.average(best, other, weight) for weight in WEIGHTS}
    weight = max(found, key=lambda weight: difference(found[weight], best).gain)
    return Average(weight, found[weight], difference(found[weight], best))


def average_words(best: "Candidate", other: "Candidate", weight: float) -> str:
    """The average of two models, in words."""
    return f"{best.words}, averaged with {weight:.0%} {other.words}"


REFRESH_AT = (30,)
"""Further training changes lengthscales little: neighbours are looked up again at its start and once more."""


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained for some steps, and its score."""

    candidate: Candidate
    methods: list[CaGPLocal]  # of each target, trained
    results: list[FitResult]  # of the fits one after the other
    score: Score
    seconds: float  # for training and judging it
    num_rows: int  # that it learned from

    @property
    def priors(self) -> list[GP]:
        """The prior of each target."""
        return [method.prior for method in self.methods]

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return sum(len(result.steps) for result in self.results)


def best_partner(best: Score, rivals: list[Trial]) -> tuple[Trial, Average] | None:
    """The rival whose average with the best model predicts held-out rows best, and that average; None without rivals.

    Time O(rivals · rows): their scores are known.
    """
    found = [(rival, best_average(best, rival.score)) for rival in rivals]
    return max(found, key=lambda pair: pair[1].gain.gain, default=None)


class Difference(NamedTuple):
    """What one model gains over another, in nats per row, and the standard error of that."""

    gain: float
    error: float

    @property
    def is_clear(self) -> bool:
        """Whether the gain is large enough to matter, and more than chance explains."""
        return self.gain > LEAST_GAIN and self.gain > self.error

    @property
    def is_far(self) -> bool:
        """Whether the gain is so large that the other model cannot make up for it, chance included."""
        return self.gain > FAR + 2 * self.error


def difference(new: Score, old: Score) -> Difference:
    """What ``new`` gains over ``old`` on the same rows: half in log density, half in CRPS.

    A relative change of the CRPS is a change of its logarithm, in nats like a log density: both change by log c if
    predictions and targets become c times as precise. It is relative to the mean CRPS of the two.
    """
    # A model that cannot be computed has infinite scores: any other gains as much as can be, and two such are equal.
    finite = [mean for mean in (float(old.crps.mean()), float(new.crps.mean())) if math.isfinite(mean)]
    unit = sum(finite) / len(finite) if finite else 1.0
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
        self.interrupted = False  # by Ctrl-C: nothing further is tried then
        self.trees_at_held_out: np.ndarray | None = None
        self.rivals: list[Trial] = []  # trials that lost: the winner may be averaged with one of them

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

    def trees_are_far_behind(self, holder: Trial) -> bool:
        """Whether a few trees alone err so much more than the holder that many of them are not worth their time."""
        train, held_out = self.parts.train, self.parts.held_out
        options = {"categorical": train.categorical, "seed": train.seed}
        found = trees.quick_prediction(train.inputs, means.as_array(train.y), held_out.inputs, **options)
        error = np.square(means.as_array(held_out.y) - found).mean() ** 0.5
        return bool(train.ranks.broadcast(float(error > TREES_BEHIND * float(holder.score.square.mean()) ** 0.5)))

    def without_trees(self) -> Trial | None:
        """The first trial without trees among those that lost."""
        return next((rival for rival in self.rivals if rival.candidate.mean == "zero"), None)

    # ---- trials ----

    def start(self, candidate: Candidate, num_steps: int, like: Trial | None = None, *, goes_on: bool = False) -> Trial:
        """A new trial: from the data, or from the hyperparameters of another trial.

        Lengthscales of another kernel differ by a common factor, so that its neighbours are the same.

        Args:
            goes_on: whether further steps may follow: then the learning rate does not fall.
        """
        began = time.perf_counter()
        task = replace(self.learning(candidate.mean).with_kernel(candidate.kernel), start=candidate.start)
        priors = task.priors()
        if like is not None:
            for prior, known in zip(priors, like.priors, strict=True):
                prior.take_over(known)
            if like.candidate.neighbours == candidate.neighbours and like.num_rows == task.num_rows:
                methods = [known.with_prior(prior) for known, prior in zip(like.methods, priors, strict=True)]
                return self._trained(candidate, task, methods, [], num_steps, began, 0.0)
        methods = steps.local_methods(task, priors, candidate.neighbours)
        schedule = {"schedule": "constant"} if goes_on else {}
        return self._trained(candidate, task, methods, [], num_steps, began, 0.0, **schedule)

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        """The same trial after ``num_steps`` further steps."""
        began, task = time.perf_counter(), self.learning(trial.candidate.mean)
        methods = [method.with_prior(method.prior, REFRESH_AT) for method in trial.methods]
        return self._trained(trial.candidate, task, methods, trial.results, num_steps, began, trial.seconds)

    def judge_again(self, trial: Trial, neighbours: Neighbours) -> Trial:
        """The same hyperparameters with other neighbours."""
        began, candidate = time.perf_counter(), replace(trial.candidate, neighbours=neighbours)
        score = self._score(candidate, self.learning(candidate.mean), trial.priors)
        return replace(trial, candidate=candidate, score=score, seconds=time.perf_counter() - began)

    def _trained(
        self,
        candidate: Candidate,
        task: Task,
        methods: list[CaGPLocal],
        before: list[FitResult],
        num_steps: int,
        began: float,
        seconds: float,
        **settings: Any,
    ) -> Trial:
        done = sum(len(result.steps) for result in before)
        name = f"try-{_name(candidate)}-{task.num_rows}-{done + num_steps}"
        half = 0.5 * task.time_left() if task.max_time is not None else 0.0
        quiet = replace(task, verbose=False)  # a line for each trial is enough
        result = quiet.run(MultiTarget(methods), name, most_steps=num_steps, reserve=half, **settings)
        self.interrupted |= result.interrupted
        score = self._score(candidate, task, [method.prior for method in methods])
        if task.verbose:
            spent = time.perf_counter() - began
            print(
                f"tried {candidate.words}: {done + len(result.steps):,} steps, negative log density of held-out rows "
                f"{float(score.nll.mean()):.3f}, {spent:.1f} s",
                file=sys.stderr,
            )
        spent = seconds + time.perf_counter() - began
        return Trial(candidate, methods, [*before, result], score, spent, task.num_rows)

    def with_shared(self, trial: Trial, shared: BlockActions) -> Score:
        """The score of a trial whose test points also share actions."""
        return self._score(trial.candidate, self.learning(trial.candidate.mean), trial.priors, shared)

    @torch.no_grad()
    def _score(self, candidate: Candidate, train: Task, priors: list[GP], shared: BlockActions | None = None) -> Score:
        methods = steps.local_methods(train, priors, candidate.neighbours, self.local_scale, shared)
        if self.local_scale == "auto":
            methods, _ = steps.with_local_scales(methods, replace(train, max_time=None), SCALE_ROWS)
        held_out, found = self.judging(candidate.mean), []
        for j, method in enumerate(methods):
            X, y, row_noise = held_out.column(j)
            posterior = method.condition(train.column(j), shares_rows=True)
            found.append((y, *posterior.predict(X, noise=True, row_noise=row_noise)))
        return Score.of(found).agreed(train.ranks)

    # ---- the record ----

    def difference(self, new: Trial, old: Trial) -> Difference:
        """What one trial gains over another."""
        return difference(new.score, old.score)

    def note(self, trial: Trial, against: Trial | None, outcome: str) -> None:
        """Add a trial to what was tried."""
        found = None if against is None else self.difference(trial, against)
        self.tried.append(record(trial.candidate.words, trial.score, found, trial.num_steps, trial.seconds, outcome))


def record(
    words: str, score: Score, found: Difference | None, num_steps: int, seconds: float, outcome: str
) -> dict[str, Any]:
    """A model that was tried, as plain values."""
    return {
        "model": words,
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


def _name(candidate: Candidate) -> str:
    """The candidate as a part of a file name."""
    near = candidate.neighbours
    kernel = "given" if candidate.kernel is None else candidate.kernel
    return f"{kernel}-{candidate.mean}-{candidate.start:g}-{near.objective}-{near.in_training}"
