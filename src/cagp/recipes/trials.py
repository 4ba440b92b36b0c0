"""Candidates of the search, how they are trained a little, and the validation rows that score them.

With many rows, a candidate learns from nearest rows and predicts held-out rows. With few, each row is predicted from
all others by exact inference. A trial is a value: it has modules of its own, and nothing changes them.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp import kernel_registry, trees
from cagp.actions import BlockActions
from cagp.comparison import Score
from cagp.engine import precise_product
from cagp.kernels import named_kernel
from cagp.linalg import NotPositiveDefiniteError, safe_cholesky
from cagp.methods import CaGPLocal, Method, MultiTarget
from cagp.prior import GP
from cagp.recipes.exact import exact_methods, plain_methods
from cagp.recipes.local import LocalScale, Neighbours, constant_actions, local_methods, scaled_methods
from cagp.recipes.task import RESIDUAL_START, Parts, Task, as_array, trees_of
from cagp.training import FitResult
from cagp.trees import OutOfFold

Mean = Literal["zero", "trees"]

SCALE_ROWS = 1_000
"""Rows that choose the local scale of a model that is only compared."""

REFRESH_AT = (30,)
"""Further training changes lengthscales little: neighbours are looked up again at its start and once more."""

FEW_ROWS, FEW_STEPS = 500, 30
"""Up to this many rows, models that are compared learn from the likelihood of all of them, in this many steps. Beyond,
they learn from nearest rows, whose steps cost a hundredth."""

VALIDATION_ROWS = 1000
"""Rows, at most, that are predicted from the others of them."""

LATER_SHARE = 0.2
"""The share of validation rows where later rows are to be predicted: rows of a small table are few."""

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
        if self.start != (RESIDUAL_START if self.mean == "trees" else 1.0):
            parts.append(f"lengthscales from {self.start:g}")
        if near.objective == "ordered":
            parts.append("ordered")
        if near.in_training != DEFAULT.in_training:
            parts.append(f"{near.in_training} neighbours")
        if near.in_predictions is not None:
            parts.append(f"{near.in_predictions} neighbours in predictions")
        return ", ".join(parts)


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained for some steps, and its score."""

    candidate: Candidate
    priors: list[GP]  # of each target
    methods: list[CaGPLocal]  # with these priors and the neighbours of their training; exact inference has none
    results: list[FitResult]  # of the fits one after the other
    score: Score
    seconds: float  # for training and scoring it
    num_rows: int  # that it learned from

    @property
    def num_steps(self) -> int:
        return sum(len(result.steps) for result in self.results)


class Validation(ABC):
    """The rows that candidates learn from, and those that score them: held-out rows, or without ``parts`` the same."""

    def __init__(self, learning: Task, parts: Parts | None):
        self.learning, self.parts = learning, parts

    @cached_property
    def trees(self) -> OutOfFold:
        """Trees of the rows to learn from."""
        return trees_of(self.learning)

    def quick_trees_error(self) -> float:
        """The root mean squared error of a few trees alone: a first idea of what trees in the mean can do."""
        _, train, held_out = self.parts or self.learning.hold_out(self.learning.num_rows, LATER_SHARE)
        options = {"categorical": train.categorical, "seed": train.seed}
        predicted = trees.quick_prediction(train.inputs, as_array(train.y), held_out.inputs, **options)
        return float(np.square(as_array(held_out.y) - predicted).mean() ** 0.5)

    def residuals(self, mean: Mean) -> Task:
        """The rows to learn from, with the residuals of the mean as targets."""
        return self.learning if mean == "zero" else self.learning.without_mean(self.trees.mean)

    def _begin(self, candidate: Candidate, like: Trial | None) -> tuple[Task, list[GP]]:
        """What a candidate learns from, with its kernel; and its priors, with the hyperparameters of another trial."""
        task = replace(self.residuals(candidate.mean), start=candidate.start)
        if candidate.kernel is not None:
            task = replace(task, kernel=named_kernel(candidate.kernel, task.X.shape[1]).to(task.X.device))
        priors = task.priors()
        if like is not None:
            for prior, other in zip(priors, like.priors, strict=True):
                prior.take_over(other)
        return task, priors

    def _score_of(self, methods: Sequence[Method], train: Task, mean: Mean, **options: Any) -> Score:
        """The score of held-out rows; the worst there is where a matrix cannot be factorised."""
        assert self.parts is not None
        held_out, columns = self.parts.held_out, []
        if mean == "trees":
            held_out = held_out.without_mean(self.trees.trees.mean(held_out.inputs))
        for j, method in enumerate(methods):
            rows = held_out.data.column(j)
            try:
                posterior = method.condition(train.data.column(j), **options)
                columns.append((rows.y, *posterior.predict(rows, noise=True, row_noise=rows.row_noise)))
            except NotPositiveDefiniteError:
                columns.append((rows.y, torch.zeros_like(rows.y), torch.full_like(rows.y, torch.inf)))
        return Score.of(columns).broadcast(train.ranks)

    @abstractmethod
    def trial(self, candidate: Candidate, num_steps: int, like: Trial | None = None, **settings: Any) -> Trial:
        """A new trial: from the data, or from the hyperparameters of another trial; ``settings`` are for ``fit``."""

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        """The trial after ``num_steps`` further steps; the trial itself where it has converged already."""
        return trial


@final
class HeldOutRows(Validation):
    """Nearest rows predict held-out rows; ``local_scale`` is the option of the recipe."""

    def __init__(self, parts: Parts, local_scale: LocalScale):
        super().__init__(parts.train, parts)
        self.local_scale = local_scale

    def trial(self, candidate: Candidate, num_steps: int, like: Trial | None = None, **settings: Any) -> Trial:
        began = time.perf_counter()
        task, priors = self._begin(candidate, like)
        # Lengthscales of another kernel differ by a common factor, so that its neighbours are the same.
        if like is not None and like.candidate.neighbours == candidate.neighbours and like.num_rows == task.num_rows:
            methods = [other.with_prior(prior) for other, prior in zip(like.methods, priors, strict=True)]
        else:
            methods = local_methods(task, priors, candidate.neighbours)
        return self._trained(candidate, methods, [], num_steps, began, **settings)

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        began, priors = time.perf_counter() - trial.seconds, copy.deepcopy(trial.priors)
        methods = [method.with_prior(p, REFRESH_AT) for method, p in zip(trial.methods, priors, strict=True)]
        return self._trained(trial.candidate, methods, trial.results, num_steps, began)

    def with_neighbours(self, trial: Trial, candidate: Candidate) -> Trial:
        """The same hyperparameters with the neighbours of another candidate."""
        began = time.perf_counter()
        (score,) = self._scores(candidate, trial.priors)
        return replace(trial, candidate=candidate, score=score, seconds=time.perf_counter() - began)

    def with_shared(self, trial: Trial, num_actions: int) -> list[Score]:
        """The scores of shared actions beside the nearest rows of the trial, and of shared actions alone."""
        shared = constant_actions(self.learning, trial.priors[0], num_actions)
        return self._scores(trial.candidate, trial.priors, shared)

    def _trained(
        self,
        candidate: Candidate,
        methods: list[CaGPLocal],
        before: list[FitResult],
        steps: int,
        began: float,
        **more: Any,
    ) -> Trial:
        task, total = self.residuals(candidate.mean), sum(len(result.steps) for result in before) + steps
        kernel, near = candidate.kernel or "given", candidate.neighbours
        model = f"{kernel}-{candidate.mean}-{candidate.start:g}-{near.objective}-{near.in_training}"
        name = f"try-{model}-{task.num_rows}-{total}"
        quiet, reserve = replace(task, verbose=False), task.reserve(0.5)  # a line for each trial is enough
        result = quiet.run(MultiTarget(methods), name, most_steps=steps, reserve=reserve, **more)
        priors = [method.prior for method in methods]
        (score,) = self._scores(candidate, priors)
        results, spent = [*before, result], time.perf_counter() - began
        return Trial(candidate, priors, methods, results, score, spent, task.num_rows)

    @torch.no_grad()
    def _scores(self, candidate: Candidate, priors: list[GP], shared: BlockActions | None = None) -> list[Score]:
        """The score of nearest rows; with shared actions beside them, and of shared actions alone."""
        train, options = self.residuals(candidate.mean), (candidate.neighbours, self.local_scale, shared, SCALE_ROWS)
        methods, _ = scaled_methods(replace(train, max_time=None), priors, *options)
        ways: list[dict[str, Any]] = [{}] if shared is None else [{}, {"num_neighbours": 0}]
        return [self._score_of(methods, train, candidate.mean, shares_rows=True, **way) for way in ways]


@final
class EachRow(Validation):
    """Exact inference predicts each row from all others or from other groups; or the latest rows from earlier ones."""

    def __init__(self, task: Task):
        later = task.hold_out(task.num_rows, LATER_SHARE) if task.rule.kind == "time" else None
        super().__init__(task if later is None else later.train, later)

    def trial(self, candidate: Candidate, num_steps: int, like: Trial | None = None, **settings: Any) -> Trial:
        began = time.perf_counter()
        task, priors = self._begin(candidate, like)
        quiet, reserve = replace(task, folder=None, verbose=False), task.reserve(0.5)
        if task.num_rows <= FEW_ROWS:
            several, num_steps = exact_methods(task, priors), FEW_STEPS
            settings |= {"optimizer": "lbfgs", "min_improvement": 1e-3, "window": 5}
        else:
            several = MultiTarget(local_methods(task, priors, DEFAULT))
        result = quiet.run(several, "", most_steps=num_steps, reserve=reserve, **settings)
        score = self._score(candidate, task, priors)
        return Trial(candidate, priors, [], [result], score, time.perf_counter() - began, task.num_rows)

    def _score(self, candidate: Candidate, task: Task, priors: list[GP]) -> Score:
        if self.parts is not None:
            return self._score_of(plain_methods(task, priors).parts, task, candidate.mean)
        few = task.rows(task.random_rows(VALIDATION_ROWS))
        group = None if few.rule.values is None else torch.from_numpy(few.rule.values).to(task.X.device)
        pairs = [(few.data.column(j), prior) for j, prior in enumerate(priors)]
        columns = [(rows.y, *leave_out(prior, *rows.tensors, group)) for rows, prior in pairs]
        return Score.of(columns).broadcast(task.ranks)


@torch.no_grad()
def leave_out(
    prior: GP,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    row_noise: Float[Tensor, " n"] | None,
    group: Int[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Mean and variance of each target given all others, or given those of other groups; of a new observation.

    With P = (K + noise)⁻¹ and w = P(y - m), the targets of a group B given all others have the mean y_B - P_BB⁻¹ w_B
    and the covariance P_BB⁻¹; a row alone has yᵣ - wᵣ / Pᵣᵣ and 1 / Pᵣᵣ. A matrix that cannot be factorised predicts
    with infinite variance. Time O(n³), memory O(n²).
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
            chol = safe_cholesky(precision[rows[:, None], rows], "the precision of a group")
            covariance = torch.cholesky_inverse(chol)
            mean[rows] = y[rows].double() - covariance @ weights[rows]
            variance[rows] = covariance.diagonal()
        return mean, variance
    except NotPositiveDefiniteError:
        return torch.zeros_like(residual), torch.full_like(residual, torch.inf)
