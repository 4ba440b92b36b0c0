"""Every contender of ``CONTENDERS`` fitted to a table as it comes, and its predictions scored in standard units."""

import argparse
import math
import time
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from cagp import CaGPRegressor, metrics
from cagp_bench.all_peers import ALL_PEERS, peer_outcome
from cagp_bench.choices import CONTENDERS
from cagp_bench.options import add_methods

NUM_QUANTILES = 400
"""The CRPS of predictions that are not Gaussian is a sum over this many quantiles."""


class Answers(NamedTuple):
    """Predictions of test targets, in their unit, and what it took to make them."""

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray  # of each test target
    quantiles: np.ndarray | None  # (t, ``NUM_QUANTILES``); None where the distributions are Gaussian
    fit_s: float
    predict_s: float
    details: dict[str, Any]


def add_contenders(suite: argparse.ArgumentParser, chosen: list[str]) -> None:
    """The option that names contenders."""
    words = "; ".join(f"{name}: {contender.words}" for name, contender in CONTENDERS.items())
    add_methods(suite, CONTENDERS, chosen, words)


def answers_of(
    name: str,
    X: pd.DataFrame,
    y: np.ndarray,
    X_test: pd.DataFrame,
    y_test: np.ndarray,
    seed: int,
    fit_time: str | None = None,
) -> Answers:
    """Fit a contender to training rows and predict test rows; ``y_test`` is for the densities alone.

    Args:
        fit_time: how long the fit may take, of those that can be told.
    """
    if name not in CONTENDERS:
        raise ValueError(f"method is {name!r}, expected one of {', '.join(CONTENDERS)}.")
    options = CONTENDERS[name].options
    if options is not None:
        limit = {} if fit_time is None else {"max_time": fit_time}
        return _regressor({**options, **limit}, X, y, X_test, y_test)
    outcome = peer_outcome(name, X, y, X_test, seed, fit_time)
    mean, std = outcome.prediction.mean.numpy(), outcome.prediction.variance.sqrt().numpy()
    density = _gaussian_log_density(y_test, mean, std)
    return Answers(mean, std, density, None, outcome.fit_s, outcome.predict_s, outcome.details)


def settings_of(name: str) -> dict[str, Any]:
    """What a record depends on besides its rows: options of ours, settings of the others."""
    options = CONTENDERS[name].options
    if options is not None:
        return options
    return ALL_PEERS[name].settings if name in ALL_PEERS else {}


def scores_of(answers: Answers, y_test: np.ndarray, unit: float) -> metrics.Scores:
    """All metrics with targets in units of ``unit``, the standard deviation of the training targets."""
    y, mean, std = (torch.from_numpy(np.ascontiguousarray(v / unit)) for v in (y_test, answers.mean, answers.std))
    gaussian = metrics.scores(y, mean, std.square())
    if answers.quantiles is None:
        return gaussian
    quantiles = answers.quantiles / unit
    lower, upper = (np.array([np.interp(p, _levels(), row) for row in quantiles]) for p in (0.025, 0.975))
    coverage = float(np.mean((y.numpy() >= lower) & (y.numpy() <= upper)))
    return gaussian._replace(
        nll=-float(np.mean(answers.log_density)) - math.log(unit),
        crps=quantile_crps(y.numpy(), quantiles),
        coverage=coverage,
        coverage_error=abs(metrics.LEVEL - coverage),
        width=float(np.mean(upper - lower)),
    )


def half_coverage_error(answers: Answers, y_test: np.ndarray) -> float:
    """|50 % - coverage| of the central intervals of probability 50 %."""
    if answers.quantiles is None:
        reach = NormalDist().inv_cdf(0.75) * answers.std
        return abs(0.5 - float(np.mean(np.abs(y_test - answers.mean) <= reach)))
    lower, upper = (np.array([np.interp(p, _levels(), row) for row in answers.quantiles]) for p in (0.25, 0.75))
    return abs(0.5 - float(np.mean((y_test >= lower) & (y_test <= upper))))


def quantile_crps(y: np.ndarray, quantiles: np.ndarray) -> float:
    """Mean CRPS from quantiles at equidistant levels τ: 2 ∫ (1[y < q] - τ) (q - y) dτ by the midpoint rule."""
    below = y[:, None] < quantiles
    return float(2 * np.mean((below - _levels()) * (quantiles - y[:, None])))


def _levels() -> np.ndarray:
    return (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES


def _regressor(
    options: dict[str, Any], X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, y_test: np.ndarray
) -> Answers:
    start = time.perf_counter()
    model = CaGPRegressor(**options).fit(X, y)
    fitted = time.perf_counter()
    found = model.predictive(X_test)
    mean, std = found.mean()[:, 0], found.std()[:, 0]
    seconds = time.perf_counter() - fitted
    is_gaussian = model.target_transforms_[0] == "identity"
    quantiles = None if is_gaussian else found.quantiles(_levels().tolist())[:, 0]
    details: dict[str, Any] = {
        "fitted": model.method_,
        "choice": model.choice_,
        "choices": _as_text(getattr(model, "choices_", None)),
        "report": model.fit_report_,
    }
    density = found.log_density(y_test[:, None])[:, 0]
    return Answers(mean, std, density, quantiles, fitted - start, seconds, details)


def _as_text(choices: Any) -> list[str] | None:
    """What was tried, in words."""
    return None if choices is None else [str(choice) for choice in choices]


def _gaussian_log_density(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
