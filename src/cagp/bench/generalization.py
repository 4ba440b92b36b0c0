"""``cagp bench fit``: CaGP-Opt on real tables, by the paper's protocol but with every choice made on validation rows.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. A tenth of the training rows (at most
2,000) is held out to choose the step whose parameters are kept, to stop when four evaluations bring nothing better, and
to calibrate the noise; inputs and targets are standardised with the rows that are left, and predictions condition on
those.
"""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import metrics
from cagp.bench.records import collect, machine, show
from cagp.data import split, standardized
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPOpt
from cagp.noise_tuning import calibrate_noise, raise_noise
from cagp.prior import GP, GaussianNoise
from cagp.starting import start_from_data, start_from_neighbours
from cagp.training import fit

Blocks = Literal["spatial", "ordered"]
Start = Literal["neighbours", "data", "paper"]

EVALUATE_EVERY, PATIENCE, VALIDATION_ROWS = 20, 4, 2000
PAPER_START = math.log(2)
"""Where GPyTorch's lengthscales, outputscale and noise variance start."""


class Choices(NamedTuple):
    """How CaGP-Opt is trained."""

    num_actions: int = 512
    num_steps: int = 300
    blocks: Blocks = "spatial"
    start: Start = "neighbours"


def run(tables: list[Path], seeds: list[int], choices: Choices, as_json: bool) -> int:
    """Fit every table with every seed, and print one record each; return 1 if any failed."""
    measurements = [partial(_measure, table, seed, choices) for table in tables for seed in seeds]
    return collect(measurements, _in_words, partial(_show, as_json=as_json))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, seed {record['seed']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.3f} with step {record['best_step']}, fit {record['fit_s']:.0f} s"


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    show(
        records,
        {
            "table": lambda r: r["table"],
            "seed": lambda r: str(r["seed"]),
            "blocks": lambda r: r["blocks"],
            "start": lambda r: r["start"],
            "test NLL": lambda r: "failed" if "error" in r else f"{r['nll']:.3f}",
            "before calibration": lambda r: f"{r.get('nll_before_calibration', float('nan')):.3f}",
            "RMSE": lambda r: f"{r.get('rmse', float('nan')):.4f}",
            "95 % coverage": lambda r: f"{r.get('coverage', float('nan')):.3f}",
            "kept step": lambda r: str(r.get("best_step", "")),
            "fit, s": lambda r: f"{r.get('fit_s', float('nan')):.0f}",
            "all, s": lambda r: f"{r['total_s']:.0f}",
        },
        as_json,
    )


def _measure(table: Path, seed: int, choices: Choices) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why."""
    record = {**machine(), "table": table.stem, "seed": seed, "i": choices.num_actions, **choices._asdict()}
    start = time.perf_counter()
    try:
        result = _generalization(*load_table(table), seed, choices)
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


def new_method(X: Tensor, y: Tensor, num_actions: int, blocks: Blocks, start: Start, seed: int) -> CaGPOpt:
    """CaGP-Opt with a Matérn 3/2 kernel; "ordered" blocks are the paper's, with its random weights."""
    prior = GP(Scale(Matern32(X.shape[1], PAPER_START), PAPER_START), noise=GaussianNoise(PAPER_START))
    if start == "neighbours":
        start_from_neighbours(prior, X, y, seed=seed)
    elif start == "data":
        start_from_data(prior, X, y)
    weights = "constant" if blocks == "spatial" else "random"
    generator = torch.Generator().manual_seed(seed)
    choices: dict[str, Any] = {"blocks": blocks, "start": weights, "generator": generator}
    if start == "neighbours":
        choices["reblock_at"] = ()  # lengthscales are known from the start
    method = CaGPOpt.from_data(prior, X, num_actions, **choices)
    if start == "neighbours":
        raise_noise(method, X, y)
    return method


def _generalization(X: Tensor, y: Tensor, seed: int, choices: Choices) -> dict[str, Any]:
    parts = standardized(X, y, *rows_by_purpose(len(y), seed), dtype=torch.float32)
    (X, y), (X_validation, y_validation), (X_test, y_test) = parts
    begin = time.perf_counter()
    method = new_method(X, y, choices.num_actions, choices.blocks, choices.start, seed)
    start_s = time.perf_counter() - begin
    result = fit(
        method,
        X,
        y,
        num_steps=choices.num_steps,
        evaluate=lambda: {"nll": metrics.nll(y_validation, *method.condition(X, y).predict(X_validation, noise=True))},
        evaluate_every=EVALUATE_EVERY,
        patience=PATIENCE,
        monitor="nll",
    )
    learned = method.condition(X, y).predict(X_test, noise=True)
    calibrate_noise(method, X, y, X_validation, y_validation)
    prediction = method.condition(X, y).predict(X_test, noise=True)
    return {
        "n": len(y),
        "d": X.shape[1],
        "nll": metrics.nll(y_test, *prediction),
        "nll_before_calibration": metrics.nll(y_test, *learned),
        "rmse": metrics.rmse(y_test, prediction.mean),
        "crps": metrics.crps(y_test, *prediction),
        "coverage": metrics.coverage(y_test, *prediction),
        "best_step": result.best_step,
        "start_s": start_s,
        "fit_s": start_s + result.seconds,
        "failures": len(result.failures),
        "hyperparameters": method.hyperparameters(),
        "validation_nll": [step.evaluation["nll"] for step in result.steps if step.evaluation],
    }
