"""The test rows, and what the model predicts at them."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from cagp.data.targets import encode_target
from cagp.estimators.units import known_variances
from cagp.report.subject import AnyModel, Model

Matrix = NDArray[np.float64]
"""(rows, targets)"""

Table = pd.DataFrame | np.ndarray

SEED = 0


class HeldOutRows(NamedTuple):
    """The rows that the model is tested on."""

    X: Table
    y: Matrix
    num_given: int
    num_missing: int  # rows without a target, which are left out
    noise: Matrix | None  # known noise variances
    numbers: NDArray[np.intp]  # where the rows are in the table that was given, from 0

    def take(self, rows: NDArray[np.intp]) -> Table:
        """Some of the inputs."""
        return self.X.iloc[rows] if isinstance(self.X, pd.DataFrame) else self.X[rows]

    def take_noise(self, rows: NDArray[np.intp]) -> Matrix | None:
        """The known noise variances of some of the rows."""
        return None if self.noise is None else self.noise[rows]

    def label(self, row: int) -> str:
        """What the user calls a row: its label in the index of a frame, or its number in the table, from 0."""
        return str(self.X.index[row]) if isinstance(self.X, pd.DataFrame) else str(self.numbers[row])


def held_out_rows(model: Model, X: Any, y: Any, max_rows: int | None, sample_noise: Any = None) -> HeldOutRows:
    """The rows with known targets, or ``max_rows`` of them drawn at random, in their order."""
    table, target, num_targets = _inputs_of(model, _table(X)), encode_target(y, "y_test"), model.n_outputs_
    values = target.values[:, None] if target.values.ndim == 1 else target.values
    if values.shape != (len(table), num_targets):
        raise ValueError(
            f"y_test has {values.shape[0]} rows and {values.shape[1]} column(s), expected {len(table)} rows, as in "
            f"X_test, and {num_targets} column(s), as in fit."
        )
    num_missing = int(target.missing.sum())
    if num_missing == len(values):
        raise ValueError(
            f"y_test contains NaN in every row, in at least one of {model.n_outputs_} targets; a report needs rows "
            "with all of them."
        )
    return _drawn(table, values, target.missing, max_rows, known_variances(sample_noise, values.shape))


def tested_rows_of(
    model: AnyModel, X: Any, values: Matrix, missing: NDArray[np.bool_], max_rows: int | None
) -> HeldOutRows:
    """The same for targets that are numbers already, a row of ``values`` for each row."""
    table = _inputs_of(model, _table(X))
    if len(values) != len(table):
        raise ValueError(f"y_test has {len(values)} rows, expected {len(table)}, as in X_test.")
    if missing.all():
        raise ValueError("y_test has no row with a label; a report needs some.")
    return _drawn(table, values, missing, max_rows, None)


def _drawn(
    table: Table, values: Matrix, missing: NDArray[np.bool_], max_rows: int | None, noise: Matrix | None
) -> HeldOutRows:
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows is {max_rows}, expected at least 1, or None for all rows.")
    kept = np.flatnonzero(~missing)
    num_missing = len(values) - len(kept)
    if max_rows is not None and len(kept) > max_rows:
        kept = np.sort(np.random.default_rng(SEED).choice(kept, max_rows, replace=False))
    every = HeldOutRows(table, values, len(values), num_missing, noise, np.arange(len(values)))
    if len(kept) == len(values):
        return every
    return every._replace(X=every.take(kept), y=values[kept], noise=every.take_noise(kept), numbers=kept)


def sample(num_rows: int, size: int) -> NDArray[np.intp]:
    """``size`` of the rows, drawn at random, in their order; all rows if there are no more."""
    if num_rows <= size:
        return np.arange(num_rows)
    return np.sort(np.random.default_rng(SEED).choice(num_rows, size, replace=False))


class Predictions(NamedTuple):
    """Mean and standard deviation of new observations, and the standard deviation of the function without noise."""

    mean: Matrix
    std: Matrix
    latent_std: Matrix


def predictions(model: Model, X: Table, sample_noise: Matrix | None = None) -> Predictions:
    """What the model predicts, all finite."""
    found = model.predict(X, return_std=True, sample_noise=sample_noise)
    mean, std = (as_matrix(part, len(X)) for part in found)
    wrong = ~(np.isfinite(mean) & np.isfinite(std) & (std > 0)).all(1)
    if wrong.any():
        raise ValueError(
            f"the model's predictions of {int(wrong.sum())} of {len(X)} rows are not finite, or have no positive "
            "standard deviation, so there is nothing to report; model.fit_report_ says what the fit found."
        )
    noise = np.square(as_matrix(model.noise_std(X), len(X)) / std)
    if sample_noise is not None:
        noise += sample_noise / std / std
    return Predictions(mean, std, std * np.sqrt((1 - noise).clip(0)))


def function_moments(model: Model, X: Table) -> tuple[Matrix, Matrix]:
    """Mean and standard deviation of the function without noise."""
    mean, std = model.predict(X, return_std=True, noise=False)
    return as_matrix(mean, len(X)), as_matrix(std, len(X))


def as_matrix(values: Any, num_rows: int) -> Matrix:
    """Answers of the model as (rows, targets)."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    return np.asarray(values, float).reshape(num_rows, -1)


def column_names(X: Table) -> list[str]:
    """The names of a frame's columns; "x0", "x1", ... for an array."""
    return [str(name) for name in X.columns] if isinstance(X, pd.DataFrame) else [f"x{j}" for j in range(X.shape[1])]


def _table(X: Any) -> Table:
    if not isinstance(X, pd.DataFrame) and hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, pd.DataFrame):
        return X
    array = np.asarray(X)
    if array.dtype.names is not None:
        return pd.DataFrame(array)
    if array.ndim != 2:
        raise ValueError(f"X_test has shape {array.shape}, expected a table of rows and columns.")
    return array


def _inputs_of(model: AnyModel, table: Table) -> Table:
    """The columns of a frame that the model was fitted with, if all are there; other columns have no effect."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if isinstance(table, pd.DataFrame) and names:
        place = {str(name): j for j, name in enumerate(table.columns)}
        if set(names) <= set(place):
            return table.iloc[:, [place[name] for name in names]]
    return table
