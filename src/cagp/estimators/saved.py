"""Saved models: one file with all that a fitted regressor needs to predict, and nothing that can run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.data.transforms import TRANSFORMS, Transform
from cagp.estimators.units import Units
from cagp.kernels import Kernel
from cagp.persistence import posterior_from_state, posterior_state, prior_from_state, prior_state
from cagp.prior import GP
from cagp.recipes.means import state_of, trees_from_state
from cagp.saved_summary import KIND, VERSION
from cagp.storage import stored_digest
from cagp.tensor_files import load_state, save_state
from cagp.training import FitResult

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor


ROWS_KIND, ROWS_VERSION = "cagp rows", 1
ROWS = ("X", "y", "row_noise")
"""What posteriors hold for each training row."""


def rows_path(path: Path) -> Path:
    """The file of the rows that are kept beside a model."""
    return path.with_name(f"{path.name}.rows")


def save_model(model: "GPRegressor", path: str | Path, dtype: str | None, library: str, rows: str = "inside") -> Path:
    """Write a fitted regressor; see ``GPRegressor.save``."""
    if rows not in ("inside", "beside"):
        raise ValueError(f'rows is {rows!r}, expected "inside" (one file) or "beside" (rows in a file of their own).')
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
        "target_transforms": [transform.name for transform in units.transforms],
        "target_rows": list(model.target_rows_),
        "num_rows": model.n_rows_,
        "feature_names": None if names is None else [str(name) for name in names],
        "num_features": model.n_features_in_,
        "method": model.method_,
        "methods": list(model.methods_),
        "choice": model.choice_,
        "tried": model.choices_,
        "trees": None if model.trees_ is None else state_of(model.trees_),
        "report": model.fit_report_,
        "status": result.status.value,
        "result": result.state(),
        "further_results": [{**r.state(), "status": r.status.value} for r in model.fit_results_[1:]],
        "row_noise": list(model._row_noise),
        "posteriors": [posterior_state(posterior, stored) for posterior in model.posteriors_],
        "stored_dtype": dtype,
    }
    path = Path(path)
    if rows == "beside":
        arrays: list[torch.Tensor] = []
        state["posteriors"] = [_with_references(part, arrays) for part in state["posteriors"]]
        # The rows first: a model is never without them.
        save_state(rows_path(path), {"arrays": arrays}, ROWS_KIND, ROWS_VERSION)
        state["rows"] = stored_digest(rows_path(path))
    save_state(path, state, KIND, VERSION)
    if rows == "inside":
        rows_path(path).unlink(missing_ok=True)  # of an older model with this name
    return path


def _with_references(state: Any, arrays: list[torch.Tensor]) -> Any:
    """A state in which references stand for rows; each array once, in the order of the references."""
    if isinstance(state, list):
        return [_with_references(part, arrays) for part in state]
    if not isinstance(state, dict):
        return state
    found = {}
    for name, value in state.items():
        if name not in ROWS or not isinstance(value, torch.Tensor):
            found[name] = _with_references(value, arrays)
            continue
        same = [k for k, known in enumerate(arrays) if _is_same(known, value)]
        arrays += [] if same else [value]
        found[name] = {"rows": same[0] if same else len(arrays) - 1, "shape": list(value.shape)}
    return found


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same memory."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def _with_rows(state: Any, arrays: list[torch.Tensor]) -> Any:
    """The inverse of ``_with_references``."""
    if isinstance(state, list):
        return [_with_rows(part, arrays) for part in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {"rows", "shape"}:
        return arrays[state["rows"]]
    return {name: _with_rows(value, arrays) for name, value in state.items()}


def _rows_beside(path: Path, digest: str) -> list[torch.Tensor]:
    """The rows of a model, which stay in their file; ValueError if that is not the one that was saved with it."""
    beside = rows_path(path)
    if not beside.exists():
        raise FileNotFoundError(
            f"{beside} does not exist, where {path} keeps its rows; put it there, or save the model again."
        )
    arrays = load_state(beside, ROWS_KIND, ROWS_VERSION, mapped=True)["arrays"]
    if stored_digest(beside) != digest:
        raise ValueError(
            f"{beside} has the rows of another model than {path}; put the right file there, or save again."
        )
    return arrays


def load_model(
    path: str | Path, classes: "dict[str, type[GPRegressor]]", kernel: Kernel | None = None
) -> "GPRegressor":
    """Read a regressor back; see ``cagp.load``."""
    path = Path(path)
    state = load_state(path, KIND, VERSION)
    beside = [] if state.get("rows") is None else _rows_beside(path, state["rows"])
    try:
        state["posteriors"] = _with_rows(state["posteriors"], beside)
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
        _transforms(state),
    )
    if len(posteriors) != model.units_.num_targets:
        raise ValueError(f"the model has {len(posteriors)} posteriors for {model.units_.num_targets} targets.")
    model.n_rows_, model.n_features_in_ = state["num_rows"], state["num_features"]
    if state["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
    model.fit_report_ = state["report"]
    # Older files have one fit, of all targets on all rows.
    model.methods_ = list(state.get("methods", [state["method"]]))
    model.target_rows_ = list(state.get("target_rows", [state["num_rows"]] * len(posteriors)))
    model.choice_ = state.get("choice")  # files of version 0.1 say it in the report alone
    model.choices_ = list(state.get("tried", []))
    stored = state.get("trees")
    model.trees_ = None if stored is None else trees_from_state(stored)
    if model.trees_ is not None and model.trees_.num_targets != model.units_.num_targets:
        raise ValueError(f"the model has trees for {model.trees_.num_targets} of {model.units_.num_targets} targets.")
    first = FitResult.from_state(state["result"], state.get("status"))  # nor have they a status
    model.fit_results_ = [first, *map(_further_result, state.get("further_results", []))]
    model._row_noise, model.posteriors_, model._left_out_scores = list(state["row_noise"]), posteriors, None
    return model


def _transforms(state: dict[str, Any]) -> tuple[Transform, ...]:
    """Of each target; older files took targets as they are."""
    names = state.get("target_transforms", ["identity"] * len(state["target_names"]))
    if len(names) != len(state["target_names"]):
        raise ValueError(f"the model has {len(names)} transforms for {len(state['target_names'])} targets.")
    return tuple(TRANSFORMS[name] for name in names)


def _further_result(state: dict[str, Any]) -> FitResult:
    return FitResult.from_state({name: value for name, value in state.items() if name != "status"}, state["status"])


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
