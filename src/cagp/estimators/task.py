"""What a regressor's training is given and what it leaves behind, in standard units."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cagp.kernels import Kernel
from cagp.posteriors import Posterior
from cagp.prior import GP, GaussianNoise
from cagp.starting import start_from_data
from cagp.training import FitResult


@dataclass(frozen=True)
class Task:
    """The rows to learn from, in standard units, and how far to go."""

    X: Tensor  # (n, p)
    y: Tensor  # (n, q)
    row_noise: Tensor | None  # (n, q)
    kernel: Kernel  # where hyperparameters start, shared by all targets
    noise: list[float] | None  # of each target, where it starts; None for what the data suggest
    from_data: bool  # whether hyperparameters are to be read off the data first
    seed: int
    max_bytes: int  # for temporaries
    memory: int  # bytes that the fit may take in all
    folder: Path | None  # for checkpoints
    verbose: bool
    names: tuple[str, ...] | None  # of the inputs, where they have any
    points: Tensor | None  # inducing points of the last fit, where this one goes on from it

    def priors(self, noise_floor: float = 1e-6) -> list[GP]:
        """A prior for each target: the same kernel object, a noise of its own."""
        kernel, num_targets = self.kernel, self.y.shape[1]
        starts = [0.1] * num_targets if self.noise is None else self.noise
        priors = [GP(kernel, noise=GaussianNoise(max(start, 2 * noise_floor), noise_floor)) for start in starts]
        if self.from_data:
            for j, prior in enumerate(priors):
                start_from_data(prior, self.X, self.y[:, j].contiguous())
        return priors

    def rows(self, rows: Tensor) -> "Task":
        """The same task with some of its rows."""
        row_noise = None if self.row_noise is None else self.row_noise[rows]
        return replace(self, X=self.X[rows], y=self.y[rows], row_noise=row_noise)

    def in_double(self) -> "Task":
        """The same task in float64."""
        row_noise = None if self.row_noise is None else self.row_noise.double()
        return replace(self, X=self.X.double(), y=self.y.double(), row_noise=row_noise)

    def column(self, j: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs, targets and known noise of one target."""
        return self.X, self.y[:, j].contiguous(), None if self.row_noise is None else self.row_noise[:, j].contiguous()


class Fitted(NamedTuple):
    """What training leaves behind."""

    method: str
    posteriors: list[Posterior]
    result: FitResult
    notes: list[str]  # how the method was chosen, in words
    held: Tensor | None  # the rows of the task that each posterior holds, in its order; None for inducing points
