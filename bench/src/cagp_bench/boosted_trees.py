"""Boosted trees of other packages, as their documentation advises: number and size of the trees from held-out rows.

A tenth of the training rows is held out. The model of the best size is then fitted to all training rows. With a limit
of time, each size and the last fit get the same share of it. All use as many threads as torch.
"""

import importlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from cagp.data import split

VALIDATION_SHARE = 0.1
MAX_TREES, PATIENCE = 5_000, 100
LIGHTGBM_RATE = 0.05
LIGHTGBM_LEAVES = (15, 31, 63, 127)
CATBOOST_DEPTHS = (4, 6, 8)


class Tried(NamedTuple):
    """A size of trees: the loss of held-out rows, and the number of trees that has it."""

    loss: float
    trees: int
    rate: float | None = None  # that the package chose


class Boosted(NamedTuple):
    """A fitted model, and what it was chosen by."""

    model: Any  # fitted to all training rows
    held_out: Any  # of the same size, fitted without the held-out rows
    X_held: pd.DataFrame
    y_held: np.ndarray
    X_test: pd.DataFrame  # as the model takes it
    size: int | None  # leaves or depth
    tried: dict[int | None, Tried]  # by size

    @property
    def chosen(self) -> Tried:
        return self.tried[self.size]


def installed(name: str) -> Any:
    """The package of this name; ImportError says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: pip install 'cagp-bench[peers]'") from error


def lightgbm_trees(
    X: pd.DataFrame,
    y: np.ndarray,
    X_test: pd.DataFrame,
    seed: int,
    objective: dict[str, Any],
    leaves: Sequence[int] = LIGHTGBM_LEAVES,
    seconds: float | None = None,
) -> Boosted:
    """LightGBM with small steps."""
    lightgbm = installed("lightgbm")
    X, X_test = for_trees(X, X_test)
    plain = [f"x{j}" for j in range(X.shape[1])]  # it refuses names with colons, commas and brackets
    X, X_test = X.set_axis(plain, axis=1), X_test.set_axis(plain, axis=1)
    train, held = held_out_rows(len(y), seed)
    fixed = {**objective, "learning_rate": LIGHTGBM_RATE, "verbosity": -1, "seed": seed}
    fixed |= {"num_threads": torch.get_num_threads(), "deterministic": True}
    rows = lightgbm.Dataset(X.iloc[train], y[train], free_raw_data=False)
    watched = lightgbm.Dataset(X.iloc[held], y[held], reference=rows, free_raw_data=False)
    models, tried = {}, {}
    for size in leaves:
        losses: dict[str, Any] = {}
        watching = [lightgbm.record_evaluation(losses), lightgbm.early_stopping(PATIENCE, verbose=False)]
        if seconds is not None:
            end = time.perf_counter() + seconds / (len(leaves) + 1)
            watching.append(partial(_stop_lightgbm, lightgbm.callback.EarlyStopException, end))
        settings = {**fixed, "num_leaves": size}
        models[size] = lightgbm.train(settings, rows, MAX_TREES, valid_sets=[watched], callbacks=watching)
        (curve,) = losses["valid_0"].values()
        tried[size] = Tried(min(curve), int(np.argmin(curve)) + 1)
    best = min(tried, key=lambda size: tried[size])
    model = lightgbm.train({**fixed, "num_leaves": best}, lightgbm.Dataset(X, y), tried[best].trees)
    return Boosted(model, models[best], X.iloc[held], y[held], X_test, best, tried)


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


def catboost_trees(
    X: pd.DataFrame,
    y: np.ndarray,
    X_test: pd.DataFrame,
    seed: int,
    kind: str,
    loss: str,
    depths: Sequence[int] = CATBOOST_DEPTHS,
    seconds: float | None = None,
) -> Boosted:
    """CatBoost with its own learning rate; ``kind`` is "Regressor" or "Classifier"."""
    catboost = installed("catboost")
    make = getattr(catboost, f"CatBoost{kind}")
    X, X_test = for_trees(X, X_test)
    text = [name for name in X if isinstance(X[name].dtype, pd.CategoricalDtype)]
    if text:  # its levels are text, also where a value is missing
        X, X_test = (part.astype(dict.fromkeys(text, object)).fillna(dict.fromkeys(text, "")) for part in (X, X_test))
    train, held = held_out_rows(len(y), seed)
    fixed = {"loss_function": loss, "random_seed": seed, "thread_count": torch.get_num_threads()}
    fixed |= {"allow_writing_files": False, "verbose": False, "cat_features": text}
    watched = catboost.Pool(X.iloc[held], y[held], cat_features=text)
    models, tried = {}, {}
    for depth in depths:
        model = make(depth=depth, iterations=MAX_TREES, early_stopping_rounds=PATIENCE, **fixed)
        stopping = None if seconds is None else [_StopCatBoost(time.perf_counter() + seconds / (len(depths) + 1))]
        model.fit(X.iloc[train], y[train], eval_set=watched, use_best_model=True, callbacks=stopping)
        found = float(model.best_score_["validation"][loss])
        models[depth], tried[depth] = model, Tried(found, model.tree_count_, model.learning_rate_)
    best = min(tried, key=lambda depth: tried[depth])
    model = make(depth=best, iterations=tried[best].trees, learning_rate=tried[best].rate, **fixed).fit(X, y)
    return Boosted(model, models[best], X.iloc[held], y[held], X_test, best, tried)


def hist_trees(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int, kind: str, **options: Any) -> Boosted:
    """Histogram boosting of scikit-learn with its own early stopping; ``kind`` is "Regressor" or "Classifier"."""
    make = getattr(importlib.import_module("sklearn.ensemble"), f"HistGradientBoosting{kind}")
    X, X_test = for_trees(X, X_test)
    train, held = held_out_rows(len(y), seed)
    fixed = {"learning_rate": LIGHTGBM_RATE, "random_state": seed, "categorical_features": "from_dtype", **options}
    with one_pool():
        stopping = {"max_iter": MAX_TREES, "early_stopping": True, "n_iter_no_change": PATIENCE}
        tried = make(**fixed, **stopping).fit(X.iloc[train], y[train])
        trees = max(1, int(np.argmax(tried.validation_score_)))  # the first score is that of no trees
        model = make(**fixed, max_iter=trees, early_stopping=False).fit(X, y)
    scores: dict[int | None, Tried] = {None: Tried(-float(np.max(tried.validation_score_)), trees)}
    return Boosted(model, tried, X.iloc[held], y[held], X_test, None, scores)


def one_pool() -> Any:
    """A block in which scikit-learn has as many threads as torch."""
    return importlib.import_module("threadpoolctl").threadpool_limits(torch.get_num_threads(), user_api="openmp")


def held_out_rows(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows to learn from, and training rows to choose by."""
    rows = split(num_rows, VALIDATION_SHARE, seed)
    return rows.train.numpy(), rows.test.numpy()


# ---- columns ----


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
