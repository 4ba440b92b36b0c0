"""A step that several processes take together: each computes its part of the rows, and sums go around once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cagp.dataset import Data
from cagp.ranks import Ranks
from cagp.training.trainable import Rows, StepRows, Trainable

MOST_TERMS = 16
"""Terms that a loss can have where several processes add it up: a process without rows does not know how many."""


class StepError(ArithmeticError):
    """The loss or its gradient cannot be used."""


def part_of_step(ranks: Ranks, step: StepRows, num_rows: int) -> tuple[Rows | None, float]:
    """This process's rows of a step, and what their loss weighs in that of the step; None for all rows.

    Each term of a loss is a mean over rows or does not depend on them: with these weights the losses of the parts add
    up to that of the step. A loss that needs all rows at once is computed by process 0, without the others.
    """
    if ranks.size == 1:
        return step.drawn, 1.0
    if step.share is not None:
        return step.drawn, step.share
    if step.drawn is None and not step.divisible:
        return None, float(ranks.is_first)
    whole = torch.arange(num_rows) if step.drawn is None else step.drawn
    part = ranks.part(whole)
    return part, len(part) / len(whole)


def words_on_sharing(ranks: Ranks, step: StepRows) -> list[str]:
    """How the processes shared each step, for the report of a fit."""
    if ranks.size == 1:
        return []
    if step.drawn is None and not step.divisible:
        others = "the other one" if ranks.size == 2 else f"the other {ranks.size - 1}"
        return [f"The loss needs all rows at once: process 0 computed it alone, and {others} waited."]
    return [f"{ranks.size} processes shared the rows of each step."]


def added_up(
    ranks: Ranks,
    parameters: Sequence[nn.Parameter],
    weight: float,
    compute: Callable[[], tuple[Tensor, dict[str, float]]],
    failures: tuple[type[Exception], ...],
    device: torch.device,
) -> tuple[Tensor, dict[str, float]]:
    """Loss, terms and gradients of all processes together, in one exchange of float64.

    Args:
        compute: the weighted loss and terms of this process, and its gradients; not called without a weight.
        failures: what it may raise; all processes then raise ``StepError``.
    """
    if ranks.size == 1:
        return compute()
    terms: dict[str, float] = {}
    problem: Exception | None = None
    try:
        if weight > 0:
            _, terms = compute()
    except failures as error:
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
        words = ranks.words_of(int(failed.nonzero()[0, 0]), "" if problem is None else str(problem))
        raise StepError(words)
    for j, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        parameter.grad = gradient.view(parameter.shape).to(parameter) if known[j] else None
    return sums.sum(), dict(zip(terms, sums.tolist(), strict=False))


def check_same(ranks: Ranks, data: Data, method: Trainable) -> None:
    """Raise ValueError on all processes unless each was given the same data and the same method. Time O(n d)."""
    if ranks.size == 1:
        return
    numbers: dict[str, int | float] = {
        "the number of inputs": data.X.shape[1],
        "the number of parameters": sum(p.numel() for p in method.parameters()),
    }
    if method.rows(0, data.num_rows).share is not None:
        ranks.check_same(numbers, "give every process the same options")
        return
    numbers = {"the number of rows": data.num_rows, **numbers}
    for what, values in (("all inputs", data.X), ("all targets", data.y), ("the known noise", data.row_noise)):
        total = 0.0 if values is None else float(values.abs().sum(dtype=torch.float64))
        numbers[f"the sum of {what}, without their signs"] = total
    ranks.check_same(numbers, "give every process the whole table and the same options")
