"""Data and methods to fit, and what it means that two fits are the same."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from cagp import GP, CaGPOpt
from cagp.kernels import Matern32, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.training import FitResult, ParameterGroup, Step, Trainable

CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"
NOTHING = (torch.zeros(1, 1), torch.zeros(1))  # the data of methods that need none


def wave(n: int = 60, d: int = 1, noise: float = 0.1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    X = 6 * torch.rand(n, d, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + noise * torch.randn(n, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype)


def method(X: Tensor, num_actions: int = 12, **choices) -> CaGPOpt:
    return CaGPOpt.from_data(GP(Scale(Matern32(X.shape[1]))), X, num_actions, **choices)


class Bowl(Trainable):
    """(x - 1)² + (y + 2)², which does at its k-th call, counted from 0, what ``failures[k]`` says.

    Args:
        failures: "nan", "gradient" (not finite, the loss is), "indefinite" (NotPositiveDefiniteError), "interrupt".
        always: what it does at every call from this one on.
    """

    def __init__(self, failures: dict[int, str] | None = None, always: tuple[int, str] | None = None):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.failures, self.always = failures or {}, always
        self.visited: list[Tensor] = []
        self.on_call: Callable[[], None] = lambda: None

    def value(self, x: Tensor) -> Tensor:
        return (x - torch.tensor([1.0, -2.0], dtype=torch.float64)).square().sum()

    def terms(self, data, batch) -> dict[str, Tensor]:
        self.on_call()
        call = len(self.visited)
        self.visited.append(self.x.detach().clone())
        failure = self.failures.get(call)
        if self.always is not None and call >= self.always[0]:
            failure = self.always[1]
        loss = self.value(self.x)
        if failure == "nan":
            loss = loss * math.nan
        elif failure == "gradient":
            loss = loss + (self.x - self.x.detach()).square().sum().sqrt()
        elif failure == "indefinite":
            raise NotPositiveDefiniteError("SKS (2 x 2) is not positive definite. Probable causes: none.")
        elif failure == "interrupt":
            raise KeyboardInterrupt
        return {"bowl": loss}

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": ParameterGroup([self.x], 0.2)}

    def hyperparameters(self) -> dict[str, list[float]]:
        return {"x": self.x.tolist()}


def without_seconds(steps: list[Step]) -> list[dict]:
    return [{name: value for name, value in asdict(step).items() if name != "seconds"} for step in steps]


def history_of(folder: Path) -> list[dict]:
    """The steps on disk without their seconds, by a strict reader of JSON."""

    def refuse(text: str):
        raise AssertionError(f"{text} is not JSON")

    lines = (folder / HISTORY).read_text().splitlines()
    steps = [json.loads(line, parse_constant=refuse) for line in lines]
    return [{name: value for name, value in step.items() if name != "seconds"} for step in steps]


def assert_same_tensors(actual, expected) -> None:
    assert list(actual) == list(expected)
    for name in expected:
        assert actual[name].dtype == expected[name].dtype
        assert torch.equal(actual[name], expected[name]), name


def assert_same_fit(actual: tuple[nn.Module, FitResult], expected: tuple[nn.Module, FitResult]) -> None:
    """Bit for bit, but for the time it took."""
    assert_same_tensors(actual[0].state_dict(), expected[0].state_dict())
    assert without_seconds(actual[1].steps) == without_seconds(expected[1].steps)
    for name in ("best_step", "best_value", "failures", "reason"):
        assert getattr(actual[1], name) == getattr(expected[1], name)


class CrashError(Exception):
    """The process ended here."""


def crash_at(number: int) -> Callable[[Step], None]:
    def callback(step: Step) -> None:
        if step.number == number:
            raise CrashError

    return callback
