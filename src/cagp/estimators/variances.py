"""The noise and the parts of the variance, in the units of the targets."""

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from cagp.diagnostics import KINDS, reference_for, variance_components
from cagp.estimators import answers
from cagp.estimators.predictive import Predictive
from cagp.estimators.units import Points, Quantity, as_array
from cagp.posteriors import LocalPosterior

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

PARTS = ("noise", "latent", "computational")
"""The parts of a variance that ``predict(return_components=True)`` gives."""


def noise_deviations(model: "GPRegressor", points: Points) -> np.ndarray:
    """The standard deviation of the noise at each point, (n, q)."""
    if model.likelihood_ is not None:
        return np.sqrt(answers.observations(model, points).noise_variance())
    std = np.tile(model.noise_std_, (len(points.inputs), 1))
    for rows, Z in answers.tiles(model, points):
        for j, posterior in enumerate(model.posteriors_):
            scale = posterior.scale(Z.to(posterior.X))
            if scale is not None:
                std[rows, j] *= np.sqrt(as_array(scale))
    noise = points.average(std**2)
    if not model.units_.has_log:
        return np.sqrt(noise) if points.has_stand_ins else std
    found = answers.predictive(model, points)
    assert isinstance(found, Predictive)
    parts = {"noise": noise, "latent": (found.scale**2 - noise).clip(0), "computational": np.zeros_like(noise)}
    return np.sqrt(_in_units(model, parts, found.mean())["noise"])


def variance_parts(
    model: "GPRegressor", points: Points, known: np.ndarray | None, mean: np.ndarray
) -> tuple[dict[str, np.ndarray], str]:
    """The parts of the variance of new observations with this mean, and what is known of the computational part."""
    parts = {name: np.empty((len(points.inputs), model.n_outputs_)) for name in PARTS}
    means = np.zeros((len(points.inputs), model.n_outputs_))
    kinds = []
    for j, posterior in enumerate(model.posteriors_):
        reference = reference_for(posterior, _known_noise(model, j), model.target_rows_[j])
        kinds.append(reference.kind)
        for rows, Z in answers.tiles(model, points):
            own = Z.to(posterior.X)
            ignored = None if model.likelihood_ is None else own.new_ones(len(own))  # noise comes from the likelihood
            found = variance_components(posterior, reference, own, ignored)
            for name, part in parts.items():
                part[rows, j] = as_array(getattr(found, name))
            if points.has_stand_ins:
                trees = answers.offset(answers.prior_mean(model, points.inputs[rows]), j, own)
                means[rows, j] = as_array(posterior.mean(own, trees))
    parts = {name: points.average(values) for name, values in parts.items()}
    parts["latent"] = parts["latent"] + points.spread(means)
    parts = {name: model.units_.restore(values, Quantity.VARIANCE) for name, values in parts.items()}
    if known is not None:
        parts["noise"] += points.average(known)
    if model.likelihood_ is not None:
        found = answers.observations(model, points)
        (transform,) = found.function().transforms
        parts = {name: np.zeros_like(part) if name == "noise" else part for name, part in parts.items()}
        own = transform.variance_parts(found.mean()[:, 0], {name: part[:, 0] for name, part in parts.items()})
        parts = {name: part[:, None] for name, part in own.items()} | {"noise": found.noise_variance()}
        return parts, next(kind for kind in KINDS if kind in kinds)
    return _in_units(model, parts, mean), next(kind for kind in KINDS if kind in kinds)


def _known_noise(model: "GPRegressor", j: int) -> Tensor | None:
    """Known variances of the rows that a posterior holds; of their sites where the likelihood is not Gaussian."""
    posterior = model.posteriors_[j]
    is_local = isinstance(posterior, LocalPosterior)
    return posterior.row_noise if model.likelihood_ is not None and is_local else model._row_noise[j]


def _in_units(model: "GPRegressor", parts: dict[str, np.ndarray], mean: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of a variance on the scale of the fit, in squared units of the targets."""
    own = [
        transform.variance_parts(mean[:, j], {name: part[:, j] for name, part in parts.items()})
        for j, transform in enumerate(model.units_.transforms)
    ]
    return {name: np.stack([part[name] for part in own], 1) for name in PARTS}
