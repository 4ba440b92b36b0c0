"""The choice of a kernel and a mean for exact inference: every row judges, predicted from all others."""

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from cagp.engine import kernel_product
from cagp.linalg import NotPositiveDefiniteError, safe_cholesky
from cagp.methods import CholeskyGP, Several
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.recipes import means
from cagp.recipes.race import Candidate, Mean, Score, average_words, best_average, difference, left_out, record
from cagp.recipes.task import Task
from cagp.training import FitResult
from cagp.trees import OutOfFold

FEW_ROWS, FEW_STEPS = 500, 30
"""Models that are only compared learn from at most this many rows, in this many steps."""

LEAST_TREE_ROWS = 200
"""With fewer rows, trees have too little to learn from."""

LEAST_TIME = 0.5
"""The share of ``max_time`` that must be left for a further model to be tried."""


class Model(NamedTuple):
    """A kernel and a mean, and the task they leave: with hyperparameters that some of its rows taught."""

    candidate: Candidate
    learned: Task  # what the mean leaves of the targets, with the kernel


class Choice(NamedTuple):
    """The best model, what it may be averaged with, and what was compared."""

    best: Model
    average: tuple[Model, float] | None  # a second model and its weight, if the average of the two is better
    trees: OutOfFold | None
    tried: list[dict[str, Any]]
    interrupted: bool = False  # by Ctrl-C, before all were compared: the task then allows one step


def choose_exact(task: Task, kernels: tuple[str, ...], trees: bool) -> Choice:
    """The kernel and the mean with which each row is predicted best from all others.

    Args:
        kernels: names to compare with the task's own kernel.
        trees: whether trees in the mean are tried, if the task leaves that open.
    """
    possible = {
        "zero": task.mean != "trees",
        "trees": task.mean == "trees" or (task.mean == "auto" and trees and task.num_rows >= LEAST_TREE_ROWS),
    }
    own = task.kernels[0] if len(task.kernels) > 1 else None
    others = [name for name in kernels if name in task.kernels and own not in (name, None)]
    first = [Candidate(own, mean) for mean in get_args(Mean) if possible[mean]]
    contest = _Contest(task)
    if len(first) == 1 and not others:
        return Choice(Model(first[0], contest.rest(first[0].mean)), None, contest.trees, [])
    for candidate in first:
        contest.challenge(candidate)
    for name in others:
        contest.challenge(replace(contest.best.candidate, kernel=name))
    best = contest.best
    learned = replace(best.learned, max_epochs=1) if contest.interrupted else best.learned
    chosen = Model(best.candidate, learned)
    return Choice(chosen, contest.average(), contest.trees, contest.tried, contest.interrupted)


class _Trial(NamedTuple):
    """A candidate, the task at hyperparameters that some of its rows taught, and the score of all rows there."""

    candidate: Candidate
    learned: Task
    score: Score
    num_steps: int


class _Contest:
    """The best candidate so far, and what was tried."""

    def __init__(self, task: Task):
        self.task = task
        self.trees: OutOfFold | None = None
        self.interrupted = False
        self.tried: list[dict[str, Any]] = []
        self._best: _Trial | None = None
        self._first: dict[Mean, _Trial] = {}  # of each mean

    @property
    def best(self) -> _Trial:
        assert self._best is not None
        return self._best

    def rest(self, mean: Mean) -> Task:
        """What the mean leaves of the targets."""
        if mean == "zero":
            return replace(self.task, mean="zero")
        if self.trees is None:
            self.trees = means.trees_of(self.task)
        return replace(self.task.without_mean(self.trees.mean), mean="zero")

    def challenge(self, candidate: Candidate) -> None:
        """Try a candidate, and keep it if it is better than the best so far; after Ctrl-C, nothing further is tried."""
        if self.interrupted:
            self.tried.append(left_out(candidate, "the fit was interrupted"))
            return
        if self._best is not None and self._is_late:
            self.tried.append(left_out(candidate, "the time limit"))
            return
        start = time.perf_counter()
        try:
            trial, result = _tried(candidate, self.rest(candidate.mean).with_kernel(candidate.kernel))
        except KeyboardInterrupt:
            if self._best is None:  # there is nothing to end with
                raise
            self.interrupted = True
            self.tried.append(left_out(candidate, "the fit was interrupted"))
            return
        self.interrupted |= result.interrupted
        if self._best is None:
            gained, outcome = None, "first"
        else:
            gained = difference(trial.score, self._best.score)
            outcome = "better" if gained.is_clear else "not better"
        self._first.setdefault(candidate.mean, trial)
        spent = time.perf_counter() - start
        self.tried.append(record(candidate.words, trial.score, gained, len(result.steps), spent, outcome))
        if outcome != "not better":
            self._best = trial

    def average(self) -> tuple[Model, float] | None:
        """A model of the other mean, and its weight, if the average of it and the best one is better."""
        best = self.best
        other = next((trial for mean, trial in self._first.items() if mean != best.candidate.mean), None)
        if other is None or self.interrupted or self._is_late:
            return None
        found = best_average(best.score, other.score)
        words = average_words(best.candidate, other.candidate, found.weight)
        outcome = "better" if found.gain.is_clear else "not better"
        num_steps = best.num_steps + other.num_steps
        self.tried.append(record(words, found.score, found.gain, num_steps, 0.0, outcome))
        return (Model(other.candidate, other.learned), found.weight) if found.gain.is_clear else None

    @property
    def _is_late(self) -> bool:
        """Whether too little of ``max_time`` is left for another model."""
        return self.task.time_left() < LEAST_TIME * seconds_of(self.task.max_time) < math.inf


def _tried(candidate: Candidate, task: Task) -> tuple[_Trial, FitResult]:
    """A trial of the candidate, and how its fit ended."""
    rows = torch.randperm(task.num_rows, generator=torch.Generator().manual_seed(task.seed))[:FEW_ROWS]
    few = replace(task.rows(rows.to(task.X.device)), folder=None, verbose=False)
    priors = few.priors()
    method = Several([CholeskyGP(prior, task.max_bytes) for prior in priors])
    result = few.run(method, "", optimizer="lbfgs", most_steps=FEW_STEPS, min_improvement=1e-3, window=5)
    columns = [task.column(j) for j in range(len(priors))]
    score = Score.of((y, *leave_one_out(p, X, y, noise)) for p, (X, y, noise) in zip(priors, columns, strict=True))
    score = score.agreed(task.ranks)
    noise = [float(part.noise.noise.detach()) for part in priors if isinstance(part.noise, GaussianNoise)]
    learned = replace(task, kernel=priors[0].kernel, from_data=False, noise=noise)
    return _Trial(candidate, learned, score, len(result.steps)), result


@torch.no_grad()
def leave_one_out(prior: GP, X: Tensor, y: Tensor, row_noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of each target given all others: yᵣ - wᵣ / Pᵣᵣ and 1 / Pᵣᵣ, with P = K̂⁻¹ and w = P(y - m).

    Time O(n³), memory O(n²).
    """
    K = kernel_product(prior.kernel, X, X).double()
    K = K.diagonal_scatter(K.diagonal() + prior.noise_variance(X, row_noise))
    residual = (y - prior.mean(X)).double()
    try:
        chol = safe_cholesky(K, "K̂")
    except NotPositiveDefiniteError:
        return torch.zeros_like(residual), torch.full_like(residual, torch.inf)
    precision = torch.cholesky_inverse(chol)
    variance = 1 / precision.diagonal()
    return y.double() - (precision @ residual) * variance, variance
