"""Training the targets of a table: together, or each on its own rows where rows have some of them but not all."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from cagp.estimators.tasks import new_task
from cagp.estimators.units import TrainingRows, Units
from cagp.posteriors import Posterior
from cagp.quantities import seconds_of
from cagp.recipes import Recipe
from cagp.recipes.task import Fitted, Task

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor


class TrainedTargets(NamedTuple):
    """What training leaves behind."""

    fits: list[Fitted]  # one for all targets, or one for each
    posteriors: list[Posterior]  # of each target
    row_noise: list[Tensor | None]  # of each target: known variances of the rows that its posterior holds
    num_rows: list[int]  # of each target
    notes: list[str]  # on every fit, in words


def train_targets(model: "GPRegressor", recipe: Recipe, units: Units, rows: TrainingRows) -> TrainedTargets:
    """All targets together, with one kernel; where some are missing in some rows, each alone with its own kernel."""
    if not rows.partly_missing:
        task = new_task(model, recipe, units, rows)
        fitted = recipe.train(task)
        return TrainedTargets(
            [fitted],
            fitted.posteriors,
            [_row_noise(task, fitted, j) for j in range(units.num_targets)],
            [task.num_rows] * units.num_targets,
            _words(fitted),
        )
    start, total = time.perf_counter(), seconds_of(model.max_time)
    tasks, fits, notes = [], [], []
    for j, name in enumerate(units.target_names):
        task = new_task(model, recipe, units.of_target(j), rows.of_target(j), target=j, of_rows=len(rows.inputs))
        if model.max_time is not None:  # what is left is for all targets that are left
            began = time.perf_counter()
            left = max(total - (began - start), 1e-9) / (units.num_targets - j)
            task = replace(task, max_time=left, began=began)
        if fits and fits[-1].result.interrupted:
            task = replace(task, max_epochs=1)
        fitted = recipe.train(task)
        tasks.append(task)
        fits.append(fitted)
        notes.append(f"Target {name}, alone on the {task.num_rows:,} of {len(rows.inputs):,} rows that have it:")
        notes += _words(fitted)
    return TrainedTargets(
        fits,
        [fitted.posteriors[0] for fitted in fits],
        [_row_noise(task, fitted, 0) for task, fitted in zip(tasks, fits, strict=True)],
        [task.num_rows for task in tasks],
        notes,
    )


def _row_noise(task: Task, fitted: Fitted, j: int) -> Tensor | None:
    if task.row_noise is None or fitted.held is None:
        return None
    return task.row_noise[fitted.held, j].contiguous()


def _words(fitted: Fitted) -> list[str]:
    chosen = [] if fitted.choice is None else [fitted.choice]
    return [*chosen, *fitted.notes, str(fitted.result)]
