"""Saved models: one file with all that a fitted estimator needs to predict, and nothing that can run."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator

from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.fitted_state import fitted_from_state, fitted_state, is_text, require
from cagp.estimators.options import FitOptions
from cagp.estimators.saved_regions import is_in_regions, regions_from_state, save_regions
from cagp.files import checked_destination, one_at_a_time, rename_durably
from cagp.kernels import Kernel
from cagp.linalg import NotPositiveDefiniteError
from cagp.posteriors import Sharing, posterior_from_state
from cagp.prior import GP
from cagp.saved_summary import KIND, VERSION
from cagp.shards import RegionPosterior
from cagp.storage import stored_digest
from cagp.tensor_files import load_state, save_state

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


def save_model(
    estimator: BaseEstimator, fitted: FittedModel, path: str | Path, dtype: str | None, library: str, rows: str
) -> Path:
    """Write a fitted estimator; see ``GPEstimator.save``."""
    if rows not in ("inside", "beside"):
        raise ValueError(f'rows is {rows!r}, expected "inside" (one file) or "beside" (rows in a file of their own).')
    if dtype not in (None, "float32"):
        raise ValueError(f'dtype is {dtype!r}, expected None (as fitted) or "float32" (smaller, rounded rows).')
    stored, path = None if dtype is None else torch.float32, Path(path)
    parameters, names = estimator.get_params(deep=False), getattr(estimator, "feature_names_in_", None)
    kernel = parameters["kernel"]
    state = {
        "class": type(estimator).__name__,
        "library": library,
        "parameters": {name: _plain(value) for name, value in parameters.items() if name != "checkpoint_dir"},
        "kernel": GP(kernel).state() if isinstance(kernel, Kernel) else None,
        "feature_names": None if names is None else [str(name) for name in names],
        "stored_dtype": dtype,
        **fitted_state(fitted),
    }
    first = fitted.posteriors[0]
    if isinstance(first, RegionPosterior):
        state["posteriors"] = [save_regions(first, path, stored)]
        # All files of regions first: a model is never without them.
        first.ranks.from_first(lambda: {"saved": save_state(path, state, KIND, VERSION)})
        return path
    state["posteriors"] = [posterior.state(stored) for posterior in fitted.posteriors]
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


def load_model(path: str | Path, classes: dict[str, type[Any]], kernel: Kernel | None = None) -> Any:
    """Read an estimator back; see ``cagp.load``."""
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


def _restored(state: dict[str, Any], path: Path, classes: dict[str, type[Any]], kernel: Kernel | None) -> Any:
    if state["class"] not in classes:
        raise ValueError(f"the model is a {state['class']!r}, this version of cagp knows {', '.join(classes)}.")
    rows, parts, library = state.get("rows"), state["posteriors"], state["library"]
    require(rows is None or (is_text(rows) and re.fullmatch("[0-9a-f]{32}", rows) is not None), "rows")
    require(state["stored_dtype"] in (None, "float32"), "stored_dtype")
    require(isinstance(parts, list) and all(isinstance(part, dict) for part in parts), "posteriors")
    require(is_text(library) and len(library) < 100, "library")
    sharing = Sharing(2**26 + 40 * path.stat().st_size)
    posteriors = [
        regions_from_state(part, path, kernel) if is_in_regions(part) else posterior_from_state(part, kernel, sharing)
        for part in parts
    ]
    fitted, parameters = fitted_from_state(state, posteriors), dict(state["parameters"])
    if state["kernel"] is not None:
        parameters["kernel"] = GP.from_state(state["kernel"], kernel).kernel
    parameters["categories"] = tuple(parameters["categories"])
    # A file does not say where a later fit writes.
    estimator = classes[state["class"]](**{**parameters, "checkpoint_dir": None})
    _check_parameters(estimator, fitted)
    names = state["feature_names"]
    if names is not None:
        require(len(names) == fitted.encoder.num_columns and all(map(is_text, names)), "feature_names")
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    estimator.n_features_in_, estimator.fitted_ = fitted.encoder.num_columns, fitted
    return estimator


def _check_parameters(estimator: Any, fitted: FittedModel) -> None:
    """Raise ValueError for parameters that the checks of ``fit`` refuse, or that do not go with the fitted model."""
    FitOptions.of(estimator, anywhere=True)
    estimator._check()
    given = {"warm_start": False, "exposure": None, **estimator.get_params(deep=False)}
    for name in ("verbose", "warm_start"):
        require(isinstance(given[name], bool | int), name)
    require(given["random_state"] is None or type(given["random_state"]) is int, "random_state")
    require(all(isinstance(name, str | int | float | bool) for name in given["categories"]), "categories")
    require(estimator.likelihood == fitted.likelihood_name, "a likelihood")
    require((fitted.encoder.exposure_name is None) == (given["exposure"] is None), "an exposure")
    try:
        torch.device(given["device"])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device is {given['device']!r}, expected a device of torch.") from error


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
