"""``cagp bench minibatches``: CaGP-Opt in minibatches of real tables, with which numbers of actions and rows.

Of each table, 90 % of the rows are for training, and a tenth of these, at most 2,000, is held out; scores are
those of the rows held out. Hyperparameters start at those of a short fit of CaGP-Local. Every choice is trained for the
same processor time, so that a busy machine changes little.
"""

import argparse
import copy
import itertools
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cagp import metrics
from cagp.data import standardized
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.prior import GP, GaussianNoise
from cagp.starting import calibrate_noise, raise_noise, start_from_neighbours
from cagp.training import fit
from cagp_bench.options import NUM_ACTIONS, NUMBERS, add_rows, add_seeds, add_tables
from cagp_bench.protocol import PAPER_START, load_table, rows_by_purpose
from cagp_bench.records import Columns, attempt, cell, collect, machine, score_columns, show


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench minibatches``."""
    suite.description = (
        "Validation scores of CaGP-Opt on tables (.npz with X and y) with every combination of numbers of actions, of "
        "rows with weight in a block, and of rows of a step. Each is trained for the same processor time."
    )
    suite.epilog = "example:\n  cagp bench minibatches terrain.npz --rows 30000 --support 8 16 32"
    add_tables(suite, words=".npz files")
    add_seeds(suite)
    suite.add_argument("--n-actions", **NUMBERS, default=[NUM_ACTIONS], help="numbers of actions (default: 512)")
    suite.add_argument("--support", **NUMBERS, default=[32], help="rows with weight in a block; 0: all (default: 32)")
    suite.add_argument("--batch", **NUMBERS, default=[1024], help="rows of a step; 0: all (default: 1024)")
    suite.add_argument("--seconds", type=float, default=20.0, metavar="S", help="for each (default: %(default)s)")
    add_rows(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train every choice on every table with every seed and print a record for each; return 1 if any failed."""
    cases = itertools.product(
        arguments.tables,
        arguments.seeds,
        itertools.product(arguments.n_actions, arguments.support, arguments.batch),
    )
    measurements = [
        partial(_measure, table, arguments.rows, seed, case, arguments.seconds)
        for table, seed, case in cases
        if case[1] or not case[2]  # minibatches gain nothing where all rows carry weight
    ]
    return collect(measurements, _in_words, partial(show, columns=_columns(), as_json=arguments.json, num_keys=4))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, {record['i']} actions, support {record['support']}, batch {record['batch']}"
    return f"{start} failed: {record['error']}" if "error" in record else f"{start}: NLL {record['nll']:.3f}"


def _columns() -> Columns:
    return {
        "table": cell("table"),
        "i": cell("i"),
        "support": lambda r: str(r["support"] or "all"),
        "batch": lambda r: str(r["batch"] or "all"),
        **score_columns(),
        "steps": cell("steps"),
        "step, s": cell("step_seconds", "{:.2f}"),
    }


def _measure(
    table: Path, num_rows: int | None, seed: int, case: tuple[int, int, int], seconds: float
) -> dict[str, Any]:
    i, support_size, batch_size = case
    record = {**machine(), "table": table.stem, "seed": seed, "i": i, "support": support_size, "batch": batch_size}
    return record | attempt(lambda: _quality(*load_table(table, num_rows), seed, case, seconds))


def _quality(X: Tensor, y: Tensor, seed: int, case: tuple[int, int, int], seconds: float) -> dict[str, Any]:
    parts = standardized(X, y, *rows_by_purpose(len(y), seed), dtype=torch.float32)
    (X, y), (X_validation, y_validation), _ = parts
    prior = GP(Scale(Matern32(X.shape[1], PAPER_START), PAPER_START), noise=GaussianNoise(PAPER_START))
    start_from_neighbours(prior, X, y, seed=seed)
    method = _with_actions(prior, X, *case, seed=seed)
    rows = method.rows(0, len(y)).drawn
    raise_noise(method, X, y, rows=rows)
    begin = time.process_time()
    _loss(copy.deepcopy(method), X, y, rows).backward()
    step_seconds = time.process_time() - begin
    result = fit(method, X, y, num_steps=max(1, math.floor(seconds / step_seconds)))
    calibrate_noise(method, X, y, X_validation, y_validation)
    prediction = method.condition(X, y).predict(X_validation, noise=True)
    return {
        "n": len(y),
        **metrics.scores(y_validation, *prediction)._asdict(),
        "steps": len(result.steps),
        "step_seconds": step_seconds,
        "failures": len(result.failures),
        "hyperparameters": method.hyperparameters(),
    }


def _loss(method: CaGPOpt, X: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
    """The loss as ``fit`` computes it, which has checked the data before."""
    return method.objective(X, y, rows=rows)


def _with_actions(prior: GP, X: Tensor, num_actions: int, support_size: int, batch_size: int, seed: int) -> CaGPOpt:
    return CaGPOpt.from_data(
        prior,
        X,
        num_actions,
        reblock_at=(),
        batch_size=batch_size or None,
        seed=seed,
        support_size=support_size or None,
        generator=torch.Generator().manual_seed(seed),
    )
