"""Saved models: one file with all that a fitted estimator needs to predict, and nothing that can run."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cagp import fields
from cagp.estimators.fitted_state import check_posterior, fitted_from_state, fitted_state, need, one_of
from cagp.files import checked_destination, one_at_a_time, rename_durably
from cagp.kernels import Kernel
from cagp.linalg import NotPositiveDefiniteError
from cagp.posteriors import LocalPosterior, Posterior, Sharing, posterior_from_state
from cagp.posteriors.base import DTYPES
from cagp.prior import GP
from cagp.ranks import Ranks
from cagp.saved_summary import KIND, VERSION
from cagp.shards import RegionPosterior, Regions
from cagp.storage import State, load_state, save_state, stored_digest

if TYPE_CHECKING:
    from cagp.estimators.base import GPEstimator

_BROKEN = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError, AssertionError, NotPositiveDefiniteError)
ROWS_KIND, REGION_KIND, BESIDE_VERSION = "cagp rows", "cagp region", 1
ROWS = ("X", "y", "row_noise")
"""What posteriors hold for each training row."""

ESTIMATOR: fields.Fields = {
    "class": fields.text,
    "library": fields.that(lambda version: len(version) < 100, fields.text),
    "parameters": fields.dict_of(fields.anything),  # ``fit`` checks them
    "kernel": fields.optional(fields.mapping),
    "feature_names": fields.optional(fields.list_of(fields.text)),
    "stored_dtype": fields.that(lambda name: name in (None, "float32")),
    "posteriors": fields.list_of(fields.mapping),
}
"""What a file holds besides the state of the fitted model."""

_SWITCH = fields.that(lambda value: isinstance(value, bool | int))
PARAMETERS: fields.Fields = {
    "verbose": _SWITCH,
    "warm_start": _SWITCH,
    "random_state": fields.optional(fields.integer(-(2**63))),
    "categories": fields.that(lambda names: all(isinstance(name, str | int | float | bool) for name in names)),
}
"""Parameters that the checks of ``fit`` leave to scikit-learn, or to the table."""

_ENDS = fields.that(lambda values: values.is_floating_point(), fields.tensor("r", "d"))
_UNIT = fields.that(lambda values: bool((values > 0).all()), fields.numbers("d"))
BOXES: fields.Fields = {"lower": _ENDS, "upper": _ENDS, "unit": _UNIT}
REGIONS: fields.Fields = {
    "regions": fields.made_by(lambda state: Regions(**fields.checked(state, BOXES))),
    "digests": fields.list_of(fields.text),
    "dtype": one_of(DTYPES),
    "local_scale": fields.optional(fields.real(above=0.0)),
    "max_bytes": fields.integer(),
}
"""What the file of a model in regions says of them; each region has a file of its own."""


def beside(path: Path, ending: str) -> Path:
    """A file beside a model: its "rows", the "rows.new" of one that is being saved, or a region."""
    return path.with_name(f"{path.name}.{ending}")


def save_model(estimator: "GPEstimator", path: str | Path, dtype: str | None, rows: str) -> Path:
    """Write a fitted estimator; see ``GPEstimator.save``."""
    if rows not in ("inside", "beside"):
        raise ValueError(f'rows is {rows!r}, expected "inside" (one file) or "beside" (rows in a file of their own).')
    if dtype not in (None, "float32"):
        raise ValueError(f'dtype is {dtype!r}, expected None (as fitted) or "float32" (smaller, rounded rows).')
    stored, path = None if dtype is None else torch.float32, Path(path)
    parameters, names = estimator.get_params(deep=False), getattr(estimator, "feature_names_in_", None)
    fitted, kernel = estimator.fitted, parameters["kernel"]
    state = {
        "class": type(estimator).__name__,
        "library": version("cagp"),
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


def _write(path: Path, state: State, rows: str) -> None:
    """Write the model, and its rows beside it, so that at any moment there is a model with its own rows.

    New rows get a name of their own, then the model is replaced, then they replace the old rows. A model that is loaded
    in between finds its rows under either name.
    """
    path = Path(os.path.realpath(path))
    new, old, is_used = beside(path, "rows.new"), beside(path, "rows"), False
    if new.exists():  # a process was killed between two files: these rows are the model's, or nobody's
        with suppress(OSError, ValueError):
            is_used = load_state(path, KIND, VERSION).get("rows") == stored_digest(new)
        if is_used:
            rename_durably(new, old)
        else:
            new.unlink(missing_ok=True)
    if rows == "inside":
        save_state(path, state, KIND, VERSION)
        old.unlink(missing_ok=True)  # of an older model with this name
        return
    arrays: dict[Any, Tensor] = {}  # each once, in the order of the references

    def reference(name: str, value: Any) -> Any:
        if name not in ROWS or not isinstance(value, Tensor):
            return value
        place = (value.data_ptr(), value.shape, value.stride())
        arrays.setdefault(place, value)
        return {"rows": list(arrays).index(place), "shape": list(value.shape)}

    state["posteriors"] = _replaced(state["posteriors"], reference)
    save_state(new, {"arrays": list(arrays.values())}, ROWS_KIND, BESIDE_VERSION)
    state["rows"] = stored_digest(new)
    save_state(path, state, KIND, VERSION)
    rename_durably(new, old)


def _replaced(state: Any, value_of: Callable[[str, Any], Any]) -> Any:
    """A state in which ``value_of(name, value)`` stands for each value that has a name."""
    if isinstance(state, list):
        return [_replaced(part, value_of) for part in state]
    if isinstance(state, dict):
        return {name: _replaced(value_of(name, value), value_of) for name, value in state.items()}
    return state


def _rows_beside(path: Path, digest: str) -> list[Tensor]:
    """The rows of a model, which stay in their file; ValueError if that is not the one that was saved with it."""
    models = (path, Path(os.path.realpath(path)))
    places = [beside(model, ending) for model in models for ending in ("rows.new", "rows")]
    right = [place for place in places if place.exists() and stored_digest(place) == digest]
    state = _file_beside(path, "its rows", right[0] if right else beside(path, "rows"), ROWS_KIND, digest)
    return fields.entry(state, "arrays", fields.list_of(fields.that(lambda value: isinstance(value, Tensor))))


def _file_beside(model: Path, what: str, path: Path, kind: str, digest: str) -> State:
    """What a model keeps in a file beside it, whose tensors stay there; ValueError if it is of another model."""
    _check_there(model, what, path)
    state = load_state(path, kind, BESIDE_VERSION, mapped=True)  # says whether it is damaged
    if stored_digest(path) != digest:
        raise ValueError(f"{path} is of another model than {model}; put the right file there, or save again.")
    return state


def _check_there(model: Path, what: str, path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist, where {model} keeps {what}; put it there, or save the model again."
        )


def load_model(path: str | Path, classes: dict[str, type[Any]], kernel: Kernel | None = None) -> Any:
    """Read an estimator back; see ``cagp.load``."""
    path = Path(path)
    state, rows = _read(path)

    def row_values(_: str, value: Any) -> Any:
        is_reference = isinstance(value, dict) and value.keys() == {"rows", "shape"}
        return rows[value["rows"]] if is_reference else value

    try:
        state["posteriors"] = _replaced(state["posteriors"], row_values)
        return _restored(state, path, classes, kernel)
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    except (MemoryError, RuntimeError) as error:  # torch has no class of its own for a failed allocation
        why = str(error).splitlines()[0] if str(error) else "not enough memory"
        raise ValueError(f"{path} cannot be loaded: {why}") from error
    except _BROKEN as error:
        raise ValueError(f"{path} is not a whole model: {type(error).__name__}: {error}.") from error


def _read(path: Path) -> tuple[State, list[Tensor]]:
    """The state of a model and its rows beside it; once more where another process has just replaced them."""
    while True:
        state = load_state(path, KIND, VERSION)
        if state.get("rows") is None:
            return state, []
        try:
            return state, _rows_beside(path, state["rows"])
        except (ValueError, FileNotFoundError):
            if load_state(path, KIND, VERSION).get("rows") == state["rows"]:
                raise


def _restored(state: State, path: Path, classes: dict[str, type[Any]], kernel: Kernel | None) -> Any:
    about = fields.checked(state, ESTIMATOR)
    if about["class"] not in classes:
        raise ValueError(f"the model is a {about['class']!r}, this version of cagp knows {', '.join(classes)}.")
    sharing = Sharing(2**26 + 40 * path.stat().st_size)
    posteriors = [
        regions_from_state(part, path, kernel)
        if part.get("class") == RegionPosterior.__name__
        else posterior_from_state(part, kernel, sharing)
        for part in about["posteriors"]
    ]
    fitted, parameters = fitted_from_state(state, posteriors), about["parameters"]
    if about["kernel"] is not None:
        parameters["kernel"] = GP.from_state(about["kernel"], kernel).kernel
    parameters["categories"] = tuple(parameters["categories"])
    # A file does not say where a later fit writes.
    estimator = classes[about["class"]](**{**parameters, "checkpoint_dir": None})
    estimator._check(anywhere=True)
    fields.checked({name: getattr(estimator, name) for name in PARAMETERS}, PARAMETERS)
    need(estimator.likelihood == fitted.likelihood_name, "a likelihood")
    need((fitted.units.encoder.exposure_name is None) == (estimator.exposure is None), "an exposure")
    names, num_columns = about["feature_names"], fitted.units.encoder.num_columns
    if names is not None:
        need(len(names) == num_columns, "'feature_names'")
        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    estimator.n_features_in_, estimator.fitted_ = num_columns, fitted
    return estimator


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


# ---- regions: a file for each beside a small one; processes read and write those they need ----


def region_paths(path: Path, count: int) -> list[Path]:
    """The files of regions, counted from 1 in their names."""
    return [beside(path, f"region-{number}-of-{count}") for number in range(1, count + 1)]


def save_regions(posterior: RegionPosterior, path: Path, dtype: torch.dtype | None) -> dict[str, Any]:
    """Write the files of all regions, each by its process, and return what the model's own file says of them.

    On all processes; if one cannot write, all raise.
    """
    ranks, paths = posterior.ranks, region_paths(path, posterior.regions.num_regions)

    def write() -> dict[int, str]:
        for region in posterior.own:
            state = posterior.of_region(region).state(dtype)
            save_state(paths[region], {"posterior": state}, REGION_KIND, BESIDE_VERSION)
        return {region: stored_digest(paths[region]) for region in posterior.own}

    digests = ranks.together(write, (OSError, ValueError))
    known = [ranks.words_of(region % ranks.size, digests.get(region, "")) for region in range(len(paths))]
    held = ranks.from_all(sum(len(posterior.of_region(region).X) for region in posterior.own)).sum()
    return {
        "class": type(posterior).__name__,
        "prior": posterior.prior.state(),
        "dtype": str(posterior.X.dtype).removeprefix("torch."),
        "max_bytes": int(posterior.max_bytes),
        "local_scale": posterior.local_scale,
        "X": {"shape": [int(held), posterior.X.shape[1]]},  # of all regions, with the rows that several hold
        "regions": dict(posterior.regions._asdict()),
        "digests": known,
    }


def regions_from_state(state: State, path: Path, kernel: Kernel | None) -> Posterior:
    """The posterior of ``save_regions``; this process opens the files of its regions when it first needs them."""
    found = fields.checked(state, REGIONS)
    regions, digests = found["regions"], found["digests"]
    count, d = regions.lower.shape
    need(len(digests) == count and bool((regions.lower <= regions.upper).all()), "'regions'")
    paths = region_paths(path, count)
    for own in paths:
        _check_there(path, "a region", own)

    def open_region(region: int) -> LocalPosterior:
        own = paths[region]
        stored = _file_beside(path, "a region", own, REGION_KIND, digests[region])
        found = posterior_from_state(stored["posterior"], kernel)
        if not isinstance(found, LocalPosterior):
            raise ValueError(f"{own} holds a {type(found).__name__}, expected the nearest rows of a region.")
        check_posterior(found, d)
        return found

    prior, like = GP.from_state(state["prior"], kernel), torch.empty(0, d, dtype=DTYPES[found["dtype"]])
    return RegionPosterior(prior, regions, Ranks.here(), like, found["local_scale"], open_region, found["max_bytes"])
