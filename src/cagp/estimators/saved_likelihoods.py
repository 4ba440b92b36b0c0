"""What a file holds of a regressor whose likelihood is not Gaussian, besides its posterior."""

import math
from typing import TYPE_CHECKING, Any

import torch
from sklearn.base import RegressorMixin

from cagp.estimators.labels import LARGEST_OFFSET
from cagp.estimators.observations import Baseline, learned_parameters
from cagp.likelihood_registry import GAUSSIAN
from cagp.likelihoods import likelihood_class

if TYPE_CHECKING:
    from cagp.estimators.contract import Estimator

LARGEST_PARAMETER = 1e9


def observed_state(model: "Estimator") -> dict[str, Any] | None:
    """Likelihood, offset and baseline as plain values and tensors; None for Gaussian noise, and for a classifier."""
    if not isinstance(model, RegressorMixin) or model.likelihood_ is None or model.baseline_ is None:
        return None
    likelihood, unit = model.likelihood_, float(model.units_.scaler.target_std[0])
    return {
        "likelihood": model.likelihood,
        "learned": learned_parameters(likelihood, unit),  # for readers; the next are the bits that count
        "parameters": {name: value.detach().clone() for name, value in likelihood.named_parameters()},
        "offset": float(model.offset_),
        "baseline": model.baseline_.state(),
    }


def restore_observed(model: Any, state: dict[str, Any]) -> None:
    """Set likelihood, offset and baseline of a regressor; ValueError where the file does not have them."""
    found, name = state.get("observed"), getattr(model, "likelihood", GAUSSIAN)
    is_regressor = not hasattr(model, "predict_proba")
    if not is_regressor or name == GAUSSIAN:
        if found is not None or (is_regressor and state.get("labels") is not None):
            raise ValueError("it does not have a likelihood as cagp stores it")
        return
    if not isinstance(found, dict) or found.get("likelihood") != name or model.units_.num_targets != 1:
        raise ValueError("it does not have a likelihood as cagp stores it")
    if (model.units_.encoder.exposure_name is None) != (model.exposure is None):
        raise ValueError("it does not have an exposure as cagp stores it")
    offset, likelihood = found.get("offset"), likelihood_class(name)()
    if type(offset) is not float or not abs(offset) < LARGEST_OFFSET:
        raise ValueError("it does not have an offset as cagp stores it")
    _restore_parameters(likelihood, found.get("parameters"))
    model.likelihood_, model.offset_ = likelihood.requires_grad_(False), offset
    model.baseline_ = Baseline.from_state(found.get("baseline"), likelihood.are_counts)


@torch.no_grad()
def _restore_parameters(likelihood: torch.nn.Module, stored: Any) -> None:
    own = dict(likelihood.named_parameters())
    if not isinstance(stored, dict) or stored.keys() != own.keys():
        raise ValueError("it does not have parameters of the likelihood as cagp stores it")
    for name, parameter in own.items():
        value = stored[name]
        right = isinstance(value, torch.Tensor) and value.dtype == parameter.dtype and value.shape == parameter.shape
        if not right or not math.isfinite(float(value)):
            raise ValueError("it does not have parameters of the likelihood as cagp stores it")
        parameter.copy_(value)
        if not 0 < float(getattr(likelihood, name.removeprefix("raw_"))) < LARGEST_PARAMETER:
            raise ValueError("it does not have parameters of the likelihood as cagp stores it")
