"""Optimisers behind one function: evaluate the loss and move the parameters once."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cagp.training.adam import Adam
from cagp.training.settings import Settings
from cagp.training.trainable import ParameterGroup

Evaluate = Callable[[], Tensor]
"""Computes the loss and its gradients; raises if either is not finite."""


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
        return torch.optim.LBFGS(
            self.parameters, max_iter=1, max_eval=25, line_search_fn="strong_wolfe", history_size=20
        )

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
        return {"shrink": self.shrink, "torch": _copy({str(key): value for key, value in state.items()})}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of ``state``; ValueError where it is that of other parameters."""
        for key, part in state["torch"].items():
            _check_moments(part, self.parameters[int(key)], self.parameters)
        self.shrink = state["shrink"]
        self.rule = self._new()
        parts = {int(key): value for key, value in _copy(state["torch"]).items()}
        if isinstance(self.rule, Adam):
            self.rule.state = parts
        else:
            self.rule.load_state_dict({"state": parts, "param_groups": self.rule.state_dict()["param_groups"]})


def _check_moments(part: dict[str, Any], parameter: Tensor, all_of_them: list[nn.Parameter]) -> None:
    """Raise ValueError unless what an optimiser remembers has the sizes of the parameters."""
    if "exp_avg" in part:
        if part["exp_avg"].shape != parameter.shape or part["exp_avg"].dtype != parameter.dtype:
            raise ValueError(f"the optimiser remembers {tuple(part['exp_avg'].shape)} of {tuple(parameter.shape)}")
        return
    size = sum(p.numel() for p in all_of_them)
    vectors = [part.get(name) for name in ("d", "prev_flat_grad")] + part.get("old_dirs", []) + part.get("old_stps", [])
    if any(isinstance(vector, Tensor) and vector.shape != (size,) for vector in vectors):
        raise ValueError("the optimiser remembers vectors of other parameters")


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value
