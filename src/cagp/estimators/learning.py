"""One way through a fit: a table source, its units and rows, a recipe trained on these, and a ``FittedModel``."""

import copy
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp import kernel_registry, notices
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.predictive import Baseline
from cagp.estimators.rows import Fit, Prepared, Rows
from cagp.estimators.sources import Table, prepare
from cagp.estimators.target_kinds import CopiesWarning
from cagp.estimators.units import Units
from cagp.kernels import InputUnits, Kernel, kernel_class, named_kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.likelihoods import Likelihood
from cagp.memory import peak_memory
from cagp.posteriors import InducingPosterior
from cagp.posteriors.base import DTYPES
from cagp.quantities import seconds_of, size
from cagp.recipes import Recipe, tried_in_words
from cagp.recipes.task import Fitted, Task
from cagp.recipes.train import train
from cagp.storage import fingerprint
from cagp.trees import Trees


def learn(table: Table, fit: Fit) -> FittedModel:
    """What there is to know about a table: its units, and posteriors that a recipe has trained on its rows."""
    kind, ranks = fit.kind, fit.ranks
    with notices.collected() as warned, ranks.listening():
        fit = replace(fit, seed=int(ranks.broadcast(float(fit.seed))))
        prepared = prepare(table, fit)
        parts = _trained(prepared, fit)
    units, first = prepared.units, parts[0]
    only = units.target_names[0] if units.num_targets == 1 else None
    choices = [(part.target, part.fitted.choice) for part in parts if part.fitted.choice is not None]
    fitted = FittedModel(
        units=units,
        posteriors=[posterior for part in parts for posterior in part.fitted.posteriors],
        row_noise=[noise for part in parts for noise in part.row_noise],
        target_rows=[part.num_rows for part in parts for _ in part.fitted.posteriors],
        num_rows=prepared.num_rows,
        methods=[part.fitted.method for part in parts],
        results=[part.fitted.result for part in parts],
        choice=" ".join(words if target is None else f"{target}: {words}" for target, words in choices) or None,
        tried=[{"target": part.target or only, **trial} for part in parts for trial in part.fitted.tried],
        trees=_all_trees([part.fitted.trees for part in parts]),
        likelihood=first.fitted.likelihood,
        likelihood_name=kind.likelihood,
        offsets=tuple(first.fitted.offsets or ()),
        baseline=first.baseline,
        labels=kind.labels,
    )
    counts = Counter(str(warning) for warning in warned)
    notes = [*prepared.notes, *(f"{text} ({times:,} times in this fit)" for text, times in counts.items())]
    for part in parts:
        notes += part.words(prepared.num_rows)
    learned = kind.words(fitted.likelihood, float(units.scaler.target_std[0]))
    spent = f"The fit took {time.perf_counter() - fit.began:,.1f} s; the process held at most {size(peak_memory())}."
    if prepared.warning is not None and ranks.is_first:
        notices.warn(prepared.warning, CopiesWarning, stacklevel=4)
    return replace(fitted, report="\n".join([*notes, *prepared.scales, *learned, fitted.guarantee, spent]))


def task_of(
    fit: Fit, recipe: Recipe, units: Units, rows: Rows, target: int | None = None, of_rows: int | None = None
) -> Task:
    """The rows in standard units, with the limits of the user and starting values.

    Args:
        target: the number of the target that ``units`` and ``rows`` are of; None for all.
        of_rows: the number of rows of all targets together, which share a dtype; None for that of ``rows``.
    """
    options, ranks, scaler = fit.options, fit.ranks, units.scaler
    num_rows, scratch = rows.num_rows if of_rows is None else of_rows, rows.scratch
    default = recipe.default_dtype(num_rows) if scratch is None else "float32"
    dtype, device = DTYPES[default if options.dtype == "auto" else options.dtype], ranks.device(options.device)
    memory = int(ranks.broadcast(float(fit.memory)))

    def tensor(values: Any) -> Tensor:
        return values.to(dtype=dtype, device=device)

    X, y, noise = rows.standard(units)
    start = _starting_values(fit, units, rows, target)
    start["kernel"].set_units(InputUnits(scaler.input_mean, scaler.input_std, units.encoder.names_out))
    start["kernel"].to(device)
    if start["points"] is not None:
        start["points"] = tensor(scaler.inputs(start["points"]))
    if scratch is not None:
        start["mean"] = "zero"
    task = Task(
        data=Data(tensor(X), tensor(y), None if noise is None else tensor(noise)),
        inputs=rows.inputs,
        categorical=units.encoder.categorical,
        **start,
        start=1.0,
        seed=fit.seed,
        max_bytes=min(DEFAULT_MAX_BYTES, max(memory // 8, 2**20)),
        memory=memory,
        max_memory=options.max_memory,
        max_epochs=None if options.max_epochs is None else int(options.max_epochs),
        max_time=options.max_time,
        folder=None,
        verbose=bool(options.verbose) and ranks.is_first,
        names=None if units.encoder.names_in is None else units.encoder.names_out,
        began=fit.began,
        ranks=ranks,
        rule=rows.rule,
        scratch=scratch,
        known=None if rows.known is None else torch.from_numpy(rows.known).to(device),
        targets="numbers" if fit.kind.targets == GAUSSIAN else fit.kind.targets,
        likelihood=fit.kind.start(),
    )
    if options.checkpoint_dir is None:
        return task
    return replace(task, folder=Path(options.checkpoint_dir) / _key(task, recipe, fit.kind.likelihood))


def _key(task: Task, recipe: Recipe, likelihood: str) -> str:
    """The name of the folder for this fit's checkpoints; it depends on data, options and starting values."""
    tensors = [t for t in (*task.data, task.points, task.known, *task.kernel.state_dict().values()) if t is not None]
    parts = list(task.kernel.modules())
    kernel = [[type(part).__name__, part.plain_arguments() if isinstance(part, Kernel) else {}] for part in parts]
    plain = [recipe.name, recipe.values, kernel, task.noise, task.from_data, task.seed, task.max_epochs]
    arrays = [t.detach().cpu().numpy() for t in tensors]
    arrays += [] if task.rule.values is None else [task.rule.values]
    return fingerprint([*plain, task.mean, task.kernels, likelihood, task.rule.kind], *arrays)[:12]


# ---- training ----


class _Part(NamedTuple):
    """A fit of all targets, or of one of them."""

    target: str | None  # its name; None for all together
    fitted: Fitted
    num_rows: int
    row_noise: list[Tensor | None]  # of each target: known variances of the rows that its posterior holds
    baseline: Baseline | None  # of counts, and of numbers with outliers

    @classmethod
    def of(cls, recipe: Recipe, task: Task, target: str | None, num_rows: int) -> "_Part":
        """What training a recipe on the rows of a task gives."""
        fitted, baseline = train(recipe, task), None
        noise: list[Tensor | None] = [None] * task.y.shape[1]
        if isinstance(fitted.likelihood, Likelihood) and task.targets != "classes":
            known = None if task.known is None else task.known.cpu()
            baseline = Baseline.of(task.y[:, 0].cpu(), fitted.likelihood, known)
        # With a likelihood, it is the sites that have variances.
        if task.row_noise is not None and fitted.held is not None and task.likelihood is None:
            noise = [column[fitted.held].contiguous() for column in task.row_noise.unbind(1)]
        return cls(target, fitted, num_rows, noise, baseline)

    def words(self, total: int) -> list[str]:
        """What the fit report says about it; ``total`` is the number of rows of the table."""
        fitted, alone = self.fitted, []
        if self.target is not None:
            alone = [f"Target {self.target}, alone on the {self.num_rows:,} of {total:,} rows that have it:"]
        chosen = [] if fitted.choice is None else [fitted.choice]
        return [*alone, *chosen, *tried_in_words(fitted.tried), *fitted.notes, str(fitted.result)]


def _trained(prepared: Prepared, fit: Fit) -> list[_Part]:
    """All targets together, with one kernel; where some are missing in some rows, each alone with its own kernel."""
    units, rows, recipe = prepared[:3]
    if not rows.partly_missing:
        return [_Part.of(recipe, task_of(fit, recipe, units, rows), None, prepared.num_rows)]
    parts: list[_Part] = []
    for j, name in enumerate(units.target_names):
        now = time.perf_counter()
        alone, own = replace(fit, began=now), rows.of_target(j)
        task = task_of(alone, recipe, units.of_target(j), own, target=j, of_rows=rows.num_rows)
        if fit.options.max_time is not None:  # the targets that are left share the time that is left
            left = seconds_of(fit.options.max_time) - fit.ranks.broadcast(now - fit.began)
            task = replace(task, max_time=max(left, 1e-9) / (units.num_targets - j))
        if parts and parts[-1].fitted.result.interrupted:
            task = replace(task, max_epochs=1)
        parts.append(_Part.of(recipe, task, name, task.num_rows))
    return parts


def _all_trees(trees: list[Trees | None]) -> Trees | None:
    """The prior mean of all targets; that of a target without trees is zero."""
    if len(trees) == 1 or all(own is None for own in trees):
        return trees[0]
    return Trees([() if own is None else own.texts[0] for own in trees])


# ---- starting values ----


def _starting_values(fit: Fit, units: Units, rows: Rows, target: int | None) -> dict[str, Any]:
    """Where the hyperparameters start, and the prior mean to train with, as fields of a ``Task``.

    A named kernel starts where the data suggest; a kernel object starts where its owner put it. With ``warm_start``, a
    fit with the same kernel and targets starts where the last one ended, with the kernel and the mean that "auto" chose
    then.
    """
    given, mean, names, num_inputs = fit.options.kernel, fit.options.mean, (), len(units.encoder.names_out)
    if isinstance(given, str):
        names = kernel_registry.CHOICES if given == kernel_registry.AUTO else (given,)
        kernel = named_kernel(names[0], num_inputs)
    else:
        kernel = copy.deepcopy(given)
    start = {"kernel": kernel, "kernels": names, "from_data": bool(names), "mean": mean, "noise": None, "points": None}
    last, own = fit.last, slice(None) if target is None else slice(target, target + 1)
    if last is None or len(last.posteriors[own]) != rows.num_targets:
        return start
    first, scaler = last.posteriors[own][0], last.units.scaler
    learned: Any = first.prior.kernel
    if _structure(kernel) != _structure(learned):
        names = [name for name in names if type(getattr(learned, "kernel", None)) is kernel_class(name)]
        if not names or len(learned.kernel.lengthscale) != num_inputs:
            return start
        start["kernel"] = copy.deepcopy(learned).requires_grad_(True)
    else:
        kernel.load_state_dict(learned.state_dict())
    if isinstance(first, InducingPosterior):
        start["points"] = first.X.double().cpu() * scaler.input_std + scaler.input_mean
    if mean == "auto":
        has_trees = last.trees is not None and any(last.trees.texts[own])
        start["mean"] = "trees" if has_trees else "zero"
    noise = ((last.noise_std / scaler.target_std.numpy()) ** 2)[own].tolist()
    return start | {"kernels": tuple(names[:1]), "from_data": False, "noise": noise}


def _structure(kernel: Kernel) -> list[Any]:
    """The classes a kernel is made of, and the sizes of its parameters."""
    sizes = [(name, tuple(values.shape)) for name, values in kernel.state_dict().items()]
    return [type(part) for part in kernel.modules()] + sizes
