"""What a saved model says about itself. It is read from the file by numpy alone: no model is made, nothing is run."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cagp.column_kinds import EXPOSURE, Column
from cagp.kernel_registry import KERNELS
from cagp.quantities import number
from cagp.recipes import guarantee_words
from cagp.storage import State, load_state

KIND, VERSION = "cagp model", 1


def saved_summary(path: str | Path) -> dict[str, Any]:
    """All that ``cagp info`` says about a model file, as plain values: where it comes from, data, hyperparameters, fit.

    The whole file is read and its checksum verified. A kernel of a class of your own is described by what is stored of
    it: the name of its class, its plain attributes and its raw parameters.
    """
    path = Path(path)
    state = load_state(path, KIND, VERSION, tensors=False)
    try:
        about = path.stat()
        return {
            "file": str(path),
            "bytes": about.st_size,
            "written": datetime.fromtimestamp(about.st_mtime).astimezone().isoformat(timespec="seconds"),
            "checksum": "verified",
            **_summary(state),
        }
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(
            f"{path} is not a complete model: {type(error).__name__}: {error}; save the model again."
        ) from error


def _summary(state: State) -> dict[str, Any]:
    first, scaler, likelihood = state["posteriors"][0], state["scaler"], state["likelihood"]
    posterior = _components(first)[0]
    kernel, num_held = first["prior"]["kernel"], _num_held(posterior)
    held = [_num_held(_components(part)[0]) for part in state["posteriors"]]
    columns = [Column.from_state(column) for column in state["encoder"]["columns"]]
    names = [name for column in columns for name in column.names_out]
    parts = kernel_parts(kernel, names, scaler["input_std"])
    inducing, labels = posterior["class"] == "InducingPosterior", likelihood and likelihood["labels"]
    return {
        "library_version": state["library"],
        "class": state["class"],
        "method": state["methods"][0],
        "mean": "zero" if state["trees"] is None else "trees",
        "tried": state["tried"],
        "guarantee": _guarantee(state),
        "classes": None if labels is None else list(labels["classes"]["values"]),
        "likelihood": None if likelihood is None else likelihood["name"],
        "likelihood_parameters": {} if likelihood is None else likelihood["learned"],
        "exposure": next((column.name for column in columns if column.kind == EXPOSURE), None),
        "train_rows": state["num_rows"],
        "methods": state["methods"],
        "rows_held": 0 if inducing else state["num_rows"] if held == state["target_rows"] else max(held),
        "inducing_points": num_held if inducing else 0,
        "holds_training_data": not inducing,
        "rows_beside": state.get("rows") is not None,
        "regions": len(first.get("digests", [])),
        "stored_dtype": state["stored_dtype"] or posterior["dtype"],
        "inputs": [column.state() for column in columns],
        "encoded_inputs": input_lengthscales(parts, names),
        "targets": _targets(state, labels),
        "kernel": kernel_words(kernel, names),
        "kernel_parts": parts,
        "hyperparameters": {
            name: value
            for role, part in first["prior"].items()
            for path, module, *_ in modules(part, role, list(range(len(names))))
            for name, value in ((f"{path}.{name}", value) for name, value in values_of(module).items())
        },
        "fit_report": state["report"],
        "fit_seconds": state["results"][0]["seconds"],
        "steps": len(state["results"][0]["steps"]),
    }


def _components(posterior: State) -> list[State]:
    """The posteriors of an average; of any other posterior, itself."""
    return posterior.get("components", [posterior])


def _guarantee(state: State) -> str:
    """What ``guarantee_`` of the loaded model says, also for files whose fit report does not say it."""
    is_average = any("components" in posterior for posterior in state["posteriors"])
    posteriors = [component for posterior in state["posteriors"] for component in _components(posterior)]
    scaled = any(posterior.get("local_scale") is not None for posterior in posteriors)
    inducing = any(posterior["class"] == "InducingPosterior" for posterior in posteriors)
    on_log_scale, has_sites = "log" in state["target_transforms"], state["likelihood"] is not None
    return guarantee_words(not scaled and not inducing, scaled, on_log_scale, is_average, has_sites)


def _num_held(posterior: State) -> int:
    """The number of rows or points that a posterior holds, in the file or beside it."""
    X = posterior["X"]
    return X["shape"][0] if isinstance(X, dict) else len(X)


def _targets(state: State, labels: State | None) -> list[dict[str, Any]]:
    """Each target: name, number of rows, the scale of its fit, and its mean, standard deviation and noise there."""
    if labels is not None:
        return [{"name": labels["target"], "rows": state["num_rows"]}]
    means, stds = state["scaler"]["target_mean"], state["scaler"]["target_std"]
    variances = [values_of(posterior["prior"]["noise"]).get("noise", 0.0) for posterior in state["posteriors"]]
    columns = {
        "name": state["target_names"],
        "transform": state["target_transforms"],
        "rows": state["target_rows"],
        "mean": means.tolist(),
        "std": stds.tolist(),
        "noise_std": (np.sqrt(variances) * stds).tolist(),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# ---- kernels, from the states that ``cagp.stored_modules`` makes of them ----

KERNEL_WORDS = {entry.class_name: entry.words for entry in KERNELS.values()}
STATIONARY = {entry.class_name for entry in KERNELS.values() if entry.stationary}
JOINTS = {"Sum": " + ", "Product": " x "}


def kernel_parts(kernel: State, names: Sequence[str], input_std: np.ndarray) -> list[dict[str, Any]]:
    """Every kernel that is added, multiplied, scaled or made for some columns, as plain values.

    Each has its "path" in the whole kernel, what it is in words ("kernel"), whether its class is your "own", the
    "inputs" it sees, its "outputscale" (the product of the scales around it, in units of the targets' variance), its
    "lengthscales" along the inputs and its "periods", each None where it has none, and all its "parameters".

    Args:
        names: of the inputs.
        input_std: their standard deviations, in which lengthscales are learned.
    """
    parts = []
    for path, part, columns, scale in modules(kernel, "kernel", list(range(len(names)))):
        own = part["own"]
        if not own and part["parts"]:
            continue
        values, inputs = values_of(part), [names[j] for j in columns]
        lengthscales = periods = None
        if not own and part["class"] in STATIONARY:
            lengthscales = [
                {"name": name, "lengthscale": float(value * std), "lengthscale_in_std": float(value)}
                for name, value, std in zip(inputs, values["lengthscale"], input_std[columns], strict=True)
            ]
        elif not own and "period" in values:
            periods = [{"name": name, "period": value} for name, value in zip(inputs, values["period"], strict=True)]
        plain = part["attributes"] if own else part["settings"]
        found = {
            "path": path,
            "kernel": kernel_words(part, inputs),
            "own": own,
            "inputs": inputs,
            "outputscale": float(scale),
            "lengthscales": lengthscales,
            "periods": periods,
            "parameters": {**values, **{name: value for name, value in plain.items() if name != "num_dims"}},
        }
        parts.append(found)
    return parts


def input_lengthscales(parts: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The lengthscale of each input in the first part that has one; NaN where none has."""
    found = {name: {"name": name, "lengthscale": np.nan, "lengthscale_in_std": np.nan} for name in names}
    for part in reversed(parts):
        found |= {entry["name"]: entry for entry in part["lengthscales"] or []}
    return list(found.values())


def modules(
    module: State, path: str, columns: list[int], scale: float = 1.0
) -> Iterator[tuple[str, State, list[int], float]]:
    """A stored module and those inside it: its path, for example "kernel.parts.0", what is stored of it, the columns
    it sees, and the product of the scales around it.
    """
    yield path, module, columns, scale
    if module["own"]:
        return
    if module["class"] == "Scale":
        scale = scale * values_of(module)["outputscale"]
    elif module["class"] == "ActiveDims":
        columns = [columns[j] for j in module["settings"]["columns"]]
    for j, part in enumerate(module["parts"]):
        inside = f"{path}.parts.{j}" if module["class"] in JOINTS else f"{path}.kernel"
        yield from modules(part, inside, columns, scale)


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
