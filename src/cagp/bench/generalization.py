"""``cagp bench fit``: CaGP-Opt on real tables, by the paper's protocol but with every choice made on validation rows.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. A tenth of the training rows (at most
2,000) is held out to choose the step whose parameters are kept, and to stop when four evaluations bring nothing better;
inputs and targets are standardised with the rows that are left, and predictions condition on those.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import metrics
from cagp.bench.records import machine, show
from cagp.data import split, standardized
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.prior import GP
from cagp.starting import start_from_data
from cagp.training import fit

EVALUATE_EVERY, PATIENCE, VALIDATION_ROWS = 20, 4, 2000


def run(tables: list[Path], seeds: list[int], num_actions: int, num_steps: int, blocks: str, as_json: bool) -> int:
    """Fit every table with every seed, and print one record each; return 1 if any failed."""
    records = [_measure(table, seed, num_actions, num_steps, blocks) for table in tables for seed in seeds]
    show(
        records,
        {
            "table": lambda r: r["table"],
            "seed": lambda r: str(r["seed"]),
            "blocks": lambda r: r["blocks"],
            "test NLL": lambda r: "failed" if "error" in r else f"{r['nll']:.3f}",
            "RMSE": lambda r: f"{r.get('rmse', float('nan')):.4f}",
            "95 % coverage": lambda r: f"{r.get('coverage', float('nan')):.3f}",
            "kept step": lambda r: str(r.get("best_step", "")),
            "fit, s": lambda r: f"{r.get('fit_s', float('nan')):.0f}",
            "all, s": lambda r: f"{r['total_s']:.0f}",
        },
        as_json,
    )
    return int(any("error" in record for record in records))


def _measure(table: Path, seed: int, num_actions: int, num_steps: int, blocks: str) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why."""
    choices = {"table": table.stem, "seed": seed, "i": num_actions, "num_steps": num_steps, "blocks": blocks}
    record, start = {**machine(), **choices}, time.perf_counter()
    try:
        result = _generalization(*load_table(table), seed, num_actions, num_steps, blocks)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {**record, **result, "total_s": time.perf_counter() - start}


def load_table(table: Path, num_rows: int | None = None) -> tuple[Tensor, Tensor]:
    """X and y of an .npz file, in float64; ``num_rows`` of the rows, always the same at random, or all."""
    with np.load(table, allow_pickle=False) as file:
        X, y = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
    if num_rows is not None and num_rows < len(y):
        chosen = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:num_rows]
        X, y = X[chosen], y[chosen]
    return X.double(), y.double()


class Rows(NamedTuple):
    """Row numbers by purpose; every row has one."""

    train: Tensor
    validation: Tensor
    test: Tensor


def rows_by_purpose(num_rows: int, seed: int) -> Rows:
    """A tenth for testing, and of the others a tenth, at most ``VALIDATION_ROWS``, to make choices on."""
    outer = split(num_rows, 0.1, seed)
    inner = split(len(outer.train), min(0.1, VALIDATION_ROWS / len(outer.train)), seed)
    return Rows(outer.train[inner.train], outer.train[inner.test], outer.test)


def new_method(X: Tensor, y: Tensor, num_actions: int, blocks: str, seed: int) -> CaGPOpt:
    """CaGP-Opt with a Matérn 3/2 kernel, started from the data; "ordered" blocks are the paper's, with its weights."""
    prior = start_from_data(GP(Scale(Matern32(X.shape[1]))), X, y)
    start = "constant" if blocks == "spatial" else "random"
    generator = torch.Generator().manual_seed(seed)
    return CaGPOpt.from_data(prior, X, num_actions, blocks=blocks, start=start, generator=generator)


def _generalization(X: Tensor, y: Tensor, seed: int, num_actions: int, num_steps: int, blocks: str) -> dict[str, Any]:
    parts = standardized(X, y, *rows_by_purpose(len(y), seed), dtype=torch.float32)
    (X, y), (X_validation, y_validation), (X_test, y_test) = parts
    method = new_method(X, y, num_actions, blocks, seed)
    result = fit(
        method,
        X,
        y,
        num_steps=num_steps,
        evaluate=lambda: {"nll": metrics.nll(y_validation, *method.condition(X, y).predict(X_validation, noise=True))},
        evaluate_every=EVALUATE_EVERY,
        patience=PATIENCE,
        monitor="nll",
    )
    prediction = method.condition(X, y).predict(X_test, noise=True)
    return {
        "n": len(y),
        "d": X.shape[1],
        "nll": metrics.nll(y_test, *prediction),
        "rmse": metrics.rmse(y_test, prediction.mean),
        "crps": metrics.crps(y_test, *prediction),
        "coverage": metrics.coverage(y_test, *prediction),
        "best_step": result.best_step,
        "fit_s": result.seconds,
        "failures": len(result.failures),
        "hyperparameters": method.hyperparameters(),
        "validation_nll": [step.evaluation["nll"] for step in result.steps if step.evaluation],
    }
