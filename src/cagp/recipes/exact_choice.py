"""The choice of a kernel and a mean for exact inference: rows judge, each predicted from all others."""

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp import trees
from cagp.engine import precise_product
from cagp.linalg import NotPositiveDefiniteError, safe_cholesky
from cagp.methods import CholeskyGP, MultiTarget
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.recipes import means
from cagp.recipes.exact import exact_method
from cagp.recipes.race import (
    TREES_BEHIND,
    Candidate,
    Mean,
    Score,
    average_words,
    best_average,
    difference,
    left_out,
    record,
)
from cagp.recipes.steps import Neighbours, hold_out, local_methods
from cagp.recipes.task import Task
from cagp.training import FitResult
from cagp.trees import OutOfFold

FEW_ROWS, FEW_STEPS = 500, 30
"""Up to this many rows, models that are compared learn from the likelihood of all of them, in this many steps."""

LOCAL_STEPS, OTHER_STEPS = 100, 40
"""Beyond, they learn from nearest rows, whose steps cost a hundredth: the first model of each mean in this many steps,
other kernels, which start where the best one is, in fewer. The winner continues with all rows."""

JUDGING_ROWS = 1000
"""Rows that judge, at most: each is predicted from the others of them."""

LATER_SHARE = 0.2
"""The share of the rows that judges where later rows are to be predicted: rows of a small table are few."""

LEAST_TREE_ROWS = 200
"""With fewer rows, trees have too little to learn from."""

LEAST_TIME = 0.5
"""The share of ``max_time`` that must be left for a further model to be tried."""


class Model(NamedTuple):
    """A kernel and a mean, and the task they leave: with hyperparameters that some of its rows taught."""

    candidate: Candidate
    learned: Task  # what the mean leaves of the targets, with the kernel
    is_near: bool  # whether the hyperparameters are those of a trial, and not starting values


class Choice(NamedTuple):
    """The best model, what it may be averaged with, and what was compared."""

    best: Model
    average: tuple[Model, float] | None  # a second model and its weight, if the average of the two is better
    trees: OutOfFold | None
    tried: list[dict[str, Any]]
    interrupted: bool = False  # by Ctrl-C, before all were compared: the task then allows one step


def choose_exact(task: Task, kernels: tuple[str, ...], tries_trees: bool) -> Choice:
    """The kernel and the mean with which each row is predicted best from all others.

    Args:
        kernels: names to compare with the task's own kernel.
        tries_trees: whether trees in the mean are tried, if the task leaves that open.
    """
    possible = {
        "zero": task.mean != "trees",
        "trees": task.mean == "trees" or (task.mean == "auto" and tries_trees and task.num_rows >= LEAST_TREE_ROWS),
    }
    own = task.kernels[0] if len(task.kernels) > 1 else None
    others = [name for name in kernels if name in task.kernels and own not in (name, None)]
    first = [Candidate(own, mean) for mean in get_args(Mean) if possible[mean]]
    contest = _Contest(task)
    alone = len(first) == 1 and not others
    if alone and (task.num_rows <= FEW_ROWS or not task.from_data):
        return Choice(Model(first[0], contest.whole(first[0].mean), False), None, contest.whole_trees, [])
    for candidate in first:
        contest.challenge(candidate)
    for name in others:
        contest.challenge(replace(contest.best.candidate, kernel=name))
    best, average = contest.model(contest.best), contest.average()
    if contest.interrupted:
        best = best._replace(learned=replace(best.learned, max_epochs=1))
    return Choice(best, average, contest.whole_trees, [] if alone else contest.tried, contest.interrupted)


class _Trial(NamedTuple):
    """A candidate with the hyperparameters that it learned, and the score of the rows that judge."""

    candidate: Candidate
    priors: list[GP]
    score: Score
    num_steps: int


class _Contest:
    """The best candidate so far, and what was tried.

    Rows judge by what is predicted for them from all others, or from other groups. Where later rows are to be
    predicted, the latest ones are held out.
    """

    def __init__(self, task: Task):
        self.task = task
        self.later = hold_out(task, task.num_rows, LATER_SHARE) if task.rule.kind == "time" else None
        self.learning = task if self.later is None else self.later.train
        self.interrupted = False
        self.tried: list[dict[str, Any]] = []
        self.whole_trees: OutOfFold | None = None  # for the rows of the task
        self._trees: OutOfFold | None = None  # for those to learn from
        self._best: _Trial | None = None
        self._first: dict[Mean, _Trial] = {}  # of each mean

    @property
    def best(self) -> _Trial:
        assert self._best is not None
        return self._best

    def whole(self, mean: Mean) -> Task:
        """What the mean leaves of the targets of the whole task."""
        if mean == "zero":
            return replace(self.task, mean="zero")
        if self.whole_trees is None:
            self.whole_trees = (
                means.trees_of(self.task) if self.later is not None or self._trees is None else self._trees
            )
        return replace(self.task.without_mean(self.whole_trees.mean), mean="zero")

    def model(self, trial: _Trial) -> Model:
        """The whole task at the hyperparameters of a trial."""
        noise = [float(part.noise.noise.detach()) for part in trial.priors if isinstance(part.noise, GaussianNoise)]
        rest, kernel = self.whole(trial.candidate.mean), trial.priors[0].kernel
        return Model(trial.candidate, replace(rest, kernel=kernel, from_data=False, noise=noise), True)

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
            if candidate.mean == "trees" and self._trees_are_hopeless():
                self.tried.append(left_out(candidate, "a few trees alone err more than twice as much"))
                return
            trial, result = self._tried(candidate)
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
        return (self.model(other), found.weight) if found.gain.is_clear else None

    @property
    def _is_late(self) -> bool:
        """Whether too little of ``max_time`` is left for another model."""
        return self.task.time_left() < LEAST_TIME * seconds_of(self.task.max_time) < math.inf

    def _trees_are_hopeless(self) -> bool:
        """Whether a few trees alone err so much more than the best model that many of them are not worth their time."""
        task, holder = self.learning, self._best
        if holder is None or self._trees is not None:
            return False
        parts = hold_out(task, task.num_rows, LATER_SHARE)
        options = {"categorical": task.categorical, "seed": task.seed}
        found = trees.quick_prediction(
            parts.train.inputs, means.as_array(parts.train.y), parts.held_out.inputs, **options
        )
        error = np.square(means.as_array(parts.held_out.y) - found).mean() ** 0.5
        return bool(task.ranks.broadcast(float(error > TREES_BEHIND * float(holder.score.square.mean()) ** 0.5)))

    def _rest(self, mean: Mean) -> Task:
        """What the mean leaves of the targets of the rows to learn from."""
        if mean == "zero":
            return replace(self.learning, mean="zero")
        if self._trees is None:
            self._trees = means.trees_of(self.learning)
        return replace(self.learning.without_mean(self._trees.mean), mean="zero")

    def _tried(self, candidate: Candidate) -> tuple[_Trial, FitResult]:
        """A trial of the candidate, and how its fit ended."""
        task = replace(self._rest(candidate.mean).with_kernel(candidate.kernel), folder=None, verbose=False)
        priors, like = task.priors(), self._best
        if like is not None and like.candidate.mean == candidate.mean and task.from_data:
            for prior, known in zip(priors, like.priors, strict=True):
                prior.take_over(known)
            num_steps = OTHER_STEPS
        else:
            num_steps = LOCAL_STEPS
        half = 0.0 if task.max_time is None else 0.5 * task.time_left()  # for what comes after
        if task.num_rows <= FEW_ROWS:
            exact = MultiTarget([exact_method(task, prior) for prior in priors])
            result = task.run(
                exact, "", optimizer="lbfgs", most_steps=FEW_STEPS, min_improvement=1e-3, window=5, reserve=half
            )
        else:
            local = MultiTarget(local_methods(task, priors, Neighbours()))
            result = task.run(local, "", most_steps=num_steps, reserve=half)
        return _Trial(candidate, priors, self._score(candidate.mean, task, priors), len(result.steps)), result

    def _score(self, mean: Mean, task: Task, priors: list[GP]) -> Score:
        """How well the rows that judge are predicted."""
        if self.later is None:
            rows = torch.randperm(task.num_rows, generator=torch.Generator().manual_seed(task.seed))[:JUDGING_ROWS]
            few, found = task.rows(rows.to(task.X.device)), []
            group = None if few.rule.values is None else torch.from_numpy(few.rule.values).to(task.X.device)
            for j, prior in enumerate(priors):
                X, y, noise = few.column(j)
                found.append((y, *leave_out(prior, X, y, noise, group)))
            return Score.of(found).agreed(task.ranks)
        later, found = self.later.held_out, []
        if mean == "trees":
            assert self._trees is not None
            later = later.without_mean(self._trees.trees.mean(later.inputs))
        for j, prior in enumerate(priors):
            X, y, noise = later.column(j)
            try:
                posterior = CholeskyGP(prior, task.max_bytes).condition(task.column(j))
                found.append((y, *posterior.predict(X, noise=True, row_noise=noise)))
            except NotPositiveDefiniteError:
                found.append((y, *_nothing(y.double())))
        return Score.of(found).agreed(task.ranks)


@torch.no_grad()
def leave_out(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    group: Int[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of each target given all others, or given those of other groups.

    With P = K̂⁻¹ and w = P(y - m), the targets of a group B given all others have the mean y_B - P_BB⁻¹ w_B and the
    covariance P_BB⁻¹; a row alone has yᵣ - wᵣ / Pᵣᵣ and 1 / Pᵣᵣ. Time O(n³), memory O(n²).
    """
    K = precise_product(prior.kernel, X, X)
    K = K.diagonal_scatter(K.diagonal() + prior.noise_variance(X, row_noise))
    residual = y.double() - prior.mean(X.double())
    try:
        precision = torch.cholesky_inverse(safe_cholesky(K, "K̂"))
        weights = precision @ residual
        if group is None:
            variance = 1 / precision.diagonal()
            return y.double() - weights * variance, variance
        mean, variance = torch.empty_like(residual), torch.empty_like(residual)
        for value in group.unique():
            rows = (group == value).nonzero()[:, 0]
            covariance = torch.cholesky_inverse(
                safe_cholesky(precision[rows[:, None], rows], "the precision of a group")
            )
            mean[rows] = y[rows].double() - covariance @ weights[rows]
            variance[rows] = covariance.diagonal()
        return mean, variance
    except NotPositiveDefiniteError:
        return _nothing(residual)


def _nothing(like: Tensor) -> tuple[Tensor, Tensor]:
    """What a model that cannot be computed predicts."""
    return torch.zeros_like(like), torch.full_like(like, torch.inf)
