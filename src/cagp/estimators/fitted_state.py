"""A ``FittedModel`` as a state that a file can hold, and back: every value is checked once, when it is read.

A file may hold anything. Each entry has a check here of what ``fitted_state`` can write; posteriors, kernels, trees and
results check themselves where they are made. Last, the whole model must be able to answer.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cagp import notices
from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.data.transforms import TRANSFORMS
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.labels import Labels
from cagp.estimators.observations import Baseline, learned_parameters
from cagp.estimators.units import Units
from cagp.fields import strange
from cagp.likelihood_registry import LIKELIHOODS
from cagp.likelihoods import Likelihood, class_likelihood, likelihood_class
from cagp.posteriors import AveragedPosterior, CGPosterior, Posterior
from cagp.prior import GaussianNoise
from cagp.recipes import RECIPES
from cagp.recipes.means import state_of, trees_from_state
from cagp.shards import RegionPosterior
from cagp.training import FitResult

LARGEST_SCALE, LARGEST_UNIT, LARGEST_OFFSET, LARGEST_PARAMETER = 1e15, 1e300, 1e6, 1e9
"""Of variances in standard units, of means and standard deviations of columns, of the constant part of a function, and
of a likelihood's parameters: answers stay in the range of float64."""

PROBES = 4
"""Rows at which a loaded model is asked for an answer."""


def fitted_state(fitted: FittedModel) -> dict[str, Any]:
    """All of a fitted model but its posteriors, as plain values and tensors."""
    units = fitted.units
    return {
        "encoder": units.encoder.state(),
        "scaler": dict(units.scaler._asdict()),
        "target_names": list(units.target_names),
        "target_is_matrix": units.target_is_matrix,
        "target_dtype": units.target_dtype.name,
        "target_transforms": [transform.name for transform in units.transforms],
        "target_rows": list(fitted.target_rows),
        "num_rows": fitted.num_rows,
        "methods": list(fitted.methods),
        "choice": fitted.choice,
        "tried": fitted.tried,
        "trees": None if fitted.trees is None else state_of(fitted.trees),
        "report": fitted.report,
        "results": [result.state() for result in fitted.results],
        "row_noise": list(fitted.row_noise),
        "likelihood": _likelihood_state(fitted),
    }


def _likelihood_state(fitted: FittedModel) -> dict[str, Any] | None:
    """What there is besides the posteriors where the noise is not Gaussian."""
    likelihood = fitted.likelihood
    if likelihood is None:
        return None
    unit, is_classifier = float(fitted.scaler.target_std[0]), fitted.labels is not None
    learned = learned_parameters(likelihood, unit) if isinstance(likelihood, Likelihood) and not is_classifier else {}
    return {
        "name": fitted.likelihood_name,
        "learned": learned,  # for readers; the next are the bits
        "parameters": {name: value.detach().clone() for name, value in likelihood.named_parameters()},
        "offsets": [float(offset) for offset in fitted.offsets],
        "baseline": None if fitted.baseline is None else asdict(fitted.baseline),
        "labels": None if fitted.labels is None else fitted.labels.state(),
    }


def fitted_from_state(state: dict[str, Any], posteriors: list[Posterior]) -> FittedModel:
    """The inverse of ``fitted_state``; ValueError where a value is none that it writes."""
    for name, is_right in ENTRIES.items():
        require(is_right(state[name]), name)
    names, encoder, scaler = state["target_names"], Encoder.from_state(state["encoder"]), state["scaler"]
    q, num_rows = len(names), state["num_rows"]
    require(q == 1 or state["target_is_matrix"], "target_is_matrix")
    for name in ("target_transforms", "target_rows", "row_noise"):
        require(len(state[name]) == q, name)
    require(len(posteriors) == q, "posteriors")
    require(max(state["target_rows"]) <= num_rows, "target_rows")
    require(len(state["results"]) == len(state["methods"]), "results")
    for name, count in (("input", len(encoder.names_out)), ("target", q)):
        mean, std = scaler[f"{name}_mean"], scaler[f"{name}_std"]
        right = all(isinstance(v, Tensor) and v.dtype == torch.float64 and v.shape == (count,) for v in (mean, std))
        require(right and bool((mean.abs() < LARGEST_UNIT).all()), f"{name}_mean")
        require(bool(((std > 0) & (std < LARGEST_UNIT)).all()), f"{name}_std")
    trees = None if state["trees"] is None else trees_from_state(state["trees"])
    if trees is not None and (trees.num_targets, trees.num_inputs) != (q, encoder.num_columns):
        raise ValueError(
            f"the model has trees for {trees.num_targets} targets and {trees.num_inputs} columns, it predicts {q} from "
            f"{encoder.num_columns}."
        )
    transforms = tuple(TRANSFORMS[name] for name in state["target_transforms"])
    dtype = np.dtype(state["target_dtype"])
    fitted = FittedModel(
        units=Units(encoder, Standardizer(**scaler), tuple(names), state["target_is_matrix"], dtype, transforms),
        posteriors=posteriors,
        row_noise=list(state["row_noise"]),
        target_rows=list(state["target_rows"]),
        num_rows=num_rows,
        methods=list(state["methods"]),
        results=[FitResult.from_state(result) for result in state["results"]],
        choice=state["choice"],
        tried=list(state["tried"]),
        trees=trees,
        report=state["report"],
        **_likelihood_from_state(state["likelihood"], q),
    )
    _check_posteriors(fitted)
    return fitted


def _likelihood_from_state(state: dict[str, Any] | None, num_functions: int) -> dict[str, Any]:
    if state is None:
        return {}
    require(isinstance(state, dict) and state["name"] in LIKELIHOODS, "a likelihood")
    name, offsets, labels = state["name"], state["offsets"], None
    if LIKELIHOODS[name].targets == "classes":
        labels = Labels.from_state(state["labels"])
        likelihood, count = class_likelihood(name, len(labels.classes)), labels.num_functions
    else:
        require(state["labels"] is None, "labels")
        likelihood, count = likelihood_class(name)(), 1
    if num_functions != count:
        raise ValueError(f"it has {num_functions} latent functions, where the likelihood {name!r} has {count}")
    right = _is_list(offsets, lambda offset: type(offset) is float and abs(offset) < LARGEST_OFFSET)
    require(right and len(offsets) == count, "offsets")
    _restore_parameters(likelihood, state["parameters"])
    baseline = None
    if labels is None:
        assert isinstance(likelihood, Likelihood)
        baseline = Baseline.from_state(state["baseline"])
        require((baseline.dispersion is not None) == likelihood.are_counts, "a baseline")
    return {
        "likelihood": likelihood.requires_grad_(False),
        "likelihood_name": name,
        "offsets": tuple(offsets),
        "baseline": baseline,
        "labels": labels,
    }


@torch.no_grad()
def _restore_parameters(likelihood: torch.nn.Module, stored: Any) -> None:
    own, what = dict(likelihood.named_parameters()), "parameters of the likelihood"
    require(isinstance(stored, dict) and stored.keys() == own.keys(), what)
    for name, parameter in own.items():
        value = stored[name]
        right = isinstance(value, Tensor) and value.dtype == parameter.dtype and value.shape == parameter.shape
        require(right and math.isfinite(float(value)), what)
        parameter.copy_(value)
        require(0 < float(getattr(likelihood, name.removeprefix("raw_"))) < LARGEST_PARAMETER, what)


# ---- the posteriors are in standard units ----


@torch.no_grad()
def _check_posteriors(fitted: FittedModel) -> None:
    """Raise ValueError unless every posterior suits the columns, has values of a sensible size, and can answer."""
    num_inputs = len(fitted.encoder.names_out)
    for j, posterior in enumerate(fitted.posteriors):
        if isinstance(posterior, RegionPosterior):  # its regions are checked when they are opened
            check_columns(posterior, num_inputs)
            continue
        for part in posterior.components if isinstance(posterior, AveragedPosterior) else (posterior,):
            check_columns(part, num_inputs)
            check_sizes(part)
        _check_answers(fitted, posterior, j)
        noise = fitted.row_noise[j]
        require(noise is None or len(noise) == len(posterior.X), "row_noise")


def check_columns(posterior: Posterior, num_inputs: int) -> None:
    """Raise ValueError unless a posterior takes that many inputs."""
    require(posterior.X.shape[1] == num_inputs, "X")
    require(1 <= posterior.max_bytes <= max(DEFAULT_MAX_BYTES, 2**31), "max_bytes")


def check_sizes(posterior: Posterior) -> None:
    """Raise ValueError unless kernel, noise and rows have values of a sensible size."""
    system = posterior._solver.system if isinstance(posterior, CGPosterior) else None
    require(system is None or system.max_bytes <= max(DEFAULT_MAX_BYTES, 2**31), "system_max_bytes")
    diagonal = posterior.prior.kernel.diag(posterior.X[:PROBES]).double()
    require(bool(((diagonal >= 0) & (diagonal < LARGEST_SCALE)).all()), "the size of the kernel")
    noise = posterior.prior.noise
    require(not isinstance(noise, GaussianNoise) or float(noise.noise) < LARGEST_SCALE, "the size of the noise")
    require(bool(torch.isfinite(posterior.X).all()), "X")


def _check_answers(fitted: FittedModel, posterior: Posterior, j: int) -> None:
    """The model must be able to predict some of its own rows; those that conjugate gradients hold, without variance."""
    X = posterior.X[:: max(1, len(posterior.X) // PROBES)][:PROBES]
    unit, centre = float(fitted.scaler.target_std[j]), float(fitted.scaler.target_mean[j])
    with notices.collected():
        if isinstance(posterior, CGPosterior):
            mean, variance = posterior.mean(X).double(), torch.ones(len(X), dtype=torch.float64)
        else:
            mean, variance = (part.double() for part in posterior.predict(X))
    mean, std = mean * unit + centre, variance.sqrt() * unit
    right = torch.isfinite(mean) & torch.isfinite(std)
    require(bool(right.all()) and bool((mean.abs() < 1e306).all()), "a posterior that answers")


# ---- values ----


def require(right: bool, name: str) -> None:
    """Raise ValueError unless the value of an entry is right."""
    if not right:
        raise strange(name)


def is_text(value: Any) -> bool:
    """Whether a value is text."""
    return isinstance(value, str)


def _is_count(value: Any, least: int = 2) -> bool:
    return type(value) is int and least <= value < 2**63


def _is_list(value: Any, is_one: Callable[[Any], bool], distinct: bool = False) -> bool:
    return isinstance(value, list) and all(map(is_one, value)) and (not distinct or len(set(value)) == len(value))


def _is_noise(value: Any) -> bool:
    is_vector = isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 1
    return value is None or (is_vector and bool(((value >= 0) & torch.isfinite(value)).all()))


SCORES = {"nll": float, "crps": float, "gain": float | None, "gain_error": float | None, "steps": int, "seconds": float}
TRIAL = {"target": str | None, "model": str, "outcome": str, **SCORES}


def _is_trial(value: Any) -> bool:
    if not isinstance(value, dict) or not {"model", "outcome"} <= value.keys():
        return False
    if "nll" in value and not SCORES.keys() <= value.keys():
        return False
    numbers = {name: float(entry) if type(entry) is int else entry for name, entry in value.items() if name != "steps"}
    return all(isinstance({**value, **numbers}[name], kind) for name, kind in TRIAL.items() if name in value)


ENTRIES: dict[str, Callable[[Any], bool]] = {
    "target_names": lambda value: _is_list(value, is_text) and len(value) > 0,
    "target_is_matrix": lambda value: isinstance(value, bool),
    "target_dtype": lambda value: value in ("float32", "float64"),
    "target_transforms": lambda value: _is_list(value, lambda name: name in TRANSFORMS),
    "target_rows": lambda value: _is_list(value, _is_count),
    "num_rows": _is_count,
    "methods": lambda value: _is_list(value, lambda name: name in RECIPES) and len(value) > 0,
    "choice": lambda value: value is None or is_text(value),
    "tried": lambda value: _is_list(value, _is_trial),
    "report": is_text,
    "row_noise": lambda value: _is_list(value, _is_noise),
}
"""What the entries of a state must be, one by one."""
