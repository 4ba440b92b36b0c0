"""Saved models: one file that holds all a fitted regressor needs to answer, and nothing that can run."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.kernels import Kernel
from cagp.persistence import posterior_from_state, posterior_state, prior_from_state, prior_state
from cagp.prior import GP
from cagp.storage import load_state, save_state
from cagp.training import FitResult

KIND, VERSION = "cagp model", 1


def save_model(model: Any, path: str | Path, dtype: str | None, library: str) -> Path:
    """Write a fitted regressor; see ``GPRegressor.save``."""
    if dtype not in (None, "float32"):
        raise ValueError(f'dtype is {dtype!r}, expected None (as fitted) or "float32" (smaller, rounded rows).')
    stored = None if dtype is None else torch.float32
    parameters = model.get_params(deep=False)
    state = {
        "class": type(model).__name__,
        "library": library,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "kernel": prior_state(GP(model.kernel)) if isinstance(model.kernel, Kernel) else None,
        "encoder": model.encoder_.state(),
        "scaler": dict(model.scaler_._asdict()),
        "target_names": list(model.target_names_),
        "target_is_matrix": model._target_is_matrix,
        "target_dtype": model._target_dtype.name,
        "num_rows": model.n_rows_,
        "feature_names": None if not hasattr(model, "feature_names_in_") else [str(n) for n in model.feature_names_in_],
        "num_features": model.n_features_in_,
        "method": model.method_,
        "report": model.fit_report_,
        "result": model.fit_result_.state(),
        "row_noise": list(model._row_noise),
        "posteriors": [posterior_state(posterior, stored) for posterior in model.posteriors_],
        "stored_dtype": dtype,
    }
    path = Path(path)
    save_state(path, state, KIND, VERSION)
    return path


def load_model(path: str | Path, classes: dict[str, type], kernel: Kernel | None = None) -> Any:
    """Read a regressor back; see ``cagp.load``."""
    path = Path(path)
    state = load_state(path, KIND, VERSION)
    try:
        return _restored(state, classes, kernel)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not a whole model: {type(error).__name__}: {error}.") from error


def _restored(state: dict[str, Any], classes: dict[str, type], kernel: Kernel | None) -> Any:
    if state["class"] not in classes:
        raise ValueError(f"the model is a {state['class']!r}, this version of cagp knows {', '.join(classes)}.")
    posteriors = [posterior_from_state(part, kernel) for part in state["posteriors"]]
    parameters = dict(state["parameters"])
    if state["kernel"] is not None:
        parameters["kernel"] = prior_from_state(state["kernel"], kernel).kernel
    model = classes[state["class"]](**parameters)
    model.encoder_, model.scaler_ = Encoder.from_state(state["encoder"]), Standardizer(**state["scaler"])
    model.feature_names_out_ = np.asarray(model.encoder_.names_out, dtype=object)
    model.target_names_, model.n_outputs_ = tuple(state["target_names"]), len(posteriors)
    model._target_is_matrix, model._target_dtype = state["target_is_matrix"], np.dtype(state["target_dtype"])
    model.n_rows_, model.n_features_in_ = state["num_rows"], state["num_features"]
    if state["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
    model.method_, model.fit_report_ = state["method"], state["report"]
    model.fit_result_ = FitResult.from_state(state["result"])
    model._row_noise, model.posteriors_ = list(state["row_noise"]), posteriors
    return model


def _plain(value: Any) -> Any:
    """A constructor's argument as JSON can hold it; a kernel object is in the posteriors."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, Path | torch.device):
        return str(value)
    return None
