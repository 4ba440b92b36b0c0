"""Tables as commands need them: encoded and split for training, or in pieces that a model can predict."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cagp.cli.words import UsageError, count, names, warn
from cagp.data import MAX_LEVELS, Encoder, encode_target, read_table, split, stream_table
from cagp.data.splits import shared_groups
from cagp.data.text_values import with_decimal_commas_read
from cagp.estimators import EncodedTable
from cagp.estimators.base import GPEstimator as Estimator
from cagp.estimators.overlap import MANY_IN_GROUPS, KnownRows, group_words
from cagp.split_rules import RANDOM, SplitRule


@dataclass(frozen=True)
class Part:
    """Some rows of a table."""

    frame: pd.DataFrame  # inputs as they came
    inputs: EncodedTable
    targets: pd.DataFrame
    noise: np.ndarray | None  # known variances
    dropped: pd.DataFrame  # the columns that the user left out
    by: dict[str, pd.Series] = field(default_factory=dict)  # what splits the table, as "time" or "group"; fit takes it

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def target(self) -> Any:
        """One target as a column, several as a frame: regressors answer in the same shape."""
        return as_target(self.targets)


class SplitTable(NamedTuple):
    """A table cut into rows to train on and rows to test on."""

    train: Part
    test: Part
    num_rows: int  # of the table
    num_missing: int  # rows without any target, which are in neither part


def split_table(
    path: str,
    targets: Sequence[str] | None,
    drop: Sequence[str],
    test_fraction: float,
    seed: int,
    noise: str | None = None,
    rule: SplitRule = RANDOM,
    categories: Sequence[str] = (),
    exposure: str | None = None,
) -> SplitTable:
    """Read a table, leave out rows without any target, split the others and encode them.

    Rows keep their order. The encoder is that of the rows to train on. The column of groups is not an input.
    """
    not_inputs = [*drop, *([] if rule.group_column is None or rule.group_column in drop else [rule.group_column])]
    frame, inputs, values = read_columns(path, targets, not_inputs, noise, rule, categories)
    known = None if noise is None else noise_column(frame, noise, path)
    missing = encode_target(values, "the target").empty
    kept = np.flatnonzero(~missing)
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} rows with a target, expected at least 2.")
    train, test = kept, kept[:0]
    if test_fraction > 0:
        train, test = (kept[rows] for rows in split_rows(frame.iloc[kept], rule, test_fraction, seed))
    encoder, matrix = Encoder.fit_codes(inputs, categories, np.isin(np.arange(len(frame)), train))
    if exposure is not None:
        _check_columns(inputs, "--exposure", [exposure], "the inputs do")
        encoder = encoder.with_exposure(exposure, matrix)

    def part(rows: np.ndarray) -> Part:
        return Part(
            inputs.iloc[rows].reset_index(drop=True),
            EncodedTable(encoder, matrix[rows]),
            values.iloc[rows].reset_index(drop=True),
            None if known is None else known[rows],
            frame.loc[:, list(drop)].iloc[rows],
            {} if rule.column is None else {rule.kind: frame[rule.column].iloc[rows].reset_index(drop=True)},
        )

    return SplitTable(part(train), part(test), len(frame), int(missing.sum()))


def split_rows(frame: pd.DataFrame, rule: SplitRule, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows to train on and the rows to test on of a table, by number, in its order."""
    by = {} if rule.column is None else {rule.kind: frame[rule.column]}
    found = split(len(frame), test_fraction, seed, **by)
    return np.sort(found.train.numpy()), np.sort(found.test.numpy())


def split_words(table: SplitTable, rule: SplitRule, seed: int) -> str:
    """How many rows are in each part, and which, in a sentence."""
    words = f"{len(table.train):,} to train on, {len(table.test):,} to test on"
    is_input = f"which is {'also' if rule.column in list(table.train.frame.columns) else 'not'} an input"
    which = {
        "random": f" (seed {seed}).",
        "time": f": the latest by {rule.column}, {is_input}.",
        "group": f": other groups of {rule.column} (seed {seed}), {is_input}.",
    }
    return words + which[rule.kind]


def groups_in_both(table: SplitTable) -> dict[str, float]:
    """Columns that are not inputs but look like names of groups, and the share of test rows with a training group.

    Such a column holds text or integers, and has many values, most of them in several rows: persons, places, days.
    """
    shares = {}
    for name in table.test.dropped.columns:
        train, test = table.train.dropped[name], table.test.dropped[name]
        values = pd.Series(pd.concat([train, test]))
        is_code = pd.api.types.infer_dtype(values, skipna=True) in ("string", "integer", "categorical")
        if not is_code or not MAX_LEVELS < values.nunique() <= len(values) / 2:
            continue
        shares[str(name)] = float(shared_groups(train, test).mean())
    return shares


def warn_of_test_rows(table: SplitTable, rule: SplitRule) -> None:
    """Say that test rows have much in common with training rows, or lack values that all of these have."""
    if len(table.test) == 0:
        return
    warn_of_missing(table.test.inputs.encoder.num_missing(table.test.inputs.matrix))
    known = KnownRows.of_table(table.train.inputs.matrix, table.train.targets.to_numpy(float))
    found = known.overlap(table.test.inputs.matrix, table.test.targets.to_numpy(float))
    if found.is_large:
        warn(found.words())
    for name, share in (groups_in_both(table) if rule.kind == "random" else {}).items():
        if share >= MANY_IN_GROUPS:
            warn(f"{group_words(name, share)}: use --split group:{name}.")


def split_of(arguments: argparse.Namespace) -> SplitTable:
    """The table that options ask for; see ``options.add_table``."""
    return split_table(
        arguments.table,
        arguments.target,
        arguments.drop,
        arguments.test_fraction,
        arguments.seed,
        arguments.noise,
        arguments.split,
        arguments.categories,
        getattr(arguments, "exposure", None),
    )


def read_columns(
    path: str,
    targets: Sequence[str] | None,
    drop: Sequence[str],
    noise: str | None = None,
    rule: SplitRule | None = None,
    categories: Sequence[str] = (),
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """A table, its inputs and its targets; the column of known variances is neither.

    Columns of ``categories`` are taken from a CSV file as they are written there: 007 stays 007.
    """
    if not targets:
        targets = default_targets(path)
    frame = read_table(path, categories)
    _check_columns(frame, "--target", targets)
    if rule is not None:
        check_rule(frame, rule, targets)
    _check_columns(frame, "--drop", drop)
    others = [*drop, *([] if noise is None else [noise])]
    _check_columns(frame, "--noise", others[len(drop) :])
    if set(targets) & set(drop):
        raise UsageError(f"--drop names the target {names(sorted(set(targets) & set(drop)))}; remove it there.")
    if noise in targets:
        raise UsageError(f"--noise names the target {noise}, expected a different column.")
    if len(set(targets)) < len(targets):
        raise UsageError(f"--target names a column twice: {names(targets)}.")
    inputs, values = frame.drop(columns=list({*targets, *others})), frame.loc[:, list(targets)]
    _check_columns(inputs, "--categories", categories, "the inputs do")
    values = values.assign(**{name: with_decimal_commas_read(values[name], name) for name in targets})
    if inputs.shape[1] == 0:
        raise UsageError(f"no inputs are left: {path} has the columns {names(frame.columns)}.")
    for name in inputs.columns:
        if re.fullmatch(r"Unnamed: \d+", str(name)):
            warn(f"the column {name!r} looks like row numbers that pandas wrote; remove it with --drop {name!r}")
    return frame, inputs, values


def check_rule(frame: pd.DataFrame, rule: SplitRule, targets: Sequence[str]) -> None:
    """Raise UsageError unless the column that splits the table is one of its columns and not a target."""
    if rule.column is None:
        return
    _check_columns(frame, "--split", [rule.column])
    if rule.column in targets:
        raise UsageError(f"--split names the target {rule.column}: held-out targets are not to be known; use another.")


def noise_column(frame: pd.DataFrame, column: str, path: str) -> np.ndarray:
    """The known variances in a column of a table."""
    if column not in frame.columns:
        raise UsageError(
            f"--noise names {column!r}, which {_shown(path)} does not have; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    numbers = pd.to_numeric(with_decimal_commas_read(frame[column], column), errors="coerce")
    values = np.asarray(numbers, dtype=np.float64)
    wrong = ~np.isfinite(values) | (values < 0)
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"the noise column {column!r} is {frame[column].iloc[first]!r} at row {frame.index[first]}, expected a "
            "variance, zero or larger; square standard deviations first."
        )
    return values


def as_target(frame: pd.DataFrame) -> Any:
    """One target as a column, several as a frame: regressors answer in the same shape."""
    return frame.iloc[:, 0] if frame.shape[1] == 1 else frame


def default_targets(path: str) -> list[str]:
    """The column y of an NPZ file, or its several; for other tables only the user knows."""
    columns = [str(name) for name in next(iter(stream_table(path, rows=1000))).frame.columns]
    if path.lower().endswith(".npz"):
        found = ["y"] if "y" in columns else [name for name in columns if re.fullmatch(r"y\d+", name)]
        if found:
            return found
    raise UsageError(f"say with --target what to predict; the columns of {_shown(path)} are {', '.join(columns)}.")


def _check_columns(frame: pd.DataFrame, option: str, wanted: Sequence[str], which: str = "the table does") -> None:
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise UsageError(
            f"{option} names {', '.join(map(repr, absent))}, which {which} not have; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


# ---- a fitted model and a table ----


def held_out_piece(
    model: Estimator, path: str, rule: SplitRule, test_fraction: float, seed: int, noise: str | None = None
) -> "Piece":
    """The rows of a table that ``cagp fit`` holds out with the same rule, share and seed."""
    frame = read_table(path, model.encoder_.text_names)
    check_rule(frame, rule, model.target_names_)
    kept = np.flatnonzero(~np.isnan(targets_of(model, frame, path)).all(axis=1))
    chosen = frame.iloc[kept[split_rows(frame.iloc[kept], rule, test_fraction, seed)[1]]]
    known = None if noise is None else noise_column(chosen, noise, path)
    matrix = model.encoder_.codes(inputs_of(model, chosen, path, noise))
    return Piece(chosen, EncodedTable(model.encoder_, matrix), 1.0, known)


class Piece(NamedTuple):
    """Consecutive rows of a table."""

    frame: pd.DataFrame
    inputs: EncodedTable  # what the model takes of it
    fraction: float | None  # of the table that was read so far
    noise: np.ndarray | None  # known variances

    def where(self, mask: np.ndarray) -> "Piece":
        """Some of its rows."""
        noise = None if self.noise is None else self.noise[mask]
        return self._replace(frame=self.frame.loc[mask], inputs=self.inputs.take(mask), noise=noise)


def pieces(
    model: Estimator, path: str, rows: int, text: Sequence[str] = (), noise: str | None = None
) -> Iterator[Piece]:
    """A table of any size, a piece at a time; an input that the model cannot take is an error with its row and column.

    Args:
        text: further columns to take as text from a CSV file.
        noise: the column of known variances.
    """
    encoder = model.encoder_
    for chunk in stream_table(path, rows, [*encoder.text_names, *text]):
        known = None if noise is None else noise_column(chunk.frame, noise, path)
        matrix = encoder.codes(inputs_of(model, chunk.frame, path, noise), chunk.rows_from)
        yield Piece(chunk.frame, EncodedTable(encoder, matrix), chunk.fraction, known)


def warn_of_noise(model: Estimator, noise: str | None) -> None:
    """Say that error bars lack the known noise of rows, where the model was fitted with one and none is given."""
    if noise is None and any(known is not None for known in model.fitted.row_noise):
        warn(
            "the model was fitted with known noise variances; error bars of these rows are without theirs unless "
            "--noise names a column of them"
        )


def warn_of_levels(num_unknown: Mapping[str, int]) -> None:
    """Say in how many rows columns have levels that no training row had."""
    for name, num_rows in num_unknown.items():
        warn(
            f"{count(num_rows, 'row')} of column {name!r} {'has a level' if num_rows == 1 else 'have levels'} that no "
            "training row had; predictions there come from the rows of all levels"
        )


def warn_of_missing(num_missing: Mapping[str, int]) -> None:
    """Say in how many rows values are missing in columns in which no training row lacked one."""
    for name, num_rows in num_missing.items():
        warn(
            f"{count(num_rows, 'row')} {'lacks' if num_rows == 1 else 'lack'} a value of column {name!r}, in which no "
            "training row lacked one; predictions there are averages over its training values, with wider error bars"
        )


def inputs_of(model: Estimator, frame: pd.DataFrame, path: str, noise: str | None = None) -> pd.DataFrame | np.ndarray:
    """The columns that the model knows by name; if it was fitted to an array, all but targets and noise."""
    wanted = model.encoder_.names_in
    if wanted is None:
        others = [name for name in (*model.target_names_, noise) if name in frame.columns]
        return frame.drop(columns=others).to_numpy()
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{_shown(path)} lacks {'the column' if len(absent) == 1 else 'the columns'} "
            f"{', '.join(map(repr, absent))} that the model was fitted with; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    return frame.loc[:, list(wanted)]


def targets_of(model: Estimator, frame: pd.DataFrame, path: str) -> np.ndarray:
    """The targets of a piece as numbers, (n, q); NaN where they are missing."""
    absent = [name for name in model.target_names_ if name not in frame.columns]
    if absent:
        raise ValueError(
            f"{_shown(path)} lacks the target {', '.join(map(repr, absent))}; its columns are "
            f"{', '.join(map(str, frame.columns))}."
        )
    columns = []
    for name in model.target_names_:
        values = with_decimal_commas_read(frame[name], name)
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
