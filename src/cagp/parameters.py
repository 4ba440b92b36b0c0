"""Positive parameters: optimised without bounds, read in their own units."""

import math
from typing import Any, overload

import torch
from torch import Tensor, nn


class Positive:
    """Descriptor: ``lengthscale = Positive()`` is stored as ``raw_lengthscale`` and read as exp(raw) + floor.

    A step of an optimiser is then a change in proportion, whether a lengthscale is 0.1 or, of an input that does not
    matter, 100,000, or a noise variance 1e-7; see docs/training.md for what that is worth.

    Parameters are float64 whatever the dtype of the data: there are few of them, and they are cast where they meet it.
    """

    def __init__(self, floor: float = 0.0):
        self.floor = floor

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, module: None, owner: type) -> "Positive": ...
    @overload
    def __get__(self, module: nn.Module, owner: type) -> Tensor: ...
    def __get__(self, module: nn.Module | None, owner: type) -> "Positive | Tensor":
        if module is None:
            return self
        value, floor = torch.exp(getattr(module, f"raw_{self.name}")), self.floor_of(module)
        return value + floor if floor else value

    def __set__(self, module: nn.Module, value: Any) -> None:
        value = torch.as_tensor(value, dtype=torch.float64).detach()
        floor = self.floor_of(module)
        if not bool((torch.isfinite(value) & (value > floor)).all()):
            raise ValueError(f"{self.name} is {value.tolist()}, expected finite values above {floor:g}.")
        raw = torch.log(value - floor)
        if hasattr(module, f"raw_{self.name}"):
            with torch.no_grad():
                getattr(module, f"raw_{self.name}").copy_(raw)
        else:
            module.register_parameter(f"raw_{self.name}", nn.Parameter(raw))

    def floor_of(self, module: nn.Module) -> float:
        """The smallest value: the instance's own ``<name>_floor`` where it has one."""
        floor = getattr(module, f"{self.name}_floor", self.floor)
        if not (math.isfinite(floor) and floor >= 0):
            raise ValueError(f"{self.name}_floor is {floor}, expected a finite number, zero or above.")
        return floor


def named_values(module: nn.Module) -> dict[str, Any]:
    """Every parameter of the module as plain numbers in its own unit, by a name like "kernel.lengthscale"."""
    values: dict[str, Any] = {}
    for path, part in module.named_modules():
        for name, _ in part.named_parameters(recurse=False):
            name = name.removeprefix("raw_")
            values[f"{path}.{name}" if path else name] = getattr(part, name).detach().tolist()
    return values
