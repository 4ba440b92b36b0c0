"""Tables as commands need them: split for training, or in pieces that a model can answer."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cagp.cli.words import UsageError, names, warn
from cagp.data import Encoder, encode_target, read_table, split, stream_table
from cagp.estimators import GPRegressor

PIECE_ROWS = 65_536


class Parts(NamedTuple):
    """A table cut into rows to train on and rows to test on."""

    train: pd.DataFrame  # inputs
    train_targets: pd.DataFrame
    test: pd.DataFrame  # without rows where nothing is to be tested on
    test_targets: pd.DataFrame
    num_rows: int  # of the table
    num_missing: int  # rows without a target, which are in no part
    num_moved: int  # rows for testing that are trained on: they have levels that no row for training had


def split_table(
    path: str, targets: Sequence[str] | None, drop: Sequence[str], test_fraction: float, seed: int
) -> Parts:
    """Read a table, leave out rows whose target is missing, and split the others by seed; rows keep their order."""
    if not targets:
        targets = _default_targets(path)
    frame = read_table(path)
    _check_columns(frame, "--target", targets)
    _check_columns(frame, "--drop", drop)
    if set(targets) & set(drop):
        raise UsageError(f"--drop names the target {names(sorted(set(targets) & set(drop)))}; leave it out of --drop.")
    if len(set(targets)) < len(targets):
        raise UsageError(f"--target names a column twice: {names(targets)}.")
    inputs, values = frame.drop(columns=[*targets, *drop]), frame.loc[:, list(targets)]
    if inputs.shape[1] == 0:
        raise UsageError(f"no inputs are left: {path} has the columns {names(frame.columns)}.")
    for name in inputs.columns:
        if re.fullmatch(r"Unnamed: \d+", str(name)):
            warn(f"the column {name!r} looks like row numbers that pandas wrote; leave it out with --drop {name!r}")
    text = Encoder.fit(inputs).text_names  # finds what is wrong before the rows are split, with their own numbers
    missing = encode_target(values, "the target").missing
    kept = np.flatnonzero(~missing)
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} row with a target, expected at least 2.")
    train, test, num_moved = kept, kept[:0], 0
    if test_fraction > 0:
        rows = split(len(kept), test_fraction, seed)
        train, test = kept[np.sort(rows.train.numpy())], kept[np.sort(rows.test.numpy())]
        new = np.zeros(len(test), dtype=bool)
        for name in text:
            new |= ~inputs[name].iloc[test].isin(inputs[name].iloc[train].unique()).to_numpy()
        num_moved = int(new.sum())
        train, test = np.sort(np.concatenate([train, test[new]])), test[~new]

    def part(frame: pd.DataFrame, rows: np.ndarray) -> pd.DataFrame:
        return frame.iloc[rows].reset_index(drop=True)

    return Parts(
        part(inputs, train),
        part(values, train),
        part(inputs, test),
        part(values, test),
        len(frame),
        int(missing.sum()),
        num_moved,
    )


def as_target(frame: pd.DataFrame) -> Any:
    """One target as a column, several as a frame: regressors answer in the same shape."""
    return frame.iloc[:, 0] if frame.shape[1] == 1 else frame


def _default_targets(path: str) -> list[str]:
    """The column y of an NPZ file, or its several; of other tables only the user knows."""
    columns = [str(name) for name in next(iter(stream_table(path, rows=1000))).frame.columns]
    if path.lower().endswith(".npz"):
        found = ["y"] if "y" in columns else [name for name in columns if re.fullmatch(r"y\d+", name)]
        if found:
            return found
    raise UsageError(f"say with --target what to predict; the columns of {_shown(path)} are {', '.join(columns)}.")


def _check_columns(frame: pd.DataFrame, option: str, wanted: Sequence[str]) -> None:
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise UsageError(
            f"{option} names {', '.join(map(repr, absent))}, which the table does not have; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


# ---- pieces ----


class Piece(NamedTuple):
    """Consecutive rows of a table."""

    frame: pd.DataFrame
    inputs: Any  # what the model takes of it, checked
    fraction: float | None  # of the table that is read by now


def pieces(model: GPRegressor, path: str, rows: int, text: Sequence[str] = ()) -> Iterator[Piece]:
    """A table of any size, a piece at a time; an input that the model cannot take is an error with its row and column.

    Args:
        text: further columns to take as text from a CSV file.
    """
    encoder = model.encoder_
    for chunk in stream_table(path, rows, [*encoder.text_names, *text]):
        inputs = _inputs(model, chunk.frame, path)
        encoder.transform(inputs, chunk.rows_from)  # names the row in the table; the model would count in the piece
        yield Piece(chunk.frame, inputs, chunk.fraction)


def _inputs(model: GPRegressor, frame: pd.DataFrame, path: str) -> pd.DataFrame | np.ndarray:
    """The columns that the model knows by name; all but the targets, by position, where it was fitted to an array."""
    wanted = model.encoder_.names_in
    if wanted is None:
        return frame.drop(columns=[name for name in model.target_names_ if name in frame.columns]).to_numpy()
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{_shown(path)} lacks {'the column' if len(absent) == 1 else 'the columns'} "
            f"{', '.join(map(repr, absent))} that the model was fitted with; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    return frame.loc[:, list(wanted)]


def targets_of(model: GPRegressor, frame: pd.DataFrame, path: str) -> np.ndarray:
    """The targets of a piece as numbers, (n, q); NaN where they are missing."""
    absent = [name for name in model.target_names_ if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{_shown(path)} lacks the target {', '.join(map(repr, absent))}; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    columns = []
    for name in model.target_names_:
        values = frame[name]
        if values.dtype.kind in "mM":
            raise ValueError(f"the target {name!r} holds dates or durations, expected numbers.")
        numbers = np.asarray(pd.to_numeric(values, errors="coerce"), dtype=np.float64)
        wrong = (np.isnan(numbers) & ~values.isna().to_numpy()) | np.isinf(numbers)
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                f"the target {name!r} is {values.iloc[first]!r} at row {values.index[first]}, expected a number."
            )
        columns.append(numbers)
    return np.stack(columns, axis=1)
