"""Checkpoints of fits and tasks of searches: files that may always be deleted to start from scratch."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cagp.storage import State
from cagp.tensor_files import load_state, save_state

KIND, VERSION = "checkpoint", 2
REMEDY = "delete it to start from scratch"


def save_checkpoint(path: Path, state: State) -> None:
    """Write the state; tensors keep their bits."""
    save_state(path, state, KIND, VERSION)


def load_checkpoint(path: Path) -> State:
    """The state in a file; ValueError if the file is not a complete checkpoint of this version."""
    return load_state(path, KIND, VERSION, remedy=REMEDY)


def not_whole(path: Path | str, what: str) -> ValueError:
    """The error for a checkpoint that a fit cannot have written."""
    return ValueError(f"{path} cannot be read: it is not what cagp writes ({what}); {REMEDY}.")


# ---- what the checkpoint of a fit holds ----


def check_run(path: Path, state: State, parameters: Mapping[str, Tensor], num_optimized: int) -> None:
    """Raise ValueError unless the state is one that a fit with these parameters writes.

    Args:
        parameters: of the method before the fit.
        num_optimized: how many of them are optimised.
    """

    def check(right: bool, name: str) -> None:
        if not right:
            raise not_whole(path, f"{name} is not what a fit writes")

    def check_parameters(found: Any, name: str) -> None:
        check(isinstance(found, dict) and found.keys() == parameters.keys(), name)
        for key, like in parameters.items():
            value = found[key]
            check(isinstance(value, Tensor), f"{name} {key}")
            check(value.dtype == like.dtype and value.ndim == like.ndim and _is_finite(value), f"{name} {key}")
            # The number of blocks of actions can change, and with it a tensor of integers.
            check(value.shape == like.shape or not like.is_floating_point(), f"{name} {key}")

    def check_optimizer(found: Any, name: str) -> None:
        check(isinstance(found, dict) and found.keys() == {"shrink", "torch"}, name)
        check(_is_number(found["shrink"]) and 0 < found["shrink"] <= 1, f"{name} shrink")
        moments = found["torch"]
        check(isinstance(moments, dict) and all(_is_place(key, num_optimized) for key in moments), name)
        for key, part in moments.items():
            check(isinstance(part, dict), f"{name} {key}")
            if part.keys() == ADAM:
                check(_is_adam(part), f"{name} {key}")
            else:
                check(part.keys() <= LBFGS and _is_lbfgs(part), f"{name} {key}")

    for name in ("steps", "without_gain", "changed_at"):
        check(_is_count(state.get(name)), name)
    check(_is_number(state.get("seconds")) and 0 <= state["seconds"] < math.inf, "seconds")
    for name in ("failures", "events"):
        lines = state.get(name)
        check(isinstance(lines, list) and all(isinstance(line, str) for line in lines), name)
    check_parameters(state.get("parameters"), "parameters")
    check_optimizer(state.get("optimizer"), "optimizer")
    good, best = state.get("good"), state.get("best")
    check("good" in state and (good is None or (isinstance(good, dict) and good.keys() == GOOD)), "good")
    if good is not None:
        check_parameters(good["parameters"], "good parameters")
        check_optimizer(good["optimizer"], "good optimizer")
    check(isinstance(best, dict) and best.keys() == BEST, "best")
    assert isinstance(best, dict)
    check(_is_number(best["value"]) and not math.isnan(best["value"]) and _is_count(best["step"]), "best")
    check_parameters(best["parameters"], "best parameters")


GOOD, BEST = {"parameters", "optimizer"}, {"value", "step", "parameters"}
ADAM = {"step", "exp_avg", "exp_avg_sq"}
COUNTS, VECTORS = {"func_evals", "n_iter"}, {"d", "prev_flat_grad", "H_diag", "t", "prev_loss"}
LISTS = {"old_dirs", "old_stps", "ro", "al"}
LBFGS = COUNTS | VECTORS | LISTS
"""What torch's optimisers remember."""


def _is_adam(part: dict[str, Any]) -> bool:
    if not all(isinstance(value, Tensor) and _is_finite(value) for value in part.values()):
        return False
    step, mean, square = part["step"], part["exp_avg"], part["exp_avg_sq"]
    alike = mean.shape == square.shape and mean.dtype == square.dtype and mean.is_floating_point()
    return alike and step.ndim == 0 and float(step) >= 1 and bool((square >= 0).all())


def _is_lbfgs(part: dict[str, Any]) -> bool:
    numbers = [value for name, value in part.items() if name in VECTORS]
    lists = [value for name, value in part.items() if name in LISTS]
    if not all(_is_count(part[name]) for name in COUNTS & part.keys()) or not all(isinstance(x, list) for x in lists):
        return False
    numbers += [value for values in lists for value in values if value is not None]
    return all(_is_number(value) or (isinstance(value, Tensor) and _is_finite(value)) for value in numbers)


def _is_place(key: Any, count: int) -> bool:
    return isinstance(key, str) and key.isdecimal() and key.isascii() and int(key) < count


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())
