"""From a regressor's parameters and a table to the task that a recipe trains."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from cagp import kernel_registry
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.units import EncodedTable, TrainingRows, Units
from cagp.kernels import InputUnits, Kernel, kernel_class, named_kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.memory import default_memory_limit
from cagp.posteriors import InducingPosterior
from cagp.quantities import bytes_of, seconds_of
from cagp.ranks import Ranks
from cagp.recipes import Recipe
from cagp.recipes.options import COPIES, MEANS, TARGET_SCALES, is_positive_integer
from cagp.recipes.task import Task
from cagp.storage import fingerprint

if TYPE_CHECKING:
    from cagp.estimators.contract import Estimator
    from cagp.estimators.mapped_rows import MappedRows

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def check_parameters(model: "Estimator") -> None:
    """Raise ValueError for a parameter that every regressor has and that is not right."""
    check_fixed_parameters(model)
    _check_device(model.device)


def check_fixed_parameters(model: "Estimator") -> None:
    """The same for those that mean the same on every computer."""
    if isinstance(model.kernel, str):
        if model.kernel not in (kernel_registry.AUTO, *kernel_registry.NAMES):
            listed = ", ".join(kernel_registry.NAMES)
            raise ValueError(
                f'kernel is {model.kernel!r}, expected "auto", one of {listed}, or a kernel of cagp.kernels.'
            )
    elif not isinstance(model.kernel, Kernel):
        raise ValueError(f"kernel is a {type(model.kernel).__name__}, expected a name or a kernel of cagp.kernels.")
    if not isinstance(model.mean, str) or model.mean not in MEANS:
        raise ValueError(f'mean is {model.mean!r}, expected "auto", "zero" or "trees".')
    if model.dtype != "auto" and model.dtype not in DTYPES:
        raise ValueError(f'dtype is {model.dtype!r}, expected "auto", "float32" or "float64".')
    if model.target not in TARGET_SCALES:
        raise ValueError(f'target is {model.target!r}, expected "auto", "identity" or "log".')
    if model.copies not in COPIES:
        raise ValueError(f'copies is {model.copies!r}, expected "keep" or "once".')
    if model.max_epochs is not None and not is_positive_integer(model.max_epochs):
        raise ValueError(f"max_epochs is {model.max_epochs!r}, expected a positive integer (or None).")
    seconds_of(model.max_time)


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


def check_same_table(ranks: Ranks, units: Units, rows: "TrainingRows | MappedRows") -> None:
    """Raise ValueError on all processes unless each was given the same table."""
    scaler, num_rows, held_out = units.scaler, rows.num_rows, rows.rule.values
    numbers = {
        "the number of rows": float(num_rows),
        "the number of inputs": float(len(units.encoder.names_out)),
        "the mean of the inputs, without signs": float(scaler.input_mean.abs().sum()),
        "the spread of the inputs": float(scaler.input_std.sum()),
        "the mean of the targets, without signs": float(scaler.target_mean.abs().sum()),
        "the spread of the targets": float(scaler.target_std.sum()),
        "the times or groups": 0.0 if held_out is None else float(np.arange(1, num_rows + 1) @ held_out),
    }
    ranks.check_same(numbers, "give every process the whole table")


def new_task(
    model: "Estimator",
    recipe: Recipe,
    units: Units,
    rows: "TrainingRows | MappedRows",
    *,
    began: float,
    seed: int,
    ranks: Ranks,
    target: int | None = None,
    of_rows: int | None = None,
    with_folder: bool = True,
    known: Tensor | None = None,
) -> Task:
    """The rows in standard units, with the limits of the regressor and its starting values.

    Args:
        began: when the fit began, on the clock ``time.perf_counter()``: ``max_time`` counts from there.
        seed: of everything random.
        ranks: the processes that train together.
        target: the number of the target that ``units`` and ``rows`` are of; None for all.
        of_rows: the number of rows of all targets together, which share a dtype; None for that of ``rows``.
        with_folder: whether the task has a folder for its checkpoints, if the model has one.
        known: a known part of the latent function at each row, where the likelihood is not Gaussian.
    """
    num_rows, scratch = rows.num_rows if of_rows is None else of_rows, rows.scratch
    default = recipe.default_dtype(num_rows) if scratch is None else "float32"
    dtype = DTYPES[default if model.dtype == "auto" else model.dtype]
    memory = default_memory_limit() if model.max_memory is None else bytes_of(model.max_memory)
    memory, device = int(ranks.broadcast(float(memory))), ranks.device(model.device)
    scaler = units.scaler

    def tensor(values: Tensor) -> Tensor:
        return values.to(dtype=dtype, device=device)

    X, y, noise = rows.standard(units)
    kernel, kernels, from_data, starts, points = _starting_values(model, units, rows, target)
    kernel.tell(InputUnits(scaler.input_mean, scaler.input_std, units.encoder.names_out))
    task = Task(
        X=tensor(X),
        y=tensor(y),
        row_noise=None if noise is None else tensor(noise),
        inputs=rows.inputs,
        categorical=units.encoder.categorical,
        mean=_mean(model, starts is not None, target) if scratch is None else "zero",
        kernel=kernel.to(device),
        kernels=kernels,
        noise=starts,
        from_data=from_data,
        start=1.0,
        seed=seed,
        max_bytes=min(DEFAULT_MAX_BYTES, max(memory // 8, 2**20)),
        memory=memory,
        max_memory=model.max_memory,
        max_epochs=None if model.max_epochs is None else int(model.max_epochs),
        max_time=model.max_time,
        folder=None,
        verbose=bool(model.verbose) and ranks.is_first,
        names=None if units.encoder.names_in is None else units.encoder.names_out,
        points=None if points is None else tensor(scaler.inputs(points)),
        began=began,
        ranks=ranks,
        rule=rows.rule,
        scratch=scratch,
        known=None if known is None else known.to(dtype=torch.float64, device=device),
    )
    if model.checkpoint_dir is None or not with_folder:
        return task
    return replace(
        task, folder=Path(model.checkpoint_dir) / _key(task, recipe, str(getattr(model, "likelihood", GAUSSIAN)))
    )


def _key(task: Task, recipe: Recipe, likelihood: str) -> str:
    """The name of the folder for this fit's checkpoints; it depends on data, options and starting values."""
    tensors = [t for t in (*task.data, task.points, *task.kernel.state_dict().values()) if t is not None]
    kernel = [_described(part) for part in task.kernel.modules()]
    plain = [recipe.name, vars(recipe), kernel, task.noise, task.from_data, task.seed, task.max_epochs]
    plain += [task.mean, task.kernels, *([] if likelihood == GAUSSIAN else [likelihood])]
    tensors += [] if task.known is None else [task.known]
    arrays = [t.detach().cpu().numpy() for t in tensors]
    if task.rule.values is not None:
        plain.append(task.rule.kind)
        arrays.append(task.rule.values)
    return fingerprint(plain, *arrays)[:12]


def _mean(model: "Estimator", warm: bool, target: int | None) -> str:
    """The prior mean to train with; a warm start keeps the one that "auto" chose for the target, or for all of them."""
    if model.mean != "auto" or not warm:
        return model.mean
    texts = () if model.trees_ is None else model.trees_.texts
    return "trees" if any(texts if target is None else texts[target : target + 1]) else "zero"


def _described(part: Any) -> Any:
    """The class of a part of a kernel, with its plain arguments if it has any."""
    arguments = part.plain_arguments() if isinstance(part, Kernel) else {}
    return [type(part).__name__, arguments] if arguments else type(part).__name__


class _Start(NamedTuple):
    """Where the hyperparameters start."""

    kernel: Kernel
    kernels: tuple[str, ...]  # names to choose from; none for a kernel that is given
    from_data: bool  # whether the data give the starting values
    noise: list[float] | None = None  # of each target
    points: Tensor | None = None  # inducing points


def _starting_values(model: Any, units: Units, rows: "TrainingRows | MappedRows", target: int | None) -> _Start:
    """A named kernel starts where the data suggest; a kernel object starts where its owner put it.

    With ``warm_start``, a fit with the same kernel and targets starts where the last one ended, with the kernel that
    the last one chose.
    """
    if isinstance(model.kernel, str):
        names = kernel_registry.CHOICES if model.kernel == kernel_registry.AUTO else (model.kernel,)
        start = _Start(named_kernel(names[0], len(units.encoder.names_out)), names, True)
    else:
        start = _Start(copy.deepcopy(model.kernel), (), False)
    last, own = getattr(model, "posteriors_", None), slice(None) if target is None else slice(target, target + 1)
    if not model.warm_start or last is None or len(last := last[own]) != rows.num_targets:
        return start
    known = last[0].prior.kernel
    if _structure(start.kernel) != _structure(known):
        chosen = [name for name in start.kernels if type(getattr(known, "kernel", None)) is kernel_class(name)]
        if not chosen or len(known.kernel.lengthscale) != len(units.encoder.names_out):
            return start
        kernel, names = copy.deepcopy(known).requires_grad_(True), tuple(chosen[:1])
    else:
        kernel, names = start.kernel, start.kernels[:1]
        kernel.load_state_dict(known.state_dict())
    scaler, points = model.units_.scaler, None
    if isinstance(last[0], InducingPosterior):
        points = last[0].X.double().cpu() * scaler.input_std + scaler.input_mean
    noise = ((model.noise_std_ / scaler.target_std.numpy()) ** 2)[own].tolist()
    return _Start(kernel, names, False, noise, points)


def _structure(kernel: Kernel) -> list[Any]:
    """The classes a kernel is made of, and the sizes of its parameters."""
    sizes = [(name, tuple(values.shape)) for name, values in kernel.state_dict().items()]
    return [type(part) for part in kernel.modules()] + sizes


def remember_columns(model: Any, X: Any) -> None:
    """Set ``n_features_in_`` and ``feature_names_in_`` of an estimator as scikit-learn does."""
    if not isinstance(X, EncodedTable):
        validate_data(model, X, skip_check_array=True)
        return
    names = X.encoder.names_in
    model.n_features_in_ = X.encoder.num_columns
    if names is not None:
        model.feature_names_in_ = np.asarray(names, dtype=object)


def refuse_keywords(unknown: dict[str, Any]) -> None:
    """Raise TypeError for keywords that fit does not know, with what to pass instead."""
    name = next(iter(unknown))
    hint = ""
    if name == "sample_weight":
        hint = (
            ": a Gaussian process weighs rows by their noise. Pass sample_noise, the known noise variance of each row, "
            "e.g. sample_noise=variance / weight"
        )
    raise TypeError(f"fit() got an unexpected keyword argument {name!r}{hint}.")


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
