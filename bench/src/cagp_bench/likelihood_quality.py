"""``cagp bench counts`` and ``cagp bench outliers``: likelihoods of regressors on your tables.

Of each table, 90 % of the rows are for training and 10 % for testing, by seed. Every contender makes its choices on the
training rows alone. Boosted trees for counts have as many trees as predict a tenth of these rows best; they predict
means, and the same tenth gives the dispersion of a negative binomial distribution about them.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import optimize

from cagp import CaGPRegressor
from cagp.data import read_table, split
from cagp.estimators.predictive import Observations
from cagp.likelihoods import NegativeBinomial, Poisson
from cagp.metrics import Scores
from cagp_bench.boosted_trees import catboost_trees, hist_trees, lightgbm_trees
from cagp_bench.options import add_methods, add_seeds, add_tables, add_target
from cagp_bench.peers import encoded, gpboost_model
from cagp_bench.record_files import append_record
from cagp_bench.records import FAILED, Columns, attempt, cell, collect, machine, show

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


COUNTING = (
    *("negative-binomial", "lightgbm", "poisson", "poisson-trees", "negative-binomial-trees"),
    *("negative-binomial-auto", "catboost", "hist", "gpboost"),
)
"""What ``cagp bench counts`` fits to a table; the first two unless others are named."""

ROBUST = (
    *("gaussian", "student-t", "gaussian-one-scale", "gaussian-trees", "gaussian-auto", "student-t-trees"),
    "student-t-auto",
)
"""What ``cagp bench outliers`` fits to a table; the first two unless others are named."""


def add_counts(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench counts``."""
    suite.description = (
        "Fit regressors for counts to 90 % of the rows of each table and score their predictions of the others: NLL, "
        "RMSE, CRPS, Poisson deviance of the mean, coverage, processor seconds."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench counts bike.npz --logarithms --drop x14 x15"
    _add_common(suite, COUNTING)
    suite.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns that are not inputs")
    suite.add_argument("--logarithms", action="store_true", help="the target holds logarithms of counts")
    suite.set_defaults(run=partial(_run, measure=measured_counts, columns=_COUNT_COLUMNS, num_keys=3))


def add_outliers(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench outliers``."""
    suite.description = (
        "Replace a share of the training targets of each table by gross errors, fit regressors, and score their "
        "predictions of clean rows, in standard deviations of clean targets."
    )
    suite.epilog = "example:\n  OMP_NUM_THREADS=1 cagp bench outliers protein.npz --rows 10000 --shares 0 0.1"
    _add_common(suite, ROBUST)
    suite.add_argument("--rows", type=int, default=30_000, metavar="N", help="training rows, at most (default: 30000)")
    suite.add_argument(
        "--shares", type=float, nargs="+", default=[0.0, 0.1], metavar="SHARE", help="of gross errors (default: 0 0.1)"
    )
    suite.set_defaults(run=partial(_run, measure=measured_outliers, columns=_OUTLIER_COLUMNS, num_keys=4))


def _add_common(suite: argparse.ArgumentParser, methods: tuple[str, ...]) -> None:
    add_tables(suite)
    add_target(suite)
    add_methods(suite, methods, methods[:2])
    add_seeds(suite)
    suite.add_argument("--records", type=Path, metavar="FILE", help="JSON lines, to which records are added")


def _run(arguments: argparse.Namespace, measure: Callable[..., dict[str, Any]], columns: Columns, num_keys: int) -> int:
    """Measure every contender on every table and split, and print a record for each; return 1 if any failed."""
    a = arguments
    shares = getattr(a, "shares", [None])
    cases = itertools.product(a.tables, a.seeds, shares, a.methods)

    def measured(path: Path, seed: int, share: float | None, method: str) -> dict[str, Any]:
        about = {} if share is None else {"share": share}
        record = {**machine(), "table": path.stem, "seed": seed, **about, "method": method}
        record |= attempt(lambda: measure(a, path, **about, seed=seed, method=method))
        if a.records is not None:
            append_record(a.records, record)
        return record

    measurements = [partial(measured, *case) for case in cases]
    return collect(measurements, _in_words, partial(show, columns=columns, as_json=a.json, num_keys=num_keys))


def measured_counts(arguments: argparse.Namespace, path: Path, seed: int, method: str) -> dict[str, Any]:
    """Scores and processor time of one contender on counts."""
    table = read_table(path)
    y, X = table[arguments.target].to_numpy(float), table.drop(columns=[arguments.target, *arguments.drop])
    y = np.round(np.exp(y)) if arguments.logarithms else y
    rows = split(len(X), TEST_SHARE, seed=seed)
    train, test = rows.train.numpy(), rows.test.numpy()
    began = time.process_time()
    found, more = _predicted_counts(method, X.iloc[train], y[train], X.iloc[test], seed)
    spent = time.process_time() - began
    more |= {"deviance": _deviance(y[test], found.mean()[:, 0]), "dropped": arguments.drop}
    if method in PEERS:
        alone = Observations(found.latent_mean, np.zeros_like(found.latent_mean), Poisson())
        more["nll_poisson"] = alone.scores(0, y[test]).nll
    return {"rows": len(train), "cpu_seconds": spent, **found.scores(0, y[test])._asdict(), **more}


def measured_outliers(
    arguments: argparse.Namespace, path: Path, share: float, seed: int, method: str
) -> dict[str, Any]:
    """Scores on clean rows and processor time of one regressor; errors are in standard deviations of clean targets."""
    table = read_table(path)
    drawn = np.random.default_rng(seed).permutation(len(table))[: round(arguments.rows / (1 - TEST_SHARE))]
    table = table.iloc[np.sort(drawn)]
    y, X = table[arguments.target].to_numpy(float), table.drop(columns=arguments.target)
    rows = split(len(X), TEST_SHARE, seed=seed)
    train, test = rows.train.numpy(), rows.test.numpy()
    y = (y - y[train].mean()) / y[train].std()
    wrong = with_gross_errors(y[train], share, seed)
    began = time.process_time()
    model = CaGPRegressor(**OWN[method], random_state=seed).fit(X.iloc[train], wrong)
    spent = time.process_time() - began
    found: Scores = model.predictive(X.iloc[test]).scores(0, y[test])
    more = {"converged": _converged(model), "fitted": model.method_, "trees": model.trees_ is not None}
    return {"rows": len(train), "cpu_seconds": spent, **found._asdict(), **more}


def _converged(model: Any) -> bool:
    """Whether the sites of a likelihood have converged."""
    return "have not converged" not in model.fit_report_


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
        return found, {"converged": _converged(model), "trees": model.trees_ is not None}
    if method == "gpboost":
        return _gpboost(X, y, X_test, seed), {}
    trees = PEERS[method](X, y, X_test, seed)
    tried, mean = trees.held_out.predict(trees.X_held), trees.model.predict(trees.X_test)
    dispersion = _dispersion(trees.y_held, tried)
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


# ---- what it is compared with ----

PEERS: dict[str, Callable[..., Any]] = {
    "lightgbm": partial(lightgbm_trees, objective={"objective": "poisson"}, leaves=(31,)),
    "catboost": partial(catboost_trees, kind="Regressor", loss="Poisson", depths=(6,)),
    "hist": partial(hist_trees, kind="Regressor", loss="poisson"),
}
"""Boosted trees of the size that their packages choose, as many as predict held-out rows best."""


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


def _columns(*names: str) -> Columns:
    shown = {
        "table": cell("table"),
        "seed": cell("seed"),
        "share": cell("share", "{:.2f}"),
        "method": cell("method"),
        "rows": cell("rows", "{:,}"),
        "NLL": cell("nll", "{:.4f}", FAILED),
        "NLL, Poisson": cell("nll_poisson", "{:.3f}"),
        "RMSE": cell("rmse", "{:.4f}"),
        "CRPS": cell("crps", "{:.3f}"),
        "deviance": cell("deviance", "{:.3f}"),
        "coverage": cell("coverage", "{:.3f}"),
        "converged": cell("converged"),
        "CPU, s": cell("cpu_seconds", "{:.1f}"),
    }
    return {name: text for name, text in shown.items() if name not in names}


_COUNT_COLUMNS = _columns("share", "converged")
_OUTLIER_COLUMNS = _columns("NLL, Poisson", "CRPS", "deviance")
