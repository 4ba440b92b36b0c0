"""The hyperparameters that a fitted regressor has learned, in the user's units."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from cagp.estimators.units import Quantity, as_array
from cagp.kernel_summary import kernel_parts
from cagp.persistence import prior_state
from cagp.posteriors import AveragedPosterior
from cagp.prior import GaussianNoise
from cagp.recipes import SITES_GUARANTEE, guarantee_words

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor
    from cagp.estimators.contract import Estimator


def guarantee(model: "GPRegressor") -> str:
    """What holds for the variance of the function at a test point, in one sentence."""
    if model.likelihood_ is not None:
        return SITES_GUARANTEE
    scaled = any(posterior.has_local_scale for posterior in model.posteriors_)
    never_below = all(posterior.never_below_exact for posterior in model.posteriors_)
    is_average = any(isinstance(posterior, AveragedPosterior) for posterior in model.posteriors_)
    return guarantee_words(never_below, scaled, model.units_.has_log, is_average)


def lengthscales(model: "Estimator") -> Float[np.ndarray, " p"]:
    """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none."""
    num_inputs = len(model.feature_names_out_)
    found = model.posteriors_[0].prior.kernel.lengthscales(num_inputs)
    values = np.full(num_inputs, np.nan) if found is None else found.cpu().numpy()
    return np.where(np.isfinite(values), values, np.nan)


def parts_of_kernel(model: "Estimator") -> list[dict[str, Any]]:
    """Every part of the kernel, what it sees and what it learned; as plain values."""
    state = prior_state(model.posteriors_[0].prior)["kernel"]
    return kernel_parts(_arrays(state), model.feature_names_out_.tolist(), model.scaler_.input_std.numpy())


def noise_std(model: "GPRegressor") -> Float[np.ndarray, " q"]:
    """The learned standard deviation of the noise of each target, on the scale of the fit; NaN for counts."""
    likelihood = model.likelihood_
    if likelihood is not None:
        zero = torch.zeros(1, dtype=torch.float64)
        own = np.nan if likelihood.are_counts else float(likelihood.predictive_noise(zero, zero).sqrt())
        return model.units_.restore(np.array([own]), Quantity.DEVIATION, axis=0)
    noises = (posterior.prior.noise for posterior in model.posteriors_)
    variances = [float(n.noise.detach()) if isinstance(n, GaussianNoise) else 0.0 for n in noises]
    return model.units_.restore(np.sqrt(variances), Quantity.DEVIATION, axis=0)


def _arrays(state: Any) -> Any:
    """A state with arrays instead of tensors."""
    if isinstance(state, torch.Tensor):
        return as_array(state)
    if isinstance(state, dict):
        return {name: _arrays(value) for name, value in state.items()}
    return [_arrays(value) for value in state] if isinstance(state, list) else state
