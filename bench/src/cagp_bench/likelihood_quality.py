"""``cagp bench counts`` and ``cagp bench outliers``: likelihoods of regressors on your tables.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender makes its choices on the
training rows alone. Boosted trees for counts have as many trees as predict a tenth of these rows best; they predict
means, and the same tenth gives the dispersion of a negative binomial distribution about them.
"""

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import optimize
from sklearn.ensemble import HistGradientBoostingRegressor

from cagp.data import split
from cagp.data.tables import read_table
from cagp.estimators import CaGPRegressor
from cagp.estimators.observations import Observations
from cagp.lazy import lazy_module
from cagp.likelihoods import NegativeBinomial, Poisson
from cagp.metrics import Scores
from cagp_bench.peers import LIGHTGBM_RATE, MAX_TREES, PATIENCE, VALIDATION_SHARE, encoded, gpboost_model
from cagp_bench.record_files import append_record
from cagp_bench.records import Columns, collect, in_one_line, machine, show

lightgbm: Any = lazy_module("lightgbm")

TEST_SHARE = 0.1
GROSS = 10.0
"""Gross errors are normal, with this many times the standard deviation of the targets."""

OWN: dict[str, dict[str, Any]] = {
    "poisson": {"method": "local", "likelihood": "poisson", "mean": "zero"},
    "poisson-trees": {"method": "local", "likelihood": "poisson", "mean": "trees"},
    "negative-binomial": {"method": "local", "likelihood": "negative_binomial", "mean": "zero"},
    "negative-binomial-trees": {"method": "local", "likelihood": "negative_binomial", "mean": "trees"},
    "negative-binomial-auto": {"likelihood": "negative_binomial"},
    "gaussian": {"method": "local"},
    "gaussian-one-scale": {"method": "local", "local_scale": None},
    "gaussian-trees": {"method": "local", "mean": "trees"},
    "gaussian-auto": {},
    "student-t": {"method": "local", "likelihood": "student_t", "mean": "zero"},
    "student-t-trees": {"method": "local", "likelihood": "student_t", "mean": "trees"},
    "student-t-auto": {"likelihood": "student_t"},
}
"""Options of ``CaGPRegressor`` for each contender that is one."""


def run_counts(
    tables: list[Path],
    target: str,
    drop: list[str],
    is_logarithm: bool,
    methods: list[str],
    seeds: list[int],
    records: Path | None,
    as_json: bool,
) -> int:
    """Measure every contender on every table and split, and print a record for each; return 1 if any failed.

    Args:
        is_logarithm: whether the target holds logarithms of counts.
        records: a file of JSON lines, to which each record is added when it is measured.
    """
    runs = [(path, seed, method) for path in tables for seed in seeds for method in methods]
    tasks = [
        _kept(lambda p=p, s=s, m=m: measured_counts(p, s, m, target, drop, is_logarithm), records) for p, s, m in runs
    ]
    return collect(tasks, _in_words, lambda found: show(found, _columns(_COUNT_COLUMNS), as_json, num_keys=3))


def run_outliers(
    tables: list[Path],
    target: str,
    num_rows: int,
    shares: list[float],
    methods: list[str],
    seeds: list[int],
    records: Path | None,
    as_json: bool,
) -> int:
    """The same with gross errors in a share of the training targets; test rows are clean."""
    runs = [(p, s, share, m) for p in tables for s in seeds for share in shares for m in methods]
    tasks = [
        _kept(lambda p=p, s=s, a=share, m=m: measured_outliers(p, s, a, m, target, num_rows), records)
        for p, s, share, m in runs
    ]
    return collect(tasks, _in_words, lambda found: show(found, _columns(_OUTLIER_COLUMNS), as_json, num_keys=4))


def _kept(measure: Callable[[], dict[str, Any]], records: Path | None) -> Callable[[], dict[str, Any]]:
    def kept() -> dict[str, Any]:
        record = measure()
        if records is not None:
            append_record(records, record)
        return record

    return kept


_FAILURES = (ValueError, KeyError, OSError, MemoryError, ArithmeticError, ImportError)


def measured_counts(
    path: Path, seed: int, method: str, target: str, drop: list[str], is_logarithm: bool
) -> dict[str, Any]:
    """Scores and processor time of one contender on counts; a record with "error" where it fails."""
    record = {**machine(), "table": path.stem, "dropped": drop, "seed": seed, "method": method}
    try:
        table = read_table(path)
        y = table[target].to_numpy(float)
        y, X = np.round(np.exp(y)) if is_logarithm else y, table.drop(columns=[target, *drop])
        rows = split(len(X), TEST_SHARE, seed=seed)
        train, test = rows.train.numpy(), rows.test.numpy()
        began = time.process_time()
        found, more = _predicted_counts(method, X.iloc[train], y[train], X.iloc[test], seed)
        spent = time.process_time() - began
        scores = found.scores(0, y[test])
        more |= {"deviance": _deviance(y[test], found.mean()[:, 0])}
        if method in PEERS:
            alone = Observations(found.latent_mean, np.zeros_like(found.latent_mean), Poisson())
            more["nll_poisson"] = alone.scores(0, y[test]).nll
    except _FAILURES as error:
        return {**record, "error": in_one_line(error)}
    return {**record, "rows": len(train), "cpu_seconds": spent, **scores._asdict(), **more}


def measured_outliers(path: Path, seed: int, share: float, method: str, target: str, num_rows: int) -> dict[str, Any]:
    """Scores on clean rows and processor time of one regressor; errors are in standard deviations of clean targets."""
    record = {**machine(), "table": path.stem, "seed": seed, "share": share, "method": method}
    try:
        table = read_table(path)
        drawn = np.random.default_rng(seed).permutation(len(table))[: round(num_rows / (1 - TEST_SHARE))]
        table = table.iloc[np.sort(drawn)]
        y, X = table[target].to_numpy(float), table.drop(columns=target)
        rows = split(len(X), TEST_SHARE, seed=seed)
        train, test = rows.train.numpy(), rows.test.numpy()
        y = (y - y[train].mean()) / y[train].std()
        wrong = with_gross_errors(y[train], share, seed)
        began = time.process_time()
        model = CaGPRegressor(**OWN[method], random_state=seed).fit(X.iloc[train], wrong)
        spent = time.process_time() - began
        found: Scores = model.predictive(X.iloc[test]).scores(0, y[test])
    except _FAILURES as error:
        return {**record, "error": in_one_line(error)}
    converged = "have not converged" not in model.fit_report_
    more = {"converged": converged, "fitted": model.method_, "trees": model.trees_ is not None}
    return {**record, "rows": len(train), "cpu_seconds": spent, **found._asdict(), **more}


def with_gross_errors(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Standardised targets, a share of which is replaced by normal numbers ``GROSS`` times as wide."""
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(y))[: round(share * len(y))]
    wrong = y.copy()
    wrong[chosen] = GROSS * random.normal(size=len(chosen))
    return wrong


def _predicted_counts(
    method: str, X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int
) -> tuple[Observations, dict[str, Any]]:
    if method in OWN:
        model = CaGPRegressor(**OWN[method], random_state=seed).fit(X, y)
        found = model.predictive(X_test)
        assert isinstance(found, Observations)
        return found, {"converged": "have not converged" not in model.fit_report_, "trees": model.trees_ is not None}
    if method == "gpboost":
        return _gpboost(X, y, X_test, seed), {}
    rows = split(len(X), VALIDATION_SHARE, seed=seed)
    train, judges = rows.train.numpy(), rows.test.numpy()
    tried, mean = PEERS[method](X, y, X_test, train, judges, seed)
    dispersion = _dispersion(y[judges], tried)
    latent = np.log(np.maximum(mean, 1e-10))[:, None]
    likelihood = NegativeBinomial(dispersion).requires_grad_(False)
    return Observations(latent, np.zeros_like(latent), likelihood), {"dispersion": dispersion}


def _dispersion(y: np.ndarray, mean: np.ndarray) -> float:
    """The dispersion of a negative binomial distribution with these means that suits counts best."""
    f, counts = torch.from_numpy(np.log(np.maximum(mean, 1e-10))), torch.from_numpy(y)

    def loss(log_dispersion: float) -> float:
        with torch.no_grad():
            return -float(NegativeBinomial(float(np.exp(log_dispersion))).log_density(counts, f).mean())

    found: Any = optimize.minimize_scalar(loss, bounds=(-12, 3), method="bounded")
    return float(np.exp(found.x))


# ---- what it is compared with: each gives its predictions of validation rows, and of test rows after a fit to all ----


def _lightgbm(X: Any, y: Any, X_test: Any, train: Any, judges: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    settings = {"objective": "poisson", "learning_rate": LIGHTGBM_RATE, "seed": seed, "verbosity": -1}
    settings |= {"num_threads": torch.get_num_threads()}
    data = lightgbm.Dataset(X.iloc[train], y[train])
    held = lightgbm.Dataset(X.iloc[judges], y[judges], reference=data)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    tried = lightgbm.train(settings, data, MAX_TREES, valid_sets=[held], callbacks=[stop])
    model = lightgbm.train(settings, lightgbm.Dataset(X, y), tried.best_iteration)
    return np.asarray(tried.predict(X.iloc[judges])), np.asarray(model.predict(X_test))


def _catboost(X: Any, y: Any, X_test: Any, train: Any, judges: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    catboost = importlib.import_module("catboost")
    fixed = {"loss_function": "Poisson", "random_seed": seed, "thread_count": torch.get_num_threads()}
    fixed |= {"allow_writing_files": False, "verbose": False}
    tried = catboost.CatBoostRegressor(iterations=MAX_TREES, early_stopping_rounds=PATIENCE, **fixed)
    tried.fit(X.iloc[train], y[train], eval_set=(X.iloc[judges], y[judges]), use_best_model=True)
    model = catboost.CatBoostRegressor(iterations=tried.tree_count_, learning_rate=tried.learning_rate_, **fixed)
    model.fit(X, y)
    return tried.predict(X.iloc[judges]), model.predict(X_test)


def _hist(X: Any, y: Any, X_test: Any, train: Any, judges: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    fixed: dict[str, Any] = {"loss": "poisson", "learning_rate": LIGHTGBM_RATE, "random_state": seed}
    stopping: dict[str, Any] = {"max_iter": MAX_TREES, "early_stopping": True, "n_iter_no_change": PATIENCE}
    tried = HistGradientBoostingRegressor(**fixed, **stopping).fit(X.iloc[train], y[train])
    num_trees = max(1, int(np.argmax(tried.validation_score_)))
    whole: dict[str, Any] = {**fixed, "max_iter": num_trees, "early_stopping": False}
    model = HistGradientBoostingRegressor(**whole).fit(X, y)
    return tried.predict(X.iloc[judges]), model.predict(X_test)


PEERS: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "lightgbm": _lightgbm,
    "catboost": _catboost,
    "hist": _hist,
}


def _gpboost(X: pd.DataFrame, y: np.ndarray, X_test: pd.DataFrame, seed: int) -> Observations:
    """GPBoost's Vecchia approximation with Poisson counts; its latent function is normal at each row."""
    inputs, points = encoded(X, y, X_test)
    model = gpboost_model(inputs, "poisson", seed)
    ones, ones_test = np.ones((len(y), 1)), np.ones((len(X_test), 1))
    model.fit(y=y, X=ones)
    new = model.predict(gp_coords_pred=points.numpy(), X_pred=ones_test, predict_var=True, predict_response=False)
    return Observations(new["mu"][:, None], np.maximum(new["var"], 0)[:, None], Poisson())


def _deviance(y: np.ndarray, mean: np.ndarray) -> float:
    """The mean Poisson deviance 2 (y log(y / μ) - y + μ), which judges means alone; lower is better."""
    return float(np.mean(2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0.0) - y + mean)))


# ---- what is printed ----


def _in_words(record: dict[str, Any]) -> str:
    share = f", {record['share']:.0%} gross errors" if "share" in record else ""
    start = f"{record['table']}, seed {record['seed']}{share}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.4f}, RMSE {record['rmse']:.4f}, {record['cpu_seconds']:.1f} s"


_COUNT_COLUMNS = {"rows": "{:,}", "nll": "{:.4f}", "nll_poisson": "{:.3f}", "rmse": "{:.3f}", "crps": "{:.3f}"}
_COUNT_COLUMNS |= {"deviance": "{:.3f}", "coverage": "{:.3f}", "cpu_seconds": "{:.1f}"}
_OUTLIER_COLUMNS = {"share": "{:.2f}", "rows": "{:,}", "nll": "{:.4f}", "rmse": "{:.4f}", "coverage": "{:.3f}"}
_OUTLIER_COLUMNS |= {"converged": "{}", "cpu_seconds": "{:.1f}"}


def _columns(shown: dict[str, str]) -> Columns:
    def column(name: str, form: str):
        otherwise = "failed" if name == "nll" else ""
        return lambda record: form.format(record[name]) if name in record else otherwise

    keys = {name: lambda record, name=name: str(record[name]) for name in ("table", "seed", "method")}
    words = {"nll": "NLL", "nll_poisson": "NLL, Poisson", "rmse": "RMSE", "crps": "CRPS", "cpu_seconds": "CPU, s"}
    return {**keys, **{words.get(name, name): column(name, form) for name, form in shown.items()}}
