"""What a report is about: a fitted model, alone, behind a pipeline's steps or found by a search, and its test rows."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from cagp.data.table_checks import as_table
from cagp.data.targets import encode_target
from cagp.estimators import CaGPClassifier, EncodedTable, GPRegressor
from cagp.estimators.labels import codes_of, column_of
from cagp.estimators.observations import Observations
from cagp.estimators.predictive import Predictive
from cagp.estimators.units import known_variances
from cagp.report.columns import InputColumn, Matrix, Table, column_names, input_columns, with_values_of

SEED = 0


@dataclass(frozen=True)
class Subject:
    """A fitted model and the rows that it is tested on.

    Rows are encoded once, and the model predicts them once, for all sections of the page.
    """

    model: Any  # a GPRegressor or a CaGPClassifier
    steps: tuple[Pipeline, ...]  # before the model; the first takes ``X``
    X: Table
    y: Matrix  # (rows, targets); the places of classes for a classifier
    noise: Matrix | None  # known noise variances
    numbers: NDArray[np.intp]  # where the rows are in the table that was given, from 0
    num_given: int
    num_missing: int  # rows without a target, which are left out

    @cached_property
    def columns(self) -> list[InputColumn]:
        """The columns of the table that vary among the rows."""
        return input_columns(self.X)

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return column_names(self.X)

    @property
    def is_classifier(self) -> bool:
        """Whether the model predicts classes."""
        return hasattr(self.model, "classes_")

    @property
    def num_rows(self) -> int:
        """The number of test rows."""
        return len(self.y)

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Some of the inputs."""
        return self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]

    def replaced(self, column: InputColumn, rows: NDArray[np.intp], donors: NDArray[np.intp]) -> Table:
        """Some of the inputs, with the values that the rows ``donors`` have in one column."""
        return with_values_of(self.take(rows), column.place, donors, self.X)

    def take_noise(self, rows: NDArray[np.intp]) -> Matrix | None:
        """The known noise variances of some of the rows."""
        return None if self.noise is None else self.noise[rows]

    def sample(self, size: int) -> NDArray[np.intp]:
        """``size`` of the rows, drawn at random, in their order; all rows if there are no more."""
        return sample(self.num_rows, size)

    def label(self, row: int) -> str:
        """What the user calls a row: its label in the index of a frame, or its number in the table, from 0."""
        return str(self.X.index[row]) if isinstance(self.X, pd.DataFrame) else str(self.numbers[row])

    # ---- what the model says ----

    def encoded(self, X: Table) -> EncodedTable:
        """A table after the steps of the pipeline, as numbers: the model takes it and encodes nothing."""
        for step in self.steps:
            X = step.transform(X)
        encoder = self.model.encoder_
        return EncodedTable(encoder, encoder.codes(X))

    @cached_property
    def encoded_rows(self) -> EncodedTable:
        """The test rows as numbers."""
        return self.encoded(self.X)

    @cached_property
    def predicted(self) -> Predictive | Observations:
        """The predictive distributions of the test rows, by a regressor."""
        return checked(self.model.predictive(self.encoded_rows, self.noise))

    @cached_property
    def probabilities(self) -> Matrix:
        """The probability of each class at the test rows, by a classifier."""
        return self.model.predict_proba(self.encoded_rows)

    def function(self, X: Table) -> tuple[Matrix, Matrix]:
        """Mean and standard deviation of the function, without noise."""
        mean, std = self.model.predict(self.encoded(X), return_std=True, noise=False)
        return as_matrix(mean, len(X)), as_matrix(std, len(X))

    def moments(self, X: Table) -> tuple[Matrix, Matrix, Matrix]:
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
    values = target.values.reshape(len(target.values), -1)
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
    values: Matrix,
    missing: NDArray[np.bool_],
    max_rows: int | None,
    noise: Matrix | None = None,
) -> Subject:
    first = steps[0] if steps else model
    table, num_targets = _columns_of(first, as_table(X)), 1 if hasattr(model, "classes_") else model.n_outputs_
    if values.shape != (len(table), num_targets):
        raise ValueError(
            f"y_test has {values.shape[0]} rows and {values.shape[1]} column(s), expected {len(table)} rows, as in "
            f"X_test, and {num_targets} column(s), as in fit."
        )
    if missing.all():
        raise ValueError("y_test has no row with all of its targets or labels; a report needs some.")
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}, expected at least 1, or None for all rows.")
    kept = np.flatnonzero(~missing)
    kept = kept if max_rows is None else kept[sample(len(kept), max_rows)]
    every = Subject(model, steps, table, values, noise, np.arange(len(values)), len(values), int(missing.sum()))
    if len(kept) == len(values):
        return every
    return replace(every, X=every.take(kept), y=values[kept], noise=every.take_noise(kept), numbers=kept)


def sample(num_rows: int, size: int) -> NDArray[np.intp]:
    """``size`` of the rows, drawn at random, in their order; all rows if there are no more."""
    if num_rows <= size:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, size, replace=False))


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


def _columns_of(model: Any, table: Table) -> Table:
    """The columns of a frame that the model was fitted with, if all are there; other columns have no effect."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if isinstance(table, pd.DataFrame) and names:
        place = {str(name): j for j, name in enumerate(table.columns)}
        if set(names) <= set(place):
            return table.iloc[:, [place[name] for name in names]]
    return table
