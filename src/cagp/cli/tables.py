"""Tables as commands read them: columns with a part to play, pieces that a model can predict, and its scores there."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import torch

from cagp.class_metrics import class_scores
from cagp.cli.commands import SplitRule
from cagp.cli.console import UsageError, count, filled, warn
from cagp.data import read_table, split, stream_table
from cagp.data.cells import columns_text, listed, with_decimal_commas_read
from cagp.estimators import CaGPClassifier, EncodedTable, GPRegressor
from cagp.estimators.target_kinds import codes_of
from cagp.likelihood_registry import likelihoods_of
from cagp.metrics import METRICS, ScoreSum

Model = GPRegressor | CaGPClassifier


def default_targets(path: str) -> list[str]:
    """The column y of an NPZ file, or its several; for other tables only the user knows."""
    columns = [str(name) for name in next(iter(stream_table(path, rows=1000))).frame.columns]
    if path.lower().endswith(".npz"):
        targets = ["y"] if "y" in columns else [name for name in columns if re.fullmatch(r"y\d+", name)]
        if targets:
            return targets
    raise UsageError(f"say with --target what to predict; the columns of {_shown(path)} are {', '.join(columns)}.")


def split_rows(frame: pd.DataFrame, rule: SplitRule, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows to train on and the rows to test on of a table, by number, in its order."""
    rows = split(len(frame), test_fraction, seed, **rule.by(frame))
    return np.sort(rows.train.numpy()), np.sort(rows.test.numpy())


def check_rule(frame: pd.DataFrame, rule: SplitRule, targets: Sequence[str]) -> None:
    """Raise UsageError unless the column that splits the table is one of its columns and not a target."""
    if rule.column is None:
        return
    check_columns(frame, "--split", [rule.column])
    if rule.column in targets:
        raise UsageError(f"--split names the target {rule.column}, which new rows do not have; use another column.")


def check_columns(frame: pd.DataFrame, option: str, wanted: Sequence[str], which: str = "the table does") -> None:
    """Raise UsageError where an option names a column that a table does not have."""
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise UsageError(f"{option} names {listed(absent)}, which {which} not have; {_columns_of(frame)}.")


def as_target(frame: pd.DataFrame) -> Any:
    """One target as a column, several as a frame: estimators answer in the same shape."""
    return frame.iloc[:, 0] if frame.shape[1] == 1 else frame


def noise_column(frame: pd.DataFrame, column: str) -> np.ndarray:
    """The known variances in a column of a table."""
    check_columns(frame, "--noise", [column])
    expected = "a variance, zero or larger; square standard deviations first"
    variances = _numbers(frame[column], f"the noise column {column!r}", expected)
    _refuse(~(variances >= 0), frame[column], f"the noise column {column!r}", expected)
    return variances


def _numbers(column: Any, what: str, expected: str) -> np.ndarray:
    """A column as numbers; NaN where values are missing."""
    values = with_decimal_commas_read(column, str(column.name))
    if values.dtype.kind in "mM":
        raise ValueError(f"{what} holds dates or durations, expected numbers.")
    numbers = np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)
    _refuse((np.isnan(numbers) & ~values.isna().to_numpy()) | np.isinf(numbers), column, what, expected)
    return numbers


def _refuse(wrong: np.ndarray, column: Any, what: str, expected: str) -> None:
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(f"{what} is {column.iloc[first]!r} at row {column.index[first]}, expected {expected}.")


def _columns_of(frame: pd.DataFrame) -> str:
    return f"its columns are {', '.join(map(str, frame.columns))}"


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


# ---- a fitted model and a table ----


class Rows(NamedTuple):
    """Some rows of a table, as a model takes them."""

    frame: pd.DataFrame  # all their columns
    inputs: EncodedTable
    noise: np.ndarray | None = None  # known variances
    fraction: float | None = None  # of the table that was read so far

    def where(self, mask: np.ndarray) -> "Rows":
        noise = None if self.noise is None else self.noise[mask]
        return self._replace(frame=self.frame.loc[mask], inputs=self.inputs.take(mask), noise=noise)


def rows_of(
    model: Model, frame: pd.DataFrame, arguments: argparse.Namespace, rows_from: int = 0, fraction: float | None = None
) -> Rows:
    """Rows of a table, from a given number on; an input that the model cannot take is an error with row and column."""
    matrix = model.encoder_.codes(inputs_of(model, frame, arguments), rows_from)
    known = None if arguments.noise is None else noise_column(frame, arguments.noise)
    return Rows(frame, EncodedTable(model.encoder_, matrix), known, fraction)


def pieces(model: Model, arguments: argparse.Namespace, text: Sequence[str] = ()) -> Iterator[Rows]:
    """A table of any size, a piece at a time; ``text`` are further columns to take as text from a CSV file."""
    for chunk in stream_table(arguments.table, arguments.rows_at_a_time, [*model.encoder_.text_names, *text]):
        yield rows_of(model, chunk.frame, arguments, chunk.rows_from, chunk.fraction)


def held_out_rows(model: Model, arguments: argparse.Namespace) -> Rows:
    """The rows of a table that ``cagp fit`` holds out with the same rule, share and seed."""
    frame, rule = read_table(arguments.table, model.encoder_.text_names), arguments.split
    check_rule(frame, rule, model.target_names_)
    kept = np.flatnonzero(~np.isnan(targets_of(model, frame, arguments.table)).all(axis=1))
    share = 0.1 if arguments.test_fraction is None else arguments.test_fraction
    test = split_rows(frame.iloc[kept], rule, share, arguments.seed or 0)[1]
    return rows_of(model, frame.iloc[kept[test]], arguments, fraction=1.0)


def inputs_of(model: Model, frame: pd.DataFrame, arguments: argparse.Namespace) -> pd.DataFrame | np.ndarray:
    """The columns that the model knows by name; if it was fitted to an array, all but targets and noise."""
    wanted = model.encoder_.names_in
    if wanted is None:
        others = [name for name in (*model.target_names_, arguments.noise) if name in frame.columns]
        return frame.drop(columns=others).to_numpy()
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{_shown(arguments.table)} lacks the {columns_text(absent)} that the model was fitted with; "
            f"{_columns_of(frame)}."
        )
    return frame.loc[:, list(wanted)]


def targets_of(model: Model, frame: pd.DataFrame, path: str) -> np.ndarray:
    """The targets of rows as numbers, (n, q), of a classifier as numbers of classes; NaN where they are missing."""
    absent = [name for name in model.target_names_ if name not in frame.columns]
    if absent:
        raise ValueError(f"{_shown(path)} lacks the target {listed(absent)}; {_columns_of(frame)}.")
    if isinstance(model, CaGPClassifier):
        labels = frame[model.target_name_]
        codes, has_label = np.full(len(labels), np.nan), labels.notna().to_numpy()
        if has_label.any():
            codes[has_label] = codes_of(model.classes_, labels[has_label])
        return codes[:, None]
    columns = [_numbers(frame[name], f"the target {name!r}", "a number") for name in model.target_names_]
    return np.stack(columns, axis=1)


def warn_of_noise(model: Model, noise: str | None) -> None:
    """Say that error bars lack the known noise of rows, where the model was fitted with one and none is given."""
    if noise is None and any(known is not None for known in model.fitted.row_noise):
        warn(
            "the model was fitted with known noise variances; error bars of these rows are without theirs unless "
            "--noise names a column of them"
        )


@final
class Unseen:
    """In how many rows columns have levels that no training row had, or lack values that all training rows have."""

    def __init__(self):
        self._levels, self._missing = Counter(), Counter()

    def add(self, inputs: EncodedTable) -> None:
        self._levels += Counter(inputs.encoder.num_unknown(inputs.matrix))
        self._missing += Counter(inputs.encoder.num_missing(inputs.matrix))

    def warn(self) -> None:
        for name, rows in self._levels.items():
            warn(
                f"{count(rows, 'row')} of column {name!r} {'has a level' if rows == 1 else 'have levels'} that no "
                "training row had; predictions there come from the rows of all levels"
            )
        warn_of_missing(self._missing)


def warn_of_missing(num_missing: Mapping[str, int]) -> None:
    """Say in how many rows values are missing in columns in which no training row lacked one."""
    for name, rows in num_missing.items():
        warn(
            f"{count(rows, 'row')} {'lacks' if rows == 1 else 'lack'} a value of column {name!r}, in which no "
            "training row lacked one; predictions there are averages over its training values, with wider error bars"
        )


# ---- how good the predictions of rows are ----


@final
class TargetTally:
    """The metrics of a model's targets, and of a constant prediction: mean and spread of the training targets."""

    def __init__(self, model: GPRegressor):
        self._model = model
        self._sums = {name: {"model": ScoreSum(), "constant": ScoreSum()} for name in model.target_names_}

    def add(self, y: np.ndarray, inputs: EncodedTable, sample_noise: np.ndarray | None = None) -> None:
        """Predict rows and count them for the targets that they have; y is (n, q), NaN where it is missing."""
        if len(y) == 0:
            return
        predicted = self._model.predictive(inputs, sample_noise)
        answers = {"model": predicted, "constant": self._model.fitted.constant_prediction(predicted)}
        for j, sums in enumerate(self._sums.values()):
            known = ~np.isnan(y[:, j])
            for which, total in sums.items():
                rows = answers[which].take(known).row_scores(j, y[known, j])
                total.add_rows(torch.from_numpy(y[known, j]), rows)

    def record(self) -> dict[str, Any]:
        """The metrics by target, of the model and of the constant prediction; None for a target that no row has."""
        return {
            name: {which: total.scores()._asdict() if total.num_rows else None for which, total in sums.items()}
            for name, sums in self._sums.items()
        }

    def words(self) -> str:
        """A table of the metrics, with how to read each one."""
        model = self._model
        logs = [n for n, t in zip(model.target_names_, model.target_transforms_, strict=True) if t == "log"]
        values = {"model": model, "logs": logs, "METRICS": METRICS, "likelihoods_of": likelihoods_of}
        return filled("scores", record=self.record(), **values)


@final
class ClassTally:
    """The metrics of a classifier; y are the numbers of classes."""

    def __init__(self, model: CaGPClassifier):
        self._model, self._codes, self._probabilities = model, [], []

    def add(self, y: np.ndarray, inputs: EncodedTable, sample_noise: np.ndarray | None = None) -> None:
        if len(y):
            self._codes.append(y[:, 0].astype(np.int64))
            self._probabilities.append(self._model.predict_proba(inputs))

    def record(self) -> dict[str, Any]:
        return class_scores(np.concatenate(self._codes), np.concatenate(self._probabilities))._asdict()

    def words(self) -> str:
        return filled("class_scores", **self.record())


def tally_of(model: Model) -> TargetTally | ClassTally:
    return ClassTally(model) if isinstance(model, CaGPClassifier) else TargetTally(model)


def write_report(
    model: Model, frame: pd.DataFrame, arguments: argparse.Namespace, shared_groups: Mapping[str, float] | None = None
) -> None:
    """Write the page of --report on rows with known targets; ``shared_groups`` as for ``cagp.report.write_report``."""
    from cagp import report  # it draws

    X = model.encoder_.typed(inputs_of(model, frame, arguments))
    y = targets_of(model, frame, arguments.table)
    if isinstance(model, CaGPClassifier):
        labels = pd.Series(model.classes_[y[:, 0].astype(np.int64)], name=model.target_name_)
        report.write_class_report(model, X, labels, arguments.report)
        return
    known = None if arguments.noise is None else noise_column(frame, arguments.noise)
    targets = as_target(pd.DataFrame(y, columns=list(model.target_names_)))
    report.write_report(model, X, targets, arguments.report, sample_noise=known, shared_groups=shared_groups)
