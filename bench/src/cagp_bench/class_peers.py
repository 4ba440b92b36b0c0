"""Classifiers that a person would reach for besides this package's, each set up as its documentation advises.

LightGBM, CatBoost and histogram boosting choose the number of their trees on a tenth of the training rows, the first
two also their size, and are then fitted to all training rows. All use as many threads as torch.
"""

import importlib
import warnings
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from cagp_bench.boosted_trees import catboost_trees, hist_trees, lightgbm_trees, one_pool
from cagp_bench.peers import GPBOOST_NEIGHBOURS, encoded, gpboost_model

Codes = Int[np.ndarray, " n"]
Found = tuple[Float[np.ndarray, "t c"], dict[str, Any]]
"""Probabilities of the test rows, and what was chosen."""

SKLEARN_ROWS = 2000
"""Of which scikit-learn's exact Gaussian process learns: time grows with their third power."""


def lightgbm_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """LightGBM with small steps; leaves and number of trees from held-out rows."""
    several = codes.max() > 1
    objective = {"objective": "multiclass", "num_class": int(codes.max()) + 1} if several else {"objective": "binary"}
    trees = lightgbm_trees(X, codes, X_test, seed, objective)
    p = np.asarray(trees.model.predict(trees.X_test))
    return p if several else np.stack([1 - p, p], 1), {"leaves": trees.size, "trees": trees.chosen.trees}


def catboost_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """CatBoost with its own learning rate; depth and number of trees from held-out rows."""
    trees = catboost_trees(X, codes, X_test, seed, "Classifier", "MultiClass" if codes.max() > 1 else "Logloss")
    details = {"depth": trees.size, "trees": trees.chosen.trees, "rate": trees.chosen.rate}
    return trees.model.predict_proba(trees.X_test), details


def hist_classes(X: pd.DataFrame, codes: Codes, X_test: pd.DataFrame, seed: int) -> Found:
    """Histogram boosting of scikit-learn with its own early stopping, then fitted to all rows."""
    trees = hist_trees(X, codes, X_test, seed, "Classifier")
    with one_pool():
        return trees.model.predict_proba(trees.X_test), {"trees": trees.chosen.trees}


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
