"""Fits of regressors whose likelihood is not Gaussian: what they can choose, and how they are trained."""

import time as clock
import warnings
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.exceptions import DataConversionWarning
from torch import Tensor

from cagp import notices
from cagp.data.chunks import Chunks
from cagp.data.row_rules import validation_rule
from cagp.estimators.classifier import EXACT_ROWS, METHODS, USED_OPTIONS
from cagp.estimators.observations import Baseline, learned_parameters
from cagp.estimators.tasks import new_task, remember_columns, seed_of
from cagp.estimators.units import TrainingRows, Units, is_matrix
from cagp.likelihood_registry import GAUSSIAN, LIKELIHOODS, likelihoods_of
from cagp.likelihoods import Likelihood, likelihood_class
from cagp.memory import peak_memory
from cagp.quantities import number, size
from cagp.ranks import Ranks
from cagp.recipes import OPTIONS, Recipe, recipe_for
from cagp.recipes.checks import check_neighbours
from cagp.recipes.likelihoods import train_with_likelihood

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

REGRESSION = (GAUSSIAN, *likelihoods_of("counts", "numbers"))
"""The likelihoods that a regressor can have."""

NORMAL_MAD, NORMAL_RANGE = 1.482602218505602, 1.3489795003921634
"""The standard deviation of a normal distribution over its median absolute deviation; its interquartile range."""

ONLY_GAUSSIAN: dict[str, tuple[Any, ...]] = {
    "local_scale": ("auto", None),
    "effort": ("default",),
    "n_inducing": (512,),
    "shards": (False,),
    "target": ("auto", "identity"),
    "copies": ("keep",),
    "warm_start": (False,),
}
"""Parameters that have no meaning with another likelihood, and the values that ask for nothing."""


def check_likelihood(model: Any) -> None:
    """Raise ValueError for a likelihood that a regressor does not have, and for parameters that do not go with it."""
    name = model.likelihood
    if not isinstance(name, str) or name not in REGRESSION:
        raise ValueError(
            f"likelihood is {name!r}, expected one of {', '.join(REGRESSION)}. For a likelihood of your own, use "
            "cagp.WithLikelihood."
        )
    takes_exposure = name != GAUSSIAN and LIKELIHOODS[name].targets == "counts"
    if model.exposure is not None and not takes_exposure:
        raise ValueError(
            f"exposure is {model.exposure!r}, but the likelihood is {name!r}; it is for counts "
            f"({', '.join(likelihoods_of('counts'))}). Remove it, or choose one of these."
        )
    if name == GAUSSIAN:
        return
    for parameter, neutral in ONLY_GAUSSIAN.items():
        value = getattr(model, parameter)
        if not any(value is other or (type(value) is type(other) and value == other) for other in neutral):
            raise ValueError(
                f"{parameter} is {value!r}, which is for likelihood={GAUSSIAN!r} alone; with {name!r}, leave it out."
            )
    if model.method not in METHODS:
        raise ValueError(f"method is {model.method!r}, with likelihood={name!r} expected one of {', '.join(METHODS)}.")


def likelihood_recipe(model: Any, num_rows: int | None = None) -> Recipe:
    """The method and its options; raises ValueError for options that are not right.

    Args:
        num_rows: by which "auto" chooses; None where the options are only checked.
    """
    check_likelihood(model)
    values = {name: getattr(model, name) for name in USED_OPTIONS}
    if model.method != "auto":
        return recipe_for(model.method, values)
    if num_rows is not None and num_rows <= EXACT_ROWS:
        for name, value in values.items():
            OPTIONS[name].check(value)
        return recipe_for("exact", {})
    return recipe_for("local", values)


def fit_with_likelihood(
    model: "GPRegressor", X: Any, y: Any, sample_noise: Any, time: Any, group: Any, began: float
) -> None:
    """Learn from a table and set all that ``fit`` of a regressor sets."""
    likelihood_recipe(model)
    if sample_noise is not None:
        raise ValueError(
            f"sample_noise is given, but the likelihood is {model.likelihood!r}, whose noise is its own; leave it out."
        )
    ranks = Ranks.here()
    if ranks.size > 1:
        raise ValueError(
            f"likelihood={model.likelihood!r} trains in one process, and {ranks.size} were started; start a single one."
        )
    if isinstance(X, Chunks):
        raise ValueError(
            f"likelihood={model.likelihood!r} takes the whole table in memory, and it is in pieces; read it first."
        )
    if y is None:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    if is_matrix(y):
        words = "A column-vector y was passed when a 1d array was expected; answers will have a column, too."
        warnings.warn(words, DataConversionWarning, stacklevel=3)
    entry = LIKELIHOODS[model.likelihood]
    make = likelihood_class(model.likelihood)
    with notices.collected() as warned:
        units, rows = Units.learn(X, y, None, model.categories, model.exposure)
        _check_targets(make(), rows)
        missing = rows.missing_words(), units.encoder.missing_words(rows.inputs)
        notes = [words for words in missing if words is not None]
        rule, which_rows = validation_rule(rows.num_rows + rows.num_missing, rows.places, time, group)
        notes += which_rows
        units = _with_units(units, rows, entry.targets)
        inputs, exposure = units.encoder.without_exposure(rows.inputs)
        known = None if exposure is None else torch.from_numpy(np.log(exposure))
        rows = rows._replace(inputs=inputs, rule=rule)
        recipe = likelihood_recipe(model, rows.num_rows)
        check_neighbours(getattr(recipe, "n_neighbors", "auto"), rows.num_rows)
        fixed = {"began": began, "seed": seed_of(model.random_state), "ranks": ranks}
        task = new_task(model, recipe, units, rows, **fixed, known=known)
        found = train_with_likelihood(recipe, task, make, entry.targets)
    counts = Counter(str(warning) for warning in warned)
    notes += [f"{text} ({times:,} times in this fit)" for text, times in counts.items()]
    fitted = found.fitted
    remember_columns(model, X)
    model.units_, model.n_rows_ = units, rows.num_rows
    model.likelihood_, model.offset_ = found.likelihood, found.offsets[0]
    model.baseline_ = Baseline.of(task.y[:, 0].cpu(), found.likelihood, known)
    model.posteriors_, model.trees_ = fitted.posteriors, fitted.trees
    model.fit_results_, model.methods_ = [fitted.result], [fitted.method]
    model.target_rows_, model._left_out_scores = [rows.num_rows], None
    model._row_noise = list[Tensor | None]([None])
    model.choice_, model.choices_ = fitted.choice, []
    notes += [] if fitted.choice is None else [fitted.choice]
    spent = f"The fit took {clock.perf_counter() - began:,.1f} s; the process held at most {size(peak_memory())}."
    learned = _learned_words(found.likelihood, float(units.scaler.target_std[0]), entry.words)
    model.fit_report_ = "\n".join([*notes, *fitted.notes, str(fitted.result), learned, model.guarantee_, spent])


def _check_targets(likelihood: Likelihood, rows: TrainingRows) -> None:
    if rows.num_targets > 1:
        raise ValueError(
            f"y has {rows.num_targets} targets; with a likelihood that is not Gaussian, fit one model for each."
        )
    likelihood.check(torch.from_numpy(rows.targets[:, 0]))


def _with_units(units: Units, rows: TrainingRows, targets: str) -> Units:
    """Counts as they are; numbers about their median, in units of their median absolute deviation."""
    y = rows.targets[:, 0]
    centre, unit = 0.0, 1.0
    if targets == "numbers":
        centre = float(np.median(y))
        low, high = np.quantile(y, [0.25, 0.75])
        # Where half of the targets are equal, quartiles say more, and then the standard deviation.
        spreads = NORMAL_MAD * np.median(np.abs(y - centre)), (high - low) / NORMAL_RANGE, np.std(y)
        unit = next((float(spread) for spread in spreads if spread > 0), 1.0)
    like = units.scaler.target_mean
    scaler = units.scaler._replace(target_mean=torch.full_like(like, centre), target_std=torch.full_like(like, unit))
    return replace(units, scaler=scaler)


def _learned_words(likelihood: Likelihood, unit: float, words: str) -> str:
    shown = {"df": "degrees of freedom"}
    learned = [f"{shown.get(k, k)} {number(v)}" for k, v in learned_parameters(likelihood, unit).items()]
    return f"Likelihood: {words}{': ' if learned else ''}{', '.join(learned)}."
