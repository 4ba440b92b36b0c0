"""What training starts from, and what it returns, in standard units."""

import copy
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp.data.splits import RowRule
from cagp.dataset import Data
from cagp.kernels import Kernel, named_kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.starting import start_from_data
from cagp.training import FitResult, Trainable, fit
from cagp.trees import Trees

RESIDUAL_START = 0.4
"""The residuals of a prior mean are rough: lengthscales start at this times those that the data suggest."""

VALIDATION_SHARE, VALIDATION_ROWS = 0.1, 2000
"""The share of the rows that is held out unless more is said, and the most rows."""

NOISE_FLOORS = {torch.float32: 1e-6, torch.float64: 1e-9}
"""The smallest noise that each dtype resolves, in units of the targets' variance."""


@dataclass(frozen=True)
class Task:
    """The rows to learn from, in standard units, and the user's limits."""

    data: Data  # (n, p) inputs, (n, q) targets
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
        """n."""
        return self.data.num_rows

    @property
    def decays(self) -> bool | None:
        """Whether the kernel goes to zero with distance; None if it does not say."""
        return self.kernel.decays(self.X.shape[1])

    @property
    def is_long_range(self) -> bool:
        """Whether the kernel links rows at any distance."""
        return self.decays is False

    @property
    def X(self) -> Tensor:
        """Inputs (n, p)."""
        return self.data.X

    @property
    def y(self) -> Tensor:
        """Targets (n, q)."""
        return self.data.y

    @property
    def row_noise(self) -> Tensor | None:
        """Known noise variances (n, q)."""
        return self.data.row_noise

    def column(self, j: int) -> Data:
        """Inputs, and targets and known noise of one target."""
        return self.data.column(j)

    def with_targets(self, y: Tensor, row_noise: Tensor | None = None) -> "Task":
        """The same task with other targets (n, q) and noise of the same rows."""
        return replace(self, data=self.data.with_targets(y, row_noise))

    def with_kernel(self, name: str | None) -> "Task":
        """The same task with a kernel of its own: a new one by name, or a copy of the present one for None."""
        made = copy.deepcopy(self.kernel) if name is None else named_kernel(name, self.X.shape[1])
        return replace(self, kernel=made.to(self.X.device))

    def without_mean(self, mean: np.ndarray) -> "Task":
        """The same task with the residuals of a prior mean as targets: ``mean`` is (n, q), in standard units."""
        task = self.with_targets(self.y - torch.from_numpy(mean).to(self.y), self.row_noise)
        return replace(task, start=RESIDUAL_START, mean="zero")

    def priors(self) -> list[GP]:
        """A new prior for each target: they share a copy of the kernel, and each has a noise of its own."""
        kernel, floor = copy.deepcopy(self.kernel), self.noise_floor
        starts = [0.1] * self.y.shape[1] if self.noise is None else self.noise
        priors = [GP(kernel, noise=GaussianNoise(max(start, 2 * floor), floor)) for start in starts]
        if self.from_data:
            for j, prior in enumerate(priors):
                start_from_data(prior, self.column(j))
            if self.start != 1.0:
                kernel.stretch(self.start)
        return [prior.to(self.X.device) for prior in priors]

    @property
    def noise_floor(self) -> float:
        """The smallest noise that the data resolve."""
        return NOISE_FLOORS[self.X.dtype]

    def rows(self, rows: Tensor) -> "Task":
        """The same task with some of its rows."""
        chosen = rows.cpu().numpy()
        rule, known = self.rule.take(chosen), None if self.known is None else self.known[rows]
        return replace(
            self, data=self.data.take(rows, self.scratch), known=known, inputs=self.inputs[chosen], rule=rule
        )

    def random_rows(self, num_rows: int) -> Tensor:
        """The numbers of some rows, drawn by the seed."""
        drawn = torch.randperm(self.num_rows, generator=torch.Generator().manual_seed(self.seed))
        return drawn[:num_rows].to(self.X.device)

    def hold_out(self, most_rows: int = VALIDATION_ROWS, share: float = VALIDATION_SHARE) -> "Parts":
        """Rows to learn from and validation rows, by the rule and the seed of the task.

        Where a group, or the rows of one time, are more than ``most_rows``, some of them are validation rows and none
        is learned from.
        """
        train, test = self.rule.split(self.num_rows, min(share, most_rows / self.num_rows), self.seed)
        if len(test) > most_rows and self.rule.kind != "random":
            test = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(self.seed))[:most_rows]]
        train, test = train.to(self.X.device), test.to(self.X.device)
        return Parts(train, self.rows(train), self.rows(test), test)

    def in_double(self) -> "Task":
        """The same task in float64."""
        return replace(self, data=self.data.double())

    def every_row(self) -> Tensor:
        """The numbers of all rows."""
        return torch.arange(self.num_rows, device=self.X.device)

    def run(
        self, method: Trainable, name: str, most_steps: int | None = None, reserve: float = 0.0, **changes: Any
    ) -> FitResult:
        """Train with the user's limits.

        Args:
            name: the subfolder for checkpoints.
            most_steps: a further limit to the number of steps.
            reserve: seconds before the end of ``max_time`` that are needed for what comes after.
            changes: further settings of ``fit``.
        """
        limits = [limit for limit in (self._num_steps(method), most_steps) if limit is not None]
        if limits:
            changes["num_steps"] = min(limits)
        folder = None if self.folder is None else self.folder / name
        options = {"progress": self.verbose, "checkpoint_dir": folder, "input_names": self.names, "ranks": self.ranks}
        return fit(method, self.data, deadline=self.deadline - reserve, **options, **changes)

    def _num_steps(self, method: Trainable) -> int | None:
        first = method.rows(0, self.num_rows).drawn
        return self.step_limit(self.num_rows if first is None else len(first))

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
    held_rows: Tensor  # of the whole task, those of ``held_out``


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
