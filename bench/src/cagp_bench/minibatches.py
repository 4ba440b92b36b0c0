"""``cagp bench minibatches``: CaGP-Opt in minibatches of real tables, with which numbers of actions and rows.

Of each table, 90 % of the rows are for training, and a tenth of these, at most 2,000, is held out; scores are
those of the rows held out. Hyperparameters start at those of a short fit of CaGP-Local. Every choice is trained for the
same processor time, so that a busy machine changes little.
"""

import copy
import itertools
import math
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp import metrics
from cagp.data import standardized
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.noise_tuning import calibrate_noise, raise_noise
from cagp.prior import GP, GaussianNoise
from cagp.starting import start_from_neighbours
from cagp.training import fit
from cagp_bench.protocol import PAPER_START, load_table, rows_by_purpose
from cagp_bench.records import collect, in_one_line, machine, score_columns, show


class Choices(NamedTuple):
    """What is compared, and for how long each is trained."""

    num_actions: list[int]
    support_sizes: list[int]  # 0 for all rows
    batch_sizes: list[int]  # 0 for all rows
    seconds: float  # of the processor


def run(tables: list[Path], num_rows: int | None, seeds: list[int], choices: Choices, as_json: bool) -> int:
    """Train every choice on every table with every seed and print a record for each; return 1 if any failed."""
    cases = itertools.product(
        tables, seeds, itertools.product(choices.num_actions, choices.support_sizes, choices.batch_sizes)
    )
    measurements = [
        partial(_measure, table, num_rows, seed, case, choices.seconds)
        for table, seed, case in cases
        if case[1] or not case[2]  # minibatches gain nothing where all rows carry weight
    ]
    return collect(measurements, _in_words, partial(_show, as_json=as_json))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, {record['i']} actions, support {record['support']}, batch {record['batch']}"
    return f"{start} failed: {record['error']}" if "error" in record else f"{start}: NLL {record['nll']:.3f}"


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    columns = {
        "table": lambda r: r["table"],
        "i": lambda r: str(r["i"]),
        "support": lambda r: str(r["support"] or "all"),
        "batch": lambda r: str(r["batch"] or "all"),
        **score_columns(),
        "steps": lambda r: str(r.get("steps", "")),
        "step, s": lambda r: f"{r['step_seconds']:.2f}" if "error" not in r else "",
    }
    show(records, columns, as_json, num_keys=4)


def _measure(
    table: Path, num_rows: int | None, seed: int, case: tuple[int, int, int], seconds: float
) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why."""
    i, support_size, batch_size = case
    record = {**machine(), "table": table.stem, "seed": seed, "i": i, "support": support_size, "batch": batch_size}
    try:
        return {**record, **_quality(*load_table(table, num_rows), seed, case, seconds)}
    except Exception as error:
        return {**record, "error": in_one_line(error)}


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
