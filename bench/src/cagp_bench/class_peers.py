"""Classifiers that a person would reach for besides this package's, each set up as its documentation advises.

LightGBM, CatBoost and histogram boosting choose the number of their trees on a tenth of the training rows, the first
two also their size, and are then fitted to all training rows. All use as many threads as torch.
"""

import importlib
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from cagp.data import split
from cagp_bench.peers import (
    CATBOOST_DEPTHS,
    GPBOOST_NEIGHBOURS,
    LIGHTGBM_LEAVES,
    LIGHTGBM_RATE,
    MAX_TREES,
    PATIENCE,
    VALIDATION_SHARE,
    encoded,
    for_trees,
    gpboost_model,
    installed,
)

Codes = Int[np.ndarray, " n"]
Found = tuple[Float[np.ndarray, "t c"], dict[str, Any]]
"""Probabilities of the test rows, and what was chosen."""

SKLEARN_ROWS = 2000
"""Of which scikit-learn's exact Gaussian process learns: time grows with their third power."""


def lightgbm_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """LightGBM with small steps; leaves and number of trees from validation rows."""
    lightgbm = installed("lightgbm")
    X, X_test = for_trees(X, X_test)
    plain = [f"x{j}" for j in range(X.shape[1])]
    X, X_test = X.set_axis(plain, axis=1), X_test.set_axis(plain, axis=1)
    several, (train, held) = codes.max() > 1, _parts(len(codes), seed)
    objective = {"objective": "multiclass", "num_class": int(codes.max()) + 1} if several else {"objective": "binary"}
    fixed = {**objective, "learning_rate": LIGHTGBM_RATE, "verbosity": -1, "seed": seed, "deterministic": True}
    fixed["num_threads"] = torch.get_num_threads()
    rows = lightgbm.Dataset(X.iloc[train], codes[train], free_raw_data=False)
    judges = lightgbm.Dataset(X.iloc[held], codes[held], reference=rows, free_raw_data=False)
    stopping, loss = (
        [lightgbm.early_stopping(PATIENCE, verbose=False)],
        "multi_logloss" if several else "binary_logloss",
    )
    found = {}
    for leaves in LIGHTGBM_LEAVES:
        tried = lightgbm.train(
            {**fixed, "num_leaves": leaves}, rows, MAX_TREES, valid_sets=[judges], callbacks=stopping
        )
        found[leaves] = float(tried.best_score["valid_0"][loss]), tried.best_iteration
    leaves = min(found, key=lambda name: found[name])
    model = lightgbm.train({**fixed, "num_leaves": leaves}, lightgbm.Dataset(X, codes), found[leaves][1])
    p = np.asarray(model.predict(X_test))
    return p if several else np.stack([1 - p, p], 1), {"leaves": leaves, "trees": found[leaves][1]}


def catboost_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """CatBoost with its own learning rate; depth and number of trees from validation rows."""
    catboost = installed("catboost")
    X, X_test = for_trees(X, X_test)
    text = [name for name in X if isinstance(X[name].dtype, pd.CategoricalDtype)]
    if text:
        X, X_test = (part.astype(dict.fromkeys(text, object)).fillna(dict.fromkeys(text, "")) for part in (X, X_test))
    train, held = _parts(len(codes), seed)
    fixed = {"loss_function": "MultiClass" if codes.max() > 1 else "Logloss", "random_seed": seed}
    fixed |= {"thread_count": torch.get_num_threads(), "allow_writing_files": False, "verbose": False}
    fixed["cat_features"] = text
    judges = catboost.Pool(X.iloc[held], codes[held], cat_features=text)
    found = {}
    for depth in CATBOOST_DEPTHS:
        tried = catboost.CatBoostClassifier(depth=depth, iterations=MAX_TREES, early_stopping_rounds=PATIENCE, **fixed)
        tried.fit(X.iloc[train], codes[train], eval_set=judges, use_best_model=True)
        loss = float(tried.best_score_["validation"][fixed["loss_function"]])
        found[depth] = loss, tried.tree_count_, tried.learning_rate_
    depth = min(found, key=lambda name: found[name])
    _, trees, rate = found[depth]
    model = catboost.CatBoostClassifier(depth=depth, iterations=trees, learning_rate=rate, **fixed).fit(X, codes)
    return model.predict_proba(X_test), {"depth": depth, "trees": trees, "rate": rate}


def hist_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """Histogram boosting of scikit-learn with its own early stopping, then fitted to all rows."""
    ensemble = importlib.import_module("sklearn.ensemble")
    X, X_test = for_trees(X, X_test)
    fixed = {"learning_rate": LIGHTGBM_RATE, "random_state": seed, "categorical_features": "from_dtype"}
    stopping = {"max_iter": MAX_TREES, "early_stopping": True, "n_iter_no_change": PATIENCE}
    with importlib.import_module("threadpoolctl").threadpool_limits(torch.get_num_threads(), user_api="openmp"):
        tried = ensemble.HistGradientBoostingClassifier(**fixed, **stopping).fit(X, codes)
        trees = max(1, int(np.argmax(tried.validation_score_)))  # the first score is that of no trees
        model = ensemble.HistGradientBoostingClassifier(**fixed, max_iter=trees, early_stopping=False).fit(X, codes)
        return model.predict_proba(X_test), {"trees": trees}


def gpboost_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """GPBoost's Vecchia-Laplace approximation with the logistic link, for two classes."""
    if codes.max() > 1:
        raise ValueError(f"GPBoost's Gaussian process has two classes, and the table has {codes.max() + 1}.")
    inputs, points = encoded(X, codes.astype(float), X_test)
    model = gpboost_model(inputs, "bernoulli_logit", seed)
    model.fit(y=codes.astype(float))
    p = np.asarray(model.predict(gp_coords_pred=points.numpy(), predict_var=False, predict_response=True)["mu"])
    return np.stack([1 - p, p], 1), {"k": GPBOOST_NEIGHBOURS}


def sklearn_gp_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """The Gaussian process of scikit-learn (Laplace, one against the rest) on some rows, with a Matérn 3/2 kernel."""
    gp = importlib.import_module("sklearn.gaussian_process")
    kernels = gp.kernels
    inputs, points = (part.numpy() for part in encoded(X, codes.astype(float), X_test))
    some = np.random.default_rng(seed).permutation(len(codes))[:SKLEARN_ROWS]
    kernel = kernels.ConstantKernel(4.0) * kernels.Matern([2.0] * inputs.shape[1], nu=1.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length at its bound is no error of ours
        model = gp.GaussianProcessClassifier(kernel, random_state=seed).fit(inputs[some], codes[some])
    p = np.full((len(points), int(codes.max()) + 1), 1e-15)
    p[:, model.classes_] = model.predict_proba(points)
    return p, {"rows_used": len(some)}


PEERS = {
    "lightgbm": lightgbm_classes,
    "catboost": catboost_classes,
    "hist": hist_classes,
    "gpboost": gpboost_classes,
    "sklearn-gp": sklearn_gp_classes,
}


def _parts(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows = split(num_rows, VALIDATION_SHARE, seed)
    return rows.train.numpy(), rows.test.numpy()
