"""What ``fit`` needs of a method: an objective, and what to do before each step. It knows no Gaussian process."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_vector
from cagp.dataset import AnyTargets, Data

DEFAULT_RATE = 0.2

Inputs = Float[Tensor, "n d"]
AnyNoise = AnyTargets | None  # known noise variances
Rows = Int[Tensor, " b"]  # row numbers
Terms = dict[str, Float[Tensor, ""]]  # named parts of a loss


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate."""

    parameters: list[nn.Parameter]
    lr: float  # Adam's, unless the settings of a fit say otherwise


class StepRows(NamedTuple):
    """Which rows a step uses."""

    drawn: Rows | None = None  # None: all
    stochastic: bool = False  # the loss is an estimate: a fit keeps the last parameters, not those of its least value
    divisible: bool = False  # the loss of all rows is a mean over them, which processes can share
    share: float | None = None  # each process has rows of its own: the weight of its loss in that of all processes


class Coming(NamedTuple):
    """What a method knows of a step before it is taken."""

    step: int  # its number, counted from 0
    share: float  # of all steps that were taken
    flat: bool  # whether the loss has stopped falling since the last change
    rows: Rows | None  # of the step; None: all
    part: Rows | None  # those that this process computes
    last: "Batch | None" = None  # what this method made before the last step


class Batch(NamedTuple):
    """What an evaluation of the objective uses: made before the step, and passed in."""

    rows: Rows | None = None  # None: all
    prepared: Any = None  # what was looked up before the step, e.g. neighbours: it saves time and changes no value
    event: str | None = None  # what was changed, in words, if the objective is now a different function


class Trainable(nn.Module, ABC):
    """Parameters and an objective of the data. Data are arguments; nothing here holds them.

    A class of your own needs ``terms`` alone. Evaluating an objective changes nothing: what changes from step to step
    is an argument, or happens in ``before_step``.
    """

    @abstractmethod
    def terms(self, data: Data, batch: Batch) -> Terms:
        """Named terms per row whose sum is the loss, differentiable in the parameters; the data were checked.

        Args:
            batch: the rows to estimate the loss from, as ``before_step`` returned them; ``Batch()`` for all rows.
        """

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share."""
        return {"parameters": ParameterGroup([p for p in self.parameters() if p.requires_grad], DEFAULT_RATE)}

    def rows(self, step: int, num_rows: int) -> StepRows:
        """The rows of a step, counted from 0. They depend on this object's own seed, the step and ``num_rows``."""
        return StepRows()

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """Change what the optimiser does not change (blocks, a variational distribution), and make the step's batch."""
        return Batch(coming.part)

    def check(self, data: Data) -> None:
        """Raise ValueError unless checked data suit this object. ``fit`` calls it once."""
        if data.y.ndim != 1:
            check_vector(data.y, "y", data.X)  # raises

    # ---- what users call ----

    def checked(self, X: Inputs | Data, y: AnyTargets | None = None, row_noise: AnyNoise = None) -> Data:
        """The data, if they fit together and suit this object; else ValueError."""
        data = Data.of(X, y, row_noise)
        self.check(data)
        return data

    def objective(
        self, X: Inputs | Data, y: AnyTargets | None = None, row_noise: AnyNoise = None, *, rows: Rows | None = None
    ) -> Float[Tensor, ""]:
        """The loss per row, to be minimised over all parameters; estimated from ``rows``, or from all."""
        data = self.checked(X, y, row_noise)
        check_rows(rows, data.num_rows)
        return torch.stack(list(self.terms(data, Batch(rows)).values())).sum()

    # ---- words ----

    def hyperparameters(self) -> dict[str, Any]:
        """Readable values for the history of a fit."""
        return {}

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know after a fit, in words; ``input_names`` are those of the columns of ``X``."""
        return []


def check_rows(rows: Tensor | None, num_rows: int) -> None:
    """Raise ValueError unless ``rows`` is None or a vector of at least one row number below ``num_rows``."""
    if rows is None:
        return
    if not isinstance(rows, Tensor) or rows.is_floating_point() or rows.dtype == torch.bool or rows.ndim != 1:
        is_tensor = isinstance(rows, Tensor)
        found = f"a {rows.dtype} tensor of shape {tuple(rows.shape)}" if is_tensor else type(rows).__name__
        raise ValueError(f"rows is {found}, expected a vector of row numbers, e.g. torch.arange(100).")
    if len(rows) == 0:
        raise ValueError("rows is empty, expected at least one row number.")
    if not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
        raise ValueError(f"rows go from {int(rows.min())} to {int(rows.max())}, expected row numbers below {num_rows}.")
