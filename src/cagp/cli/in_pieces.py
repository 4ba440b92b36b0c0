"""``cagp fit`` on a table in pieces: when, which rows are tested, and what is known of them after the fit."""

import argparse
import os
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cagp.cli.tables import Part, SplitTable, default_targets
from cagp.cli.words import UsageError
from cagp.data import Chunks, open_chunks
from cagp.data.pieces import CSV_ENDINGS
from cagp.data.tables import is_several_files, stream_table, table_parts, table_rows, table_size
from cagp.estimators import EncodedTable, GPRegressor
from cagp.estimators.agreement import gathered
from cagp.memory import default_memory_limit
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import RECIPES
from cagp.recipes.options import SHARDS

MOST_TEST_ROWS = 100_000
"""Rows of a table in pieces that are held out at most: more would tell little, and take long."""

CELL_BYTES, TEXT_BYTES, PACKED = 160, 20, 5
"""What a fit in memory takes for each cell of a table, or for each byte of CSV; gzip makes about a fifth of it."""


LEAST_BYTES = 10**9
"""A table that takes less is read at once, whatever the limit: pieces would save little of it."""


def reason(arguments: argparse.Namespace) -> str | None:
    """Why a table is read in pieces, in words; None if it is read at once, as methods that need all of it want it."""
    if is_sharded(arguments):
        _check_shards(arguments)
        return "Each process reads its part of the table, and tests on its part of the test rows."
    path, needs_all = arguments.table, arguments.mean == "trees" or arguments.split.kind != "random"
    needs_all |= arguments.copies == "once"
    recipe = RECIPES[arguments.method]()
    if path == "-" or needs_all or recipe.planned_bytes(1, 1, 1) is None:
        return None
    if is_several_files(path):
        return f"The table is {len(table_parts(path)):,} files, which are read in pieces."
    needed = _bytes_in_memory(path)
    limit = default_memory_limit() if arguments.max_memory is None else arguments.max_memory
    if needed <= max(limit, LEAST_BYTES):
        return None
    return (
        f"The table would take about {size(needed)} of memory, of {size(limit)} that are allowed; it is read in pieces."
    )


def is_sharded(arguments: argparse.Namespace) -> bool:
    """Whether each process is to have a region of the table."""
    return bool(getattr(arguments, SHARDS.name, False))


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


class PiecesToFit(NamedTuple):
    """A table in pieces, of which some rows are held out."""

    train: Chunks
    test: Chunks
    num_rows: int
    num_test: int
    inputs: list[str]
    targets: list[str]
    dropped: list[str]
    has_noise: bool

    def key(self, path: str) -> list[Any]:
        """What the rows depend on, without reading them: the files, their sizes and when they were written."""
        return [[str(part), os.stat(part).st_size, os.stat(part).st_mtime_ns] for part in table_parts(path)]


def split_in_pieces(arguments: argparse.Namespace) -> PiecesToFit:
    """The table with its rows to train on and its rows to test on, drawn by seed; nothing is held in memory."""
    targets = arguments.target or default_targets(arguments.table)
    chunks = open_chunks(
        arguments.table, targets[0] if len(targets) == 1 else targets, drop=arguments.drop, noise=arguments.noise
    )
    first = next(chunks.read(arguments.categories))
    num_rows = chunks.num_rows
    if num_rows is None:
        num_rows = sum(len(chunk.inputs) for chunk in chunks.read())
    num_test = min(round(arguments.test_fraction * num_rows), MOST_TEST_ROWS)
    drawn = np.sort(np.random.default_rng(arguments.seed).choice(num_rows, num_test, replace=False))

    def is_test(start: int, stop: int) -> np.ndarray:
        found = np.zeros(stop - start, dtype=bool)
        found[drawn[np.searchsorted(drawn, start) : np.searchsorted(drawn, stop)] - start] = True
        return found

    train = chunks.where(lambda start, stop: ~is_test(start, stop), num_rows - num_test)
    names = [str(name) for name in first.inputs.columns]
    of_table = (num_rows, num_test, names, targets, arguments.drop, arguments.noise is not None)
    return PiecesToFit(train, chunks.where(is_test, num_test), *of_table)


def tested(table: PiecesToFit, model: GPRegressor, ranks: Ranks) -> SplitTable:
    """The rows to test on, as a fitted model takes them; of the rows that were trained on, the columns alone.

    Args:
        ranks: the processes that read a part of these rows each; all of them get all rows.
    """
    encoder = model.encoder_
    nothing = pd.DataFrame(columns=table.inputs)
    empty = Part(nothing, EncodedTable(encoder, np.empty((0, encoder.num_columns))), nothing, None, nothing)
    targets = pd.DataFrame(columns=table.targets)
    left_out = table.num_rows - table.num_test - model.n_rows_
    train = Part(nothing, empty.inputs, targets, None, nothing)
    if ranks.size > 1:
        return SplitTable(train, _gathered(table, model, ranks), table.num_rows, max(left_out, 0))
    chunks = list(table.test.read(encoder.text_names)) if table.num_test else []
    if not chunks:
        return SplitTable(train, train, table.num_rows, left_out)
    frame = pd.concat([chunk.inputs for chunk in chunks], ignore_index=True)
    values = pd.concat([chunk.targets for chunk in chunks], ignore_index=True)
    values = values.to_frame() if isinstance(values, pd.Series) else values
    noise = None if chunks[0].noise is None else np.concatenate([np.asarray(chunk.noise) for chunk in chunks])
    has_target = values.notna().any(axis=1).to_numpy()
    kept = np.flatnonzero(has_target)
    frame, values = frame.iloc[kept].reset_index(drop=True), values.iloc[kept].reset_index(drop=True)
    noise = None if noise is None else noise[kept]
    dropped = pd.DataFrame(index=frame.index)
    inputs = EncodedTable(encoder, encoder.codes(frame) if len(frame) else empty.inputs.matrix)
    left_out += len(has_target) - len(kept)
    return SplitTable(train, Part(frame, inputs, values, noise, dropped), table.num_rows, left_out)


def _gathered(table: PiecesToFit, model: GPRegressor, ranks: Ranks) -> Part:
    """The test rows of all processes that have a target, on all of them; every input is a number."""
    encoder, found = model.encoder_, [np.empty((0, model.encoder_.num_columns + 2))]
    for chunk in table.test.part(ranks.rank, ranks.size).read():
        y = np.asarray(chunk.targets, dtype=np.float64).reshape(len(chunk.inputs), -1)
        noise = np.zeros_like(y) if chunk.noise is None else np.asarray(chunk.noise, dtype=np.float64)[:, None]
        rows = np.concatenate([encoder.codes(chunk.inputs, chunk.rows_from), y, noise], 1)
        found.append(rows[~np.isnan(y[:, 0])])
    rows = gathered(np.concatenate(found), ranks)
    codes, values, noise = rows[:, :-2], pd.DataFrame(rows[:, -2:-1], columns=table.targets), rows[:, -1]
    frame = pd.DataFrame(codes, columns=list(encoder.names_in or range(codes.shape[1])))
    known = noise if table.has_noise else None
    return Part(frame, EncodedTable(encoder, codes), values, known, pd.DataFrame(index=frame.index))
