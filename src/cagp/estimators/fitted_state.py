"""A ``FittedModel`` as a state that a file can hold, and back: every value is checked once, when it is read.

Posteriors, kernels, trees and results check themselves where they are made. Last, the whole model must be able to
answer.
"""

from collections.abc import Container
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from cagp import fields, notices
from cagp.data.encoding import Encoder
from cagp.data.transforms import TRANSFORMS, Standardizer
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.predictive import Baseline, learned_parameters
from cagp.estimators.target_kinds import Labels
from cagp.estimators.units import Units
from cagp.likelihood_registry import LIKELIHOODS
from cagp.likelihoods import Likelihood, Softmax, class_likelihood, likelihood_class
from cagp.posteriors import AveragedPosterior, CGPosterior, Posterior
from cagp.prior import GaussianNoise
from cagp.recipes.table import RECIPES
from cagp.recipes.task import state_of, trees_from_state
from cagp.shards import RegionPosterior
from cagp.storage import State
from cagp.training import FitResult

LARGEST_SCALE, LARGEST_UNIT, LARGEST_OFFSET, LARGEST_PARAMETER = 1e15, 1e300, 1e6, 1e9
"""Of variances in standard units, of means and standard deviations of columns, of the constant part of a function, and
of a likelihood's parameters: answers stay in the range of float64."""

LARGEST_BYTES = max(DEFAULT_MAX_BYTES, 2**31)
"""The most that a posterior may ask for as its ``max_bytes``."""

PROBES = 4
"""Rows at which a loaded model is asked for an answer."""


# ---- what is stored ----


def one_of(names: Container[str]) -> fields.Check:
    """Text that is one of these names."""
    return fields.that(lambda value: value in names, fields.text)


def _moments(mean: str, std: str, size: str) -> dict[str, fields.Check]:
    """The mean and the standard deviation of columns, by their names."""
    return {
        mean: fields.that(lambda values: bool((values.abs() < LARGEST_UNIT).all()), fields.float64(size)),
        std: fields.that(lambda values: bool(((values > 0) & (values < LARGEST_UNIT)).all()), fields.float64(size)),
    }


UNITS: fields.Fields = {
    "scaler": fields.record(_moments("input_mean", "input_std", "p") | _moments("target_mean", "target_std", "q")),
    "target_is_matrix": fields.flag,
    "target_dtype": one_of(("float32", "float64")),
    "target_transforms": fields.list_of(one_of(TRANSFORMS)),
}
"""The units of p inputs and q targets, besides their encoder and the names of the targets."""

_NUMBER = fields.that(lambda value: isinstance(value, int | float))
_NAMES: fields.Fields = {"target": fields.optional(fields.text), "model": fields.text}
_SCORES: fields.Fields = {
    "nll": _NUMBER,
    "crps": _NUMBER,
    "gain": fields.optional(_NUMBER),
    "gain_error": fields.optional(_NUMBER),
    "steps": fields.integer(),
    "seconds": _NUMBER,
}


def _trial(value: Any, sizes: fields.Sizes) -> State:
    """What "auto" has tried, with its scores, or why it has not tried it."""
    scores = _SCORES if "nll" in fields.mapping(value, sizes) else {}
    return fields.checked(value, {**_NAMES, **scores, "outcome": fields.text})


_VARIANCES = fields.that(lambda values: bool((values >= 0).all()), fields.numbers("n"))
FITTED: fields.Fields = {
    "num_rows": fields.integer(2),
    "target_rows": fields.list_of(fields.integer(2)),
    "row_noise": fields.list_of(fields.optional(lambda value, _: _VARIANCES(value, {}))),
    "methods": fields.list_of(one_of(RECIPES), least=1),
    "results": fields.list_of(fields.made_by(FitResult.from_state)),
    "choice": fields.optional(fields.text),
    "tried": fields.list_of(_trial),
    "trees": fields.optional(fields.made_by(trees_from_state)),
    "report": fields.text,
}
"""Attributes of a fitted model."""

LIKELIHOOD: fields.Fields = {
    "name": one_of(LIKELIHOODS),
    "offsets": fields.list_of(fields.real(-LARGEST_OFFSET, LARGEST_OFFSET)),
    "labels": fields.optional(fields.made_by(Labels.from_state)),
    "baseline": fields.optional(fields.made_by(lambda state: Baseline(**fields.checked(state, Baseline.FIELDS)))),
}
"""A likelihood that is not Gaussian, besides its parameters."""


def fitted_state(fitted: FittedModel) -> State:
    """All of a fitted model but its posteriors, as plain values and tensors."""
    units = fitted.units
    return {
        "encoder": units.encoder.state(),
        "target_names": list(units.target_names),
        "scaler": units.scaler._asdict(),
        "target_is_matrix": units.target_is_matrix,
        "target_dtype": units.target_dtype.name,
        "target_transforms": [transform.name for transform in units.transforms],
        **{name: getattr(fitted, name) for name in FITTED},
        "results": [result.state() for result in fitted.results],
        "trees": None if fitted.trees is None else state_of(fitted.trees),
        "likelihood": _likelihood_state(fitted),
    }


def fitted_from_state(state: Any, posteriors: list[Posterior]) -> FittedModel:
    """The inverse of ``fitted_state``; ValueError where a value is none that it writes."""
    encoder = fields.entry(state, "encoder", fields.made_by(Encoder.from_state))
    names = fields.entry(state, "target_names", fields.list_of(fields.text, least=1))
    q, sizes = len(names), {"p": len(encoder.names_out), "q": len(names)}
    scaler, is_matrix, dtype, scales = fields.checked(state, UNITS, sizes).values()
    transforms = tuple(TRANSFORMS[name] for name in scales)
    units = Units(encoder, Standardizer(**scaler), tuple(names), is_matrix, np.dtype(dtype), transforms)
    likelihood = _likelihood_from_state(fields.entry(state, "likelihood", fields.optional(fields.mapping)), q)
    fitted = FittedModel(units=units, posteriors=posteriors, **fields.checked(state, FITTED, sizes), **likelihood)
    trees = fitted.trees
    if trees is not None and (trees.num_targets, trees.num_inputs) != (q, encoder.num_columns):
        words = f"the model has trees for {trees.num_targets} targets and {trees.num_inputs} columns"
        raise ValueError(f"{words}, it predicts {q} from {encoder.num_columns}.")
    need(q == 1 or is_matrix, "'target_is_matrix'")
    each = scales, posteriors, fitted.target_rows, fitted.row_noise
    need(all(len(values) == q for values in each), "a value for each target")
    need(max(fitted.target_rows) <= fitted.num_rows, "'target_rows'")
    need(len(fitted.results) == len(fitted.methods), "'results'")
    _check_posteriors(fitted)
    return fitted


def need(right: bool, what: str) -> None:
    """Raise ValueError unless a part of a model suits the others."""
    if not right:
        raise fields.strange(what)


# ---- the likelihood ----


def _likelihood_state(fitted: FittedModel) -> State | None:
    """What there is besides the posteriors where the noise is not Gaussian."""
    likelihood, labels, unit = fitted.likelihood, fitted.labels, float(fitted.units.scaler.target_std[0])
    if likelihood is None:
        return None
    return {
        "name": fitted.likelihood_name,
        "learned": learned_parameters(likelihood, unit) if isinstance(likelihood, Likelihood) else {},  # for readers
        "parameters": {name: value.detach().clone() for name, value in likelihood.named_parameters()},  # the bits
        "offsets": [float(offset) for offset in fitted.offsets],
        "baseline": None if fitted.baseline is None else asdict(fitted.baseline),
        "labels": None if labels is None else labels.state(),
    }


def _likelihood_from_state(state: State | None, num_functions: int) -> dict[str, Any]:
    if state is None:
        return {}
    name, offsets, labels, baseline = fields.checked(state, LIKELIHOOD).values()
    of_classes = LIKELIHOODS[name].targets == "classes"
    need((labels is not None) == (baseline is None) == of_classes, "'labels'")
    likelihood = likelihood_class(name)() if labels is None else class_likelihood(name, len(labels.classes))
    count = likelihood.num_classes if isinstance(likelihood, Softmax) else 1
    if num_functions != count:
        raise ValueError(f"it has {num_functions} latent functions, where the likelihood {name!r} has {count}")
    need(len(offsets) == count, "'offsets'")
    if isinstance(likelihood, Likelihood) and baseline is not None:
        need((baseline.dispersion is not None) == likelihood.are_counts, "'baseline'")
    own = dict(likelihood.named_parameters())
    shapes = {n: fields.numbers(*parameter.shape, dtype=parameter.dtype) for n, parameter in own.items()}
    with torch.no_grad():
        for parameter, value in fields.entry(state, "parameters", fields.record(shapes)).items():
            own[parameter].copy_(value)
            learned = float(getattr(likelihood, parameter.removeprefix("raw_")))
            need(0 < learned < LARGEST_PARAMETER, "parameters of the likelihood")
    return {
        "likelihood": likelihood.requires_grad_(False),
        "likelihood_name": name,
        "offsets": tuple(offsets),
        "baseline": baseline,
        "labels": labels,
    }


# ---- the posteriors are in standard units ----


@torch.no_grad()
def _check_posteriors(fitted: FittedModel) -> None:
    """Raise ValueError unless every posterior suits the columns, has values of a sensible size, and can answer.

    It must predict some of its own rows; those that conjugate gradients hold, without variance.
    """
    units = fitted.units
    scales = zip(units.scaler.target_mean.tolist(), units.scaler.target_std.tolist(), strict=True)
    for posterior, noise, (centre, unit) in zip(fitted.posteriors, fitted.row_noise, scales, strict=True):
        for part in posterior.components if isinstance(posterior, AveragedPosterior) else (posterior,):
            check_posterior(part, len(units.encoder.names_out))
        if isinstance(posterior, RegionPosterior):  # its regions are checked when they are opened
            continue
        need(noise is None or len(noise) == len(posterior.X), "'row_noise'")
        X = posterior.X[:: max(1, len(posterior.X) // PROBES)][:PROBES]
        with notices.collected():
            mean = posterior.mean(X).double() * unit + centre
            variance = mean.new_ones(()) if isinstance(posterior, CGPosterior) else posterior.predict(X).variance
        std = variance.double().sqrt() * unit
        need(bool((std.isfinite() & (mean.abs() < 1e306)).all()), "a posterior that answers")


def check_posterior(posterior: Posterior, num_inputs: int) -> None:
    """Raise ValueError unless a posterior takes that many inputs, and has values of a sensible size."""
    need(posterior.X.shape[1] == num_inputs and bool(torch.isfinite(posterior.X).all()), "'X'")
    need(1 <= posterior.max_bytes <= LARGEST_BYTES, "'max_bytes'")
    system = posterior.solver.system if isinstance(posterior, CGPosterior) else None
    need(system is None or system.max_bytes <= LARGEST_BYTES, "'system_max_bytes'")
    diagonal = posterior.prior.kernel.diag(posterior.X[:PROBES]).double()
    need(bool(((diagonal >= 0) & (diagonal < LARGEST_SCALE)).all()), "the size of the kernel")
    noise = posterior.prior.noise
    need(not isinstance(noise, GaussianNoise) or float(noise.noise) < LARGEST_SCALE, "the size of the noise")
