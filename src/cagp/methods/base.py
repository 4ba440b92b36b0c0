"""What every method is: something ``fit`` can train, and that conditions on data; and what methods share."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.dataset import Data, column_statistics
from cagp.engine import backend_for
from cagp.kernels import Kernel
from cagp.parameters import named_values
from cagp.posteriors import Posterior, Prediction
from cagp.prior import GP, GaussianNoise
from cagp.training import ParameterGroup, Trainable
from cagp.training.trainable import Inputs

Targets = Float[Tensor, " n"]
RowNoise = Targets | None  # known noise variances

HYPERPARAMETER_RATE, ACTION_RATE = 0.2, 1.0
"""Adam's learning rates of the prior's parameters and of the weights of actions; docs/training.md has the evidence."""

IDLE, MOST_LISTED = 0.01, 12
IDLE_ELEMENTS = 2**20  # of the rows that are compared at a time


class Method(Trainable):
    """Parameters, an objective of the data, and a posterior given them.

    A method of your own needs ``terms`` and ``posterior``. A GP called ``prior`` has its noise checked, and the history
    of a fit shows its hyperparameters. Here, a fit learns the mean, kernel and noise of ``prior``; ``max_bytes`` limits
    temporaries, and ``seed`` determines what is drawn at random.
    """

    @abstractmethod
    def posterior(self, data: Data) -> Posterior:
        """The posterior given checked data, as a snapshot that further training does not change."""

    def condition(
        self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None, **options: Any
    ) -> Posterior:
        """The posterior given the data, as a snapshot; ``options`` are those of ``posterior`` of the method."""
        return self.posterior(self.checked(X, y, row_noise), **options)

    def marginals(self, data: Data) -> Prediction:
        """Mean and variance of the function at each of the rows themselves, given all that ``posterior`` sees."""
        return self.posterior(data).predict(data.X)

    def check(self, data: Data) -> None:
        super().check(data)
        prior = prior_of(self)
        if prior is not None:
            prior.noise.check(data.row_noise)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": trained(self, HYPERPARAMETER_RATE)}

    def hyperparameters(self) -> dict[str, Any]:
        """Parameters of the prior as numbers in their own units, for the history of a fit."""
        prior = prior_of(self)
        return {} if prior is None else named_values(prior)

    def words(self, data: Data) -> str:
        """What the method is, to begin the first sentence of ``findings``; empty for none."""
        return ""

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What the method is, with its backend and dtype, and what a user should know about its hyperparameters."""
        prior, words = prior_of(self), self.words(data)
        if prior is None or not words:
            return []
        dtype = str(data.X.dtype).removeprefix("torch.")
        found, noise = [f"{words}, kernel products by {backend_for(prior.kernel, data.X)}, {dtype}."], prior.noise
        if isinstance(noise, GaussianNoise) and noise.noise.item() < 1.1 * noise.noise_floor:
            found.append(
                f"The noise variance sits at its floor ({noise.noise_floor:g}): the data look noise-free to this "
                "model. A lower floor may fit better; it needs float64 data."
            )
        idle = [str(j if input_names is None else input_names[j]) for j in idle_inputs(prior.kernel, data.X, data.y)]
        if idle:
            more = f" and {len(idle) - MOST_LISTED} more" if len(idle) > MOST_LISTED else ""
            found.append(
                f"{len(idle)} of {data.X.shape[1]} inputs hardly matter to this model (less than {IDLE:.0%} of the "
                f"targets' variance, from end to end): {', '.join(idle[:MOST_LISTED])}{more}."
            )
        return found


def prior_of(method: Trainable) -> GP | None:
    """The GP called ``prior`` that a method has, or None."""
    prior = getattr(method, "prior", None)
    return prior if isinstance(prior, GP) else None


def trained(part: nn.Module | None, lr: float) -> ParameterGroup:
    """The parameters of a part that are to be trained, with their learning rate."""
    return ParameterGroup([] if part is None else [p for p in part.parameters() if p.requires_grad], lr)


def drawn_rows(seed: int, step: int, num_rows: int, batch_size: int) -> Int[Tensor, " b"]:
    """Row numbers drawn with replacement, which depend on these arguments alone. Time O(b): a permutation would cost
    O(n), and with many rows drawing one twice is rare and does no harm.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (step + 1))
    return torch.randint(num_rows, (batch_size,), generator=generator)


@torch.no_grad()
def idle_inputs(kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[int]:
    """Columns that vary and hardly matter: from their smallest value to their largest, the prior lets f change little.

    The variance of the change is k(a, a) - 2k(a, b) + k(b, b), a and b the mean row with either value there. Time
    O(d²), memory O(tile).
    """
    low, high = X.amin(0).double(), X.amax(0).double()
    middle, change = column_statistics(X).mean, torch.empty_like(low)
    for columns in torch.arange(len(low), device=X.device).split(max(1, IDLE_ELEMENTS // len(low))):
        A = middle.repeat(len(columns), 1)
        B = A.scatter(1, columns[:, None], high[columns, None])
        A = A.scatter(1, columns[:, None], low[columns, None])
        change[columns] = kernel.diag(A) - 2 * kernel(A[:, None], B[:, None])[:, 0, 0] + kernel.diag(B)
    return ((change < IDLE * column_statistics(y[:, None]).variance) & (high > low)).nonzero()[:, 0].tolist()
