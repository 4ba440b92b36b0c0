"""The noise and the parts of the variance, in the units of the targets."""

from typing import TYPE_CHECKING

import numpy as np

from cagp.diagnostics import KINDS, reference_for, variance_components
from cagp.estimators import answers
from cagp.estimators.units import Points, Quantity, as_array

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

PARTS = ("noise", "latent", "computational")
"""The parts of a variance that ``predict(return_components=True)`` gives."""


def noise_deviations(model: "GPRegressor", points: Points) -> np.ndarray:
    """The standard deviation of the noise at each point, (n, q)."""
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
        reference = reference_for(posterior, model._row_noise[j], model.target_rows_[j])
        kinds.append(reference.kind)
        for rows, Z in answers.tiles(model, points):
            found = variance_components(posterior, reference, Z.to(posterior.X))
            for name, part in parts.items():
                part[rows, j] = as_array(getattr(found, name))
            if points.has_stand_ins:
                own = Z.to(posterior.X)
                trees = answers.offset(answers.prior_mean(model, points.inputs[rows]), j, own)
                means[rows, j] = as_array(posterior.mean(own, trees))
    parts = {name: points.average(values) for name, values in parts.items()}
    parts["latent"] = parts["latent"] + points.spread(means)
    parts = {name: model.units_.restore(values, Quantity.VARIANCE) for name, values in parts.items()}
    if known is not None:
        parts["noise"] += points.average(known)
    return _in_units(model, parts, mean), next(kind for kind in KINDS if kind in kinds)


def _in_units(model: "GPRegressor", parts: dict[str, np.ndarray], mean: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of a variance on the scale of the fit, in squared units of the targets."""
    own = [
        transform.variance_parts(mean[:, j], {name: part[:, j] for name, part in parts.items()})
        for j, transform in enumerate(model.units_.transforms)
    ]
    return {name: np.stack([part[name] for part in own], 1) for name in PARTS}
