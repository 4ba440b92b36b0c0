"""How to train: optimiser, learning rates, schedule, stopping. Presets hold choices that belong together."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from cagp.quantities import seconds_of

OPTIMIZERS = ("adam", "lbfgs")
SCHEDULES = ("linear", "constant", "cosine")


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
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {', '.join(known)}.")
        for name in ("num_steps", "window", "evaluate_every", "checkpoint_steps", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                none = ", or None" if name == "patience" else ""
                raise ValueError(f"{name} is {value}, expected at least 1{none}.")
        for name in ("warmup_steps", "max_failures"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, expected zero or more.")
        if not 0 < self.schedule_end <= 1:
            raise ValueError(f"schedule_end is {self.schedule_end}, expected a fraction above 0, at most 1.")
        if self.optimizer == "lbfgs" and isinstance(self.lr, Mapping):
            raise ValueError(f"lr is {self.lr}, L-BFGS takes one rate for all parameters.")
        rates = self.lr.values() if isinstance(self.lr, Mapping) else [1.0 if self.lr is None else self.lr]
        if not all(math.isfinite(rate) and rate >= 0 for rate in rates):
            raise ValueError(f"lr is {self.lr}, expected finite rates, zero or above.")
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
