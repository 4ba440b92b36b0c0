"""What training is given, and what it leaves behind, in standard units."""

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.kernels import Kernel
from cagp.methods import Several
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise
from cagp.quantities import seconds_of
from cagp.starting import start_from_data
from cagp.training import FitResult, fit

NOISE_FLOOR, LOW_NOISE_FLOOR = 1e-6, 1e-9
"""In units of the targets' variance. The lower one is for float64 data and methods whose answers resolve it."""


@dataclass(frozen=True)
class Task:
    """The rows to learn from, in standard units, and the user's limits."""

    X: Tensor  # (n, p)
    y: Tensor  # (n, q)
    row_noise: Tensor | None  # (n, q)
    kernel: Kernel  # with its starting values; all targets share it
    noise: list[float] | None  # the starting value for each target; None to read it off the data
    from_data: bool  # whether starting values are read off the data
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
    began: float = field(default_factory=time.perf_counter)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.X)

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise."""
        return self.X, self.y, self.row_noise

    def column(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, and targets and known noise of one target."""
        return self.X, self.y[:, j].contiguous(), None if self.row_noise is None else self.row_noise[:, j].contiguous()

    def priors(self, noise_floor: float = NOISE_FLOOR) -> list[GP]:
        """A prior for each target: the same kernel object, a noise of its own."""
        starts = [0.1] * self.y.shape[1] if self.noise is None else self.noise
        priors = [GP(self.kernel, noise=GaussianNoise(max(start, 2 * noise_floor), noise_floor)) for start in starts]
        if self.from_data:
            for j, prior in enumerate(priors):
                start_from_data(prior, self.X, self.y[:, j].contiguous())
        return [prior.to(self.X.device) for prior in priors]

    @property
    def low_noise_floor(self) -> float:
        """The smallest noise that methods with float64 answers resolve."""
        return LOW_NOISE_FLOOR if self.X.dtype == torch.float64 else NOISE_FLOOR

    def rows(self, rows: Tensor) -> "Task":
        """The same task with some of its rows."""
        row_noise = None if self.row_noise is None else self.row_noise[rows]
        return replace(self, X=self.X[rows], y=self.y[rows], row_noise=row_noise)

    def in_double(self) -> "Task":
        """The same task in float64."""
        row_noise = None if self.row_noise is None else self.row_noise.double()
        return replace(self, X=self.X.double(), y=self.y.double(), row_noise=row_noise)

    def every_row(self) -> Tensor:
        """The numbers of all rows."""
        return torch.arange(self.num_rows, device=self.X.device)

    def run(self, method: Several, name: str, most_steps: int | None = None, **changes: Any) -> FitResult:
        """Train with the user's limits.

        Args:
            name: the subfolder for checkpoints.
            most_steps: a further limit to the number of steps.
            changes: further settings of ``fit``.
        """
        limits = [limit for limit in (self._num_steps(method), most_steps) if limit is not None]
        if limits:
            changes["num_steps"] = min(limits)
        changes.setdefault("max_time", self.max_time)
        folder = None if self.folder is None else self.folder / name
        return fit(method, *self.data, progress=self.verbose, checkpoint_dir=folder, input_names=self.names, **changes)

    def _num_steps(self, method: Several) -> int | None:
        """An epoch is one pass over the rows: one step, or as many as it takes minibatches."""
        if self.max_epochs is None:
            return None
        first = method.minibatch(0, self.num_rows)
        batch = self.num_rows if first is None else len(first)
        return math.ceil(self.max_epochs * max(1.0, self.num_rows / batch))

    def time_left(self) -> float:
        """Seconds of ``max_time`` that remain since the task began."""
        return max(seconds_of(self.max_time) - (time.perf_counter() - self.began), 1e-9)


class Fitted(NamedTuple):
    """What training leaves behind."""

    method: str
    posteriors: list[Posterior]
    result: FitResult
    notes: list[str]  # what the fit report says besides
    held: Tensor | None  # the rows of the task that each posterior holds, in its order; None for inducing points
    choice: str | None = None  # why this method was chosen, in one sentence
