"""``cagp bench classes``: the classifier beside boosted trees on your tables.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender is given the training
rows as they come and makes its choices on these alone. LightGBM stops by a tenth of the training rows.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from cagp.bench.records import Columns, collect, in_one_line, machine, show
from cagp.class_metrics import ClassScores, class_scores
from cagp.data import split
from cagp.data.tables import read_table
from cagp.estimators import CaGPClassifier
from cagp.lazy import lazy_module

lightgbm: Any = lazy_module("lightgbm")

OWN: dict[str, dict[str, Any]] = {
    "default": {},
    "local": {"method": "local", "mean": "zero"},
    "hybrid": {"method": "hybrid", "mean": "zero"},
    "opt": {"method": "opt", "mean": "zero"},
    "trees": {"method": "local", "mean": "trees"},
}
"""Options of ``CaGPClassifier`` for each contender that is one."""

LEARNING_RATE, MOST_ROUNDS, PATIENCE = 0.05, 2000, 50
TEST_SHARE = 0.1


def run(tables: list[Path], target: str, methods: list[str], seeds: list[int], as_json: bool) -> int:
    """Measure every contender on every table and split, and print a record for each; return 1 if any failed."""
    runs = [(path, seed, method) for path in tables for seed in seeds for method in methods]
    tasks = [lambda p=p, s=s, m=m: measured(p, s, m, target) for p, s, m in runs]
    return collect(tasks, _in_words, lambda records: show(records, _columns(), as_json, num_keys=3))


def measured(path: Path, seed: int, method: str, target: str) -> dict[str, Any]:
    """Scores and processor time of one contender; a record with "error" where it fails."""
    record = {**machine(), "table": path.stem, "seed": seed, "method": method}
    try:
        table = read_table(path)
        labels, X = table[target], table.drop(columns=target)
        rows = split(len(X), TEST_SHARE, seed=seed)
        train, test = rows.train.numpy(), rows.test.numpy()
        classes, codes = np.unique(labels.to_numpy(), return_inverse=True)
        began = time.process_time()
        probabilities = _predicted(method, X.iloc[train], codes[train], X.iloc[test], seed)
        spent = time.process_time() - began
    except (ValueError, KeyError, OSError, MemoryError, ArithmeticError) as error:
        return {**record, "error": in_one_line(error)}
    found = class_scores(codes[test], probabilities)
    return {**record, "rows": len(train), "classes": len(classes), "cpu_seconds": spent, **_named(found)}


def _predicted(method: str, X: Any, codes: np.ndarray, X_test: Any, seed: int) -> np.ndarray:
    if method in OWN:
        return CaGPClassifier(**OWN[method], random_state=seed).fit(X, codes).predict_proba(X_test)
    if method == "hist":
        return HistGradientBoostingClassifier(random_state=seed).fit(X, codes).predict_proba(X_test)
    return _lightgbm(X, codes, X_test, seed)


def _lightgbm(X: Any, codes: np.ndarray, X_test: Any, seed: int) -> np.ndarray:
    """The classifier of LightGBM, with as many trees as predict a tenth of the rows best."""
    rows = split(len(X), TEST_SHARE, seed=seed)
    train, held = rows.train.numpy(), rows.test.numpy()
    several = codes.max() > 1
    objective = {"objective": "multiclass", "num_class": int(codes.max()) + 1} if several else {"objective": "binary"}
    settings = {**objective, "learning_rate": LEARNING_RATE, "seed": seed, "num_threads": 1, "verbosity": -1}
    data = lightgbm.Dataset(X.iloc[train], codes[train])
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    judges = [lightgbm.Dataset(X.iloc[held], codes[held], reference=data)]
    model = lightgbm.train(settings, data, MOST_ROUNDS, valid_sets=judges, callbacks=[stop])
    found = np.asarray(model.predict(X_test, num_threads=1))
    return found if several else np.stack([1 - found, found], axis=1)


def _named(found: ClassScores) -> dict[str, float]:
    """The scores; "error" in a record says that it failed."""
    scores = found._asdict()
    return {"error_share" if name == "error" else name: value for name, value in scores.items()}


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: log loss {record['log_loss']:.4f}, {record['cpu_seconds']:.1f} s"


def _columns() -> Columns:
    def column(name: str, form: str):
        otherwise = "failed" if name == "log_loss" else ""
        return lambda record: form.format(record[name]) if name in record else otherwise

    return {
        "table": lambda record: record["table"],
        "seed": lambda record: str(record["seed"]),
        "method": lambda record: record["method"],
        "rows": column("rows", "{:,}"),
        "log loss": column("log_loss", "{:.4f}"),
        "wrong": column("error_share", "{:.4f}"),
        "Brier": column("brier", "{:.4f}"),
        "calibration": column("calibration_error", "{:.4f}"),
        "CPU, s": column("cpu_seconds", "{:.1f}"),
    }
