"""Candidates of the search, how they are trained a little, and the validation rows that score them.

With many rows, a candidate learns from nearest rows and predicts held-out rows. With few, each row is predicted from
all others by exact inference. A trial is a value: it has modules of its own, and nothing changes them.
"""

import copy
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch

from cagp import kernel_registry
from cagp.actions import BlockActions
from cagp.comparison import Score
from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import CaGPLocal, CholeskyGP, MultiTarget
from cagp.prior import GP
from cagp.recipes import means
from cagp.recipes.exact import exact_methods
from cagp.recipes.nearest import Neighbours, local_methods, scaled_methods
from cagp.recipes.task import RESIDUAL_START, Task
from cagp.recipes.validation import Parts, hold_out, leave_out
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

    @property
    def file_name(self) -> str:
        """The candidate as a part of a file name."""
        kernel, near = "given" if self.kernel is None else self.kernel, self.neighbours
        return f"{kernel}-{self.mean}-{self.start:g}-{near.objective}-{near.in_training}"


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
        """Steps so far."""
        return sum(len(result.steps) for result in self.results)


class Validation(ABC):
    """The rows that candidates learn from, and those that score them.

    Args:
        learning: the rows to learn from.
        parts: the same, with held-out rows; None if the rows to learn from are scored themselves.
    """

    def __init__(self, learning: Task, parts: Parts | None):
        self.learning, self.parts = learning, parts
        self.trees: OutOfFold | None = None

    def quick_parts(self) -> Parts:
        """Rows that a few trees alone are fitted to, and those that they predict."""
        return self.parts or hold_out(self.learning, self.learning.num_rows, LATER_SHARE)

    def residuals(self, mean: Mean) -> Task:
        """The rows to learn from, with the residuals of the mean as targets; trees are fitted once."""
        if mean == "zero":
            return self.learning
        if self.trees is None:
            self.trees = means.trees_of(self.learning)
        return self.learning.without_mean(self.trees.mean)

    def held_out(self, mean: Mean) -> Task:
        """The held-out rows, with the residuals of the mean as targets."""
        assert self.parts is not None
        rows = self.parts.held_out
        if mean == "zero":
            return rows
        assert self.trees is not None
        return rows.without_mean(self.trees.trees.mean(rows.inputs))

    def task_of(self, candidate: Candidate) -> Task:
        """What a candidate learns from, with its kernel."""
        return replace(self.residuals(candidate.mean).with_kernel(candidate.kernel), start=candidate.start)

    @abstractmethod
    def trial(
        self, candidate: Candidate, num_steps: int, like: Trial | None = None, more_follow: bool = False
    ) -> Trial:
        """A new trial: from the data, or from the hyperparameters of another trial.

        Args:
            more_follow: whether further steps may follow: then the learning rate does not fall.
        """

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        """The trial after ``num_steps`` further steps; the trial itself where it has converged already."""
        return trial


@final
class HeldOutRows(Validation):
    """Nearest rows predict held-out rows.

    Args:
        local_scale: the option of the recipe.
    """

    def __init__(self, parts: Parts, local_scale: float | str | None):
        super().__init__(parts.train, parts)
        self.local_scale = local_scale

    def trial(
        self, candidate: Candidate, num_steps: int, like: Trial | None = None, more_follow: bool = False
    ) -> Trial:
        began, task = time.perf_counter(), self.task_of(candidate)
        priors = task.priors()
        if like is not None:
            for prior, other in zip(priors, like.priors, strict=True):
                prior.take_over(other)
            # Lengthscales of another kernel differ by a common factor, so that its neighbours are the same.
            if like.candidate.neighbours == candidate.neighbours and like.num_rows == task.num_rows:
                methods = [other.with_prior(prior) for other, prior in zip(like.methods, priors, strict=True)]
                return self._trained(candidate, task, methods, [], num_steps, began)
        methods = local_methods(task, priors, candidate.neighbours)
        schedule = {"schedule": "constant"} if more_follow else {}
        return self._trained(candidate, task, methods, [], num_steps, began, **schedule)

    def resume(self, trial: Trial, num_steps: int) -> Trial:
        began, priors = time.perf_counter() - trial.seconds, copy.deepcopy(trial.priors)
        methods = [method.with_prior(p, REFRESH_AT) for method, p in zip(trial.methods, priors, strict=True)]
        task = self.residuals(trial.candidate.mean)
        return self._trained(trial.candidate, task, methods, trial.results, num_steps, began)

    def with_neighbours(self, trial: Trial, neighbours: Neighbours) -> Trial:
        """The same hyperparameters with other neighbours."""
        began, candidate = time.perf_counter(), replace(trial.candidate, neighbours=neighbours)
        (score,) = self._scores(candidate, self.residuals(candidate.mean), trial.priors)
        return replace(trial, candidate=candidate, score=score, seconds=time.perf_counter() - began)

    def with_shared(self, trial: Trial, shared: BlockActions) -> tuple[Score, Score]:
        """The scores of shared actions alone, and beside the nearest rows of the trial."""
        beside, alone = self._scores(trial.candidate, self.residuals(trial.candidate.mean), trial.priors, shared)
        return alone, beside

    def _trained(
        self,
        candidate: Candidate,
        task: Task,
        methods: list[CaGPLocal],
        before: list[FitResult],
        num_steps: int,
        began: float,
        **settings: Any,
    ) -> Trial:
        total = sum(len(result.steps) for result in before) + num_steps
        half = 0.5 * task.time_left() if task.max_time is not None else 0.0
        name = f"try-{candidate.file_name}-{task.num_rows}-{total}"
        quiet = replace(task, verbose=False)  # a line for each trial is enough
        result = quiet.run(MultiTarget(methods), name, most_steps=num_steps, reserve=half, **settings)
        priors = [method.prior for method in methods]
        (score,) = self._scores(candidate, task, priors)
        spent = time.perf_counter() - began
        return Trial(candidate, priors, methods, [*before, result], score, spent, task.num_rows)

    @torch.no_grad()
    def _scores(
        self, candidate: Candidate, train: Task, priors: list[GP], shared: BlockActions | None = None
    ) -> list[Score]:
        """The score of nearest rows; with shared actions beside them, and of shared actions alone."""
        options = candidate.neighbours, self.local_scale, shared, SCALE_ROWS
        methods, _ = scaled_methods(replace(train, max_time=None), priors, *options)
        held_out, scores = self.held_out(candidate.mean), []
        ways: list[dict[str, Any]] = [{}] if shared is None else [{}, {"num_neighbours": 0}]
        for changes in ways:
            columns = []
            for j, method in enumerate(methods):
                rows = held_out.column(j)
                posterior = method.condition(train.column(j), shares_rows=True, **changes)
                columns.append((rows.y, *posterior.predict(rows.X, noise=True, row_noise=rows.row_noise)))
            scores.append(Score.of(columns).broadcast(train.ranks))
        return scores


@final
class EachRow(Validation):
    """Exact inference predicts each row from all others, or from other groups.

    Where later rows are to be predicted, the latest ones are held out.
    """

    def __init__(self, task: Task):
        later = hold_out(task, task.num_rows, LATER_SHARE) if task.rule.kind == "time" else None
        super().__init__(task if later is None else later.train, later)
        self.task = task
        self._whole_trees: OutOfFold | None = None

    def whole_trees(self, mean: Mean) -> OutOfFold | None:
        """The trees of all rows of the task, if the mean has any; those of the search where it learned from all."""
        if mean == "zero":
            return None
        if self._whole_trees is None:
            self._whole_trees = self.trees if self.parts is None and self.trees else means.trees_of(self.task)
        return self._whole_trees

    def trial(
        self, candidate: Candidate, num_steps: int, like: Trial | None = None, more_follow: bool = False
    ) -> Trial:
        began = time.perf_counter()
        task = replace(self.task_of(candidate), folder=None, verbose=False)
        priors = task.priors()
        if like is not None:
            for prior, other in zip(priors, like.priors, strict=True):
                prior.take_over(other)
        half = 0.0 if task.max_time is None else 0.5 * task.time_left()  # for what comes after
        if task.num_rows <= FEW_ROWS:
            exact = {"optimizer": "lbfgs", "most_steps": FEW_STEPS, "min_improvement": 1e-3, "window": 5}
            result = task.run(exact_methods(task, priors), "", reserve=half, **exact)
        else:
            several = MultiTarget(local_methods(task, priors, DEFAULT))
            result = task.run(several, "", most_steps=num_steps, reserve=half)
        score = self._score(candidate, task, priors)
        return Trial(candidate, priors, [], [result], score, time.perf_counter() - began, task.num_rows)

    def _score(self, candidate: Candidate, task: Task, priors: list[GP]) -> Score:
        columns = []
        if self.parts is None:
            few = task.rows(task.random_rows(VALIDATION_ROWS))
            group = None if few.rule.values is None else torch.from_numpy(few.rule.values).to(task.X.device)
            for j, prior in enumerate(priors):
                rows = few.column(j)
                columns.append((rows.y, *leave_out(prior, rows.X, rows.y, rows.row_noise, group)))
            return Score.of(columns).broadcast(task.ranks)
        later = self.held_out(candidate.mean)
        for j, prior in enumerate(priors):
            rows = later.column(j)
            try:
                posterior = CholeskyGP(prior, task.max_bytes).condition(task.column(j))
                columns.append((rows.y, *posterior.predict(rows.X, noise=True, row_noise=rows.row_noise)))
            except NotPositiveDefiniteError:
                columns.append((rows.y, torch.zeros_like(rows.y), torch.full_like(rows.y, torch.inf)))
        return Score.of(columns).broadcast(task.ranks)
