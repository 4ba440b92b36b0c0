"""One run of the paper's protocol: a method on a table with a seed, in a process of its own.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. A tenth of the training rows, at most
2,000, is held out for validation; it chooses the epoch. Inputs and targets are standardised with the remaining rows. At
each evaluation the test rows are scored as well. Those scores decide nothing in the run: they are kept, so that a table
can also show the epoch that the paper's protocol, which looks at test rows, would have chosen.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch

from cagp import metrics
from cagp.data import split, standardized
from cagp.memory import current_memory, peak_memory
from cagp.methods import Method
from cagp.posteriors import Prediction
from cagp.training import FitResult, fit
from cagp_bench.gp_methods import GP_METHODS, Rows
from cagp_bench.gp_settings import GPSettings, gp_settings, steps_in_epoch
from cagp_bench.processes import answer
from cagp_bench.protocol import load_table, rows_by_purpose
from cagp_bench.records import attempt, environment

HALF = 0.5
"""The smaller of the two probabilities whose coverage is recorded."""


def measure(table: str, rows: int | None, method: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Quality, times and peak memory of one run in this process; a failure is a record with ``error``."""
    about = {**environment(), "imports_bytes": current_memory()}
    result = attempt(lambda: _quality(Path(table), rows, method, seed, gp_settings(settings)))
    return {**about, **result, "peak_bytes": peak_memory()}


def all_scores(y: torch.Tensor, prediction: Prediction) -> dict[str, float]:
    """The metrics of ``Scores`` and the coverage error of the 50 % intervals."""
    half = metrics.coverage_error(y, prediction.mean, prediction.variance, HALF)
    return {**metrics.scores(y, prediction.mean, prediction.variance)._asdict(), "coverage_error_50": half}


def _quality(table: Path, num_rows: int | None, name: str, seed: int, settings: GPSettings) -> dict[str, Any]:
    if name not in GP_METHODS:
        raise ValueError(f"method is {name!r}, expected one of {', '.join(GP_METHODS)}.")
    X, y = load_table(table, num_rows)
    train, held, test = _parts(X, y, settings, seed)
    begin = time.perf_counter()
    method = GP_METHODS[name].make(train, settings, seed)
    start_s = time.perf_counter() - begin
    pace = steps_in_epoch(name, settings, len(train.y))
    result, trajectory = _fit(method, train, held, test, settings, pace)
    finishing = time.perf_counter()
    method, details = GP_METHODS[name].finish(method, train, held, settings, seed)
    posterior = method.condition(train.X, train.y)
    conditioned = time.perf_counter()
    prediction = posterior.predict(test.X, noise=True)
    predicted = time.perf_counter()
    scores = all_scores(test.y, prediction)
    if not all(math.isfinite(value) for value in scores.values()):
        raise ArithmeticError(f"the predictions of test rows are not finite; training ended with: {result.reason}")
    return {
        "n": len(train.y),
        "d": X.shape[1],
        "num_validation": 0 if held is None else len(held.y),
        "num_test": len(test.y),
        **scores,
        "validation_nll": None if held is None else metrics.nll(held.y, *posterior.predict(held.X, noise=True)),
        "epoch": math.ceil((result.best_step - 1) / pace),
        "fit_s": start_s + result.seconds + conditioned - finishing,
        "predict_s": predicted - conditioned,
        "steps": len(result.steps),
        "status": result.status.value,
        "failures": len(result.failures),
        **_hyperparameters(method),
        **details,
        "trajectory": trajectory,
    }


def _parts(X: torch.Tensor, y: torch.Tensor, settings: GPSettings, seed: int) -> tuple[Rows, Rows | None, Rows]:
    """Training, validation and test rows in standard units."""
    dtype = torch.float64 if settings.double or settings.optimizer == "lbfgs" else torch.float32
    if settings.validation:
        train, held, test = (Rows(*p) for p in standardized(X, y, *rows_by_purpose(len(y), seed), dtype=dtype))
        return train, held, test
    rows = split(len(y), 0.1, seed)
    train, test = (Rows(*part) for part in standardized(X, y, rows.train, rows.test, dtype=dtype))
    return train, None, test


def _fit(
    method: Method, train: Rows, held: Rows | None, test: Rows, settings: GPSettings, pace: int
) -> tuple[FitResult, list[dict[str, Any]]]:
    """Train, and leave the method with the parameters that validation rows prefer; the evaluations, in order."""
    common = {"optimizer": settings.optimizer, "lr": settings.lr, "max_time": settings.fit_time}
    common |= {"num_steps": pace * settings.epochs}
    if held is None:
        result = fit(method, train.X, train.y, **common)
        if not result.steps:
            raise ArithmeticError(result.reason)
        return result, []
    validation, scores = held, []

    def evaluate() -> dict[str, float]:
        posterior = method.condition(train.X, train.y)
        seen = posterior.predict(test.X, noise=True)
        nll = metrics.nll(validation.y, *posterior.predict(validation.X, noise=True))
        scores.append((nll, metrics.nll(test.y, *seen), metrics.rmse(test.y, seen.mean)))
        return {"nll": nll}

    every = pace * math.ceil(settings.epochs / settings.evaluations)
    judged = {"monitor": "nll", "evaluate_every": every, "patience": settings.patience}
    result = fit(method, train.X, train.y, evaluate=evaluate, **common, **judged)
    if not math.isfinite(result.best_value):
        raise ArithmeticError(f"no step has a finite validation NLL: {result.reason}")
    return result, _trajectory(result, scores, pace)


def _trajectory(result: FitResult, scores: list[tuple[float, float, float]], pace: int) -> list[dict[str, Any]]:
    """Epoch, seconds and scores of each evaluation. A fit evaluates once more where it ends between two of them."""
    ends = [(step.number, step.seconds) for step in result.steps if step.evaluation is not None]
    ends += [(len(result.steps), result.seconds)] * (len(scores) - len(ends))
    names = ("validation_nll", "test_nll", "test_rmse")
    return [
        {
            "epoch": math.ceil(number / pace),
            "seconds": _short(seconds),
            **dict(zip(names, map(_short, found), strict=True)),
        }
        for (number, seconds), found in zip(ends, scores, strict=False)
    ]


def _short(value: float) -> float | None:
    """Six digits, which are enough for a curve; None for what is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _hyperparameters(method: Method) -> dict[str, Any]:
    """Noise, outputscale and lengthscales as learned."""
    values = method.hyperparameters()
    found = {name: [value for key, value in values.items() if key.split(".")[-1] == name] for name in _LEARNED}
    return {plural: found[name][0] if found[name] else None for name, plural in _LEARNED.items()}


_LEARNED = {"noise": "noise", "outputscale": "outputscale", "lengthscale": "lengthscales"}


if __name__ == "__main__":
    answer(measure)
