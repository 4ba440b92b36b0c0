"""From a regressor's parameters and a table to the task that a recipe trains."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from cagp import kernel_registry
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.units import TrainingRows, Units
from cagp.kernels import Kernel, Scale, kernel_class
from cagp.memory import default_memory_limit
from cagp.posteriors import InducingPosterior
from cagp.quantities import bytes_of, seconds_of
from cagp.recipes import Recipe
from cagp.recipes.options import TARGET_SCALES, is_positive_integer
from cagp.recipes.task import Task
from cagp.storage import fingerprint

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_parameters(model: "GPRegressor") -> None:
    """Raise ValueError for a parameter that every regressor has and that is not right."""
    if isinstance(model.kernel, str):
        if model.kernel not in kernel_registry.NAMES:
            listed = ", ".join(kernel_registry.NAMES)
            raise ValueError(f"kernel is {model.kernel!r}, expected one of {listed}, or a kernel of cagp.kernels.")
    elif not isinstance(model.kernel, Kernel):
        raise ValueError(f"kernel is a {type(model.kernel).__name__}, expected a name or a kernel of cagp.kernels.")
    if model.dtype != "auto" and model.dtype not in DTYPES:
        raise ValueError(f'dtype is {model.dtype!r}, expected "auto", "float32" or "float64".')
    if model.target not in TARGET_SCALES:
        raise ValueError(f'target is {model.target!r}, expected "auto", "identity" or "log".')
    if model.max_epochs is not None and not is_positive_integer(model.max_epochs):
        raise ValueError(f"max_epochs is {model.max_epochs!r}, expected a positive integer (or None).")
    seconds_of(model.max_time)
    _check_device(model.device)


def _check_device(device: str | torch.device) -> None:
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device is {device!r}, expected a device of torch, e.g. "cpu" or "cuda".') from error
    try:
        torch.empty(1, device=known)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device is {str(device)!r}, which this computer or this build of torch does not have ({reason}); use "
            '"cpu".'
        ) from error


def new_task(
    model: "GPRegressor",
    recipe: Recipe,
    units: Units,
    rows: TrainingRows,
    *,
    target: int | None = None,
    of_rows: int | None = None,
) -> Task:
    """The rows in standard units, with the limits of the regressor and its starting values.

    Args:
        target: the number of the target that ``units`` and ``rows`` are of; None for all.
        of_rows: the number of rows of all targets together, which share a dtype; None for that of ``rows``.
    """
    num_rows = len(rows.inputs) if of_rows is None else of_rows
    dtype = DTYPES[recipe.default_dtype(num_rows) if model.dtype == "auto" else model.dtype]
    memory = default_memory_limit() if model.max_memory is None else bytes_of(model.max_memory)
    scaler = units.scaler

    def tensor(values: Tensor) -> Tensor:
        return values.to(dtype=dtype, device=torch.device(model.device))

    # Divided twice: the square of a tiny unit would be zero.
    noise = None if rows.noise is None else torch.from_numpy(rows.noise) / scaler.target_std / scaler.target_std
    kernel, from_data, starts, points = _starting_values(model, rows, target)
    task = Task(
        X=tensor(scaler.inputs(torch.from_numpy(rows.inputs))),
        y=tensor(scaler.targets(torch.from_numpy(rows.targets))),
        row_noise=None if noise is None else tensor(noise),
        kernel=kernel.to(torch.device(model.device)),
        noise=starts,
        from_data=from_data,
        seed=seed_of(model.random_state),
        max_bytes=min(DEFAULT_MAX_BYTES, max(memory // 8, 2**20)),
        memory=memory,
        max_memory=model.max_memory,
        max_epochs=None if model.max_epochs is None else int(model.max_epochs),
        max_time=model.max_time,
        folder=None,
        verbose=bool(model.verbose),
        names=None if units.encoder.names_in is None else units.encoder.names_out,
        points=None if points is None else tensor(scaler.inputs(points)),
    )
    if model.checkpoint_dir is None:
        return task
    return replace(task, folder=Path(model.checkpoint_dir) / _key(task, recipe))


def _key(task: Task, recipe: Recipe) -> str:
    """The name of the folder for this fit's checkpoints; it depends on data, options and starting values."""
    tensors = [t for t in (*task.data, task.points, *task.kernel.state_dict().values()) if t is not None]
    kernel = [type(part).__name__ for part in task.kernel.modules()]
    plain = [recipe.name, vars(recipe), kernel, task.noise, task.from_data, task.seed, task.max_epochs]
    return fingerprint(plain, *(t.detach().cpu().numpy() for t in tensors))[:12]


def _starting_values(
    model: "GPRegressor", rows: TrainingRows, target: int | None
) -> tuple[Kernel, bool, list[float] | None, Tensor | None]:
    """The kernel, whether the data give its starting values, the noise of each target, and inducing points.

    A named kernel starts where the data suggest; a kernel object starts where its owner put it. With ``warm_start``, a
    fit with the same kernel and targets starts where the last one ended.
    """
    if isinstance(model.kernel, str):
        kernel, from_data = Scale(kernel_class(model.kernel)(rows.inputs.shape[1])), True
    else:
        kernel, from_data = copy.deepcopy(model.kernel), False
    last, own = getattr(model, "posteriors_", None), slice(None) if target is None else slice(target, target + 1)
    if not model.warm_start or last is None or len(last := last[own]) != rows.targets.shape[1]:
        return kernel, from_data, None, None
    if _structure(kernel) != _structure(last[0].prior.kernel):
        return kernel, from_data, None, None
    kernel.load_state_dict(last[0].prior.kernel.state_dict())
    scaler, points = model.units_.scaler, None
    if isinstance(last[0], InducingPosterior):
        points = last[0].X.double().cpu() * scaler.input_std + scaler.input_mean
    return kernel, False, ((model.noise_std_ / scaler.target_std.numpy()) ** 2)[own].tolist(), points


def _structure(kernel: Kernel) -> list[Any]:
    """The classes a kernel is made of, and the sizes of its parameters."""
    sizes = [(name, tuple(values.shape)) for name, values in kernel.state_dict().items()]
    return [type(part) for part in kernel.modules()] + sizes


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
