"""The kinds of targets: numbers with Gaussian noise, counts and numbers of another likelihood, classes by their labels.

They differ by a value. It says how targets are scaled, which recipe and parameters go with them, and with which
likelihood training starts. Everything else about a fit is the same for all, see ``cagp.estimators.base``.
"""

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from cagp import limits
from cagp.data.splits import distinct_rows
from cagp.data.transforms import TRANSFORMS, Transform
from cagp.estimators.predictive import learned_parameters
from cagp.estimators.units import NO_NOISE, AnyRows, TrainingRows, Units, is_matrix, own_noise
from cagp.fields import checked, list_of, record, strange, text, that
from cagp.likelihood_registry import GAUSSIAN, LIKELIHOODS, likelihoods_of
from cagp.likelihoods import ClassLikelihood, Likelihood, class_likelihood, likelihood_class
from cagp.memory import default_memory_limit
from cagp.quantities import bytes_of, number, seconds_of
from cagp.ranks import Ranks
from cagp.recipes.local import check_neighbours
from cagp.recipes.table import OPTIONS, Recipe, check_processes, kind_of, methods_for, not_for, recipe_for
from cagp.recipes.target_scale import drawn_rows, may_take_log, takes_log

if TYPE_CHECKING:
    from cagp.estimators.base import GPEstimator

REGRESSION = (GAUSSIAN, *likelihoods_of("counts", "numbers"))
"""The likelihoods that a regressor can have."""

SITE_EXACT_ROWS = 1000
"""Up to this many rows, "auto" is exact for such targets."""

NORMAL_MAD, NORMAL_RANGE = 1.482602218505602, 1.3489795003921634
"""The standard deviation of a normal distribution over its median absolute deviation; its interquartile range."""


KINDS = "Ubiuf"
"""Types of labels that a file can hold, by the letters of NumPy: text, booleans, integers and numbers."""


# ---- labels: of any type outside, columns of zeros and ones inside ----


class Labels(NamedTuple):
    """The classes in order, and the name of the column that had them."""

    classes: np.ndarray
    name: str

    @classmethod
    def learn(cls, y: Any) -> "tuple[Labels, Int[np.ndarray, ' n']]":
        """The classes of these labels, sorted, and the class of each row; ValueError for what is not one."""
        values = _column(y)
        if len(values) == 0:
            raise ValueError("y has 0 labels, while a minimum of 2 is required to learn.")
        try:
            check_classification_targets(values)
            classes, codes = np.unique(values, return_inverse=True)
        except TypeError as error:
            raise ValueError(f"y has labels of types that cannot be sorted ({error}); make all text.") from error
        if len(classes) < 2:
            raise ValueError(
                f"y has one class, {classes.tolist()[0]!r}, in all {len(values):,} rows; expected at least two."
            )
        name = y.columns[0] if isinstance(y, pd.DataFrame) else getattr(y, "name", None)
        return cls(classes, name if isinstance(name, str) else "y"), codes.reshape(-1)

    def row_noise(self, codes: Int[np.ndarray, " n"], class_weight: Any) -> Float[np.ndarray, " n"] | None:
        """1 / weight of each row by its class, as scikit-learn's ``class_weight`` says; None where all weigh one."""
        if class_weight is None:
            return None
        if isinstance(class_weight, str) and class_weight == "balanced":
            return 1 / (len(codes) / (len(self.classes) * np.bincount(codes)))[codes]
        if not isinstance(class_weight, dict):
            raise ValueError(f'class_weight is {class_weight!r}, expected None, "balanced" or a dict by label.')
        classes = self.classes.tolist()
        strangers = [label for label in class_weight if label not in classes]
        if strangers:
            raise ValueError(
                f"class_weight has a weight for {strangers[0]!r}, which is no class; the classes are "
                f"{', '.join(map(repr, classes[:10]))}."
            )
        of_class = np.array([class_weight.get(label, 1.0) for label in classes], dtype=float)
        if not (np.isfinite(of_class) & (of_class > 0)).all():
            raise ValueError(f"class_weight has weights {of_class.tolist()}, expected positive numbers.")
        return 1 / of_class[codes]

    def indicators(self, codes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n q"]:
        """A column that is one for the second of two classes; a column for each of several."""
        first = 1 if len(self.classes) == 2 else 0
        return (codes[:, None] == np.arange(first, len(self.classes))).astype(float)

    # ---- files ----

    def state(self) -> dict[str, Any]:
        """As a file can hold them."""
        dtype, values = self.classes.dtype, self.classes.tolist()
        if dtype.kind not in KINDS and not (dtype.kind == "O" and all(isinstance(value, str) for value in values)):
            raise ValueError(f"classes of dtype {dtype} cannot be stored; expected text, numbers or booleans.")
        dtype = {"O": "object", "U": "str"}.get(dtype.kind, dtype.name)
        return {"classes": {"dtype": dtype, "values": values}, "target": self.name}

    @classmethod
    def from_state(cls, state: Any) -> "Labels":
        """The inverse of ``state``; ValueError where it is not such a state."""
        label = that(lambda value: isinstance(value, str | bool | int | float))
        parts = {"classes": record({"dtype": text, "values": list_of(label, least=2)}), "target": text}
        stored = checked(state, parts)
        values, dtype, classes = stored["classes"]["values"], stored["classes"]["dtype"], None
        with suppress(TypeError, ValueError, OverflowError):
            kind = "U" if dtype in ("object", "str") else np.dtype(dtype).kind
            if kind in KINDS and all(isinstance(value, str) == (kind == "U") for value in values):
                classes = np.array(values, dtype=dtype)
        if classes is None or len(set(values)) != len(values) or classes.tolist() != values:
            raise strange("classes")
        return cls(classes, stored["target"])


def codes_of(classes: np.ndarray, y: Any) -> Int[np.ndarray, " n"]:
    """The place of each label among the classes; ValueError for a label that is none of them."""
    values, listed = _column(y).tolist(), classes.tolist()
    places = {label: place for place, label in enumerate(listed)}
    codes = np.array([places.get(label, -1) for label in values], dtype=np.int64)
    unknown = np.flatnonzero(codes < 0)
    if len(unknown):
        raise ValueError(
            f"y has {len(unknown):,} labels that fit has not seen (first {values[unknown[0]]!r} in row {unknown[0]}); "
            f"the classes are {', '.join(map(repr, listed[:10]))}."
        )
    return codes


def column_of(y: Any) -> np.ndarray:
    """Labels as a vector, also with missing ones."""
    values = y.cpu().numpy() if isinstance(y, Tensor) else y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    return column_or_1d(values, warn=True, dtype=None)


def _column(y: Any) -> np.ndarray:
    """Labels as a vector, none missing."""
    if y is None:
        raise ValueError("This classifier requires y to be passed, but the target y is None.")
    if isinstance(y, Tensor):
        y = y.cpu().numpy()
    y = y if isinstance(y, np.ndarray | pd.DataFrame | pd.Series) else np.asarray(y)
    missing = np.asarray(pd.isna(y)).reshape(-1)
    if missing.any():
        raise ValueError(
            f"Input y contains NaN: {int(missing.sum()):,} labels are missing (first in row {int(missing.argmax())}); "
            "leave these rows out."
        )
    values = column_or_1d(y, warn=True)
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise ValueError("Input y contains infinity; labels are classes.")
    return values


# ---- kinds ----


def check_targets(estimator: "GPEstimator", is_classifier: bool) -> None:
    """Raise ValueError for a likelihood, a method or options of an estimator that do not go together."""
    name, method = estimator.likelihood, estimator.method
    allowed = likelihoods_of("classes") if is_classifier else REGRESSION
    if not isinstance(name, str) or name not in allowed:
        own = "" if is_classifier else " For a likelihood of your own, use cagp.WithLikelihood."
        raise ValueError(f"likelihood is {name!r}, expected one of {', '.join(allowed)}.{own}")
    kind, parameters = kind_of(name), estimator.get_params(deep=False)
    for option in not_for(kind, parameters):
        value, able = parameters[option.name], [other for other in REGRESSION if kind_of(other) in option.targets]
        raise ValueError(
            f"{option.name} is {value!r}, which is for likelihood={' or '.join(map(repr, able))} alone; with "
            f"{name!r}, leave it out."
        )
    if kind != GAUSSIAN and method not in methods_for(kind):
        listed = ", ".join(methods_for(kind))
        raise ValueError(f"method is {method!r}, with likelihood={name!r} expected one of {listed}.")
    recipe_of(estimator)


def recipe_of(estimator: "GPEstimator", num_rows: int = 0) -> Recipe:
    """The method for a table of this many rows; ValueError for options that are not right."""
    kind, method, parameters = kind_of(estimator.likelihood), estimator.method, estimator.get_params(deep=False)
    own = {key: parameters[key] for key, option in OPTIONS.items() if kind in option.targets and key in parameters}
    if kind == GAUSSIAN or method != "auto":
        return recipe_for(method, own)
    local = recipe_for("local", own)
    return recipe_for("exact", {}) if 0 < num_rows <= SITE_EXACT_ROWS else local


class Prepared(NamedTuple):
    """What is made of a table: all that training needs, and what the fit report says about it."""

    units: Units
    rows: AnyRows
    recipe: Recipe
    num_rows: int  # of all processes together
    notes: list[str] = []
    warning: str | None = None  # issued after the fit


@final
@dataclass(frozen=True)
class Fit:
    """What all steps of a fit have in common, and how targets depend on the latent functions.

    With Gaussian noise there is a function for each target, and targets or their logarithms are standardised. With
    another likelihood there is one target. Classes have a function for each column of zeros and ones.
    """

    options: "GPEstimator"  # whose parameters say what to do; checked
    seed: int  # of everything random
    ranks: Ranks  # the processes that train together
    began: float  # on the clock ``time.perf_counter()``; ``max_time`` counts from there
    labels: Labels | None = None  # of classes

    @property
    def memory(self) -> int:
        """Bytes that it may take."""
        asked = self.options.max_memory
        return default_memory_limit() if asked is None else bytes_of(asked)

    @property
    def targets(self) -> str:
        """What the targets are: "gaussian", "numbers", "counts" or "classes"."""
        return kind_of(self.options.likelihood)

    def start(self) -> Likelihood | ClassLikelihood | None:
        """The likelihood with its starting values; None for Gaussian noise."""
        if self.labels is not None:
            return class_likelihood(self.options.likelihood, len(self.labels.classes))
        return None if self.targets == GAUSSIAN else likelihood_class(self.options.likelihood)()

    def check(self, y: Any, sample_noise: Any, in_memory: bool) -> None:
        """Raise ValueError for a table from which such targets cannot be learned."""
        if self.targets == GAUSSIAN:
            check_processes(recipe_of(self.options), self.ranks.size)
        elif self.targets != "classes":  # the labels of these are checked before
            check_whole(f"likelihood={self.options.likelihood!r}", self.ranks, in_memory)
            if sample_noise is not None:
                raise own_noise(self.options.likelihood)
            if is_matrix(y):
                words = "A column-vector y was passed when a 1d array was expected; answers will have a column, too."
                warnings.warn(words, DataConversionWarning, stacklevel=6)

    def prepare(self, units: Units, rows: TrainingRows) -> Prepared:
        """The rows of a table in memory with targets on the scale of the fit, and what the fit report says of them."""
        recipe = recipe_of(self.options, rows.num_rows)
        if self.targets == GAUSSIAN:
            units, rows, notes, warning = distinct(self.options.copies, units, rows)
            units.check_same(rows, self.ranks)
            transforms, scales = choose_transforms(self, recipe, units, rows)
            units = replace(units, transforms=transforms)
            if units.has_log:
                rows = rows._replace(targets=units.forward(rows.targets))
                units = units.scaled_by(rows)
            return Prepared(units, rows, recipe, rows.num_rows, [*notes, *scales], warning)
        scale = (0.0, 1.0) if self.targets == "classes" else self._scale(rows)
        inputs, exposure = units.encoder.without_exposure(rows.inputs)
        rows = rows._replace(inputs=inputs, known=None if exposure is None else np.log(exposure))
        zero, unit = (torch.full_like(units.scaler.target_mean, value) for value in scale)
        units = replace(units, scaler=units.scaler._replace(target_mean=zero, target_std=unit))
        return Prepared(units, rows, recipe, rows.num_rows)

    def _scale(self, rows: TrainingRows) -> tuple[float, float]:
        """What are zero and one for a likelihood: of numbers, the median and the median absolute deviation."""
        q = rows.targets.shape[1]
        if q > 1:
            raise ValueError(f"y has {q} targets; with a likelihood that is not Gaussian, fit one model for each.")
        check_neighbours(recipe_of(self.options, rows.num_rows).n_neighbors, rows.num_rows)
        y = rows.targets[:, 0]
        likelihood_class(self.options.likelihood)().check(torch.from_numpy(y))
        if self.targets == "counts":
            return 0.0, 1.0
        centre = float(np.median(y))
        low, high = np.quantile(y, [0.25, 0.75])
        # Where half of the targets are equal, quartiles say more, and then the standard deviation.
        spreads = NORMAL_MAD * np.median(np.abs(y - centre)), (high - low) / NORMAL_RANGE, np.std(y)
        return centre, next((float(spread) for spread in spreads if spread > 0), 1.0)

    def words(self, learned: Likelihood | ClassLikelihood | None, unit: float) -> list[str]:
        """What the fit report says about the likelihood that was learned, in the unit of the targets."""
        if self.targets == "classes" or not isinstance(learned, Likelihood):
            return []
        shown = {"df": "degrees of freedom"}
        values = [f"{shown.get(k, k)} {number(v)}" for k, v in learned_parameters(learned, unit).items()]
        return [f"Likelihood: {LIKELIHOODS[self.options.likelihood].words}{': ' if values else ''}{', '.join(values)}."]


def check_whole(what: str, ranks: Ranks, in_memory: bool) -> None:
    """Raise ValueError unless one process has the whole table in memory."""
    if ranks.size > 1:
        raise ValueError(f"{what} trains in one process, and {ranks.size} were started; start a single one.")
    if not in_memory:
        raise ValueError(f"{what} takes the whole table in memory, and it is in pieces; read it first.")


# ---- the scales of targets ----


def choose_transforms(
    fit: Fit, recipe: Recipe, units: Units, rows: TrainingRows
) -> tuple[tuple[Transform, ...], list[str]]:
    """The scale of each target that the user asks for, and notes; "auto" decides for each, on process 0."""
    names, model, seed = units.target_names, fit.options, fit.seed
    logs, notes = [False] * len(names), []
    if model.target == "log":
        check_log(names, rows)
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
    return tuple(TRANSFORMS["log" if log else "identity"] for log in logs), notes


def check_log(names: tuple[str, ...], rows: TrainingRows) -> None:
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
