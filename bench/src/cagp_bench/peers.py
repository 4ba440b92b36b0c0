"""What a person with a table would reach for besides this package, each set up as its documentation advises.

LightGBM and CatBoost choose the number and the size of their trees on validation rows, which are cut from the training
rows, and are then fitted to all training rows. With a limit of time, each size of trees and the last fit get the same
share of it. All peers use as many threads as torch.
"""

import importlib
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from cagp.data import Encoder, Standardizer, split
from cagp.posteriors import Prediction

VALIDATION_SHARE = 0.1
MAX_TREES, PATIENCE = 5_000, 100
LIGHTGBM_RATE = 0.05
LIGHTGBM_LEAVES = (15, 31, 63, 127)
CATBOOST_DEPTHS = (4, 6, 8)
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
    """LightGBM with small steps; leaves and number of trees from validation rows.

    It has no error bars of its own: the variance is the mean squared error of the validation rows, the same everywhere.
    """
    lightgbm = installed("lightgbm")
    start = time.perf_counter()
    X, X_test = for_trees(X, X_test)
    plain = [f"x{j}" for j in range(X.shape[1])]  # it refuses names with colons, commas and brackets
    X, X_test = X.set_axis(plain, axis=1), X_test.set_axis(plain, axis=1)
    train, validation = _validation(len(y), seed)
    fixed = {"objective": "regression", "learning_rate": LIGHTGBM_RATE, "verbosity": -1, "seed": seed}
    fixed |= {"num_threads": torch.get_num_threads(), "deterministic": True}
    rows = lightgbm.Dataset(X.iloc[train], y[train], free_raw_data=False)
    judges = lightgbm.Dataset(X.iloc[validation], y[validation], reference=rows, free_raw_data=False)
    found = {}
    for leaves in LIGHTGBM_LEAVES:
        errors: dict[str, Any] = {}
        watching = [lightgbm.record_evaluation(errors), lightgbm.early_stopping(PATIENCE, verbose=False)]
        if seconds is not None:
            end = time.perf_counter() + seconds / (len(LIGHTGBM_LEAVES) + 1)
            watching.append(partial(_stop_lightgbm, lightgbm.callback.EarlyStopException, end))
        lightgbm.train({**fixed, "num_leaves": leaves}, rows, MAX_TREES, valid_sets=[judges], callbacks=watching)
        curve = errors["valid_0"]["l2"]
        found[leaves] = min(curve), int(np.argmin(curve)) + 1
    leaves = min(found, key=lambda name: found[name])
    error, num_trees = found[leaves]
    model = lightgbm.train({**fixed, "num_leaves": leaves}, lightgbm.Dataset(X, y), num_trees)
    fitted = time.perf_counter()
    mean = model.predict(X_test)
    predicted = time.perf_counter()
    tuned = {str(name): {"mse": mse, "trees": trees} for name, (mse, trees) in found.items()}
    details = {"lightgbm": lightgbm.__version__, "leaves": leaves, "trees": num_trees, "tuned": tuned}
    return Outcome(_constant_variance(mean, error), fitted - start, predicted - fitted, details)


def _stop_lightgbm(stop: type[Exception], end: float, state: Any) -> None:
    """A callback that ends training once the clock shows ``end``, after at least one tree."""
    if time.perf_counter() >= end and state.iteration > state.begin_iteration:
        raise stop(state.iteration, state.evaluation_result_list)


class _StopCatBoost:
    """The same for CatBoost."""

    def __init__(self, end: float):
        self.end = end

    def after_iteration(self, info: Any) -> bool:
        """Whether training continues."""
        return time.perf_counter() < self.end


def catboost_outcome(
    X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, seconds: float | None = None
) -> Outcome:
    """CatBoost that learns mean and variance of each row; depth and number of trees from validation rows."""
    catboost = installed("catboost")
    start = time.perf_counter()
    X, X_test = for_trees(X, X_test)
    text = [name for name in X if isinstance(X[name].dtype, pd.CategoricalDtype)]
    if text:  # its levels are text, also where a value is missing
        X, X_test = (part.astype(dict.fromkeys(text, object)).fillna(dict.fromkeys(text, "")) for part in (X, X_test))
    train, validation = _validation(len(y), seed)
    fixed = {"loss_function": "RMSEWithUncertainty", "random_seed": seed, "thread_count": torch.get_num_threads()}
    fixed |= {"allow_writing_files": False, "verbose": False, "cat_features": text}
    judges = catboost.Pool(X.iloc[validation], y[validation], cat_features=text)
    found = {}
    for depth in CATBOOST_DEPTHS:
        tried = catboost.CatBoostRegressor(depth=depth, iterations=MAX_TREES, early_stopping_rounds=PATIENCE, **fixed)
        share = None if seconds is None else seconds / (len(CATBOOST_DEPTHS) + 1)
        stopping = None if share is None else [_StopCatBoost(time.perf_counter() + share)]
        tried.fit(X.iloc[train], y[train], eval_set=judges, use_best_model=True, callbacks=stopping)
        nll = float(tried.best_score_["validation"]["RMSEWithUncertainty"])
        found[depth] = nll, tried.tree_count_, tried.learning_rate_
    depth = min(found, key=lambda name: found[name])
    _, num_trees, rate = found[depth]
    model = catboost.CatBoostRegressor(depth=depth, iterations=num_trees, learning_rate=rate, **fixed).fit(X, y)
    fitted = time.perf_counter()
    new = model.predict(X_test, prediction_type="RMSEWithUncertainty")
    predicted = time.perf_counter()
    tuned = {str(name): {"nll": nll, "trees": trees} for name, (nll, trees, _) in found.items()}
    details = {"catboost": catboost.__version__, "depth": depth, "trees": num_trees, "rate": rate, "tuned": tuned}
    prediction = Prediction(*(torch.from_numpy(np.ascontiguousarray(column)) for column in new.T))
    return Outcome(prediction, fitted - start, predicted - fitted, details)


def hist_outcome(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Outcome:
    """Histogram boosting of scikit-learn with its own early stopping; the variance comes from validation rows."""
    sklearn, ensemble = (importlib.import_module(name) for name in ("sklearn", "sklearn.ensemble"))
    start = time.perf_counter()
    X, X_test = for_trees(X, X_test)
    train, validation = _validation(len(y), seed)
    fixed = {"learning_rate": LIGHTGBM_RATE, "random_state": seed, "categorical_features": "from_dtype"}
    stopping = {"max_iter": MAX_TREES, "early_stopping": True, "n_iter_no_change": PATIENCE}
    with importlib.import_module("threadpoolctl").threadpool_limits(torch.get_num_threads(), user_api="openmp"):
        tried = ensemble.HistGradientBoostingRegressor(**fixed, **stopping).fit(X.iloc[train], y[train])
        error = float(np.mean((y[validation] - tried.predict(X.iloc[validation])) ** 2))
        num_trees = max(1, int(np.argmax(tried.validation_score_)))  # the first score is that of no trees
        model = ensemble.HistGradientBoostingRegressor(**fixed, max_iter=num_trees, early_stopping=False).fit(X, y)
        fitted = time.perf_counter()
        mean = model.predict(X_test)
        seconds = time.perf_counter() - fitted
    details = {"sklearn": sklearn.__version__, "trees": num_trees}
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
    with importlib.import_module("threadpoolctl").threadpool_limits(torch.get_num_threads(), user_api="openmp"):
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


_QUANTILES = {"rate": LIGHTGBM_RATE, "quantile_patience": QUANTILE_PATIENCE}
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


def for_trees(X: pd.DataFrame, X_test: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables as boosted trees take them: text as categories, whose levels are those of the training rows.

    Dates and durations become days, as in ``cagp.data.Encoder``.
    """
    train, test = {}, {}
    for j, name in enumerate(X.columns):
        column, new = X.iloc[:, j], X_test.iloc[:, j]
        if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
            train[name], test[name] = _days(column), _days(new)
        elif pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
            train[name], test[name] = (part.astype(np.float64) for part in (column, new))
        else:
            levels = sorted(set(column.dropna().astype(str)))
            train[name], test[name] = (_levels(part, levels) for part in (column, new))
    return pd.DataFrame(train), pd.DataFrame(test)


def _levels(values: pd.Series, levels: list[str]) -> pd.Series:
    """Text as categories; what is not one of the levels is missing."""
    text = values.astype("string")
    return text.where(text.isin(levels)).astype(pd.CategoricalDtype(levels))


def _days(values: pd.Series) -> pd.Series:
    origin = pd.Timestamp(0, tz=getattr(values.dt, "tz", None)) if values.dtype.kind == "M" else pd.Timedelta(0)
    return (values - origin) / pd.Timedelta(days=1)


def _constant_variance(mean: np.ndarray, variance: float) -> Prediction:
    values = torch.from_numpy(np.ascontiguousarray(mean))
    return Prediction(values, torch.full_like(values, variance))


def _validation(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows to learn from, and training rows to choose by."""
    rows = split(num_rows, VALIDATION_SHARE, seed)
    return rows.train.numpy(), rows.test.numpy()


def installed(name: str) -> Any:
    """The package of this name; ImportError says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'cagp-bench[peers]'") from error
