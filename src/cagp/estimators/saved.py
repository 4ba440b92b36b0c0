"""Saved models: one file with all that a fitted regressor needs to predict, and nothing that can run."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.data.transforms import TRANSFORMS, Transform
from cagp.estimators.labels import labels_state, restore_labels
from cagp.estimators.saved_checks import check_parameters, check_posteriors, check_scaler, check_values
from cagp.estimators.saved_likelihoods import observed_state, restore_observed
from cagp.estimators.saved_regions import is_in_regions, regions_from_state, save_regions
from cagp.estimators.units import Units
from cagp.files import checked_destination, one_at_a_time, rename_durably
from cagp.kernels import Kernel
from cagp.linalg import NotPositiveDefiniteError
from cagp.persistence import Sharing, posterior_from_state, posterior_state, prior_from_state, prior_state
from cagp.prior import GP
from cagp.recipes.means import state_of, trees_from_state
from cagp.saved_summary import KIND, VERSION
from cagp.shards import RegionPosterior
from cagp.storage import stored_digest
from cagp.tensor_files import load_state, save_state
from cagp.training import FitResult

if TYPE_CHECKING:
    from cagp.estimators.contract import Estimator


_BROKEN = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError, AssertionError, NotPositiveDefiniteError)
ROWS_KIND, ROWS_VERSION = "cagp rows", 1
ROWS = ("X", "y", "row_noise")
"""What posteriors hold for each training row."""


def rows_path(path: Path) -> Path:
    """The file of the rows that are kept beside a model."""
    return path.with_name(f"{path.name}.rows")


def new_rows_path(path: Path) -> Path:
    """The file of the rows of a model that is being saved."""
    return path.with_name(f"{path.name}.rows.new")


def save_model(model: "Estimator", path: str | Path, dtype: str | None, library: str, rows: str = "inside") -> Path:
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
        "parameters": {name: _plain(value) for name, value in parameters.items() if name != "checkpoint_dir"},
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
        "posteriors": [],
        "stored_dtype": dtype,
        "labels": labels_state(model) if hasattr(model, "classes_") else None,
        "observed": observed_state(model),
    }
    path = Path(path)
    if isinstance(model.posteriors_[0], RegionPosterior):
        posterior = model.posteriors_[0]
        state["posteriors"] = [save_regions(posterior, path, stored)]
        # All files of regions first: a model is never without them.
        posterior.ranks.from_first(lambda: {"saved": save_state(path, state, KIND, VERSION)})
        return path
    state["posteriors"] = [posterior_state(posterior, stored) for posterior in model.posteriors_]
    with one_at_a_time(checked_destination(path).parent):
        _write(path, state, rows)
    return path


def _write(path: Path, state: dict[str, Any], rows: str) -> None:
    """Write the model, and its rows beside it, so that at any moment there is a model with its own rows.

    New rows get a name of their own, then the model is replaced, then they replace the old rows. A model that is loaded
    in between finds its rows under either name.
    """
    path = Path(os.path.realpath(path))
    _settle(path)
    if rows == "beside":
        arrays: list[torch.Tensor] = []
        state["posteriors"] = [_with_references(part, arrays) for part in state["posteriors"]]
        save_state(new_rows_path(path), {"arrays": arrays}, ROWS_KIND, ROWS_VERSION)
        state["rows"] = stored_digest(new_rows_path(path))
    save_state(path, state, KIND, VERSION)
    if rows == "beside":
        rename_durably(new_rows_path(path), rows_path(path))
    else:
        rows_path(path).unlink(missing_ok=True)  # of an older model with this name


def _settle(path: Path) -> None:
    """Finish what a process left undone that was killed between two files: new rows are the model's, or nobody's."""
    if not new_rows_path(path).exists():
        return
    try:
        is_used = load_state(path, KIND, VERSION).get("rows") == stored_digest(new_rows_path(path))
    except (OSError, ValueError):
        is_used = False
    if is_used:
        rename_durably(new_rows_path(path), rows_path(path))
    else:
        new_rows_path(path).unlink(missing_ok=True)


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


def _rows_beside(path: Path, digest: Any) -> list[torch.Tensor]:
    """The rows of a model, which stay in their file; ValueError if that is not the one that was saved with it."""
    for model in (path, Path(os.path.realpath(path))):
        for beside in (new_rows_path(model), rows_path(model)):
            with suppress(FileNotFoundError):
                if stored_digest(beside) == digest:
                    state = load_state(beside, ROWS_KIND, ROWS_VERSION, mapped=True)
                    if stored_digest(beside) == digest:  # nobody has replaced it since
                        return _arrays(state, beside)
    beside = rows_path(path)
    if not beside.exists():
        raise FileNotFoundError(
            f"{beside} does not exist, where {path} keeps its rows; put it there, or save the model again."
        )
    load_state(beside, ROWS_KIND, ROWS_VERSION, mapped=True)  # says whether it is damaged
    raise ValueError(f"{beside} has the rows of another model than {path}; put the right file there, or save again.")


def _arrays(state: dict[str, Any], path: Path) -> list[torch.Tensor]:
    arrays = state.get("arrays")
    if not isinstance(arrays, list) or not all(isinstance(array, torch.Tensor) for array in arrays):
        raise ValueError(f"{path} does not hold rows as cagp stores them; save the model again.")
    return arrays


def load_model(path: str | Path, classes: "dict[str, type[Estimator]]", kernel: Kernel | None = None) -> "Estimator":
    """Read a regressor back; see ``cagp.load``."""
    path = Path(path)
    state, beside = _read(path)
    try:
        state["posteriors"] = _with_rows(state["posteriors"], beside)
        return _restored(state, path, classes, kernel)
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for a failed allocation
        why = str(error).splitlines()[0] if str(error) else "not enough memory"
        raise ValueError(f"{path} cannot be loaded: {why}") from error
    except _BROKEN as error:
        raise ValueError(f"{path} is not a whole model: {type(error).__name__}: {error}.") from error


def _read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The state of a model and its rows beside it; once more where another process has just replaced them."""
    while True:
        state = load_state(path, KIND, VERSION)
        if state.get("rows") is None:
            return state, []
        digest = stored_digest(path)
        try:
            return state, _rows_beside(path, state["rows"])
        except (ValueError, FileNotFoundError):
            if stored_digest(path) == digest and load_state(path, KIND, VERSION).get("rows") == state["rows"]:
                raise


def _restored(
    state: dict[str, Any], path: Path, classes: "dict[str, type[Estimator]]", kernel: Kernel | None
) -> "Estimator":
    if state["class"] not in classes:
        raise ValueError(f"the model is a {state['class']!r}, this version of cagp knows {', '.join(classes)}.")
    check_values(state)
    sharing = Sharing(2**26 + 40 * path.stat().st_size)
    posteriors = [
        regions_from_state(part, path, kernel) if is_in_regions(part) else posterior_from_state(part, kernel, sharing)
        for part in state["posteriors"]
    ]
    parameters = dict(state["parameters"])
    if state["kernel"] is not None:
        parameters["kernel"] = prior_from_state(state["kernel"], kernel).kernel
    if "categories" in parameters:
        parameters["categories"] = tuple(parameters["categories"])
    # A file does not say where a later fit writes.
    model = classes[state["class"]](**{**parameters, "checkpoint_dir": None})
    check_parameters(model)
    encoder = Encoder.from_state(state["encoder"])
    check_scaler(state["scaler"], len(encoder.names_out), len(state["target_names"]))
    model.units_ = Units(
        encoder,
        Standardizer(**state["scaler"]),
        tuple(state["target_names"]),
        state["target_is_matrix"],
        np.dtype(state["target_dtype"]),
        _transforms(state),
    )
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
    if model.trees_ is not None and (model.trees_.num_targets, model.trees_.num_inputs) != (
        model.units_.num_targets,
        encoder.num_columns,
    ):
        raise ValueError(
            f"the model has trees for {model.trees_.num_targets} targets and {model.trees_.num_inputs} columns, it "
            f"predicts {model.units_.num_targets} from {encoder.num_columns}."
        )
    first = FitResult.from_state(state["result"], state.get("status"))  # nor have they a status
    model.fit_results_ = [first, *map(_further_result, state.get("further_results", []))]
    if len(model.fit_results_) != len(model.methods_):
        raise ValueError(f"the model has {len(model.methods_)} methods and {len(model.fit_results_)} results.")
    model._row_noise, model.posteriors_, model._left_out_scores = list(state["row_noise"]), posteriors, None
    check_posteriors(model)
    if hasattr(model, "predict_proba"):
        restore_labels(model, state.get("labels"))
    restore_observed(model, state)
    return model


def _transforms(state: dict[str, Any]) -> tuple[Transform, ...]:
    """Of each target; older files took targets as they are."""
    names = state.get("target_transforms", ["identity"] * len(state["target_names"]))
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
