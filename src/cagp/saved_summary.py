"""What a saved model says about itself. It is read from the file by numpy alone: no model is made, nothing is run."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cagp.column_kinds import Column
from cagp.kernel_registry import KERNELS
from cagp.quantities import number
from cagp.recipes import guarantee_words
from cagp.storage import State, read_state

KIND, VERSION = "cagp model", 1

KERNEL_WORDS = {entry.class_name: entry.words for entry in KERNELS.values()}
JOINTS = {"Sum": " + ", "Product": " x "}


def saved_summary(path: str | Path) -> dict[str, Any]:
    """All that ``cagp info`` says about a model file, as plain values: where it comes from, data, hyperparameters, fit.

    The whole file is read and its checksum verified. A kernel of a class of your own is described by what is stored of
    it: the name of its class, its plain attributes and its raw parameters.
    """
    path = Path(path)
    state = read_state(path, KIND, VERSION)
    try:
        return {**_file(path), **_summary(state)}
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"{path} is not a complete model: {type(error).__name__}: {error}; save the model again."
        ) from error


def _file(path: Path) -> dict[str, Any]:
    about = path.stat()
    return {
        "file": str(path),
        "bytes": about.st_size,
        "written": datetime.fromtimestamp(about.st_mtime).astimezone().isoformat(timespec="seconds"),
        "checksum": "verified",
    }


def _summary(state: State) -> dict[str, Any]:
    posterior, scaler = state["posteriors"][0], state["scaler"]
    kernel, num_held = posterior["prior"]["kernel"], len(posterior["X"])
    columns = [Column.from_state(column) for column in state["encoder"]["columns"]]
    names = [name for column in columns for name in column.names_out]
    parts = [_part(path, part, names, scaler["input_std"]) for path, part in _leaves(kernel, "kernel")]
    unknown = _lengthscales(names, np.full(len(names), np.nan), scaler["input_std"])
    inducing = posterior["class"] == "InducingPosterior"
    return {
        "library_version": state["library"],
        "class": state["class"],
        "method": state["method"],
        "guarantee": _guarantee(state["posteriors"]),
        "train_rows": state["num_rows"],
        "rows_held": 0 if inducing else num_held,
        "inducing_points": num_held if inducing else 0,
        "holds_training_data": not inducing,
        "stored_dtype": state["stored_dtype"] or posterior["dtype"],
        "inputs": [column.state() for column in columns],
        "encoded_inputs": next((p["lengthscales"] for p in parts if p["lengthscales"] is not None), unknown),
        "targets": _targets(state),
        "kernel": _kernel_words(kernel),
        "kernel_parts": parts,
        "hyperparameters": {
            name: value
            for role, part in posterior["prior"].items()
            for path, module in _modules(part, role)
            for name, value in _named(path, _values(module))
        },
        "fit_report": state["report"],
        "fit_seconds": state["result"]["seconds"],
        "steps": len(state["result"]["steps"]),
    }


def _guarantee(posteriors: list[State]) -> str:
    """What ``guarantee_`` of the loaded model says, also for files whose fit report does not say it."""
    scaled = any(posterior.get("local_scale") is not None for posterior in posteriors)
    inducing = any(posterior["class"] == "InducingPosterior" for posterior in posteriors)
    return guarantee_words(not scaled and not inducing, scaled)


def _targets(state: State) -> list[dict[str, Any]]:
    """The name of each target, and its mean, standard deviation and standard deviation of the noise in its own unit."""
    means, stds = state["scaler"]["target_mean"], state["scaler"]["target_std"]
    variances = [_values(posterior["prior"]["noise"]).get("noise", 0.0) for posterior in state["posteriors"]]
    return [
        {"name": name, "mean": float(mean), "std": float(std), "noise_std": float(np.sqrt(variance) * std)}
        for name, mean, std, variance in zip(state["target_names"], means, stds, variances, strict=True)
    ]


# ---- kernels, means and noise as cagp.persistence stores them ----


def _modules(module: State, path: str) -> Iterator[tuple[str, State]]:
    """A stored module and those inside it, each with its path, for example "kernel.parts.0"."""
    yield path, module
    for j, part in enumerate([] if module["own"] else module["parts"]):
        yield from _modules(part, f"{path}.parts.{j}" if module["class"] in JOINTS else f"{path}.kernel")


def _leaves(kernel: State, path: str) -> Iterator[tuple[str, State]]:
    """The kernels that are added, multiplied and scaled."""
    return ((path, part) for path, part in _modules(kernel, path) if part["own"] or not part["parts"])


def _values(module: State) -> dict[str, Any]:
    """The parameters of a module in their own units, exp(raw) + floor; those of a class of your own as stored."""
    if module["own"]:
        return {name: values.tolist() for name, values in module["tensors"].items()}
    values = {}
    for name, stored in module["tensors"].items():
        own_name = name.removeprefix("raw_")
        value = stored if own_name == name else np.exp(stored) + module["floors"].get(f"{own_name}_floor", 0.0)
        values[own_name] = value.tolist()
    return values


def _named(path: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((f"{path}.{name}", value) for name, value in values.items())


def _part(path: str, kernel: State, names: list[str], input_std: np.ndarray) -> dict[str, Any]:
    values = _values(kernel)
    found = None if kernel["own"] or "lengthscale" not in values else np.array(values["lengthscale"])
    return {
        "path": path,
        "kernel": _kernel_words(kernel),
        "own": kernel["own"],
        "lengthscales": None if found is None else _lengthscales(names, found, input_std),
        "parameters": {**values, **(kernel["attributes"] if kernel["own"] else {})},
    }


def _lengthscales(names: list[str], in_std: np.ndarray, input_std: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"name": name, "lengthscale": float(own * std), "lengthscale_in_std": float(own)}
        for name, own, std in zip(names, in_std, input_std, strict=True)
    ]


def _kernel_words(kernel: State) -> str:
    """A kernel in words, e.g. "0.8 x Matern 3/2 (...)"; amplitudes are in units of the targets' variance."""
    name: str = kernel["class"]
    if kernel["own"]:
        return f"{name} (a class of your own)"
    if name in JOINTS:
        return f"({JOINTS[name].join(_kernel_words(part) for part in kernel['parts'])})"
    if name == "Scale":
        return f"{number(_values(kernel)['outputscale'])} x {_kernel_words(kernel['parts'][0])}"
    return KERNEL_WORDS.get(name, name)
