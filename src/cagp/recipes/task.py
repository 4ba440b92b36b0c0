"""What training starts from and what it returns, in standard units; and boosted trees in the prior mean of both."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import fields, storage, trees
from cagp.data.splits import RowRule
from cagp.dataset import Data
from cagp.kernels import Kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.starting import start_from_data
from cagp.training import FitResult, Trainable, fit
from cagp.trees import OutOfFold, TreeObjective, Trees

RESIDUAL_START = 0.4
"""The residuals of a prior mean are rough: lengthscales start at this times those that the data suggest."""

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000
"""The share of the rows that is held out unless more is said, and the most rows."""

NOISE_FLOORS = {torch.float32: 1e-6, torch.float64: 1e-9}
"""The smallest noise that each dtype resolves, in units of the targets' variance."""


@dataclass(frozen=True)
class Task:
    """The rows to learn from, in standard units, and the user's limits."""

    data: Data  # (n, p) inputs, (n, q) targets and known noise variances
    inputs: np.ndarray  # (n, c), the columns of the table as trees take them: codes of levels, NaN for missing values
    categorical: tuple[int, ...]  # the columns of ``inputs`` that hold codes of levels
    mean: str  # "zero", "trees", or "auto" where the recipe chooses
    kernel: Kernel  # with its starting values; all targets share it
    kernels: tuple[str, ...]  # names to choose from; none where ``kernel`` is the user's choice
    noise: list[float] | None  # the starting value for each target; None to read it off the data
    from_data: bool  # whether starting values are read off the data
    start: float  # times the lengthscales that the data suggest
    seed: int
    max_bytes: int  # for temporaries
    memory: int  # bytes that the fit may take in all
    max_memory: int | str | None  # the same as the user gave it
    max_epochs: int | None
    max_time: float | str | None
    folder: Path | None  # for checkpoints
    verbose: bool
    names: tuple[str, ...] | None  # of the inputs, where they have any
    points: Tensor | None  # inducing points of the last fit, where this one continues it
    began: float  # on the clock ``time.perf_counter()``; ``max_time`` counts from there
    ranks: Ranks = field(default_factory=Ranks.alone)  # the processes that train together, each with all rows
    rule: RowRule = field(default_factory=RowRule)  # how rows are held out to compare models
    known: Tensor | None = None  # (n,), a known part of the latent function: the logarithm of exposures
    targets: str = GAUSSIAN  # their kind: Gaussian, or "numbers", "counts", "classes" of ``cagp.likelihood_registry``
    likelihood: Any = None  # ``Likelihood | ClassLikelihood``, with starting values; None: Gaussian noise
    scratch: Path | None = None  # a folder for rows that are too many for memory; ``inputs`` then has no columns

    @property
    def num_rows(self) -> int:
        return self.data.num_rows

    @property
    def decays(self) -> bool | None:
        """Whether the kernel goes to zero with distance: False if it links rows at any distance, None if unknown."""
        return self.kernel.decays(self.X.shape[1])

    @property
    def X(self) -> Tensor:
        return self.data.X

    @property
    def y(self) -> Tensor:
        return self.data.y

    @property
    def row_noise(self) -> Tensor | None:
        return self.data.row_noise

    def with_targets(self, y: Tensor, row_noise: Tensor | None = None) -> "Task":
        """The same task with other targets (n, q) and noise of the same rows."""
        return replace(self, data=self.data.with_targets(y, row_noise))

    def without_mean(self, mean: np.ndarray) -> "Task":
        """The same task with the residuals of a prior mean as targets: ``mean`` is (n, q), in standard units."""
        task = self.with_targets(self.y - torch.from_numpy(mean).to(self.y), self.row_noise)
        return replace(task, start=RESIDUAL_START, mean="zero")

    def priors(self) -> list[GP]:
        """A new prior for each target: they share a copy of the kernel, and each has a noise of its own."""
        kernel, floor = copy.deepcopy(self.kernel), NOISE_FLOORS[self.X.dtype]
        starts = [0.1] * self.y.shape[1] if self.noise is None else self.noise
        priors = [GP(kernel, noise=GaussianNoise(max(start, 2 * floor), floor)) for start in starts]
        if self.from_data:
            for j, prior in enumerate(priors):
                start_from_data(prior, self.data.column(j))
            if self.start != 1.0:
                kernel.stretch(self.start)
        return [prior.to(self.X.device) for prior in priors]

    def rows(self, rows: Tensor) -> "Task":
        """The same task with some of its rows."""
        data, known, chosen = self.data.take(rows, self.scratch), self.known, rows.cpu().numpy()
        known = None if known is None else known[rows]
        return replace(self, data=data, known=known, inputs=self.inputs[chosen], rule=self.rule.take(chosen))

    def random_rows(self, num_rows: int) -> Tensor:
        """The numbers of some rows, drawn by the seed."""
        drawn = torch.randperm(self.num_rows, generator=torch.Generator().manual_seed(self.seed))
        return drawn[:num_rows].to(self.X.device)

    def drawn(self, num_rows: int) -> "Task":
        """The same task with at most this many rows, drawn by the seed, in their order."""
        return self.rows(self.random_rows(num_rows).sort().values)

    def hold_out(self, most_rows: int = VALIDATION_ROWS, share: float = VALIDATION_SHARE) -> "Parts":
        """Rows to learn from and validation rows, by the rule and the seed of the task.

        Where a group, or the rows of one time, are more than ``most_rows``, some of them are validation rows and none
        is learned from.
        """
        train, test = self.rule.split(self.num_rows, min(share, most_rows / self.num_rows), self.seed)
        if len(test) > most_rows and self.rule.kind != "random":
            test = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(self.seed))[:most_rows]]
        train, test = train.to(self.X.device), test.to(self.X.device)
        return Parts(train, self.rows(train), self.rows(test))

    def in_double(self) -> "Task":
        return replace(self, data=self.data.double())

    def run(
        self, method: Trainable, name: str, most_steps: int | None = None, reserve: float = 0.0, **changes: Any
    ) -> FitResult:
        """Train with the user's limits, at most ``most_steps``; ``name`` is the subfolder for checkpoints.

        What comes after needs ``reserve`` seconds before the end of ``max_time``; ``changes`` are settings of ``fit``.
        """
        drawn = method.rows(0, self.num_rows).drawn
        allowed = self.step_limit(self.num_rows if drawn is None else len(drawn))
        limits = [limit for limit in (allowed, most_steps) if limit is not None]
        if limits:
            changes["num_steps"] = min(limits)
        folder = None if self.folder is None else self.folder / name
        options = {"progress": self.verbose, "checkpoint_dir": folder, "input_names": self.names, "ranks": self.ranks}
        return fit(method, self.data, deadline=self.deadline - reserve, **options, **changes)

    def step_limit(self, batch_size: int) -> int | None:
        """The steps in ``max_epochs``: an epoch is one pass over the rows, as many steps as it takes minibatches."""
        if self.max_epochs is None:
            return None
        return math.ceil(self.max_epochs * max(1.0, self.num_rows / batch_size))

    @property
    def deadline(self) -> float:
        """The end of ``max_time`` on the clock ``time.perf_counter()``; infinity without a limit."""
        return self.began + seconds_of(self.max_time)

    def time_left(self) -> float:
        """Seconds until the deadline, by the clock of process 0; to be asked by all processes."""
        if self.max_time is None:
            return math.inf
        return self.ranks.broadcast(max(self.deadline - time.perf_counter(), 1e-9))

    def reserve(self, share: float) -> float:
        """A share of the time that is left, in seconds, for what comes after a fit; 0 without a limit."""
        return 0.0 if self.max_time is None else share * self.time_left()


class Parts(NamedTuple):
    """A task in two: rows to learn from, and validation rows."""

    rows: Tensor  # of the whole task, those of ``train``
    train: Task
    held_out: Task


class Learned(NamedTuple):
    """Hyperparameters that were learned, before anything is conditioned on."""

    priors: list[GP]  # of each target
    result: FitResult
    notes: list[str] = []  # what the fit report says besides


class Fitted(NamedTuple):
    """What training returns."""

    method: str
    posteriors: list[Posterior]
    result: FitResult
    notes: list[str]  # what the fit report says besides
    held: Tensor | slice | None  # the rows of the task that each posterior holds, in its order; None: inducing points
    choice: str | None = None  # why this method was chosen, in one sentence
    trees: Trees | None = None  # the prior mean; the posteriors are of its residuals
    tried: list[dict[str, Any]] = []  # the models that were compared, as plain values, in the order they were tried
    likelihood: Any = None  # ``Likelihood | ClassLikelihood`` with what it learned; None: Gaussian noise
    offsets: list[float] = []  # the constant part of each latent function; none with Gaussian noise


# ---- boosted trees in the prior mean ----

KIND, VERSION = "cagp trees", 1
TREE_SHARE = 0.3
"""The share of the time that is left which trees may take."""


def with_trees(
    task: Task, fitted_trees: OutOfFold | None, train: Callable[[Task], Fitted], words: str | None = None
) -> Fitted:
    """What ``train`` makes of the residuals of trees, if there are any; ``words`` about the trees stand in front."""
    if fitted_trees is None:
        return train(task)
    fitted = train(task.without_mean(fitted_trees.mean))
    notes = [words or words_of(fitted_trees, task), *fitted.notes]
    return fitted._replace(trees=fitted_trees.trees, notes=notes)


def with_mean(task: Task, train: Callable[[Task], Fitted]) -> Fitted:
    """``with_trees`` if the task asks for trees."""
    return with_trees(task, trees_of(task) if task.mean == "trees" else None, train)


def trees_of(task: Task, objective: TreeObjective = "l2") -> OutOfFold:
    """Trees for the rows of the task, by process 0; those of an interrupted fit with the same rows are read again."""
    limit = TREE_SHARE * task.time_left()
    if task.ranks.size == 1:
        return _stored_or_fitted(task, limit, objective)
    return _of_state(task.ranks.from_first(lambda: _state(_stored_or_fitted(task, limit, objective))))


def _stored_or_fitted(task: Task, max_seconds: float, objective: TreeObjective) -> OutOfFold:
    path = None if task.folder is None else task.folder / f"trees-{task.num_rows}.cagp"
    if path is not None and path.exists():
        state = storage.load_state(path, KIND, VERSION, remedy="delete it to fit them again")
        try:
            fields.entry(state, "mean", fields.float64(*task.y.shape))
        except ValueError as error:
            raise ValueError(f"{path} does not hold the trees of these rows; delete it to fit them again.") from error
        return _of_state(state | {"finished": True})
    noise = None if task.row_noise is None else as_array(task.row_noise)
    options: dict[str, Any] = {"categorical": task.categorical, "seed": task.seed, "objective": objective}
    options["fold"] = task.rule.folds(task.num_rows, trees.number_of_folds(task.num_rows), task.seed)
    options["exposure"] = None if task.known is None else as_array(task.known.exp())
    fitted = trees.fit_trees(task.inputs, as_array(task.y), noise, max_seconds=max_seconds, **options)
    if path is not None and fitted.finished:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.save_state(path, _state(fitted), KIND, VERSION)
    return fitted


def words_of(fitted: OutOfFold, task: Task, loss: str | None = None) -> str:
    """What trees explain, in words: the ``loss`` of their out-of-fold predictions, or a share of the variance."""
    counts = " and ".join(dict.fromkeys(f"{count:,}" for count in fitted.trees.num_trees))
    about = f"the {loss}"
    if loss is None:
        y = as_array(task.y)
        explained = 1 - np.square(y - fitted.mean).sum(0) / np.maximum(np.square(y - y.mean(0)).sum(0), 1e-300)
        about = f"they explain {' and '.join(f'{share:.1%}' for share in explained)} of the variance of the targets"
    late = "" if fitted.finished else " The time limit ended them early."
    return (
        f"The prior mean is {counts} boosted trees, fitted out of fold: {about}, and the Gaussian process models the "
        f"residuals.{late}"
    )


def state_of(fitted: Trees) -> dict[str, Any]:
    """Trees as tensors of bytes, for a file."""
    models = [[torch.tensor(list(text.encode()), dtype=torch.uint8) for text in m] for m in fitted.texts]
    return {"models": models}


def trees_from_state(state: dict[str, Any]) -> Trees:
    """The inverse of ``state_of``; ValueError where it is not such a state."""
    is_text = fields.that(lambda text: isinstance(text, Tensor) and text.dtype == torch.uint8 and text.ndim == 1)
    models = fields.entry(state, "models", fields.list_of(fields.list_of(is_text)))
    return Trees([[bytes(text.numpy()).decode() for text in texts] for texts in models])


def _state(fitted: OutOfFold) -> dict[str, Any]:
    return {**state_of(fitted.trees), "mean": torch.from_numpy(fitted.mean), "finished": fitted.finished}


def _of_state(state: dict[str, Any]) -> OutOfFold:
    return OutOfFold(trees_from_state(state), state["mean"].numpy(), finished=state["finished"])


def as_array(values: Tensor) -> np.ndarray:
    """A tensor as a float64 array."""
    return values.detach().double().cpu().numpy()
