"""A kernel in words and numbers, from the state that ``cagp.stored_modules`` makes of it: no torch is needed."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from cagp.kernel_registry import KERNELS
from cagp.quantities import number
from cagp.storage import State

KERNEL_WORDS = {entry.class_name: entry.words for entry in KERNELS.values()}
STATIONARY = {entry.class_name for entry in KERNELS.values() if entry.stationary}
JOINTS = {"Sum": " + ", "Product": " x "}


def kernel_parts(kernel: State, names: Sequence[str], input_std: np.ndarray) -> list[dict[str, Any]]:
    """Every kernel that is added, multiplied, scaled or made for some columns, as plain values.

    Each has its "path" in the whole kernel, what it is in words ("kernel"), whether its class is your "own", the
    "inputs" it sees, its "outputscale" (the product of the scales around it, in units of the targets' variance), its
    "lengthscales" along the inputs and its "periods", each None where it has none, and all its "parameters".

    ``names`` are those of the inputs, ``input_std`` their standard deviations, in which lengthscales are learned.
    """
    return [
        _part(path, part, [names[j] for j in columns], input_std[columns], scale)
        for path, part, columns, scale in _leaves(kernel, "kernel", list(range(len(names))), 1.0)
    ]


def input_lengthscales(parts: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The lengthscale of each input in the first part that has one; NaN where none has."""
    found = {name: {"name": name, "lengthscale": np.nan, "lengthscale_in_std": np.nan} for name in names}
    for part in reversed(parts):
        found |= {entry["name"]: entry for entry in part["lengthscales"] or []}
    return list(found.values())


def modules(module: State, path: str) -> Iterator[tuple[str, State]]:
    """A stored module and those inside it, each with its path, for example "kernel.parts.0"."""
    yield path, module
    for j, part in enumerate([] if module["own"] else module["parts"]):
        yield from modules(part, f"{path}.parts.{j}" if module["class"] in JOINTS else f"{path}.kernel")


def values_of(module: State) -> dict[str, Any]:
    """The parameters of a module in their own units, exp(raw) + floor; those of a class of your own as stored."""
    if module["own"]:
        return {name: np.asarray(values).tolist() for name, values in module["tensors"].items()}
    values = {}
    for name, stored in module["tensors"].items():
        own_name, stored = name.removeprefix("raw_"), np.asarray(stored)
        value = stored if own_name == name else np.exp(stored) + module["floors"].get(f"{own_name}_floor", 0.0)
        values[own_name] = value.tolist()
    return values


def kernel_words(kernel: State, names: Sequence[str]) -> str:
    """A kernel in words, e.g. "0.8 x Matern 3/2 (...)"; amplitudes are in units of the targets' variance."""
    name: str = kernel["class"]
    if kernel["own"]:
        return f"{name} (a class of your own)"
    if name in JOINTS:
        return f"({JOINTS[name].join(kernel_words(part, names) for part in kernel['parts'])})"
    if name == "Scale":
        return f"{number(values_of(kernel)['outputscale'])} x {kernel_words(kernel['parts'][0], names)}"
    if name == "ActiveDims":
        seen: list[str] = [str(names[j]) for j in kernel["settings"]["columns"]]
        return f"{kernel_words(kernel['parts'][0], seen)} of {', '.join(seen)}"
    return KERNEL_WORDS.get(name, name)


def _leaves(
    kernel: State, path: str, columns: list[int], scale: float
) -> Iterator[tuple[str, State, list[int], float]]:
    """The kernels inside that hold no others, with the columns they see and the product of the scales around them."""
    if kernel["own"] or not kernel["parts"]:
        yield path, kernel, columns, scale
        return
    if kernel["class"] == "Scale":
        scale = scale * values_of(kernel)["outputscale"]
    elif kernel["class"] == "ActiveDims":
        columns = [columns[j] for j in kernel["settings"]["columns"]]
    for j, part in enumerate(kernel["parts"]):
        inside = f"{path}.parts.{j}" if kernel["class"] in JOINTS else f"{path}.kernel"
        yield from _leaves(part, inside, columns, scale)


def _part(path: str, kernel: State, names: list[str], input_std: np.ndarray, scale: float) -> dict[str, Any]:
    values = values_of(kernel)
    lengthscales = periods = None
    if not kernel["own"] and kernel["class"] in STATIONARY:
        lengthscales = [
            {"name": name, "lengthscale": float(own * std), "lengthscale_in_std": float(own)}
            for name, own, std in zip(names, values["lengthscale"], input_std, strict=True)
        ]
    elif not kernel["own"] and "period" in values:
        periods = [{"name": name, "period": period} for name, period in zip(names, values["period"], strict=True)]
    plain = kernel["attributes"] if kernel["own"] else kernel["settings"]
    return {
        "path": path,
        "kernel": kernel_words(kernel, names),
        "own": kernel["own"],
        "inputs": names,
        "outputscale": float(scale),
        "lengthscales": lengthscales,
        "periods": periods,
        "parameters": {**values, **{name: value for name, value in plain.items() if name != "num_dims"}},
    }
