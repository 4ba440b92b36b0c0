"""Optimisers behind one function: evaluate the loss, move the parameters once. Adam (Kingma and Ba, 2015) or L-BFGS."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from cagp.fields import Fields, Sizes, checked, integer, list_of, numbers, optional, real
from cagp.training.checkpoints import is_like
from cagp.training.settings import Settings
from cagp.training.trainable import ParameterGroup

MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8

Evaluate = Callable[[], Tensor]
"""Computes the loss and its gradients; raises if either is not finite."""


@final
class Adam:
    """Moves each parameter by its averaged gradient over the root of its averaged squared gradient; torch's bits.

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


class Optimizer:
    """Adam or L-BFGS over named groups of parameters, with a schedule that depends on the step alone."""

    def __init__(self, groups: Mapping[str, ParameterGroup], settings: Settings):
        self.settings = settings
        if isinstance(settings.lr, Mapping):
            unknown = sorted(set(settings.lr) - set(groups))
            if unknown:
                raise ValueError(f"lr has a rate for {unknown[0]!r}; the method's groups are {', '.join(groups)}.")
        self.groups = {name: group for name, group in groups.items() if group.parameters}
        self.shrink = 1.0  # halved by every failure
        self.rule = self._new()

    def _new(self) -> Adam | torch.optim.LBFGS:
        if self.settings.optimizer == "adam":
            return Adam([group.parameters for group in self.groups.values()])
        # One step is one iteration; max_eval leaves its line search room, which max_iter=1 alone would not.
        options = {"max_iter": 1, "max_eval": 25, "line_search_fn": "strong_wolfe", "history_size": 20}
        return torch.optim.LBFGS(self.parameters, **options)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order of the groups."""
        return [parameter for group in self.groups.values() for parameter in group.parameters]

    def rates(self, step: int) -> dict[str, float]:
        """The learning rate of each group at this step, counted from 0."""
        factor = self.settings.lr_factor(step) * self.shrink
        return {name: self.settings.lr_of(name, group.lr) * factor for name, group in self.groups.items()}

    def step(self, evaluate: Evaluate, step: int) -> Tensor:
        """Evaluate the loss, move the parameters once, and return the loss before the move."""
        rates = self.rates(step)
        if isinstance(self.rule, Adam):
            loss = evaluate()
            self.rule.step(list(rates.values()))
            return loss
        self.rule.param_groups[0]["lr"] = next(iter(rates.values()))
        return self.rule.step(evaluate)  # pyright: ignore[reportCallIssue, reportArgumentType]

    def clear_gradients(self) -> None:
        """Drop the gradients of the last evaluation."""
        for parameter in self.parameters:
            parameter.grad = None

    def forget(self) -> None:
        """Drop what was learned about a loss that is no longer the same function; Adam's averages stay useful."""
        if self.settings.optimizer == "lbfgs":
            self.rule = self._new()

    def state(self) -> dict[str, Any]:
        """Everything the next step depends on, copied."""
        state = self.rule.state if isinstance(self.rule, Adam) else self.rule.state_dict()["state"]
        return {"shrink": self.shrink, "torch": copied({str(key): value for key, value in state.items()})}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of ``state``."""
        self.shrink = state["shrink"]
        self.rule = self._new()
        parts = {int(key): value for key, value in copied(state["torch"]).items()}
        if isinstance(self.rule, Adam):
            self.rule.state = parts
        else:
            self.rule.load_state_dict({"state": parts, "param_groups": self.rule.state_dict()["param_groups"]})

    def accepts(self, state: dict[str, Any]) -> bool:
        """Whether a state from a file is one of an optimiser of these parameters."""
        if state.keys() != {"shrink", "torch"} or not is_like(state["shrink"], 1.0) or not 0 < state["shrink"] <= 1:
            return False
        parameters = {str(number): parameter for number, parameter in enumerate(self.parameters)}
        parts = state["torch"]
        if not isinstance(parts, dict) or not parts.keys() <= parameters.keys():
            return False
        if isinstance(self.rule, Adam):
            return all(_is_adam(part, parameters[key]) for key, part in parts.items())
        return all(_is_lbfgs(part, sum(p.numel() for p in self.parameters)) for part in parts.values())


def _is_adam(part: Any, parameter: nn.Parameter) -> bool:
    alike = is_like(part, _first(parameter))
    return alike and float(part["step"]) >= 1 and bool((part["exp_avg_sq"] >= 0).all())


def _number(value: Any, sizes: Sizes) -> Any:
    """A number, or a tensor that holds one."""
    return numbers()(value, sizes) if isinstance(value, Tensor) else real()(value, sizes)


LBFGS: Fields = {
    **dict.fromkeys(("func_evals", "n_iter"), integer()),
    **dict.fromkeys(("d", "prev_flat_grad"), optional(numbers("size"))),
    **dict.fromkeys(("old_dirs", "old_stps"), list_of(numbers("size"))),
    **dict.fromkeys(("ro", "al"), list_of(optional(_number))),
    **dict.fromkeys(("H_diag", "t", "prev_loss"), optional(_number)),
}
"""What torch's L-BFGS remembers."""


def _is_lbfgs(part: Any, size: int) -> bool:
    if not isinstance(part, dict) or not part.keys() <= LBFGS.keys():
        return False
    try:
        checked(part, {name: LBFGS[name] for name in part}, {"size": size})
    except ValueError:
        return False
    return True


def copied(value: Any) -> Any:
    """The value with copies of its tensors, as dicts and lists."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value
