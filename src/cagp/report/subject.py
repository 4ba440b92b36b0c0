"""What a report is about: a fitted model, alone, behind a pipeline's steps or found by a search, and its test rows."""

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from cagp.data.cells import as_table
from cagp.data.encoding import encode_target
from cagp.estimators import CaGPClassifier, EncodedTable, GPRegressor
from cagp.estimators.predictive import Observations, Predictive
from cagp.estimators.target_kinds import codes_of, column_of
from cagp.estimators.units import known_variances
from cagp.plots import Vector
from cagp.recipes.table import method_words

SEED = 0

Matrix = NDArray[np.float64]
"""(rows, targets)"""
Rows = NDArray[np.intp]

MISSING = "(missing)"
"""The name of the level of rows without a value, in a column of levels."""


class InputColumn(NamedTuple):
    """A column of the table before anything is encoded."""

    name: str
    place: int
    kind: str  # "number", "date", "duration" or "levels"
    values: Vector  # NaN where missing; days for durations, days since 1970 for dates, codes 0, 1, ... for levels
    levels: tuple[str, ...] = ()  # the name of each code, the most frequent first

    @classmethod
    def of(cls, name: str, place: int, series: pd.Series) -> "InputColumn":
        types = pd.api.types
        if types.is_numeric_dtype(series.dtype) and not types.is_bool_dtype(series.dtype):
            kind = "number"
        elif types.is_datetime64_any_dtype(series.dtype):
            kind, series = "date", (series - pd.Timestamp(0, tz=series.dt.tz)) / pd.Timedelta(days=1)
        elif types.is_timedelta64_dtype(series.dtype):
            kind, series = "duration", series / pd.Timedelta(days=1)
        else:
            text = series.astype(object).where(series.notna().to_numpy(), MISSING).map(str)
            counts = text.value_counts()
            levels = sorted(counts.index, key=lambda level: (-counts[level], level))
            return cls(name, place, "levels", pd.Index(levels).get_indexer(text).astype(float), tuple(levels))
        return cls(name, place, kind, series.to_numpy(dtype=float, na_value=np.nan))

    @property
    def label(self) -> str:
        """The name, with the unit that the values have here."""
        return f"{self.name} (days)" if self.kind == "duration" else self.name

    @property
    def is_ordered(self) -> bool:
        """Whether the values are numbers in the usual sense."""
        return self.kind != "levels"

    def shown(self, row: int) -> str:
        """The value of one row in words."""
        value = float(self.values[row])
        if self.kind == "levels":
            return self.levels[int(value)]
        if np.isnan(value):
            return "missing"
        if self.kind == "date":
            return f"{pd.Timestamp(0) + pd.Timedelta(days=value):%Y-%m-%d}"
        return f"{value:.4g}".replace("-", "−")


@dataclass(frozen=True)
class Subject:
    """A fitted model and the rows that it is tested on, which are encoded once and predicted once."""

    model: Any  # a GPRegressor or a CaGPClassifier
    steps: tuple[Pipeline, ...]  # before the model; the first takes ``X``
    X: pd.DataFrame  # the index has what the user calls a row; of an array, numbers from 0
    is_array: bool  # whether the model takes arrays, and not frames
    y: Matrix  # (rows, targets); the places of classes for a classifier
    noise: Matrix | None  # known noise variances
    num_given: int
    num_missing: int  # rows without a target, which are left out

    @cached_property
    def columns(self) -> list[InputColumn]:
        """The columns of the table with at least two different values, in their order."""
        columns = [InputColumn.of(name, j, self.X.iloc[:, j]) for j, name in enumerate(self.column_names)]
        return [column for column in columns if len(np.unique(column.values[np.isfinite(column.values)])) > 1]

    @property
    def column_names(self) -> list[str]:
        return [str(name) for name in self.X.columns]

    @property
    def is_classifier(self) -> bool:
        return hasattr(self.model, "classes_")

    @property
    def num_rows(self) -> int:
        return len(self.y)

    def replaced(self, column: InputColumn, rows: Rows, donors: Rows) -> pd.DataFrame:
        """Some of the inputs, with the values that the rows ``donors`` have in one column, which keeps its type."""
        return with_values(self.X.iloc[rows], column.place, self.X.iloc[donors, column.place].array)

    def sample(self, size: int) -> Rows:
        """``size`` of the rows, drawn at random, in their order; all rows if there are no more."""
        return sample(self.num_rows, size)

    # ---- what the model says ----

    def encoded(self, X: pd.DataFrame) -> EncodedTable:
        """A table after the steps of the pipeline, as numbers: the model takes it and encodes nothing."""
        table = X.to_numpy() if self.is_array else X
        for step in self.steps:
            table = step.transform(table)
        encoder = self.model.encoder_
        return EncodedTable(encoder, encoder.codes(table))

    @cached_property
    def encoded_rows(self) -> EncodedTable:
        """The test rows as numbers."""
        return self.encoded(self.X)

    def answers(self, inputs: EncodedTable, noise: Matrix | None = None) -> Any:
        """Predictive distributions by a regressor, probabilities (rows, classes) by a classifier."""
        return self.model.predict_proba(inputs) if self.is_classifier else self.model.predictive(inputs, noise)

    @cached_property
    def predicted(self) -> Any:
        """The answers at the test rows; those of a regressor have finite means and positive standard deviations."""
        found = self.answers(self.encoded_rows, self.noise)
        return found if self.is_classifier else checked(found)

    def function(self, X: pd.DataFrame) -> tuple[Matrix, Matrix]:
        """Mean and standard deviation of the function, without noise."""
        mean, std = self.model.predict(self.encoded(X), return_std=True, noise=False)
        return as_matrix(mean, len(X)), as_matrix(std, len(X))

    def moments(self, X: pd.DataFrame) -> tuple[Matrix, Matrix, Matrix]:
        """Mean and standard deviation of new observations, and the part of the latter that is not noise."""
        inputs = self.encoded(X)
        predicted = checked(self.model.predictive(inputs))
        mean, std = predicted.mean(), predicted.std()
        noise = as_matrix(self.model.noise_std(inputs), len(X)) / std
        return mean, std, std * np.sqrt((1 - noise**2).clip(0))


def subject_of(estimator: Any, X: Any, y: Any, max_rows: int | None = None, sample_noise: Any = None) -> Subject:
    """A regressor and the rows with known targets, or ``max_rows`` of them drawn at random, in their order."""
    steps = []
    while not isinstance(estimator, GPRegressor):
        if isinstance(estimator, Pipeline):
            if len(estimator.steps) > 1:
                steps.append(estimator[:-1])
            estimator = estimator.steps[-1][1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "refit") and hasattr(estimator, "cv"):
            raise NotFittedError(
                f"this {type(estimator).__name__} has no best_estimator_ to report on: fit it first, with refit=True."
            )
        elif isinstance(estimator, TransformedTargetRegressor):
            raise TypeError(
                "a report on a TransformedTargetRegressor would need error bars in the units of y, which it does not "
                'give. For a logarithm, use CaGPRegressor(target="log"), whose error bars are in these units.'
            )
        else:
            raise TypeError(
                f"model is a {type(estimator).__name__}, expected a fitted regressor of cagp, a Pipeline that ends in "
                "one, or a search (GridSearchCV, RandomizedSearchCV) over one."
            )
    target = encode_target(y, "y_test")
    values = as_matrix(target.values, len(target.values))
    noise = known_variances(sample_noise, values.shape)
    return _drawn(estimator, tuple(steps), X, values, target.missing, max_rows, noise)


def class_subject_of(model: CaGPClassifier, X: Any, y: Any, max_rows: int | None = None) -> Subject:
    """A classifier and the rows with a label; ``y`` has the places of their classes."""
    labels = column_of(y)
    missing = np.asarray(pd.isna(labels))
    places = np.full((len(labels), 1), np.nan)
    places[~missing, 0] = codes_of(model.classes_, labels[~missing])
    return _drawn(model, (), X, places, missing, max_rows)


def _drawn(
    model: Any,
    steps: tuple[Pipeline, ...],
    X: Any,
    y: Matrix,
    missing: NDArray[np.bool_],
    max_rows: int | None,
    noise: Matrix | None = None,
) -> Subject:
    table = as_table(X)
    is_array = isinstance(table, np.ndarray)
    if is_array:
        table = pd.DataFrame(table, columns=[f"x{j}" for j in range(table.shape[1])]).infer_objects()
    else:  # the columns that the model was fitted with, if all are there; others have no effect
        fitted = [str(name) for name in getattr(steps[0] if steps else model, "feature_names_in_", [])]
        place = {str(name): j for j, name in enumerate(table.columns)}
        table = table.iloc[:, [place[name] for name in fitted]] if fitted and set(fitted) <= set(place) else table
    num_targets = 1 if hasattr(model, "classes_") else model.n_outputs_
    if y.shape != (len(table), num_targets):
        raise ValueError(
            f"y_test has {y.shape[0]} rows and {y.shape[1]} column(s), expected {len(table)} rows, as in X_test, and "
            f"{num_targets} column(s), as in fit."
        )
    if missing.all():
        raise ValueError("y_test has no row with all of its targets or labels; a report needs some.")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}, expected at least 1, or None for all rows.")
    kept = np.flatnonzero(~missing)
    kept = kept if max_rows is None else kept[sample(len(kept), max_rows)]
    noise = None if noise is None else noise[kept]
    return Subject(model, steps, table.iloc[kept], is_array, y[kept], noise, len(y), int(missing.sum()))


def sample(num_rows: int, size: int) -> Rows:
    """``size`` of the rows, drawn at random, in their order; all rows if there are no more."""
    if num_rows <= size:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, size, replace=False))


def with_values(X: pd.DataFrame, place: int, values: Any) -> pd.DataFrame:
    """The table with other values in the column at ``place``."""
    changed = X.reset_index(drop=True)
    changed.isetitem(place, values)
    return changed


def checked(predicted: Predictive | Observations) -> Predictive | Observations:
    """The distributions, which must have finite means and positive standard deviations."""
    mean, std = predicted.mean(), predicted.std()
    wrong = ~(np.isfinite(mean) & np.isfinite(std) & (std > 0)).all(1)
    if wrong.any():
        raise ValueError(
            f"the model's predictions of {int(wrong.sum())} of {len(mean)} rows are not finite, or have no positive "
            "standard deviation, so there is nothing to report; model.fit_report_ says what the fit found."
        )
    return predicted


def as_matrix(values: Any, num_rows: int) -> Matrix:
    """Answers of the model as (rows, targets)."""
    return np.asarray(values, float).reshape(num_rows, -1)


# ---- what the sections on the fitted model show ----


def model_values(subject: Subject, goal: str, **values: Any) -> dict[str, dict[str, Any]]:
    """The values of the sections on the data, with ``values``, on the lengthscales, the training and the fit."""
    model = subject.model
    data = {"subject": subject, "goal": goal, "method": method_words(model.method_)}
    return {
        "data": data | {"overlap": None, "ranges": [], "trees": []} | values,
        "relevance": relevance_of(subject),
        "learning": learning_of(model.fit_result_),
        "fit": {"model": model, "version": version("cagp")},
    }


def varying(subject: Subject) -> np.ndarray:
    """Which encoded inputs vary among the test rows; all of them if none does.

    The lengthscale of an input that is constant in training remains at its starting value and means nothing.
    """
    encoder, codes = subject.encoded_rows
    inputs = encoder.expand(codes)
    varies = np.array([len(np.unique(column[np.isfinite(column)])) > 1 for column in inputs.T])
    return varies if varies.any() else np.ones_like(varies)


def relevance_of(subject: Subject) -> dict[str, Any]:
    """Inputs that vary and their lengthscales, the shortest first, and the parts of the kernel."""
    model, kept = subject.model, varying(subject)
    lengthscales = np.asarray(model.lengthscales_, float).ravel()[kept]
    order = np.argsort(lengthscales, kind="stable")
    return {
        "names": [str(name) for name in np.asarray(model.feature_names_out_)[kept][order]],
        "lengthscales": lengthscales[order] if np.isfinite(lengthscales).all() else None,
        "num_constant": int((~kept).sum()),
        "kernel": model.kernel_parts_,
    }


def learning_of(result: Any) -> dict[str, Any]:
    """The loss and the evaluations against training time."""
    steps = [] if result is None else [step for step in result.steps if np.isfinite(step.loss)]
    seconds, losses = (np.array([getattr(step, name) for step in steps], float) for name in ("seconds", "loss"))
    evaluated = pd.DataFrame([step.evaluation or {} for step in steps], seconds, dtype=float)
    known = {name: values.dropna() for name, values in evaluated.items()}
    evaluations = {name: (part.index.to_numpy(), part.to_numpy()) for name, part in known.items() if len(part)}
    return {"result": result, "seconds": seconds, "losses": losses, "evaluations": evaluations}
