"""What a fitted regressor answers: its posteriors at test points, in the units of the targets."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from cagp import metrics
from cagp.estimators.conformal import conformal_factors
from cagp.estimators.observations import Observations
from cagp.estimators.predictive import Predictive
from cagp.estimators.target_choice import NO_NOISE
from cagp.estimators.tasks import seed_of
from cagp.estimators.units import EncodedTable, Points, Quantity, Rows, as_array, known_variances
from cagp.metrics import Calibration

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor
    from cagp.estimators.contract import Estimator

Known = Float[np.ndarray, "m q"] | None
"""Known noise variances of the test points, in squared units of the targets."""

COVARIANCE_ROWS = 20_000
"""Joint answers are for at most this many test points."""


# ---- what was asked ----


def points_of(model: "Estimator", X: Any) -> Points:
    """The rows of a table as test points."""
    check_is_fitted(model, "posteriors_")
    if not isinstance(X, EncodedTable) and getattr(X, "ndim", 2) == 2:  # for others the encoder has better words
        validate_data(model, X, skip_check_array=True, reset=False)
    return model.units_.points(X)


def known_noise(model: "GPRegressor", sample_noise: Any, points: Points, noise: bool = True) -> Known:
    """The noise variances that the user knows; None where there are none."""
    if sample_noise is not None and model.likelihood_ is not None:
        raise ValueError(
            f"sample_noise is given, but the likelihood is {model.likelihood!r}, whose noise is its own; leave it out."
        )
    if sample_noise is not None and not noise:
        raise ValueError("sample_noise is given with noise=False, which leaves all noise out; remove one of them.")
    if sample_noise is not None and model.units_.has_log:
        raise ValueError(NO_NOISE)
    known = known_variances(sample_noise, (points.num_rows, model.n_outputs_))
    return None if known is None else known[points.rows]


def tiles(model: "Estimator", points: Points) -> Iterator[tuple[Rows, Tensor]]:
    """The test points a part at a time, in standard units; see ``Units.tiles``."""
    return model.units_.tiles(points, model.posteriors_[0], bool(model.verbose))


# ---- each test point alone ----


def prior_mean(model: "Estimator", inputs: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m q"]:
    """What trees predict for some codes, in standard units, or zero; the posteriors are of what it leaves."""
    return np.zeros((len(inputs), model.n_outputs_)) if model.trees_ is None else model.trees_.mean(inputs)


def offset(trees: Float[np.ndarray, "m q"], j: int, like: Tensor) -> Tensor:
    """The prior mean of the j-th target for its posterior."""
    return torch.from_numpy(np.ascontiguousarray(trees[:, j])).to(like)


def mean(model: "GPRegressor", points: Points, known: Known = None, noise: bool = True) -> Float[np.ndarray, "n q"]:
    """The mean of each row, in the units of the targets; on a log scale it depends on the variance."""
    if model.units_.has_log or model.likelihood_ is not None:
        return predictive(model, points, known, noise).mean()
    found = np.empty((len(points.inputs), model.n_outputs_))
    for rows, Z in tiles(model, points):
        trees = prior_mean(model, points.inputs[rows])
        for j, posterior in enumerate(model.posteriors_):
            own = Z.to(posterior.X)
            found[rows, j] = as_array(posterior.mean(own, offset(trees, j, own)))
    return model.units_.restore(points.average(found), Quantity.VALUE)


def observations(model: "GPRegressor", points: Points) -> Observations:
    """The distribution of a new observation at each row, where the likelihood is not Gaussian."""
    mean, variance = np.empty((2, len(points.inputs), 1))
    for rows, Z in tiles(model, points):
        trees, posterior = prior_mean(model, points.inputs[rows]), model.posteriors_[0]
        own = Z.to(posterior.X)
        found = posterior.predict(own, offset=offset(trees, 0, own))
        mean[rows, 0], variance[rows, 0] = as_array(found.mean), as_array(found.variance)
    return _observed(model, points, mean, variance)


def prior_observations(model: "GPRegressor", points: Points) -> Observations:
    """The same with the prior mean as latent function, without any uncertainty."""
    trees = prior_mean(model, points.inputs)
    return _observed(model, points, trees, np.zeros_like(trees))


def _observed(
    model: "GPRegressor", points: Points, mean: Float[np.ndarray, "m 1"], variance: Float[np.ndarray, "m 1"]
) -> Observations:
    """The distributions with these moments of the latent function, without its constant part and exposures."""
    assert model.likelihood_ is not None
    known = None if points.exposure is None else np.log(points.exposure)
    latent = points.average(mean) + model.offset_ + (0.0 if known is None else known[:, None])
    spread = points.average(variance).clip(0) + points.spread(mean)
    return Observations(latent, spread, model.likelihood_, *_unit(model), known)


def _unit(model: "GPRegressor") -> tuple[float, float]:
    """What is zero and what is one in standard units of the only target."""
    return float(model.scaler_.target_mean[0]), float(model.scaler_.target_std[0])


def predictive(
    model: "GPRegressor", points: Points, known: Known = None, noise: bool = True
) -> Predictive | Observations:
    """The distribution of a new observation, or of the function, at each row."""
    if model.likelihood_ is not None:
        found = observations(model, points)
        return found if noise else found.function()
    mean, variance = np.empty((2, len(points.inputs), model.n_outputs_))
    for rows, Z in tiles(model, points):
        trees = prior_mean(model, points.inputs[rows])
        for j, posterior in enumerate(model.posteriors_):
            own = Z.to(posterior.X)
            row_noise = model.units_.standard_noise(known, j, rows, own)
            found = posterior.predict(own, noise=noise, row_noise=row_noise, offset=offset(trees, j, own))
            mean[rows, j] = as_array(found.mean)
            variance[rows, j] = as_array(found.variance)
    restore = model.units_.restore
    std = np.sqrt(points.average(variance) + points.spread(mean))
    moments = restore(points.average(mean), Quantity.VALUE), restore(std, Quantity.DEVIATION)
    return Predictive(*moments, model.units_.transforms)


def interval(
    model: "GPRegressor", points: Points, level: float, known: Known, noise: bool, method: str, calibration: Any
) -> tuple[Float[np.ndarray, "n q"], Float[np.ndarray, "n q"]]:
    """Lower and upper ends of the intervals of ``GPRegressor.predict_interval``."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(
            f"level is {level!r}, expected one probability between 0 and 1, e.g. 0.95; for several, use "
            "predict_quantiles."
        )
    if method not in ("model", "conformal"):
        raise ValueError(f'method is {method!r}, expected "model" or "conformal".')
    if method == "model" and calibration is not None:
        raise ValueError('calibration is for method="conformal"; remove it or ask for that method.')
    if method == "conformal" and not noise:
        raise ValueError("conformal intervals are of new observations; noise=False asks for the function.")
    if method == "conformal" and model.likelihood_ is not None:
        raise ValueError(
            f'method is "conformal", which is for Gaussian noise; the likelihood is {model.likelihood!r}: use "model".'
        )
    found = predictive(model, points, known, noise)
    if method == "model":
        ends = found.quantiles([0.5 - level / 2, 0.5 + level / 2])
    else:
        ends = found.at(conformal_factors(model, float(level), calibration)[:, None] * np.array([-1.0, 1.0]))
    return ends[..., 0], ends[..., 1]


def probabilities(quantiles: float | Sequence[float]) -> Float[np.ndarray, "*k"]:
    """The probabilities of quantiles, one number or several; raises ValueError for others."""
    try:
        wanted = np.asarray(quantiles, dtype=float)
    except (TypeError, ValueError):
        wanted = np.empty(0)
    if wanted.ndim > 1 or wanted.size == 0 or not ((wanted > 0) & (wanted < 1)).all():
        raise ValueError(f"quantiles are {quantiles!r}, expected probabilities between 0 and 1.")
    return wanted


def calibration(
    found: Predictive | Observations, y: Float[np.ndarray, "n q"], levels: Sequence[float] | None
) -> Calibration:
    """Promised and observed coverage of central intervals, over all rows and targets.

    Of counts, the place of each in its distribution is random between the two probabilities on either side of it: no
    interval of integers has exactly the probability it should have.
    """
    error = torch.from_numpy(found.standardized(y)).reshape(-1)
    standard = torch.zeros_like(error), torch.ones_like(error)
    return metrics.calibration(error, *standard, levels=19 if levels is None else levels)


# ---- all test points jointly ----


def covariance(
    model: "GPRegressor", points: Points, known: Known, noise: bool, mean: Float[np.ndarray, "n q"]
) -> Float[np.ndarray, "n n q"]:
    """The joint covariance of targets with this mean, in squared units of the targets."""
    _check_joint(len(points.inputs))
    if model.likelihood_ is not None:
        return _covariance_of_observations(model, points, noise)
    parts = []
    for j, posterior in enumerate(model.posteriors_):
        Z = model.units_.standard(points.inputs, posterior)
        row_noise = model.units_.standard_noise(known, j, slice(None), Z)
        found = as_array(posterior.covariance(Z, noise=noise, row_noise=row_noise))
        if points.has_stand_ins:
            trees = offset(prior_mean(model, points.inputs), j, Z)
            found = points.joint(found, as_array(posterior.mean(Z, trees)))
        parts.append(found)
    restored = model.units_.restore(np.stack(parts, -1), Quantity.VARIANCE, axis=2)
    transforms = enumerate(model.units_.transforms)
    return np.stack([t.covariance(mean[:, j], restored[..., j]) for j, t in transforms], -1)


def _covariance_of_observations(model: "GPRegressor", points: Points, noise: bool) -> Float[np.ndarray, "n n 1"]:
    """The joint covariance of the means of the targets given the function, and the noise on its diagonal."""
    posterior = model.posteriors_[0]
    Z = model.units_.standard(points.inputs, posterior)
    found = as_array(posterior.covariance(Z))
    if points.has_stand_ins:
        trees = offset(prior_mean(model, points.inputs), 0, Z)
        found = points.joint(found, as_array(posterior.mean(Z, trees)))
    predicted = observations(model, points)
    function = predicted.function()
    joint = function.transforms[0].covariance(function.mean()[:, 0], found * _unit(model)[1] ** 2)
    return (joint + np.diag(predicted.noise_variance()[:, 0]) if noise else joint)[..., None]


def _samples_of_observations(
    model: "GPRegressor", points: Points, num_samples: int, seed: int, noise: bool
) -> Float[np.ndarray, "n 1 s"]:
    """Joint draws of the function, and of a target for each."""
    assert model.likelihood_ is not None
    generator, posterior = torch.Generator().manual_seed(seed), model.posteriors_[0]
    Z = model.units_.standard(points.inputs, posterior)
    trees = offset(prior_mean(model, points.inputs), 0, Z)
    draws = as_array(posterior.sample(Z, num_samples, offset=trees, generator=generator).mT)[:, None]
    values = points.choose(draws, np.random.default_rng(seed)) + model.offset_
    values = values if points.exposure is None else values + np.log(points.exposure)[:, None, None]
    if noise:
        values = as_array(model.likelihood_.sample(torch.from_numpy(values), generator))
    elif model.likelihood_.are_counts:
        with np.errstate(over="ignore"):
            values = np.exp(values)
    return model.units_.restore(values, Quantity.VALUE)


def samples(
    model: "GPRegressor", points: Points, num_samples: int, random_state: Any, known: Known, noise: bool
) -> Float[np.ndarray, "n q s"]:
    """Joint draws of new observations, or of the function, in the units of the targets."""
    _check_joint(len(points.inputs))
    seed = seed_of(random_state)
    if model.likelihood_ is not None:
        return _samples_of_observations(model, points, num_samples, seed, noise)
    generator = torch.Generator().manual_seed(seed)
    draws, trees = [], prior_mean(model, points.inputs)
    for j, posterior in enumerate(model.posteriors_):
        Z = model.units_.standard(points.inputs, posterior)
        row_noise = model.units_.standard_noise(known, j, slice(None), Z)
        given = {"noise": noise, "row_noise": row_noise, "offset": offset(trees, j, Z), "generator": generator}
        draws.append(as_array(posterior.sample(Z, num_samples, **given).mT))
    values = points.choose(np.stack(draws, 1), np.random.default_rng(seed))
    return model.units_.inverse(model.units_.restore(values, Quantity.VALUE))


def _check_joint(num_rows: int) -> None:
    if num_rows > COVARIANCE_ROWS:
        raise ValueError(
            f"joint answers at {num_rows:,} rows would take {8 * num_rows**2 / 1e9:.0f} GB and more; the limit is "
            f"{COVARIANCE_ROWS:,} rows. Use return_std, which treats each row alone, or pass fewer rows."
        )
