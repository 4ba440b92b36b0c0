"""How to train: settings and presets, and the optimisers: Adam (Kingma and Ba, 2015) or L-BFGS."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from cagp.fields import Fields, Sizes, checked, integer, list_of, numbers, optional, real
from cagp.quantities import seconds_of
from cagp.training.history import is_like
from cagp.training.trainable import ParameterGroup


@dataclass(frozen=True)
class Settings:
    """What a fit does; each field can also be an argument of ``fit``.

    Args:
        optimizer: "adam", or "lbfgs" with a strong-Wolfe line search, for float64 data.
        num_steps: the largest number of optimiser steps.
        lr: learning rate, one for all parameters or (Adam) one for each group that ``parameter_groups`` of the method
            names. None: the rates stated there, or 1 for L-BFGS.
        schedule: how the learning rate falls: "linear" or "cosine" to ``schedule_end`` times its start, or "constant".
        warmup_steps: steps in which it first rises linearly from zero.
        max_time: wall-clock budget, in seconds or as text ("90s", "10min", "1.5h"); evaluations do not count.
        min_improvement: stop when the mean loss of the last ``window`` steps improves on that of the ``window`` before
            by less than this fraction of all improvement so far. None: never.
        min_gain: stop when a step lowers the loss by less than this, in units of the loss; for a loss without noise and
            a start near its minimum. None: never.
        patience: stop after this many evaluations without a better ``monitor``. None: never.
        monitor: what decides which parameters are best: "loss", or a name that ``evaluate`` returns; lower is better.
        evaluate_every: steps between evaluations.
        max_failures: how many steps may fail before the fit ends (a loss or gradient that is not finite, a matrix that
            cannot be factorised); each failure halves the learning rates.
        checkpoint_steps: steps between checkpoints, if there is a folder for them.
        checkpoint_seconds: the longest time between checkpoints, in seconds.
    """

    optimizer: Literal["adam", "lbfgs"] = "adam"
    num_steps: int = 300
    lr: float | Mapping[str, float] | None = None
    schedule: Literal["linear", "constant", "cosine"] = "linear"
    schedule_end: float = 0.1
    warmup_steps: int = 0
    max_time: float | str | None = None
    min_improvement: float | None = None
    window: int = 20
    min_gain: float | None = None
    patience: int | None = None
    monitor: str = "loss"
    evaluate_every: int = 10
    max_failures: int = 10
    checkpoint_steps: int = 50
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        rates = self.lr.values() if isinstance(self.lr, Mapping) else [1.0 if self.lr is None else self.lr]
        counts = ("num_steps", "window", "evaluate_every", "checkpoint_steps")
        expected = {
            "optimizer": (self.optimizer in ("adam", "lbfgs"), "one of adam, lbfgs"),
            "schedule": (self.schedule in ("linear", "constant", "cosine"), "one of linear, constant, cosine"),
            **{name: (getattr(self, name) >= 1, "at least 1") for name in counts},
            "patience": (self.patience is None or self.patience >= 1, "at least 1, or None"),
            **{name: (getattr(self, name) >= 0, "zero or more") for name in ("warmup_steps", "max_failures")},
            "schedule_end": (0 < self.schedule_end <= 1, "a fraction above 0, at most 1"),
            "lr": (all(math.isfinite(rate) and rate >= 0 for rate in rates), "finite rates, zero or above"),
        }
        for name, (is_right, words) in expected.items():
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected {words}.")
        if self.optimizer == "lbfgs" and isinstance(self.lr, Mapping):
            raise ValueError(f"lr is {self.lr}, L-BFGS takes one rate for all parameters.")
        seconds_of(self.max_time)

    def lr_of(self, group: str, default: float) -> float:
        """The learning rate of a group of parameters at the start; ``default`` is the group's own."""
        rates = self.lr
        if rates is None:
            return default if self.optimizer == "adam" else 1.0
        if not isinstance(rates, Mapping):
            return rates
        if group not in rates:
            raise ValueError(f"lr has no rate for the parameters called {group!r}; it has {', '.join(rates)}.")
        return rates[group]

    def lr_factor(self, step: int) -> float:
        """What the learning rates are multiplied by at this step, counted from 0."""
        warm = min(1.0, (step + 1) / (self.warmup_steps + 1))
        progress = step / max(1, self.num_steps - 1)
        if self.schedule == "constant":
            return warm
        fall = progress if self.schedule == "linear" else (1 - math.cos(math.pi * progress)) / 2
        return warm * (1 + (self.schedule_end - 1) * fall)

    def with_changes(self, **changes: Any) -> "Settings":
        """These settings with some fields replaced."""
        unknown = sorted(set(changes) - set(asdict(self)))
        if unknown:
            raise ValueError(f"unknown setting {unknown[0]!r}; there are {', '.join(asdict(self))}.")
        return replace(self, **changes)


PRESETS: dict[str, Settings] = {
    "default": Settings(),
    # The paper's two ways, at the learning rates its table reports for CaGP-Opt most often (Table S1).
    "paper-adam": Settings(num_steps=1000, lr=1.0),
    "paper-lbfgs": Settings(optimizer="lbfgs", num_steps=100, lr=1.0),
}


# ---- optimisers ----

MEAN_DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


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

    def step(self, evaluate: Callable[[], Tensor], step: int) -> Tensor:
        """The loss before the parameters are moved once; ``evaluate`` computes it, and its gradients."""
        rates = self.rates(step)
        if isinstance(self.rule, Adam):
            loss = evaluate()
            self.rule.step(list(rates.values()))
            return loss
        self.rule.param_groups[0]["lr"] = next(iter(rates.values()))
        return self.rule.step(evaluate)  # pyright: ignore[reportCallIssue, reportArgumentType]

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
            like = all(is_like(part, _first(parameters[key])) and part["step"] >= 1 for key, part in parts.items())
            return like and all(bool((part["exp_avg_sq"] >= 0).all()) for part in parts.values())
        return all(_is_lbfgs(part, sum(p.numel() for p in self.parameters)) for part in parts.values())


def _number(value: Any, sizes: Sizes) -> Any:
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
    try:
        checked(part, {name: LBFGS[name] for name in part}, {"size": size})
    except (KeyError, TypeError, ValueError):
        return False
    return isinstance(part, dict)


def copied(value: Any) -> Any:
    """The value with copies of its tensors, as dicts and lists."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value
