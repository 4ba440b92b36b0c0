"""The scale that each target is fitted on: as the user says, or what predicts held-out training rows better."""

from typing import NamedTuple

import numpy as np

from cagp import limits
from cagp.data.transforms import TRANSFORMS
from cagp.estimators.rows import Fit, TrainingRows
from cagp.estimators.units import NO_NOISE, Units
from cagp.quantities import seconds_of
from cagp.recipes import Recipe
from cagp.recipes.target_scale import drawn_rows, may_take_log, takes_log


class Chosen(NamedTuple):
    """The units and rows on the scales that were chosen, and what the fit report says about it."""

    units: Units
    rows: TrainingRows
    notes: list[str]


def choose_transforms(fit: Fit, recipe: Recipe, units: Units, rows: TrainingRows) -> Chosen:
    """Put every target on the scale that the user asks for; "auto" decides for each, on process 0 for all.

    Args:
        rows: with every target as it is.
    """
    names, model, seed = units.target_names, fit.options, fit.seed
    if model.target == "log":
        _check_log(names, rows)
        logs = [True] * len(names)
        notes = [f"{name} is fitted on a log scale: predictions are lognormal." for name in names]
    elif model.target == "auto" and rows.noise is None:
        has_scale = recipe.values.get("local_scale") is not None and len(rows.inputs) > limits.EXACT_ROWS
        max_time = seconds_of(model.max_time)

        def decide(j: int) -> tuple[bool, str | None]:
            present = np.flatnonzero(~np.isnan(rows.targets[:, j]))
            y = rows.targets[present, j]
            if not may_take_log(y):
                return False, None
            drawn = drawn_rows(len(y), seed)
            X, rule = units.scaled(rows.inputs[present[drawn]]), rows.rule.take(present[drawn])
            log, words = takes_log(X, y[drawn], rule, has_scale, seed, max_time)
            return log, f"{names[j]} {words}"

        decided = fit.ranks.from_first(lambda: {"targets": [decide(j) for j in range(len(names))]})["targets"]
        logs, notes = [log for log, _ in decided], [note for _, note in decided if note is not None]
    else:
        return Chosen(units, rows, [])
    transforms = tuple(TRANSFORMS["log" if log else "identity"] for log in logs)
    return Chosen(*units.with_transforms(transforms, rows), notes)


def _check_log(names: tuple[str, ...], rows: TrainingRows) -> None:
    """Raise ValueError where a target has no logarithm, or where known noise has no meaning for it."""
    if rows.noise is not None:
        raise ValueError(NO_NOISE)
    for j, name in enumerate(names):
        wrong = np.flatnonzero(rows.targets[:, j] <= 0)
        if len(wrong):
            raise ValueError(
                f'target is "log", but {name} has {len(wrong):,} values that are not positive (first '
                f"{rows.targets[wrong[0], j]:g} at row {rows.places[wrong[0]]}). Leave these rows out, or use "
                'target="identity".'
            )
