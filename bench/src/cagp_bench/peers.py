"""Other packages that learn from a table, each as its documentation advises. All use as many threads as torch."""

import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from cagp.data import Encoder, Standardizer
from cagp.posteriors import Prediction
from cagp_bench.boosted_trees import (
    CATBOOST_DEPTHS,
    LIGHTGBM_LEAVES,
    LIGHTGBM_RATE,
    MAX_TREES,
    PATIENCE,
    VALIDATION_SHARE,
    catboost_trees,
    for_trees,
    hist_trees,
    installed,
    lightgbm_trees,
    one_pool,
)

GPBOOST_NEIGHBOURS = 20


class Outcome(NamedTuple):
    """Predictions of new targets at the test rows, and the time they took."""

    prediction: Prediction
    fit_s: float  # everything before the first prediction, including tuning and conditioning
    predict_s: float
    details: dict[str, Any]


def gpboost_outcome(
    X: Float[Tensor, "n d"], y: Float[Tensor, " n"], X_test: Float[Tensor, "t d"], seed: int
) -> Outcome:
    """GPBoost's Vecchia approximation with its own settings, for standardised rows; it predicts from 2k rows."""
    start = time.perf_counter()
    model = gpboost_model(X, "gaussian", seed)
    model.fit(y=y.numpy())
    fitted = time.perf_counter()
    new = model.predict(gp_coords_pred=X_test.numpy(), predict_var=True, predict_response=True)
    seconds = time.perf_counter() - fitted
    values = model.get_cov_pars().iloc[0]
    details = {
        "k": GPBOOST_NEIGHBOURS,
        "k_predict": 2 * GPBOOST_NEIGHBOURS,
        "gpboost": installed("gpboost").__version__,
        "hyperparameters": {str(name): float(value) for name, value in values.items()},
    }
    prediction = Prediction(torch.from_numpy(new["mu"]), torch.from_numpy(new["var"]))
    return Outcome(prediction, fitted - start, seconds, details)


def gpboost_model(X: Float[Tensor, "n d"], likelihood: str, seed: int) -> Any:
    """GPBoost's Vecchia approximation for these inputs, which are standardised, before its fit."""
    return installed("gpboost").GPModel(
        gp_coords=X.numpy(),
        cov_function="matern_ard",
        cov_fct_shape=1.5,
        gp_approx="vecchia",
        num_neighbors=GPBOOST_NEIGHBOURS,
        likelihood=likelihood,
        num_parallel_threads=torch.get_num_threads(),
        seed=seed,
    )


def gpboost_on_frame(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Outcome:
    """The same for a table as it comes, encoded and standardised with its training rows."""
    inputs, points = encoded(X, y, X_test)
    return gpboost_outcome(inputs, torch.from_numpy(y), points, seed)


def lightgbm_outcome(
    X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, seconds: float | None = None
) -> Outcome:
    """LightGBM with small steps; leaves and number of trees from held-out rows.

    It has no error bars of its own: the variance is the mean squared error of the held-out rows, the same everywhere.
    """
    start = time.perf_counter()
    trees = lightgbm_trees(X, y, X_test, seed, {"objective": "regression"}, seconds=seconds)
    fitted = time.perf_counter()
    mean = trees.model.predict(trees.X_test)
    predicted = time.perf_counter()
    tuned = {str(size): {"mse": found.loss, "trees": found.trees} for size, found in trees.tried.items()}
    details = {"leaves": trees.size, "trees": trees.chosen.trees, "tuned": tuned}
    details |= {"lightgbm": installed("lightgbm").__version__}
    return Outcome(_constant_variance(mean, trees.chosen.loss), fitted - start, predicted - fitted, details)


def catboost_outcome(
    X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, seconds: float | None = None
) -> Outcome:
    """CatBoost that learns mean and variance of each row; depth and number of trees from held-out rows."""
    start = time.perf_counter()
    trees = catboost_trees(X, y, X_test, seed, "Regressor", "RMSEWithUncertainty", seconds=seconds)
    fitted = time.perf_counter()
    new = trees.model.predict(trees.X_test, prediction_type="RMSEWithUncertainty")
    predicted = time.perf_counter()
    tuned = {str(size): {"nll": found.loss, "trees": found.trees} for size, found in trees.tried.items()}
    details = {"depth": trees.size, "trees": trees.chosen.trees, "rate": trees.chosen.rate, "tuned": tuned}
    details |= {"catboost": installed("catboost").__version__}
    prediction = Prediction(*(torch.from_numpy(np.ascontiguousarray(column)) for column in new.T))
    return Outcome(prediction, fitted - start, predicted - fitted, details)


def hist_outcome(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Outcome:
    """Histogram boosting of scikit-learn with its own early stopping; the variance comes from held-out rows."""
    start = time.perf_counter()
    trees = hist_trees(X, y, X_test, seed, "Regressor")
    with one_pool():
        error = float(np.mean((trees.y_held - trees.held_out.predict(trees.X_held)) ** 2))
        fitted = time.perf_counter()
        mean = trees.model.predict(trees.X_test)
        seconds = time.perf_counter() - fitted
    details = {"sklearn": importlib.import_module("sklearn").__version__, "trees": trees.chosen.trees}
    return Outcome(_constant_variance(mean, error), fitted - start, seconds, details)


HIST_QUANTILES = (0.15865525393145707, 0.8413447460685429)
"""Their distance is two standard deviations of a normal distribution."""

LEAST_SHARE, QUANTILE_PATIENCE = 0.1, 20


def hist_quantiles_outcome(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Outcome:
    """Histogram boosting of scikit-learn with two quantiles as error bars: half their distance is the deviation.

    The mean is that of ``hist_outcome``. Quantiles that cross or nearly meet get ``LEAST_SHARE`` of the error of its
    validation rows: a heuristic of ours, without which a few rows would decide the NLL.
    """
    ensemble = importlib.import_module("sklearn.ensemble")
    center = hist_outcome(X, y, X_test, seed)
    start = time.perf_counter()
    train, test = for_trees(X, X_test)
    fixed = {"learning_rate": LIGHTGBM_RATE, "random_state": seed, "categorical_features": "from_dtype"}
    stopping = {"max_iter": MAX_TREES, "early_stopping": True, "n_iter_no_change": QUANTILE_PATIENCE}
    with one_pool():
        models = [
            ensemble.HistGradientBoostingRegressor(loss="quantile", quantile=level, **fixed, **stopping).fit(train, y)
            for level in HIST_QUANTILES
        ]
        fitted = time.perf_counter()
        lower, upper = (model.predict(test) for model in models)
        seconds = time.perf_counter() - fitted
    least = LEAST_SHARE * center.prediction.variance.sqrt()
    std = torch.maximum(torch.from_numpy((upper - lower) / 2), least)
    details = {**center.details, "quantile_trees": [model.n_iter_ for model in models]}
    prediction = Prediction(center.prediction.mean, std.square())
    return Outcome(prediction, center.fit_s + fitted - start, center.predict_s + seconds, details)


def sklearn_gp_outcome(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Outcome:
    """The exact GP of scikit-learn with a Matérn 3/2 kernel, a lengthscale for each input, and white noise."""
    gp = importlib.import_module("sklearn.gaussian_process")
    kernels = gp.kernels
    start = time.perf_counter()
    inputs, points = encoded(X, y, X_test)
    kernel = kernels.ConstantKernel() * kernels.Matern([1.0] * inputs.shape[1], nu=1.5) + kernels.WhiteKernel(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound is no error of ours
        model = gp.GaussianProcessRegressor(kernel, random_state=seed).fit(inputs.numpy(), y)
    fitted = time.perf_counter()
    mean, std = model.predict(points.numpy(), return_std=True)
    seconds = time.perf_counter() - fitted
    details = {"sklearn": importlib.import_module("sklearn").__version__, "kernel": str(model.kernel_)}
    prediction = Prediction(torch.from_numpy(mean), torch.from_numpy(std).square())
    return Outcome(prediction, fitted - start, seconds, details)


def encoded(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame) -> tuple[Tensor, Tensor]:
    """Training and test inputs as numbers in standard units of the training rows."""
    encoder, matrix = Encoder.fit_transform(X)
    inputs = torch.from_numpy(np.ascontiguousarray(matrix))
    points = torch.from_numpy(np.ascontiguousarray(encoder.transform(X_test)))
    scaler = Standardizer.fit(inputs, torch.from_numpy(y))
    return scaler.inputs(inputs), scaler.inputs(points)


class Peer(NamedTuple):
    """Another package, and its settings, by which records of a run are found again."""

    outcome: Callable[..., Outcome]  # of rows, standardised targets, test rows, seed and, maybe, seconds
    settings: dict[str, Any]


_STOPPED = {"max_trees": MAX_TREES, "patience": PATIENCE, "validation": VALIDATION_SHARE}
PEERS = {
    "gpboost": Peer(gpboost_on_frame, {"k": GPBOOST_NEIGHBOURS}),
    "lightgbm": Peer(lightgbm_outcome, {**_STOPPED, "rate": LIGHTGBM_RATE, "leaves": list(LIGHTGBM_LEAVES)}),
    "catboost": Peer(catboost_outcome, {**_STOPPED, "depths": list(CATBOOST_DEPTHS)}),
    "hist": Peer(hist_outcome, {**_STOPPED, "rate": LIGHTGBM_RATE}),
    "hist-quantiles": Peer(
        hist_quantiles_outcome, {**_STOPPED, "rate": LIGHTGBM_RATE, "quantile_patience": QUANTILE_PATIENCE}
    ),
    "sklearn-gp": Peer(sklearn_gp_outcome, {"kernel": "matern32"}),
}


def _constant_variance(mean: np.ndarray, variance: float) -> Prediction:
    values = torch.from_numpy(np.ascontiguousarray(mean))
    return Prediction(values, torch.full_like(values, variance))
