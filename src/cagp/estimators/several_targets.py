"""Training the targets of a table: together, or each on its own rows where rows have some of them but not all."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from cagp.estimators.mapped_rows import MappedRows
from cagp.estimators.tasks import new_task
from cagp.estimators.units import TrainingRows, Units
from cagp.posteriors import Posterior
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.recipes import Recipe, train_with_mean, tried_in_words
from cagp.recipes.task import Fitted, Task
from cagp.trees import Trees

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor


class TrainedTargets(NamedTuple):
    """What training leaves behind."""

    fits: list[Fitted]  # one for all targets, or one for each
    posteriors: list[Posterior]  # of each target
    row_noise: list[Tensor | None]  # of each target: known variances of the rows that its posterior holds
    num_rows: list[int]  # of each target
    notes: list[str]  # on every fit, in words
    trees: Trees | None  # the prior mean of all targets

    def choice(self, names: Sequence[str]) -> str | None:
        """Why each model was chosen, in words, with the target that it is of where targets were fitted alone."""
        if len(self.fits) == 1:
            return self.fits[0].choice
        told = [f"{name}: {fitted.choice}" for name, fitted in zip(names, self.fits, strict=True) if fitted.choice]
        return " ".join(told) or None

    def tried(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """What "auto" compared in every fit, with the target that it is of; None for several targets together."""
        alone = len(self.fits) == len(names)
        owners = names if alone else [None]
        return [{"target": owner, **trial} for owner, f in zip(owners, self.fits, strict=True) for trial in f.tried]


def train_targets(
    model: "GPRegressor",
    recipe: Recipe,
    units: Units,
    rows: TrainingRows | MappedRows,
    began: float,
    seed: int,
    ranks: Ranks,
) -> TrainedTargets:
    """All targets together, with one kernel; where some are missing in some rows, each alone with its own kernel.

    Args:
        began: when the fit began, on the clock ``time.perf_counter()``.
        seed: of everything random.
        ranks: the processes that train together.
    """
    if isinstance(rows, MappedRows) or not rows.partly_missing:
        task = new_task(model, recipe, units, rows, began=began, seed=seed, ranks=ranks)
        fitted = train_with_mean(recipe, task)
        return TrainedTargets(
            [fitted],
            fitted.posteriors,
            [_row_noise(task, fitted, j) for j in range(units.num_targets)],
            [task.num_rows] * units.num_targets,
            _words(fitted),
            fitted.trees,
        )
    total = seconds_of(model.max_time)
    tasks, fits, notes = [], [], []
    for j, name in enumerate(units.target_names):
        own, now = (units.of_target(j), rows.of_target(j)), time.perf_counter()
        fixed = {"began": now, "seed": seed, "ranks": ranks}
        task = new_task(model, recipe, *own, **fixed, target=j, of_rows=len(rows.inputs))
        if model.max_time is not None:  # what is left is for all targets that are left
            task = replace(task, max_time=max(total - ranks.broadcast(now - began), 1e-9) / (units.num_targets - j))
        if fits and fits[-1].result.interrupted:
            task = replace(task, max_epochs=1)
        fitted = train_with_mean(recipe, task)
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
        _all_trees(fits),
    )


def _all_trees(fits: list[Fitted]) -> Trees | None:
    """The trees of targets that were fitted alone; a target without trees has the prior mean zero."""
    if all(fitted.trees is None for fitted in fits):
        return None
    return Trees([() if fitted.trees is None else fitted.trees.texts[0] for fitted in fits])


def _row_noise(task: Task, fitted: Fitted, j: int) -> Tensor | None:
    if task.row_noise is None or fitted.held is None:
        return None
    return task.row_noise[fitted.held, j].contiguous()


def _words(fitted: Fitted) -> list[str]:
    chosen = [] if fitted.choice is None else [fitted.choice]
    return [*chosen, *tried_in_words(fitted.tried), *fitted.notes, str(fitted.result)]
