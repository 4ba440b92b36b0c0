"""What a model file may hold: every value is checked once, when the model is loaded, against what ``save`` can write.

Posteriors, kernels and trees check themselves where they are made. Here are the values around them, and whether the
whole model can answer.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cagp import notices
from cagp.column_kinds import DECIMAL_COMMA, LEVELS, WORDS
from cagp.data.text_values import DATE_FORMATS
from cagp.data.transforms import TRANSFORMS
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.tasks import check_fixed_parameters
from cagp.posteriors import AveragedPosterior, CGPosterior, Posterior
from cagp.prior import GaussianNoise
from cagp.quantities import bytes_of
from cagp.recipes import RECIPES
from cagp.shards import RegionPosterior

if TYPE_CHECKING:
    from cagp.estimators.contract import Estimator

DTYPES = ("float32", "float64")
LARGEST_SCALE, LARGEST_UNIT = 1e15, 1e300
"""Of variances in standard units, and of means and standard deviations of columns: answers stay in range of float64."""

PROBES = 4
"""Rows at which a loaded model is asked for an answer."""


def check_values(state: dict[str, Any]) -> None:
    """Raise ValueError for a value around the posteriors that ``save`` does not write."""
    _check(_is_text(state["library"]) and len(state["library"]) < 100, "library")
    _check_columns(state)
    _check_targets(state)
    _check(state["stored_dtype"] in (None, "float32"), "stored_dtype")
    _check(state["method"] in RECIPES, "method")
    methods = state.get("methods", [state["method"]])
    _check(_is_list(methods, lambda name: name in RECIPES) and len(methods) > 0, "methods")
    _check(state.get("choice") is None or _is_text(state["choice"]), "choice")
    _check(_is_list(state.get("tried", []), _is_trial), "tried")
    _check(_is_text(state["report"]), "report")
    rows = state.get("rows")
    _check(rows is None or (_is_text(rows) and re.fullmatch("[0-9a-f]{32}", rows) is not None), "rows")


def _check_columns(state: dict[str, Any]) -> None:
    encoder = state["encoder"]
    columns = encoder["columns"]
    _check(isinstance(encoder["has_names"], bool) and _is_list(columns, _is_column) and len(columns) > 0, "encoder")
    given = [column["name"] for column in columns]
    _check(len(set(given)) == len(given), "encoder")
    _check(_is_count(state["num_features"], 1) and state["num_features"] == len(columns), "num_features")
    names = state["feature_names"]
    _check(names is None or (_is_list(names, _is_text) and len(names) == len(columns)), "feature_names")


def _is_column(column: Any) -> bool:
    if not isinstance(column, dict) or not _is_text(column["name"]) or column["kind"] not in WORDS:
        return False
    levels, common, quantiles = column["levels"], column.get("common", []), column.get("quantiles", [])
    return (
        _is_list(levels, _is_text)
        and len(set(levels)) == len(levels)
        and (len(levels) > 0) <= (column["kind"] == LEVELS)
        and _is_list(common, _is_text)
        and set(common) <= set(levels)
        and len(set(common)) == len(common)
        and isinstance(column.get("missing", False), bool)
        and column.get("format", "") in ("", DECIMAL_COMMA, *DATE_FORMATS)
        and _is_list(quantiles, lambda q: isinstance(q, int | float) and bool(np.isfinite(q)))
        and sorted(quantiles) == quantiles
    )


def _check_targets(state: dict[str, Any]) -> None:
    names = state["target_names"]
    _check(_is_list(names, _is_text) and len(names) > 0, "target_names")
    q = len(names)
    _check(isinstance(state["target_is_matrix"], bool) and (q == 1 or state["target_is_matrix"]), "target_is_matrix")
    _check(state["target_dtype"] in DTYPES, "target_dtype")
    transforms = state.get("target_transforms", ["identity"] * q)
    _check(_is_list(transforms, lambda name: name in TRANSFORMS) and len(transforms) == q, "target_transforms")
    _check(_is_count(state["num_rows"], 2), "num_rows")
    rows = state.get("target_rows", [state["num_rows"]] * q)
    _check(_is_list(rows, lambda n: _is_count(n, 2) and n <= state["num_rows"]) and len(rows) == q, "target_rows")
    noise = state["row_noise"]
    _check(_is_list(noise, _is_noise) and len(noise) == q, "row_noise")
    _check(
        _is_list(state["posteriors"], lambda part: isinstance(part, dict)) and len(state["posteriors"]) == q,
        "posteriors",
    )


def check_scaler(scaler: dict[str, Any], num_inputs: int, num_targets: int) -> None:
    """Raise ValueError unless means and standard deviations are finite, the latter positive."""
    for name, size in (("input", num_inputs), ("target", num_targets)):
        mean, std = scaler[f"{name}_mean"], scaler[f"{name}_std"]
        right = all(isinstance(v, Tensor) and v.dtype == torch.float64 and v.shape == (size,) for v in (mean, std))
        _check(right and bool((mean.abs() < LARGEST_UNIT).all()), f"{name}_mean")
        _check(bool(((std > 0) & (std < LARGEST_UNIT)).all()), f"{name}_std")


def check_parameters(model: "Estimator") -> None:
    """Raise ValueError for parameters of the regressor that its constructor's checks refuse."""
    check_fixed_parameters(model)
    model._recipe()
    for name in ("verbose", "warm_start"):
        _check(isinstance(getattr(model, name), bool | int), name)
    if model.max_memory is not None:
        bytes_of(model.max_memory)
    _check(model.random_state is None or type(model.random_state) is int, "random_state")
    _check(all(isinstance(name, str | int | float | bool) for name in model.categories), "categories")
    try:
        torch.device(model.device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {model.device!r}, expected a device of torch.") from error


# ---- the posteriors of a regressor are in standard units ----


@torch.no_grad()
def check_posteriors(model: "Estimator") -> None:
    """Raise ValueError unless every posterior suits the columns, has values of a sensible size, and can answer."""
    num_inputs = len(model.units_.encoder.names_out)
    for j, posterior in enumerate(model.posteriors_):
        if isinstance(posterior, RegionPosterior):  # its regions are checked when they are opened
            check_columns(posterior, num_inputs)
            continue
        for part in posterior.components if isinstance(posterior, AveragedPosterior) else (posterior,):
            check_columns(part, num_inputs)
            check_sizes(part)
        _check_answers(model, posterior, j)
        noise = model._row_noise[j]
        _check(noise is None or len(noise) == len(posterior.X), "row_noise")


def check_columns(posterior: Posterior, num_inputs: int) -> None:
    """Raise ValueError unless a posterior takes that many inputs."""
    _check(posterior.X.shape[1] == num_inputs, "X")
    _check(1 <= posterior.max_bytes <= max(DEFAULT_MAX_BYTES, 2**31), "max_bytes")


def check_sizes(posterior: Posterior) -> None:
    """Raise ValueError unless kernel, noise and rows have values of a sensible size."""
    system = posterior._solver.system if isinstance(posterior, CGPosterior) else None
    _check(system is None or system.max_bytes <= max(DEFAULT_MAX_BYTES, 2**31), "system_max_bytes")
    diagonal = posterior.prior.kernel.diag(posterior.X[:PROBES]).double()
    _check(bool(((diagonal >= 0) & (diagonal < LARGEST_SCALE)).all()), "the size of the kernel")
    noise = posterior.prior.noise
    _check(not isinstance(noise, GaussianNoise) or float(noise.noise) < LARGEST_SCALE, "the size of the noise")
    _check(bool(torch.isfinite(posterior.X).all()), "X")


def _check_answers(model: "Estimator", posterior: Posterior, j: int) -> None:
    """The model must be able to predict some of its own rows; those that conjugate gradients hold, without variance."""
    X = posterior.X[:: max(1, len(posterior.X) // PROBES)][:PROBES]
    unit, centre = float(model.units_.scaler.target_std[j]), float(model.units_.scaler.target_mean[j])
    with notices.collected():
        if isinstance(posterior, CGPosterior):
            mean, variance = posterior.mean(X).double(), torch.ones(len(X), dtype=torch.float64)
        else:
            mean, variance = (part.double() for part in posterior.predict(X))
    mean, std = mean * unit + centre, variance.sqrt() * unit
    right = torch.isfinite(mean) & torch.isfinite(std)
    _check(bool(right.all()) and bool((mean.abs() < 1e306).all()), "a posterior that answers")


# ---- values ----


def _check(right: bool, name: str) -> None:
    if not right:
        raise ValueError(f"it does not have {name} as cagp stores it")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**63


def _is_list(value: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_one, value))


def _is_noise(value: Any) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim == 1
        and bool(((value >= 0) & torch.isfinite(value)).all())
    )


TRIAL = {
    "target": (str, type(None)),
    "model": str,
    "outcome": str,
    "nll": (int, float),
    "crps": (int, float),
    "gain": (int, float, type(None)),
    "gain_error": (int, float, type(None)),
    "steps": int,
    "seconds": (int, float),
}


def _is_trial(value: Any) -> bool:
    if not isinstance(value, dict) or not {"model", "outcome"} <= value.keys():
        return False
    scores = {"nll", "crps", "gain", "gain_error", "steps", "seconds"}
    if "nll" in value and not scores <= value.keys():
        return False
    return all(isinstance(value[name], kind) for name, kind in TRIAL.items() if name in value)
