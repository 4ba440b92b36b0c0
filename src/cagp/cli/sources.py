"""What ``cagp fit`` and ``cagp compare`` learn with and from: an estimator, and a table in memory or in pieces."""

import argparse
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pandas as pd
from pandas.util import hash_pandas_object

from cagp.cli.commands import parameters_of
from cagp.cli.console import UsageError, count, names, warn
from cagp.cli.tables import (
    Model,
    Rows,
    as_target,
    check_columns,
    check_rule,
    default_targets,
    noise_column,
    rows_of,
    split_rows,
    targets_of,
    warn_of_missing,
)
from cagp.data import MAX_LEVELS, Chunks, Encoder, encode_target, open_chunks, read_table
from cagp.data.cells import with_decimal_commas_read
from cagp.data.splits import shared_groups
from cagp.data.table_files import CSV_ENDINGS
from cagp.data.tables import is_several_files, stream_table, table_parts, table_rows, table_size
from cagp.estimators import CaGPClassifier, CaGPRegressor, EncodedTable
from cagp.estimators.overlap import MANY_IN_GROUPS, KnownRows, group_words
from cagp.estimators.pieces import gathered
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.memory import default_memory_limit
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes.table import OPTIONS, RECIPES, kind_of, methods_for, not_for, users_of

CLASSES = "classes"

MOST_TEST_ROWS = 100_000
"""Rows of a table in pieces that are held out at most: more would tell little, and take long."""

CELL_BYTES, TEXT_BYTES, PACKED = 160, 20, 5
"""What a fit in memory takes for each cell of a table, or for each byte of CSV; gzip makes about a fifth of it."""

LEAST_BYTES = 10**9
"""A table that takes less is read at once, whatever the limit: pieces would save little of it."""


# ---- the estimator ----


def kind_of_targets(arguments: argparse.Namespace) -> str:
    """What the targets are, see ``cagp.recipes.table.kind_of``."""
    if getattr(arguments, "classify", False):
        return CLASSES
    return kind_of(getattr(arguments, "likelihood", GAUSSIAN))


def check_model(arguments: argparse.Namespace, methods: Sequence[str]) -> None:
    """Raise UsageError for options that do not go with the kind of targets, or that none of the methods uses."""
    kind, values = kind_of_targets(arguments), parameters_of(arguments)
    asked = "--classify" if kind == CLASSES else f"--likelihood {values.get('likelihood', GAUSSIAN)}"
    if kind == CLASSES and kind_of(values.get("likelihood", "logit")) != CLASSES:
        raise UsageError(f"--classify cannot be used with --likelihood {values['likelihood']}; remove it.")
    if "exposure" in values and kind in (GAUSSIAN, "numbers"):
        counts = " or ".join(likelihoods_of("counts"))
        raise UsageError(f"--exposure is for counts: give --likelihood {counts}, too, or remove it.")
    able = methods_for(kind)
    if kind != GAUSSIAN:
        others = [*(["--noise"] if arguments.noise is not None else []), *(o.flag for o in not_for(kind, values))]
        if others:
            raise UsageError(f"{', '.join(others)} cannot be used with {asked}; remove it.")
        if wrong := [method for method in methods if method not in able]:
            raise UsageError(f"--method is {wrong[0]}, with {asked} it is one of {', '.join(able)}.")
        if arguments.target is not None and len(arguments.target) > 1:
            raise UsageError(f"--target names {len(arguments.target)} columns; {asked} takes one.")
        methods = able if "auto" in methods else methods
    for name in OPTIONS.keys() & values:
        users = users_of(name)
        if not set(methods) & set(users):
            others = f"{methods[0]} does" if len(methods) == 1 else f"{', '.join(methods)} do"
            raise UsageError(f"{OPTIONS[name].flag} is for {', '.join(users)}; {others} not use it. Remove it.")


def estimator(method: str, arguments: argparse.Namespace, **more: object) -> CaGPRegressor | CaGPClassifier:
    """An estimator that is not fitted yet, with the options that its method uses; ``more`` are further parameters."""
    make = CaGPClassifier if kind_of_targets(arguments) == CLASSES else CaGPRegressor
    used = RECIPES[method].values.keys() | (make().get_params().keys() - OPTIONS)
    values = {name: value for name, value in parameters_of(arguments).items() if name in used}
    return make(method, **{**values, "categories": tuple(arguments.categories), **more})  # pyright: ignore


# ---- the table ----


@dataclass(frozen=True)
class Source(ABC):
    """A table whose rows are to be trained on and tested on."""

    arguments: argparse.Namespace  # of the command
    num_rows: int  # of the table
    num_test: int
    num_missing: int  # rows without any target that are known of
    inputs: list[str]
    targets: list[str]

    @abstractmethod
    def fit(self, model: Model) -> None:
        """Fit a model to the rows to train on."""

    @abstractmethod
    def tested(self, model: Model, ranks: Ranks) -> tuple[Rows, int]:
        """The rows to test on, of which each process reads a part and gets all; and the number without any target."""

    @abstractmethod
    def key(self) -> list[Any]:
        """What the rows depend on, for ``cagp.storage.fingerprint``."""

    def words(self) -> str:
        """The table in a few sentences."""
        is_classes = kind_of_targets(self.arguments) == CLASSES
        role = "classes of" if is_classes else "target" if len(self.targets) == 1 else "targets"
        what = "a label" if is_classes else "a target"
        left_out = f" Left out {count(self.num_missing, 'row')} without {what}." if self.num_missing else ""
        return (
            f"{count(self.num_rows, 'row')}, {count(len(self.inputs), 'input')} ({names(self.inputs)}), {role} "
            f"{names(self.targets)}.{left_out} {self.split_words()}"
        )

    def split_words(self) -> str:
        """How many rows are in each part, and which, in a sentence."""
        if not self.num_test:
            return "All are trained on."
        rule, seed = self.arguments.split, self.arguments.seed
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

    train: Rows
    test: Rows

    def fit(self, model: Model) -> None:
        noise = {} if self.train.noise is None else {"sample_noise": self.train.noise}
        by = {} if isinstance(model, CaGPClassifier) else self.arguments.split.by(self.train.frame)
        model.fit(self.train.inputs, as_target(self.train.frame.loc[:, self.targets]), **noise, **by)

    def tested(self, model: Model, ranks: Ranks) -> tuple[Rows, int]:
        return self.test, self.num_missing

    def key(self) -> list[Any]:
        """The rows to train on."""
        frame, inputs, noise, _ = self.train
        targets = hash_pandas_object(frame.loc[:, self.targets], index=False).to_numpy()  # pyright: ignore[reportCallIssue]
        return [inputs.matrix, targets, *([] if noise is None else [noise])]

    def shared_groups(self) -> dict[str, float]:
        """Columns that are not inputs but look like names of groups, and the share of test rows with a training group.

        Such a column holds text or integers, and has many values, most of them in several rows: persons, places, days.
        Where rows are not drawn at random, there is none.
        """
        shares = {}
        for name in self.arguments.drop if self.arguments.split.kind == "random" else []:
            train, test = self.train.frame[name], self.test.frame[name]
            values = pd.Series(pd.concat([train, test]))
            is_code = pd.api.types.infer_dtype(values, skipna=True) in ("string", "integer", "categorical")
            if is_code and MAX_LEVELS < values.nunique() <= len(values) / 2:
                shares[str(name)] = float(shared_groups(train, test).mean())
        return shares

    def warn_of_test_rows(self) -> None:
        """Say that test rows have much in common with training rows, or lack values that all of these have."""
        if not self.num_test:
            return
        codes = self.train.inputs.matrix
        targets = pd.concat([part.frame.loc[:, self.targets] for part in (self.train, self.test)])
        if not all(map(pd.api.types.is_numeric_dtype, targets.dtypes)):  # labels
            targets = targets.apply(lambda labels: pd.factorize(labels)[0])
        y = targets.to_numpy(float)
        warn_of_missing(self.test.inputs.encoder.num_missing(self.test.inputs.matrix))
        overlap = KnownRows.of_table(codes, y[: len(codes)]).overlap(self.test.inputs.matrix, y[len(codes) :])
        if overlap.is_large:
            warn(overlap.words())
        for name, share in self.shared_groups().items():
            if share >= MANY_IN_GROUPS:
                warn(f"{group_words(name, share)}: use --split group:{name}.")


def read_table_of(arguments: argparse.Namespace) -> WholeTable:
    """Read a table, leave out rows without any target, split the others and encode them.

    Rows keep their order. The encoder is that of the rows to train on. Columns of noise or groups do not become inputs.
    Columns of --categories are taken from a CSV file as they are written there: 007 stays 007.
    """
    path, rule, drop, noise = arguments.table, arguments.split, arguments.drop, arguments.noise
    wanted, exposure = arguments.target or default_targets(path), getattr(arguments, "exposure", None)
    frame = read_table(path, arguments.categories)
    check_columns(frame, "--target", wanted)
    check_rule(frame, rule, wanted)
    check_columns(frame, "--drop", drop)
    if both := sorted(set(wanted) & set(drop)):
        raise UsageError(f"--drop names the target {names(both)}; remove it there.")
    if noise in wanted:
        raise UsageError(f"--noise names the target {noise}, expected a different column.")
    known = None if noise is None else noise_column(frame, noise)
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"--target names a column twice: {names(wanted)}.")
    # The name of a new group tells a model nothing.
    group = rule.column if rule.kind == "group" else None
    inputs = frame.drop(columns=list({*wanted, *drop, noise, group} - {None}))
    check_columns(inputs, "--categories", arguments.categories, "the inputs do")
    if inputs.shape[1] == 0:
        raise UsageError(f"no inputs are left: {path} has the columns {names(frame.columns)}.")
    for name in inputs.columns:
        if re.fullmatch(r"Unnamed: \d+", str(name)):
            warn(f"the column {name!r} looks like row numbers that pandas wrote; remove it with --drop {name!r}")
    targets = pd.DataFrame({name: with_decimal_commas_read(frame[name], name) for name in wanted})
    frame[wanted] = targets
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

    def part(rows: np.ndarray) -> Rows:
        noise = None if known is None else known[rows]
        return Rows(frame.iloc[rows].reset_index(drop=True), EncodedTable(encoder, matrix[rows]), noise)

    columns = [str(name) for name in inputs.columns]
    num_missing = int(missing.sum())
    return WholeTable(arguments, len(frame), len(test), num_missing, columns, wanted, part(train), part(test))


# ---- in pieces ----


@final
@dataclass(frozen=True)
class TableInPieces(Source):
    """A table on disk, of which some rows are held out."""

    train: Chunks
    test: Chunks

    def fit(self, model: Model) -> None:
        model.fit(self.train)

    def key(self) -> list[Any]:
        """The files, their sizes and when they were written; and the columns."""
        stats = [(str(part), os.stat(part)) for part in table_parts(self.arguments.table)]
        columns = [getattr(self.arguments, name) for name in ("target", "drop", "noise", "test_fraction")]
        return [[[part, stat.st_size, stat.st_mtime_ns] for part, stat in stats], columns]

    def tested(self, model: Model, ranks: Ranks) -> tuple[Rows, int]:
        """The rows to test on that have a target, and the number of rows without any."""
        encoder, path, noise = model.encoder_, self.arguments.table, self.arguments.noise
        chunks = list(self.test.part(ranks.rank, ranks.size).read(encoder.text_names)) if self.num_test else []
        columns = [*self.inputs, *self.targets, *([] if noise is None else [noise])]
        frame = pd.DataFrame(columns=columns)
        if chunks:
            parts = [pd.concat([chunk.inputs, pd.DataFrame(chunk.targets)], axis=1) for chunk in chunks]
            frame = pd.concat(parts, ignore_index=True)
            if noise is not None:
                frame[noise] = np.concatenate([np.asarray(chunk.noise) for chunk in chunks])
            has_target = ~np.isnan(targets_of(model, frame, path)).all(axis=1)
            frame = frame.loc[has_target, columns].reset_index(drop=True)
        if ranks.size > 1:  # every input is a number
            values = encoder.typed(frame).to_numpy(dtype=np.float64)
            frame = pd.DataFrame(gathered(values, ranks), columns=columns)
        none = Rows(frame, EncodedTable(encoder, np.empty((0, encoder.num_columns))))
        tested = rows_of(model, frame, self.arguments) if len(frame) else none
        return tested, max(self.num_rows - model.n_rows_ - len(frame), 0)


def open_in_pieces(arguments: argparse.Namespace) -> TableInPieces:
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

    train, test = chunks.where(lambda *rows: ~is_test(*rows), num_rows - num_test), chunks.where(is_test, num_test)
    inputs = [str(name) for name in first.inputs.columns]
    return TableInPieces(arguments, num_rows, num_test, 0, inputs, targets, train, test)


def reason_for_pieces(arguments: argparse.Namespace) -> str | None:
    """Why a table is read in pieces, in words; None if it is read at once, as methods that need all of it want it."""
    path = arguments.table
    if getattr(arguments, "shards", False):
        if path == "-":
            raise UsageError('--shards needs a table that is read several times, "-" can be read once; name a file.')
        if arguments.split.kind != "random":
            raise UsageError(f"--shards tests on random rows, and --split is {arguments.split}; leave one of them out.")
        if arguments.report is not None:
            raise UsageError("--report needs the test rows in one process; with --shards, leave it out.")
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


def _bytes_in_memory(path: str) -> int:
    """A guess of what a fit takes with the table in memory."""
    rows = table_rows(path)
    if rows is not None:
        return CELL_BYTES * rows * next(iter(stream_table(path, rows=1))).frame.shape[1]
    num_bytes = table_size(path) or 0
    is_text = any(path.lower().endswith(ending) for ending in CSV_ENDINGS)
    return (TEXT_BYTES if is_text else CELL_BYTES // 8) * num_bytes * (PACKED if path.lower().endswith(".gz") else 1)
