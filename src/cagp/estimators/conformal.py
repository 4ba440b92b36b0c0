"""Conformal intervals: how many standard deviations hold a given share of rows predicted without their own target."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cagp.estimators.units import as_array

if TYPE_CHECKING:
    from cagp.estimators.base import GPRegressor

LEFT_OUT_ROWS, SEED = 10_000, 0
"""Training rows that are predicted from the others, at most, and the seed that draws them."""


def conformal_factors(model: "GPRegressor", level: float, calibration: Any = None) -> np.ndarray:
    """How many standard deviations, on the scale of the fit, the interval of each target reaches to either side.

    Args:
        calibration: rows that were not trained on, (X, y) or (X, y, sample_noise); None for training rows, each
            predicted without its own target.
    """
    if calibration is not None:
        scores = calibration_scores(model, calibration)
    else:
        if model._left_out_scores is None:  # as expensive as predictions of 10,000 rows, and always the same
            model._left_out_scores = leave_one_out_scores(model)
        scores = model._left_out_scores
    return np.array([_factor(values, level, n) for values, n in zip(scores, model.target_names_, strict=True)])


def leave_one_out_scores(model: "GPRegressor") -> list[np.ndarray]:
    """|y - mean| / std of training rows, each predicted without its own target at the final hyperparameters.

    One array for each target, on the scale of the fit, where scores have no unit.
    """
    scores = []
    for posterior in model.posteriors_:
        generator = torch.Generator().manual_seed(SEED)
        rows = torch.randperm(len(posterior.X), generator=generator)[:LEFT_OUT_ROWS].to(posterior.X.device)
        found = posterior.left_out(rows)
        if found is None:
            raise ValueError(
                f'method="conformal" needs rows that are predicted without their own target. "{model.method_}" does '
                'not have them: "local", "hybrid" and "exact" do. Pass calibration=(X, y) with rows that were not '
                "trained on."
            )
        score = np.abs(as_array(found.error)) / np.sqrt(as_array(found.variance))
        scores.append(score[np.isfinite(score)])
    return scores


def calibration_scores(model: "GPRegressor", calibration: Any) -> list[np.ndarray]:
    """|y - mean| / std of rows that were not trained on; one array for each target."""
    if not isinstance(calibration, tuple | list) or len(calibration) not in (2, 3):
        raise ValueError(f"calibration is a {type(calibration).__name__}, expected (X, y) or (X, y, sample_noise).")
    X, y, *noise = calibration
    found = model.predictive(X, *noise)
    return list(np.abs(found.standardized(model.units_.observed(model.units_.points(X), y))).T)


def _factor(scores: np.ndarray, level: float, name: str) -> float:
    """The ⌈level (m + 1)⌉-th smallest of m scores.

    Of m + 1 exchangeable scores, the last one is at most this with probability ``level`` or more.
    """
    rank = math.ceil(level * (len(scores) + 1) - 1e-9)
    if rank > len(scores):
        least = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"level is {level}, for which a conformal interval needs at least {least:,} rows; {name} has "
            f"{len(scores):,}. Use a lower level, or more rows."
        )
    return float(np.partition(scores, rank - 1)[rank - 1])
