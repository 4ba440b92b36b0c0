"""Whether two versions predict the same: every method with fixed options, on three tables of numbers.

    PYTHONPATH=OLD/src .venv/bin/python tools/same_predictions.py before.npz FOLDER
    .venv/bin/python tools/same_predictions.py after.npz FOLDER --like before.npz

FOLDER has bike.npz, parkinsons.npz, protein.npz and magic.npz. With ``--like``, the largest difference of each
prediction is printed, in units of the largest value; the exit code is 1 if one is above ``--tolerance``.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from cagp import CaGPClassifier, CaGPRegressor

TABLES = ("bike", "parkinsons", "protein")
TRAIN, TEST = 2600, 400
FIXED = {"kernel": "matern32", "random_state": 0, "max_epochs": 8}
METHODS = {
    "exact": {},
    "opt": {"n_actions": 64},
    "cg": {"n_actions": 64},
    "local": {"n_neighbors": 16, "objective": "loo"},
    "local, ordered": {"n_neighbors": 16, "objective": "ordered"},
    "local, one scale": {"n_neighbors": 16, "local_scale": None},
    "local, trees": {"n_neighbors": 16, "mean": "trees"},
    "hybrid": {"n_neighbors": 16, "n_actions": 64},
    "sgpr": {"n_inducing": 64},
    "svgp": {"n_inducing": 64},
    "cggp": {"max_epochs": 2},
}
LIKELIHOODS = {"student_t": "local", "poisson": "local", "negative_binomial": "opt"}
CLASSIFIERS = {"local": {"n_neighbors": 16}, "opt": {"n_actions": 64}, "exact": {}}


def table(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows to learn from and rows to predict, in a fixed random order."""
    with np.load(path, allow_pickle=False) as file:
        X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
    rows = np.random.default_rng(0).permutation(len(y))[: TRAIN + TEST]
    return X[rows[:TRAIN]], y[rows[:TRAIN]], X[rows[TRAIN:]], y[rows[TRAIN:]]


def predictions(folder: Path) -> dict[str, np.ndarray]:
    """Means and standard deviations, or probabilities, of every method and table."""
    answers, began = {}, time.perf_counter()

    def add(key: str, *values: np.ndarray) -> None:
        answers[key] = np.stack([np.asarray(value, dtype=np.float64) for value in values])
        print(f"{time.perf_counter() - began:7.1f} s  {key}", file=sys.stderr)

    for name in TABLES:
        X, y, Z, _ = table(folder / f"{name}.npz")
        for method, options in METHODS.items():
            choices = {**FIXED, "mean": "zero", "target": "identity", **options}
            model = CaGPRegressor(method.split(",")[0], **choices).fit(X, y)
            add(f"{name}: {method}", *model.predict(Z, return_std=True))
        counts = np.round(3 * np.exp((y - y.mean()) / y.std() / 2))
        for likelihood, method in LIKELIHOODS.items():
            targets = y if likelihood == "student_t" else counts
            model = CaGPRegressor(method, mean="zero", likelihood=likelihood, **FIXED).fit(X[:1200], targets[:1200])
            add(f"{name}: {likelihood}", *model.predict(Z, return_std=True))
    X, y, Z, _ = table(folder / "magic.npz")
    for method, options in CLASSIFIERS.items():
        model = CaGPClassifier(method, mean="zero", **FIXED, **options).fit(X[:1200], y[:1200].astype(int))
        add(f"magic: {method}", model.predict_proba(Z))
    return answers


def main() -> None:
    """Write predictions, and compare them with those of another version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    answers = predictions(arguments.folder)
    np.savez(arguments.out, **answers)
    if arguments.like is None:
        return
    worst = 0.0
    with np.load(arguments.like, allow_pickle=False) as before:
        for key, values in answers.items():
            difference = np.abs(values - before[key]).max() / np.abs(before[key]).max()
            worst = max(worst, float(difference))
            print(f"{difference:8.1e}  {key}")
    print(f"largest difference {worst:.1e}")
    sys.exit(worst > arguments.tolerance)


if __name__ == "__main__":
    main()
