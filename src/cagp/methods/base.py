"""What every method is: something ``fit`` can train, and that conditions on data."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.dataset import Data
from cagp.parameters import named_values
from cagp.posteriors import Posterior, Prediction
from cagp.prior import GP
from cagp.training import Batch, ParameterGroup, Trainable
from cagp.training.trainable import Inputs

Targets = Float[Tensor, " n"]
RowNoise = Targets | None  # known noise variances

HYPERPARAMETER_RATE = 0.2
"""Adam's learning rate of everything in the prior; docs/training.md has the evidence."""


class Method(Trainable):
    """Parameters, an objective of the data, and a posterior given them.

    A method of your own needs ``terms`` and ``posterior``. If it has a GP called ``prior``, the history of a fit shows
    its hyperparameters.
    """

    @abstractmethod
    def posterior(self, data: Data) -> Posterior:
        """The posterior given checked data, as a snapshot that further training does not change."""

    def condition(
        self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None, **options: Any
    ) -> Posterior:
        """The posterior given the data, as a snapshot that further training does not change.

        Args:
            options: those of ``posterior`` of the method.
        """
        return self.posterior(self.checked(X, y, row_noise), **options)

    def marginals(self, data: Data) -> Prediction:
        """Mean and variance of the function at each of the rows themselves, given all that ``posterior`` sees."""
        return self.posterior(data).predict(data.X)

    def check(self, data: Data) -> None:
        """Raise ValueError unless checked data suit the method."""
        super().check(data)
        prior = prior_of(self)
        if prior is not None:
            prior.noise.check(data.row_noise)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share."""
        return {"hyperparameters": trained(self, HYPERPARAMETER_RATE)}

    def hyperparameters(self) -> dict[str, Any]:
        """Parameters of the prior as numbers in their own units, for the history of a fit."""
        prior = prior_of(self)
        return {} if prior is None else named_values(prior)


def prior_of(method: Trainable) -> GP | None:
    """The GP called ``prior`` that a method has, or None."""
    prior = getattr(method, "prior", None)
    return prior if isinstance(prior, GP) else None


def trained(part: nn.Module | None, lr: float) -> ParameterGroup:
    """The parameters of a part that are to be trained, with their learning rate."""
    return ParameterGroup([] if part is None else [p for p in part.parameters() if p.requires_grad], lr)


def drawn_rows(seed: int, step: int, num_rows: int, batch_size: int) -> Int[Tensor, " b"]:
    """``batch_size`` of ``num_rows`` row numbers, drawn with replacement: they depend on these numbers alone.

    Time O(b): a permutation would cost O(n), and with many rows drawing one twice is rare and does no harm.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (step + 1))
    return torch.randint(num_rows, (batch_size,), generator=generator)


def check_all_rows(batch: Batch, method: str) -> None:
    """Raise ValueError if ``rows`` are given to a method whose objective always needs all rows."""
    if batch.rows is not None:
        raise ValueError(f"rows is given, but the objective of {method} needs all rows: leave rows at None.")
