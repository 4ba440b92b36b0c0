"""Saved models: one file with all that a fitted regressor needs to predict, and nothing that can run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.estimators.units import Units
from cagp.kernels import Kernel
from cagp.persistence import posterior_from_state, posterior_state, prior_from_state, prior_state
from cagp.prior import GP
from cagp.saved_summary import KIND, VERSION
from cagp.tensor_files import load_state, save_state
from cagp.training import FitResult

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor


def save_model(model: "GPRegressor", path: str | Path, dtype: str | None, library: str) -> Path:
    """Write a fitted regressor; see ``GPRegressor.save``."""
    if dtype not in (None, "float32"):
        raise ValueError(f'dtype is {dtype!r}, expected None (as fitted) or "float32" (smaller, rounded rows).')
    stored = None if dtype is None else torch.float32
    parameters, units, result = model.get_params(deep=False), model.units_, model.fit_result_
    names = getattr(model, "feature_names_in_", None)
    state = {
        "class": type(model).__name__,
        "library": library,
        "parameters": {name: _plain(value) for name, value in parameters.items()},
        "kernel": prior_state(GP(model.kernel)) if isinstance(model.kernel, Kernel) else None,
        "encoder": units.encoder.state(),
        "scaler": dict(units.scaler._asdict()),
        "target_names": list(units.target_names),
        "target_is_matrix": units.target_is_matrix,
        "target_dtype": units.target_dtype.name,
        "num_rows": model.n_rows_,
        "feature_names": None if names is None else [str(name) for name in names],
        "num_features": model.n_features_in_,
        "method": model.method_,
        "choice": model.choice_,
        "report": model.fit_report_,
        "status": result.status.value,
        "result": result.state(),
        "row_noise": list(model._row_noise),
        "posteriors": [posterior_state(posterior, stored) for posterior in model.posteriors_],
        "stored_dtype": dtype,
    }
    path = Path(path)
    save_state(path, state, KIND, VERSION)
    return path


def load_model(
    path: str | Path, classes: "dict[str, type[GPRegressor]]", kernel: Kernel | None = None
) -> "GPRegressor":
    """Read a regressor back; see ``cagp.load``."""
    path = Path(path)
    state = load_state(path, KIND, VERSION)
    try:
        return _restored(state, classes, kernel)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not a whole model: {type(error).__name__}: {error}.") from error


def _restored(state: dict[str, Any], classes: "dict[str, type[GPRegressor]]", kernel: Kernel | None) -> "GPRegressor":
    if state["class"] not in classes:
        raise ValueError(f"the model is a {state['class']!r}, this version of cagp knows {', '.join(classes)}.")
    posteriors = [posterior_from_state(part, kernel) for part in state["posteriors"]]
    parameters = dict(state["parameters"])
    if state["kernel"] is not None:
        parameters["kernel"] = prior_from_state(state["kernel"], kernel).kernel
    if "categories" in parameters:
        parameters["categories"] = tuple(parameters["categories"])
    model = classes[state["class"]](**parameters)
    model.units_ = Units(
        Encoder.from_state(state["encoder"]),
        Standardizer(**state["scaler"]),
        tuple(state["target_names"]),
        state["target_is_matrix"],
        np.dtype(state["target_dtype"]),
    )
    if len(posteriors) != model.units_.num_targets:
        raise ValueError(f"the model has {len(posteriors)} posteriors for {model.units_.num_targets} targets.")
    model.n_rows_, model.n_features_in_ = state["num_rows"], state["num_features"]
    if state["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
    model.method_, model.fit_report_ = state["method"], state["report"]
    model.choice_ = state.get("choice")  # files of version 0.1 say it in the report alone
    model.fit_result_ = FitResult.from_state(state["result"], state.get("status"))  # nor have they a status
    model._row_noise, model.posteriors_ = list(state["row_noise"]), posteriors
    return model


def _plain(value: Any) -> Any:
    """A constructor's argument as JSON can hold it; a kernel object is stored with the posteriors."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, Path | torch.device):
        return str(value)
    if isinstance(value, Sequence) or (isinstance(value, np.ndarray | pd.Index) and value.ndim == 1):
        return [_plain(item) for item in value]
    return None
