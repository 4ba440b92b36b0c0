"""``cagp bench fit``: CaGP-Opt on real tables, by the paper's protocol but with every choice made on validation rows.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. A tenth of the training rows (at most
2,000) is held out for validation: to choose the step whose parameters are kept, to stop after four evaluations without
improvement, and to calibrate the noise. Inputs and targets are standardised with the remaining rows, and predictions
condition on those.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp import metrics
from cagp.bench.protocol import Blocks, Start, load_table, new_method, rows_by_purpose
from cagp.bench.records import collect, in_one_line, machine, score_columns, show
from cagp.data import standardized
from cagp.noise_tuning import calibrate_noise
from cagp.training import fit

EVALUATE_EVERY, PATIENCE = 20, 4


class Choices(NamedTuple):
    """How CaGP-Opt is trained."""

    num_actions: int = 512
    num_steps: int = 300
    blocks: Blocks = "spatial"
    start: Start = "neighbours"
    noise_floor: float = 1e-6
    double: bool = False  # whether float64 is used


def run(tables: list[Path], seeds: list[int], choices: Choices, as_json: bool) -> int:
    """Fit every table with every seed and print a record for each fit; return 1 if any failed."""
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
            "noise floor": lambda r: f"{r['noise_floor']:g}",
            **score_columns(),
            "NLL before calibration": lambda r: f"{r['nll_before_calibration']:.3f}" if "error" not in r else "",
            "kept step": lambda r: str(r.get("best_step", "")),
            "fit, s": lambda r: f"{r['fit_s']:.0f}" if "error" not in r else "",
            "all, s": lambda r: f"{r['total_s']:.0f}",
        },
        as_json,
        num_keys=2,
    )


def _measure(table: Path, seed: int, choices: Choices) -> dict[str, Any]:
    """A failure is a record too: ``error`` says why."""
    record = {**machine(), "table": table.stem, "seed": seed, "i": choices.num_actions, **choices._asdict()}
    start = time.perf_counter()
    try:
        result = _quality(*load_table(table), seed, choices)
    except Exception as error:
        result = {"error": in_one_line(error)}
    return {**record, **result, "total_s": time.perf_counter() - start}


def _quality(X: Tensor, y: Tensor, seed: int, choices: Choices) -> dict[str, Any]:
    dtype = torch.float64 if choices.double else torch.float32
    parts = standardized(X, y, *rows_by_purpose(len(y), seed), dtype=dtype)
    (X, y), (X_validation, y_validation), (X_test, y_test) = parts
    begin = time.perf_counter()
    method = new_method(X, y, choices.num_actions, choices.blocks, choices.start, seed, choices.noise_floor)
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
        **metrics.scores(y_test, *prediction)._asdict(),
        "nll_before_calibration": metrics.nll(y_test, *learned),
        "best_step": result.best_step,
        "start_s": start_s,
        "fit_s": start_s + result.seconds,
        "failures": len(result.failures),
        "hyperparameters": method.hyperparameters(),
        "validation_nll": [step.evaluation["nll"] for step in result.steps if step.evaluation],
    }
