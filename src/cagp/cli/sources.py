"""Where ``cagp fit`` and ``cagp compare`` have their rows from: a table in memory, or one that is read in pieces."""

import argparse
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from pandas.util import hash_pandas_object

from cagp.cli.console import UsageError, count, names, warn
from cagp.cli.models import CLASSES, kind_of_targets
from cagp.cli.tables import (
    Model,
    check_columns,
    default_targets,
    noise_column,
    read_columns,
    split_rows,
    warn_of_missing,
)
from cagp.data import MAX_LEVELS, Chunks, Encoder, encode_target, open_chunks
from cagp.data.splits import shared_groups
from cagp.data.table_files import CSV_ENDINGS
from cagp.data.tables import is_several_files, stream_table, table_parts, table_rows, table_size
from cagp.estimators import CaGPClassifier, EncodedTable
from cagp.estimators.overlap import MANY_IN_GROUPS, KnownRows, group_words
from cagp.estimators.pieces import gathered
from cagp.likelihood_registry import GAUSSIAN
from cagp.memory import default_memory_limit
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import RECIPES

MOST_TEST_ROWS = 100_000
"""Rows of a table in pieces that are held out at most: more would tell little, and take long."""

CELL_BYTES, TEXT_BYTES, PACKED = 160, 20, 5
"""What a fit in memory takes for each cell of a table, or for each byte of CSV; gzip makes about a fifth of it."""

LEAST_BYTES = 10**9
"""A table that takes less is read at once, whatever the limit: pieces would save little of it."""


@dataclass(frozen=True)
class Part:
    """Some rows of a table."""

    frame: pd.DataFrame  # inputs as they came
    inputs: EncodedTable
    targets: pd.DataFrame
    noise: np.ndarray | None = None  # known variances

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def target(self) -> Any:
        """One target as a column, several as a frame: estimators answer in the same shape."""
        return as_target(self.targets)


@dataclass(frozen=True)
class Source(ABC):
    """A table whose rows are to be trained on and tested on."""

    num_rows: int  # of the table
    num_test: int
    num_missing: int  # rows without any target that are known of
    inputs: list[str]
    targets: list[str]

    @abstractmethod
    def fit(self, model: Model) -> None:
        """Fit a model to the rows to train on."""

    @abstractmethod
    def tested(self, model: Model, ranks: Ranks) -> tuple[Part, int]:
        """The rows to test on as a fitted model takes them, and the number of rows without any target.

        Args:
            ranks: the processes that read a part of these rows each; all of them get all rows.
        """

    @abstractmethod
    def key(self) -> list[Any]:
        """What the rows depend on, for ``cagp.storage.fingerprint``."""

    def words(self, arguments: argparse.Namespace) -> str:
        """The table in a few sentences."""
        is_classes = kind_of_targets(arguments) == CLASSES
        role = "classes of" if is_classes else "target" if len(self.targets) == 1 else "targets"
        what = "a label" if is_classes else "a target"
        left_out = f" Left out {count(self.num_missing, 'row')} without {what}." if self.num_missing else ""
        return (
            f"{count(self.num_rows, 'row')}, {count(len(self.inputs), 'input')} ({names(self.inputs)}), {role} "
            f"{names(self.targets)}.{left_out} {self.split_words(arguments)}"
        )

    def split_words(self, arguments: argparse.Namespace) -> str:
        """How many rows are in each part, and which, in a sentence."""
        if not self.num_test:
            return "All are trained on."
        rule, seed = arguments.split, arguments.seed
        is_input = f"which is {'also' if rule.column in self.inputs else 'not'} an input"
        most = f", at most {MOST_TEST_ROWS:,}" if self.num_test == MOST_TEST_ROWS else ""
        which = {
            "random": f"{most} (seed {seed}).",
            "time": f": the latest by {rule.column}, {is_input}.",
            "group": f": other groups of {rule.column} (seed {seed}), {is_input}.",
        }
        num_train = self.num_rows - self.num_missing - self.num_test
        return f"{num_train:,} to train on, {self.num_test:,} to test on{which[rule.kind]}"


# ---- in memory ----


@final
@dataclass(frozen=True)
class WholeTable(Source):
    """A table in memory."""

    train: Part
    test: Part
    dropped: tuple[pd.DataFrame, pd.DataFrame]  # the columns that the user left out, of both parts
    by: dict[str, pd.Series]  # what splits the table, as "time" or "group"

    def fit(self, model: Model) -> None:
        """Fit a model to the rows to train on."""
        noise = {} if self.train.noise is None else {"sample_noise": self.train.noise}
        by = {} if isinstance(model, CaGPClassifier) else self.by
        model.fit(self.train.inputs, self.train.target, **noise, **by)

    def tested(self, model: Model, ranks: Ranks) -> tuple[Part, int]:
        """The rows to test on, and the number of rows without any target."""
        return self.test, self.num_missing

    def key(self) -> list[Any]:
        """The rows to train on."""
        targets = hash_pandas_object(self.train.targets, index=False).to_numpy()  # pyright: ignore[reportCallIssue]
        return [self.train.inputs.matrix, targets, *([] if self.train.noise is None else [self.train.noise])]

    def shared_groups(self) -> dict[str, float]:
        """Columns that are not inputs but look like names of groups, and the share of test rows with a training group.

        Such a column holds text or integers, and has many values, most of them in several rows: persons, places, days.
        Where rows are not drawn at random, there is none.
        """
        shares = {}
        for name in [] if self.by else self.dropped[0].columns:
            train, test = (part[name] for part in self.dropped)
            values = pd.Series(pd.concat([train, test]))
            is_code = pd.api.types.infer_dtype(values, skipna=True) in ("string", "integer", "categorical")
            if is_code and MAX_LEVELS < values.nunique() <= len(values) / 2:
                shares[str(name)] = float(shared_groups(train, test).mean())
        return shares

    def warn_of_test_rows(self) -> None:
        """Say that test rows have much in common with training rows, or lack values that all of these have."""
        if not self.num_test:
            return
        warn_of_missing(self.test.inputs.encoder.num_missing(self.test.inputs.matrix))
        train, test = np.split(_as_numbers(pd.concat([self.train.targets, self.test.targets])), [len(self.train)])
        overlap = KnownRows.of_table(self.train.inputs.matrix, train).overlap(self.test.inputs.matrix, test)
        if overlap.is_large:
            warn(overlap.words())
        for name, share in self.shared_groups().items():
            if share >= MANY_IN_GROUPS:
                warn(f"{group_words(name, share)}: use --split group:{name}.")


def read_table_of(arguments: argparse.Namespace) -> WholeTable:
    """Read a table, leave out rows without any target, split the others and encode them.

    Rows keep their order. The encoder is that of the rows to train on. The column of groups is not an input.
    """
    path, rule, exposure = arguments.table, arguments.split, getattr(arguments, "exposure", None)
    frame, inputs, targets = read_columns(
        path, arguments.target, arguments.drop, arguments.noise, rule, arguments.categories
    )
    known = None if arguments.noise is None else noise_column(frame, arguments.noise)
    is_classes = kind_of_targets(arguments) == CLASSES
    missing = targets.isna().to_numpy().all(1) if is_classes else encode_target(targets, "the target").empty
    kept = np.flatnonzero(~missing)
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} rows with a target, expected at least 2.")
    train, test = kept, kept[:0]
    if arguments.test_fraction > 0:
        parts = split_rows(frame.iloc[kept], rule, arguments.test_fraction, arguments.seed)
        train, test = (kept[rows] for rows in parts)
    encoder, matrix = Encoder.fit_codes(inputs, arguments.categories, np.isin(np.arange(len(frame)), train))
    if exposure is not None:
        check_columns(inputs, "--exposure", [exposure], "the inputs do")
        encoder = encoder.with_exposure(exposure, matrix)

    def part(rows: np.ndarray) -> Part:
        return Part(
            inputs.iloc[rows].reset_index(drop=True),
            EncodedTable(encoder, matrix[rows]),
            targets.iloc[rows].reset_index(drop=True),
            None if known is None else known[rows],
        )

    by = {} if rule.column is None else {rule.kind: frame[rule.column].iloc[train].reset_index(drop=True)}
    return WholeTable(
        len(frame),
        len(test),
        int(missing.sum()),
        [str(name) for name in inputs.columns],
        [str(name) for name in targets.columns],
        part(train),
        part(test),
        (frame.loc[:, arguments.drop].iloc[train], frame.loc[:, arguments.drop].iloc[test]),
        by,
    )


def as_target(frame: pd.DataFrame) -> Any:
    """One target as a column, several as a frame: estimators answer in the same shape."""
    return frame.iloc[:, 0] if frame.shape[1] == 1 else frame


def _as_numbers(targets: pd.DataFrame) -> np.ndarray:
    """Targets as numbers; labels as numbers of classes."""
    if all(pd.api.types.is_numeric_dtype(dtype) for dtype in targets.dtypes):
        return targets.to_numpy(float)
    return np.stack([pd.factorize(targets[name])[0] for name in targets.columns], axis=1).astype(float)


# ---- in pieces ----


@final
@dataclass(frozen=True)
class TableInPieces(Source):
    """A table on disk, of which some rows are held out."""

    train: Chunks
    test: Chunks
    reason: str  # why it is read in pieces, in words
    columns: list[Any]  # what the user says of them
    parts: Sequence[Any]  # its files

    def words(self, arguments: argparse.Namespace) -> str:
        """The table in a few sentences."""
        return f"{self.reason} {super().words(arguments)}"

    def fit(self, model: Model) -> None:
        """Fit a model to the rows to train on."""
        model.fit(self.train)

    def key(self) -> list[Any]:
        """The files, their sizes and when they were written; and the columns."""
        files = [[str(part), os.stat(part).st_size, os.stat(part).st_mtime_ns] for part in self.parts]
        return [files, self.columns]

    def tested(self, model: Model, ranks: Ranks) -> tuple[Part, int]:
        """The rows to test on that have a target, and the number of rows without any."""
        encoder, num_targets = model.encoder_, len(self.targets)
        chunks = list(self.test.part(ranks.rank, ranks.size).read(encoder.text_names)) if self.num_test else []
        frames = [chunk.inputs for chunk in chunks] or [pd.DataFrame(columns=self.inputs)]
        targets = [np.asarray(chunk.targets, dtype=np.float64).reshape(-1, num_targets) for chunk in chunks]
        y = np.concatenate([np.empty((0, num_targets)), *targets])
        noise = [np.full(len(chunk.inputs), np.nan) if chunk.noise is None else chunk.noise for chunk in chunks]
        kept = np.flatnonzero(~np.isnan(y).all(axis=1))
        frame = pd.concat(frames, ignore_index=True).iloc[kept].reset_index(drop=True)
        codes = encoder.codes(frame) if len(frame) else np.empty((0, encoder.num_columns))
        rows = np.column_stack([codes, y[kept], np.concatenate([np.empty(0), *map(np.asarray, noise)])[kept]])
        if ranks.size > 1:  # every input is a number
            rows = gathered(rows, ranks)
            frame = pd.DataFrame(rows[:, : codes.shape[1]], columns=list(encoder.names_in or range(codes.shape[1])))
        codes, y, known = np.split(rows, [codes.shape[1], codes.shape[1] + num_targets], axis=1)
        known = None if np.isnan(known).any() or not len(known) else known[:, 0]
        part = Part(frame, EncodedTable(encoder, codes), pd.DataFrame(y, columns=self.targets), known)
        return part, max(self.num_rows - model.n_rows_ - len(part), 0)


def open_in_pieces(arguments: argparse.Namespace, reason: str) -> TableInPieces:
    """The table with its rows to train on and its rows to test on, drawn by seed; nothing is held in memory."""
    targets = arguments.target or default_targets(arguments.table)
    one_or_all = targets[0] if len(targets) == 1 else targets
    chunks = open_chunks(arguments.table, one_or_all, drop=arguments.drop, noise=arguments.noise)
    first = next(chunks.read(arguments.categories))
    num_rows = chunks.num_rows
    if num_rows is None:
        num_rows = sum(len(chunk.inputs) for chunk in chunks.read())
    num_test = min(round(arguments.test_fraction * num_rows), MOST_TEST_ROWS)
    drawn = np.sort(np.random.default_rng(arguments.seed).choice(num_rows, num_test, replace=False))

    def is_test(start: int, stop: int) -> np.ndarray:
        chosen = np.zeros(stop - start, dtype=bool)
        chosen[drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, stop)] - start] = True
        return chosen

    return TableInPieces(
        num_rows,
        num_test,
        0,
        [str(name) for name in first.inputs.columns],
        targets,
        chunks.where(lambda start, stop: ~is_test(start, stop), num_rows - num_test),
        chunks.where(is_test, num_test),
        reason,
        [arguments.target, arguments.drop, arguments.noise, arguments.test_fraction],
        table_parts(arguments.table),
    )


def reason_for_pieces(arguments: argparse.Namespace) -> str | None:
    """Why a table is read in pieces, in words; None if it is read at once, as methods that need all of it want it."""
    path = arguments.table
    if is_sharded(arguments):
        _check_shards(arguments)
        return "Each process reads its part of the table, and tests on its part of the test rows."
    is_gaussian, needs_all = kind_of_targets(arguments) == GAUSSIAN, arguments.split.kind != "random"
    needs_all |= getattr(arguments, "mean", None) == "trees" or getattr(arguments, "copies", None) == "once"
    if path == "-" or needs_all or not RECIPES[arguments.method].takes_chunks:
        return None
    if is_gaussian and is_several_files(path):
        return f"The table is {len(table_parts(path)):,} files, which are read in pieces."
    needed, asked = _bytes_in_memory(path), getattr(arguments, "max_memory", None)
    limit = default_memory_limit() if asked is None else asked
    if needed <= max(limit, LEAST_BYTES):
        return None
    words = f"The table would take about {size(needed)} of memory, of {size(limit)} that are allowed"
    if not is_gaussian:
        raise UsageError(f"{words}; classes and --likelihood need all of it in memory.")
    return f"{words}; it is read in pieces."


def is_sharded(arguments: argparse.Namespace) -> bool:
    """Whether each process is to have a region of the table."""
    return getattr(arguments, "shards", False)


def _check_shards(arguments: argparse.Namespace) -> None:
    if arguments.table == "-":
        raise UsageError('--shards needs a table that is read several times, and "-" can be read once; name a file.')
    if arguments.split.kind != "random":
        raise UsageError(f"--shards tests on random rows, and --split is {arguments.split}; leave one of them out.")
    if arguments.report is not None:
        raise UsageError("--report needs the test rows in one process; with --shards, leave it out.")


def _bytes_in_memory(path: str) -> int:
    """A guess of what a fit takes with the table in memory."""
    rows = table_rows(path)
    if rows is not None:
        return CELL_BYTES * rows * next(iter(stream_table(path, rows=1))).frame.shape[1]
    num_bytes = table_size(path) or 0
    is_text = any(path.lower().endswith(ending) for ending in CSV_ENDINGS)
    return (TEXT_BYTES if is_text else CELL_BYTES // 8) * num_bytes * (PACKED if path.lower().endswith(".gz") else 1)
