"""Training: ``fit`` minimises a method's objective and knows nothing of Gaussian processes."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn


class Trainable(Protocol):
    """What ``fit`` needs of a method: parameters, and an objective of the data that is differentiable in them."""

    def objective(self, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> Tensor: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class Step(NamedTuple):
    """One optimiser step: its number from 1, the loss before it, and the seconds since the start."""

    number: int
    loss: float
    seconds: float


def fit(
    method: Trainable,
    X: Tensor,
    y: Tensor,
    row_noise: Tensor | None = None,
    *,
    num_steps: int = 100,
    lr: float = 0.1,
    actions_lr: float | None = None,
    callback: Callable[[Step], None] | None = None,
) -> list[Step]:
    """Minimise ``method.objective`` by Adam, in place, with the paper's linear schedule; return the steps taken.

    Args:
        lr: learning rate of the hyperparameters at the first step; it falls linearly to a tenth.
        actions_lr: learning rate of the actions; None for ``lr``.
        callback: called after every step, for progress bars.
    """
    named = [(name, p) for name, p in method.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if not name.startswith("actions.")], "lr": lr},
        {
            "params": [p for name, p in named if name.startswith("actions.")],
            "lr": lr if actions_lr is None else actions_lr,
        },
    ]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]])
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, max(1, num_steps - 1))
    steps: list[Step] = []
    start = time.perf_counter()
    for number in range(1, num_steps + 1):
        optimizer.zero_grad()
        loss = method.objective(X, y, row_noise)
        loss.backward()
        optimizer.step()
        schedule.step()
        steps.append(Step(number, loss.item(), time.perf_counter() - start))
        if callback is not None:
            callback(steps[-1])
    return steps
