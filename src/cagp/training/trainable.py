"""What ``fit`` needs of a method: an objective, and what to do before each step. It knows no Gaussian process."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_data

DEFAULT_RATE = 0.2

Inputs = Float[Tensor, "n d"]
AnyTargets = Float[Tensor, "n *q"]  # one column, or several
AnyNoise = AnyTargets | None  # known noise variances
Rows = Int[Tensor, " b"]  # row numbers
Terms = dict[str, Float[Tensor, ""]]  # named parts of a loss


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate."""

    parameters: list[nn.Parameter]
    lr: float  # Adam's, unless the settings of a fit say otherwise


class Trainable(nn.Module, ABC):
    """Parameters and an objective of the data. Data are arguments; nothing here holds them.

    A class of your own needs ``objective_terms`` alone. Evaluating an objective changes nothing: what changes from step
    to step is an argument (``rows``), or happens in ``prepare``, which ``fit`` calls before each step.
    """

    stochastic: bool = False
    """Whether the objective of a step is an estimate from some of the rows. Its smallest value then means nothing, and
    a fit keeps the last parameters unless it monitors something else."""

    own_share: float | None = None
    """Where each process has rows of its own: what the loss of its minibatch weighs in that of all processes. None: all
    processes have the same rows, and divide them."""

    @abstractmethod
    def objective_terms(
        self, X: Inputs, y: AnyTargets, row_noise: AnyNoise = None, *, rows: Rows | None = None
    ) -> Terms:
        """Named terms per row whose sum is the loss, differentiable in the parameters.

        The data are not checked here: ``fit`` and ``objective`` call ``check`` first.

        Args:
            rows: the rows to estimate the loss from; None for all rows.
        """

    def objective(
        self, X: Inputs, y: AnyTargets, row_noise: AnyNoise = None, *, rows: Rows | None = None
    ) -> Float[Tensor, ""]:
        """The loss per row of checked data, to be minimised over all parameters."""
        self.check(X, y, row_noise)
        check_rows(rows, X.shape[0])
        return torch.stack(list(self.objective_terms(X, y, row_noise, rows=rows).values())).sum()

    def check(self, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
        """Raise ValueError unless the data fit together and suit this object. ``fit`` calls it once."""
        check_data(X, y, row_noise)

    def minibatch(self, step: int, num_rows: int) -> Int[Tensor, " b"] | None:
        """The rows that a step uses; None for all. They depend on this object's own seed, the step and ``num_rows``.

        Args:
            step: the number of the step, counted from 0.
        """
        return None

    def divisible_rows(self, num_rows: int) -> Int[Tensor, " b"] | None:
        """The rows that the loss of all rows is a mean over, besides terms that do not depend on rows.

        None if ``objective_terms`` cannot be computed from parts of the rows. Several processes then cannot share it.
        """
        return None

    def prepare(
        self, X: Inputs, y: AnyTargets, row_noise: AnyNoise, *, step: int, share: float, flat: bool, rows: Rows | None
    ) -> str | None:
        """Change what the optimiser does not change (blocks, a variational distribution) before a step of a fit.

        Args:
            step: the number of the step, counted from 0.
            share: the fraction of all steps that were taken.
            flat: whether the loss has stopped falling since the last change.
            rows: the rows of the step, from ``minibatch``.

        Returns:
            What was done, in words, if the objective is now a different function; otherwise None.
        """
        return None

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share."""
        return {"parameters": ParameterGroup([p for p in self.parameters() if p.requires_grad], DEFAULT_RATE)}

    def hyperparameters(self) -> dict[str, Any]:
        """Readable values for the history of a fit."""
        return {}

    def findings(self, X: Inputs, y: AnyTargets, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know after a fit, in words.

        Args:
            input_names: what the columns of ``X`` are called; None for their numbers.
        """
        return []


def check_rows(rows: Tensor | None, num_rows: int) -> None:
    """Raise ValueError unless ``rows`` is None or a vector of at least one row number below ``num_rows``."""
    if rows is None:
        return
    if not isinstance(rows, Tensor) or rows.is_floating_point() or rows.dtype == torch.bool or rows.ndim != 1:
        found = (
            f"a {rows.dtype} tensor of shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        )
        raise ValueError(f"rows is {found}, expected a vector of row numbers, e.g. torch.arange(100).")
    if len(rows) == 0:
        raise ValueError("rows is empty, expected at least one row number.")
    if not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
        raise ValueError(f"rows go from {int(rows.min())} to {int(rows.max())}, expected row numbers below {num_rows}.")
