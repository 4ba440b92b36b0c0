"""Adam (Kingma and Ba, 2015), with the same bits as ``torch.optim.Adam``."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


@final
class Adam:
    """Moves each parameter by its averaged gradient over the root of its averaged squared gradient.

    The first optimiser of torch in a process loads its compiler, which costs more than a second of processor time, as
    much as a small fit. Nothing here is compiled, so these few lines save it.

    Attributes:
        state: "step", "exp_avg" and "exp_avg_sq" of each parameter that had a gradient, by its number, as torch has it.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]]):
        self.groups = [list(group) for group in groups]
        self.state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, rates: Sequence[float]) -> None:
        """Move the parameters of each group at its rate; those without a gradient stay."""
        rated = [(parameter, rate) for group, rate in zip(self.groups, rates, strict=True) for parameter in group]
        for number, (parameter, rate) in enumerate(rated):
            if parameter.grad is None:
                continue
            state = self.state.setdefault(number, _first(parameter))
            state["step"] += 1
            mean, square, steps = state["exp_avg"], state["exp_avg_sq"], float(state["step"])
            mean.lerp_(parameter.grad, 1 - MEAN_DECAY)
            square.mul_(SQUARE_DECAY).addcmul_(parameter.grad, parameter.grad, value=1 - SQUARE_DECAY)
            # Both averages start at zero, and are divided by what that makes them too small by.
            root = (square.sqrt() / (1 - SQUARE_DECAY**steps) ** 0.5).add_(EPSILON)
            parameter.addcdiv_(mean, root, value=-rate / (1 - MEAN_DECAY**steps))


def _first(parameter: Tensor) -> dict[str, Tensor]:
    """Before the first step."""
    zeros = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
