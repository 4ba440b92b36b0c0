"""The kinds of targets: numbers with Gaussian noise, counts and numbers of another likelihood, classes.

They differ by a value. It says how targets are scaled, which recipe and parameters go with them, and with which
likelihood training starts. Everything else about a fit is the same for all, see ``cagp.estimators.learning``.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from sklearn.exceptions import DataConversionWarning

from cagp import limits
from cagp.data.splits import distinct_rows
from cagp.data.transforms import TRANSFORMS
from cagp.estimators.labels import Labels
from cagp.estimators.predictive import learned_parameters
from cagp.estimators.rows import Fit, Prepared, TrainingRows
from cagp.estimators.units import NO_NOISE, Units, is_matrix, own_noise
from cagp.likelihood_registry import GAUSSIAN, LIKELIHOODS, likelihoods_of
from cagp.likelihoods import ClassLikelihood, Likelihood, class_likelihood, likelihood_class
from cagp.quantities import number, seconds_of
from cagp.ranks import Ranks
from cagp.recipes import OPTIONS, RECIPES, Recipe, check_processes, recipe_for
from cagp.recipes.nearest import check_neighbours
from cagp.recipes.options import kind_of, not_for
from cagp.recipes.target_scale import drawn_rows, may_take_log, takes_log

REGRESSION = (GAUSSIAN, *likelihoods_of("counts", "numbers"))
"""The likelihoods that a regressor can have."""

SITE_METHODS = ("auto", *(name for name, recipe in RECIPES.items() if recipe.takes_likelihoods))
"""The methods for targets whose noise is not Gaussian."""

SITE_EXACT_ROWS = 1000
"""Up to this many rows, "auto" is exact for such targets."""

NORMAL_MAD, NORMAL_RANGE = 1.482602218505602, 1.3489795003921634
"""The standard deviation of a normal distribution over its median absolute deviation; its interquartile range."""


@final
@dataclass(frozen=True)
class TargetKind:
    """How targets depend on the latent functions, and the method that learns these.

    With Gaussian noise there is a function for each target, and targets or their logarithms are standardised. With
    another likelihood there is one target. Classes have a function for each column of zeros and ones.
    """

    likelihood: str  # its name
    method: str
    values: Mapping[str, Any]  # of the options of methods
    labels: Labels | None = None  # of classes

    @classmethod
    def of(cls, parameters: Mapping[str, Any], is_classifier: bool = False) -> "TargetKind":
        """The kind that the parameters of an estimator ask for; ValueError for those that are not right."""
        name, method, exposure = parameters["likelihood"], parameters["method"], parameters.get("exposure")
        allowed = likelihoods_of("classes") if is_classifier else REGRESSION
        if not isinstance(name, str) or name not in allowed:
            own = "" if is_classifier else " For a likelihood of your own, use cagp.WithLikelihood."
            raise ValueError(f"likelihood is {name!r}, expected one of {', '.join(allowed)}.{own}")
        kind = kind_of(name)
        if exposure is not None and kind != "counts":
            raise ValueError(
                f"exposure is {exposure!r}, but the likelihood is {name!r}; it is for counts "
                f"({', '.join(likelihoods_of('counts'))}). Remove it, or choose one of these."
            )
        if kind != GAUSSIAN:
            for option in not_for(kind, parameters):
                raise ValueError(
                    f"{option.name} is {parameters[option.name]!r}, which is for likelihood={GAUSSIAN!r} alone; with "
                    f"{name!r}, leave it out."
                )
            if method not in SITE_METHODS:
                listed = ", ".join(SITE_METHODS)
                raise ValueError(f"method is {method!r}, with likelihood={name!r} expected one of {listed}.")
        used = [option.name for option in OPTIONS.values() if kind in option.targets]
        made = cls(name, method, {key: parameters[key] for key in used if key in parameters})
        made.recipe(0)
        return made

    @property
    def targets(self) -> str:
        """What the targets are: "gaussian", "numbers", "counts" or "classes"."""
        return kind_of(self.likelihood)

    def recipe(self, num_rows: int) -> Recipe:
        """The method for a table of this many rows; ValueError for options that are not right."""
        if self.targets == GAUSSIAN or self.method != "auto":
            return recipe_for(self.method, self.values)
        local = recipe_for("local", self.values)
        return recipe_for("exact", {}) if 0 < num_rows <= SITE_EXACT_ROWS else local

    def start(self) -> Likelihood | ClassLikelihood | None:
        """The likelihood with its starting values; None for Gaussian noise."""
        if self.labels is not None:
            return class_likelihood(self.likelihood, len(self.labels.classes))
        return None if self.targets == GAUSSIAN else likelihood_class(self.likelihood)()

    def check(self, y: Any, sample_noise: Any, ranks: Ranks, in_memory: bool) -> None:
        """Raise ValueError for a table from which such targets cannot be learned."""
        if self.targets == GAUSSIAN:
            check_processes(self.recipe(0), ranks.size)
        elif self.targets != "classes":  # the labels of these are checked before
            check_whole(f"likelihood={self.likelihood!r}", ranks, in_memory)
            if sample_noise is not None:
                raise own_noise(self.likelihood)
            if is_matrix(y):
                words = "A column-vector y was passed when a 1d array was expected; answers will have a column, too."
                warnings.warn(words, DataConversionWarning, stacklevel=6)

    def prepare(self, units: Units, rows: TrainingRows, fit: Fit) -> Prepared:
        """The rows of a table in memory with targets on the scale of the fit, and what the fit report says of them."""
        recipe = self.recipe(rows.num_rows)
        if self.targets == GAUSSIAN:
            units, rows, notes, warning = distinct(fit.options.copies, units, rows)
            units.check_same(rows, fit.ranks)
            units, rows, scales = choose_transforms(fit, recipe, units, rows)
            return Prepared(units, rows, recipe, rows.num_rows, notes, scales, warning)
        centre, unit = (0.0, 1.0) if self.targets == "classes" else self._scale(rows)
        inputs, exposure = units.encoder.without_exposure(rows.inputs)
        rows = rows._replace(inputs=inputs, known=None if exposure is None else np.log(exposure))
        return Prepared(units.with_target_scale(centre, unit), rows, recipe, rows.num_rows)

    def _scale(self, rows: TrainingRows) -> tuple[float, float]:
        """What are zero and one for a likelihood: of numbers, the median and the median absolute deviation."""
        if rows.num_targets > 1:
            raise ValueError(
                f"y has {rows.num_targets} targets; with a likelihood that is not Gaussian, fit one model for each."
            )
        check_neighbours(self.recipe(rows.num_rows).n_neighbors, rows.num_rows)
        y = rows.targets[:, 0]
        likelihood_class(self.likelihood)().check(torch.from_numpy(y))
        if self.targets == "counts":
            return 0.0, 1.0
        centre = float(np.median(y))
        low, high = np.quantile(y, [0.25, 0.75])
        # Where half of the targets are equal, quartiles say more, and then the standard deviation.
        spreads = NORMAL_MAD * np.median(np.abs(y - centre)), (high - low) / NORMAL_RANGE, np.std(y)
        return centre, next((float(spread) for spread in spreads if spread > 0), 1.0)

    def words(self, learned: Likelihood | ClassLikelihood | None, unit: float) -> list[str]:
        """What the fit report says about the likelihood that was learned, in the unit of the targets."""
        if self.labels is not None or not isinstance(learned, Likelihood):
            return []
        shown = {"df": "degrees of freedom"}
        values = [f"{shown.get(k, k)} {number(v)}" for k, v in learned_parameters(learned, unit).items()]
        return [f"Likelihood: {LIKELIHOODS[self.likelihood].words}{': ' if values else ''}{', '.join(values)}."]


def check_whole(what: str, ranks: Ranks, in_memory: bool) -> None:
    """Raise ValueError unless one process has the whole table in memory."""
    if ranks.size > 1:
        raise ValueError(f"{what} trains in one process, and {ranks.size} were started; start a single one.")
    if not in_memory:
        raise ValueError(f"{what} takes the whole table in memory, and it is in pieces; read it first.")


# ---- the scales of targets ----


def choose_transforms(
    fit: Fit, recipe: Recipe, units: Units, rows: TrainingRows
) -> tuple[Units, TrainingRows, list[str]]:
    """Units and rows on the scale that the user asks for, and notes; "auto" decides for each target, on process 0.

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
        return units, rows, []
    transforms = tuple(TRANSFORMS["log" if log else "identity"] for log in logs)
    return *units.with_transforms(transforms, rows), notes


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


# ---- copies among the rows ----

MANY, LEAST = 0.1, 50
"""From this share of the rows, and this number, there is a warning: a few copies change little."""


class CopiesWarning(UserWarning):
    """Many training rows are copies of others."""


def distinct(copies: str, units: Units, rows: TrainingRows) -> tuple[Units, TrainingRows, list[str], str | None]:
    """The rows to learn from, each once if ``copies`` is "once"; what the fit report says of it, and a warning.

    A copy has the same inputs, targets and known noise as another row, to the last bit. Scales are those of the rows
    that stay. Time O(n d + n log n).
    """
    parts = [rows.inputs, rows.targets, *([] if rows.noise is None else [rows.noise])]
    first = distinct_rows(np.concatenate(parts, axis=1))
    number, total = rows.num_rows - len(first), rows.num_rows
    share = f"{number:,} of {total:,} rows ({100 * number / total:.0f} %)"
    words = f"{share} are copies of others, inputs and targets alike"
    if copies == "once" and number > 0 and len(first) > 1:
        kept = rows.take(first)
        return units.scaled_by(kept), kept, [f"{words}; each row is counted once."], None
    if number < max(LEAST, MANY * total):
        return units, rows, [], None
    words = (
        f"{words}. Held-out rows then have copies among the rows that predict them, so that scores say how well models "
        "repeat these: error bars hold for new rows that are copies as often, and are too narrow for others. If "
        'new rows will not be copies, use copies="once" (--copies once), which counts each row once.'
    )
    return units, rows, [words], words
