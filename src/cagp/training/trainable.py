"""What ``fit`` needs of a method, and how processes share a step. Nothing here knows a Gaussian process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_vector
from cagp.dataset import AnyTargets, Data
from cagp.linalg import NotPositiveDefiniteError
from cagp.ranks import Ranks

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

    def part(self, ranks: Ranks, num_rows: int) -> "tuple[Rows | None, float]":
        """The rows of this process, None for all, and what their loss weighs in that of the step.

        Each term of a loss is a mean over rows or does not depend on them: with these weights the losses of the parts
        add up to that of the step. A loss that needs all rows at once is computed by process 0, without the others.
        """
        if ranks.size == 1:
            return self.drawn, 1.0
        if self.share is not None:
            return self.drawn, self.share
        if self.drawn is None and not self.divisible:
            return None, float(ranks.is_first)
        whole = torch.arange(num_rows) if self.drawn is None else self.drawn
        part = ranks.part(whole)
        return part, len(part) / len(whole)

    def words(self, ranks: Ranks) -> list[str]:
        """How the processes shared each step, for the report of a fit."""
        if ranks.size == 1:
            return []
        if self.drawn is None and not self.divisible:
            others = "the other one" if ranks.size == 2 else f"the other {ranks.size - 1}"
            return [f"The loss needs all rows at once: process 0 computed it alone, and {others} waited."]
        return [f"{ranks.size} processes shared the rows of each step."]


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

    def check_all_rows(self, method: str) -> None:
        """Raise ValueError if rows are given to a method whose objective needs all of them."""
        if self.rows is not None:
            raise ValueError(f"rows is given, but the objective of {method} needs all rows: leave rows at None.")


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
        return {"parameters": ParameterGroup([p for p in self.parameters() if p.requires_grad], lr=0.2)}

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

    def check_same(self, ranks: Ranks, data: Data) -> None:
        """Raise ValueError on all processes unless each has the same data and the same object. Time O(n d)."""
        if ranks.size == 1:
            return
        numbers: dict[str, int | float] = {
            "the number of inputs": data.X.shape[1],
            "the number of parameters": sum(p.numel() for p in self.parameters()),
        }
        if self.rows(0, data.num_rows).share is not None:
            ranks.check_same(numbers, "give every process the same options")
            return
        numbers = {"the number of rows": data.num_rows, **numbers}
        for what, values in (("all inputs", data.X), ("all targets", data.y), ("the known noise", data.row_noise)):
            total = 0.0 if values is None else float(values.abs().sum(dtype=torch.float64))
            numbers[f"the sum of {what}, without their signs"] = total
        ranks.check_same(numbers, "give every process the whole table and the same options")

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


# ---- steps that can fail, and that several processes take: sums go around once ----

MOST_TERMS = 16
"""Terms that a loss can have where several processes add it up: a process without rows does not know how many."""


class StepError(ArithmeticError):
    """The loss or its gradient cannot be used."""


LinAlgError: type[Exception] = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]
FAILURES: tuple[type[Exception], ...] = (StepError, NotPositiveDefiniteError, LinAlgError)
"""What a step that is taken back can raise."""


def added_up(
    ranks: Ranks,
    parameters: Sequence[nn.Parameter],
    weight: float,
    compute: Callable[[], tuple[Tensor, dict[str, float]]],
    device: torch.device,
) -> tuple[Tensor, dict[str, float]]:
    """Loss, terms and gradients of all processes together, in one exchange of float64; ``compute`` gives those of this
    process, and is not called without a weight. If one fails, all raise ``StepError``.
    """
    if ranks.size == 1:
        return compute()
    terms: dict[str, float] = {}
    problem: Exception | None = None
    try:
        if weight > 0:
            _, terms = compute()
    except FAILURES as error:
        problem = error
    if len(terms) > MOST_TERMS:
        raise ValueError(f"the loss has {len(terms)} terms; several processes add up at most {MOST_TERMS}.")
    sizes = [ranks.size, MOST_TERMS, len(parameters), *(parameter.numel() for parameter in parameters)]
    flat = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
    failed, sums, known, *gradients = flat.split(sizes)
    failed[ranks.rank] = float(problem is not None)
    sums[: len(terms)] = torch.tensor(list(terms.values()), dtype=torch.float64)
    for j, parameter in enumerate(parameters):
        if parameter.grad is not None:
            known[j] = 1.0
            gradients[j].copy_(parameter.grad.flatten())
    failed, sums, known, *gradients = ranks.add_up(flat).split(sizes)
    if bool(failed.any()):
        raise StepError(ranks.words_of(int(failed.nonzero()[0, 0]), "" if problem is None else str(problem)))
    for j, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        parameter.grad = gradient.view(parameter.shape).to(parameter) if known[j] else None
    return sums.sum(), dict(zip(terms, sums.tolist(), strict=False))
