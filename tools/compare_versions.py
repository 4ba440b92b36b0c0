"""Show that a change of cagp leaves every computed number as it was: run the same fits before and after, and compare.

    python tools/compare_versions.py record before.npz     # with the version before the change installed
    python tools/compare_versions.py record after.npz      # with the version after it
    python tools/compare_versions.py compare before.npz after.npz

    python tools/compare_versions.py models DIR            # before: save fitted models and their predictions
    python tools/compare_versions.py reload DIR            # after: load them and predict again

``record`` fits every estimator and method with fixed seeds on one thread, and stores predictions, losses, histories,
gradients and decoded model files; it takes two to three minutes on one core. ``compare`` requires the same bits,
counts relative differences up to 1e-12 separately (a sum in another order), and exits with 1 at any other difference
that ``EXCEPTIONS`` does not name. Both versions must run on the same machine with the same packages. Words (reports,
reasons, findings) and times are not compared; a status, and the number of messages, stand for the words.

Names that the redesign changed are imported under both their old and their new name.
"""

import argparse
import json
import math
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

import cagp
from cagp import kernels, metrics
from cagp.actions import BlockActions, DenseActions
from cagp.data import Encoder, Standardizer, split, terrain
from cagp.diagnostics import eigenspace_alignment, grassmann_distance, mutual_information, posterior_entropy
from cagp.engine import BlockWeights, kernel_product
from cagp.inducing import choose_inducing_points
from cagp.iterative import (
    CGResiduals,
    GivenActions,
    KernelColumns,
    Lanczos,
    Mix,
    RandomActions,
    Stopping,
    TopEigenvectors,
    UnitVectors,
    iterate,
)
from cagp.losses import elbo, projected_nll
from cagp.methods import CGGP, MAP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, LogNormal, MultiTarget
from cagp.prior import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean
from cagp.projection import project
from cagp.starting import start_from_data, start_from_neighbours
from cagp.training import fit

try:
    from cagp.noise_tuning import calibrate_noise, raise_noise
except ImportError:
    from cagp.noise_search import calibrate_noise, raise_noise
try:
    from cagp.tensor_files import save_state
except ImportError:
    from cagp.storage import save_state
try:
    from cagp.neighbours import NeighbourIndex

    INDEX_KIND, LOCAL_INDEX_KIND = "kind", "index_kind"
except ImportError:
    from cagp.neighbours import NeighbourSearch as NeighbourIndex

    INDEX_KIND, LOCAL_INDEX_KIND = "method", "search"
try:
    from cagp.engine import COMPILED, TORCH

    BACKENDS: dict[str, Any] = {"torch": TORCH, "compiled": COMPILED}
except ImportError:
    BACKENDS = {"torch": "torch", "compiled": "native"}

SAME_SUM = 1e-12
"""The largest relative difference that another order of summation explains."""

EXCEPTIONS: dict[str, str] = {
    "helpers/inducing points kmeans/*": "scikit-learn's k-means replaced the one written by hand",
    "helpers/metrics/* of scores (must hold)": "one Scores for all, which the commit before did not have",
    "*/file/choice": "saved models hold why their method was chosen",
    "*/file/status": "saved models hold the status of their fit",
    "*/file/parameters/n_inducing": "CaGPRegressor has the methods with inducing points, and their option",
}
"""Patterns of entries that may differ, with the reason."""

WORDS = {"report", "reason", "failures", "findings", "events", "library"}
TIMES = {"seconds", "max_time", "checkpoint_dir"}
"""Keys of a saved model that are not compared: sentences, times, and a folder that is another one in every run."""

STATUSES = {
    "Took all": "ALL_STEPS",
    "Reached the time limit": "TIME_LIMIT",
    "No better": "NO_BETTER",
    "The loss no longer improves": "CONVERGED",
    "Interrupted": "INTERRUPTED",
    "The loss could not be computed": "BAD_START",
    "Stopped after": "TOO_MANY_FAILURES",
}
"""How the sentences of versions without a status begin."""

# ---- tables ----


class Table(NamedTuple):
    """Rows to fit, and rows to predict."""

    X: Any
    y: Any
    noise: np.ndarray | None
    X_test: Any
    y_test: Any
    noise_test: np.ndarray | None


NUM_TEST, NUM_JOINT = 40, 8


def terrain_table(num_rows: int = 600) -> Table:
    """Rows of the embedded sample: two inputs, almost no noise."""
    data = terrain()
    rows = np.random.default_rng(1).permutation(len(data.X))[: num_rows + NUM_TEST]
    X, y = data.X.numpy()[rows], data.y.numpy()[rows]
    return Table(X[:num_rows], y[:num_rows], None, X[num_rows:], y[num_rows:], None)


def generated_table(num_rows: int = 2600) -> Table:
    """Six inputs, the last without influence; the noise is five times as large in one half, so a local scale pays."""
    generator = np.random.default_rng(2)
    X = generator.uniform(-1, 1, (num_rows + NUM_TEST, 6))
    f = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * np.cos(4 * X[:, 3]) + 0.3 * X[:, 4]
    y = 10 + 4 * (f + np.where(X[:, 0] > 0, 0.25, 0.05) * generator.standard_normal(len(f)))
    return Table(X[:num_rows], y[:num_rows], None, X[num_rows:], y[num_rows:], None)


def smooth_table(num_rows: int = 2300) -> Table:
    """A smooth function of two inputs and much noise: nothing is local."""
    generator = np.random.default_rng(5)
    X = generator.uniform(-2, 2, (num_rows + NUM_TEST, 2))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] + generator.standard_normal(len(X))
    return Table(X[:num_rows], y[:num_rows], None, X[num_rows:], y[num_rows:], None)


def frame_table(num_rows: int = 300) -> Table:
    """Text, dates, whole numbers and booleans; two targets, some missing; known noise."""
    generator = np.random.default_rng(3)
    n = num_rows + NUM_TEST
    site = generator.choice(["north", "south", "east", "west"], n)
    days = generator.integers(0, 700, n)
    depth, count = generator.uniform(0, 50, n), generator.integers(0, 9, n)
    wet = generator.random(n) < 0.4
    X = pd.DataFrame(
        {
            "site": site,
            "day": pd.Timestamp("2021-03-01") + pd.to_timedelta(days, unit="D"),
            "depth": depth,
            "count": count,
            "wet": wet,
        }
    )
    base = np.sin(days / 60) + 0.04 * depth + 0.5 * (site == "north") + 0.1 * count
    noise = generator.uniform(0.01, 0.2, (n, 2))
    y = pd.DataFrame(
        {
            "temperature": 15 + 3 * base + np.sqrt(noise[:, 0]) * generator.standard_normal(n),
            "flow": 200 - 40 * base * wet + np.sqrt(noise[:, 1]) * generator.standard_normal(n),
        }
    )
    missing = generator.choice(num_rows, 9, replace=False)
    y.iloc[missing[:5], 0] = np.nan
    y.iloc[missing[4:], 1] = np.nan
    return Table(X[:num_rows], y[:num_rows], noise[:num_rows], X[num_rows:], y[num_rows:], noise[num_rows:])


class Tensors(NamedTuple):
    """Standardised rows for the methods of the research level."""

    X: torch.Tensor
    y: torch.Tensor
    noise: torch.Tensor
    X_test: torch.Tensor

    def to(self, dtype: torch.dtype) -> "Tensors":
        return Tensors(*(part.to(dtype) for part in self))


def tensors_of(table: Table, num_rows: int) -> Tensors:
    X, y, X_test = (torch.from_numpy(np.array(part[:num_rows])) for part in (table.X, table.y, table.X_test))
    mean, std = X.mean(0), X.std(0)
    noise = 0.01 + 0.05 * torch.rand(len(X), generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return Tensors((X - mean) / std, (y - y.mean()) / y.std(), noise, (X_test - mean) / std)


def prior_for(data: Tensors, kind: str = "Matern32", noise: float = 0.1, mean: Any = None) -> GP:
    kernel = kernels.Scale(getattr(kernels, kind)(data.X.shape[1]))
    return start_from_data(GP(kernel, mean, GaussianNoise(noise)), data.X, data.y)


# ---- what is recorded ----


class Record:
    """Named arrays; a case that fails leaves its error and does not stop the others."""

    def __init__(self, only: str):
        self.only = only
        self.arrays: dict[str, np.ndarray] = {}
        self.errors: list[str] = []
        self.seconds: dict[str, float] = {}
        self._place = ""

    def case(self, name: str, run: Callable[["Record"], None]) -> None:
        """Run ``run``, whose entries come below ``name``, if it was asked for."""
        if not fnmatchcase(name, self.only):
            return
        start, self._place = time.perf_counter(), name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(self)
        except Exception:
            self.errors.append(name)
            print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        self.seconds[name] = time.perf_counter() - start

    def add(self, name: str, value: Any) -> None:
        """Store numbers, text, and dicts, tuples and lists of them."""
        for path, array in _arrays(f"{self._place}/{name}", value):
            if path in self.arrays:
                raise ValueError(f"{path} is recorded twice.")
            self.arrays[path] = array

    def holds(self, name: str, truth: bool) -> None:
        """Store what must be true in every version."""
        self.add(f"{name} (must hold)", bool(truth))


def _arrays(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, torch.Tensor):
        yield name, value.detach().cpu().numpy().copy()
    elif isinstance(value, BlockWeights):
        yield from _arrays(name, {"values": value.values, "offsets": value.offsets})
    elif hasattr(value, "_asdict"):
        yield from _arrays(name, value._asdict())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _arrays(f"{name}/{key}", part)
    elif isinstance(value, list | tuple) and value and all(isinstance(part, Mapping) for part in value):
        for key in dict.fromkeys(key for part in value for key in part):
            yield from _arrays(f"{name}/{key}", [part.get(key) for part in value])
    elif isinstance(value, list | tuple) and not _is_row(value):
        for j, part in enumerate(value):
            yield from _arrays(f"{name}/{j}", part)
    else:
        array = np.asarray("None" if value is None else value)
        yield name, array.astype(str) if array.dtype == object else array


def _is_row(value: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list makes one array: numbers, texts, or equally long lists of numbers."""
    if all(isinstance(part, list | tuple) for part in value):
        return len({len(part) for part in value}) == 1 and all(_is_row(part) for part in value)
    return all(isinstance(part, bool | int | float | np.number) for part in value) or all(
        isinstance(part, str) for part in value
    )


def add_result(record: Record, name: str, result: Any) -> None:
    """The history of a fit, a column for each quantity; the words only by their number."""
    status = getattr(result, "status", None)
    if status is None:
        status = next((code for start, code in STATUSES.items() if result.reason.startswith(start)), "UNKNOWN")
    steps = result.steps
    record.add(
        name,
        {
            "status": getattr(status, "name", status),
            "interrupted": bool(result.interrupted),
            "best step": result.best_step,
            "best value": result.best_value,
            "failures": len(result.failures),
            "number": [step.number for step in steps],
            "loss": [step.loss for step in steps],
            "gradient norm": [step.gradient_norm for step in steps],
            "events": [len(step.events) for step in steps],
            "terms": [step.terms for step in steps],
            "rates": [step.lr for step in steps],
            "hyperparameters": [step.hyperparameters for step in steps],
            "evaluation": [step.evaluation or {} for step in steps],
        },
    )


def add_posterior(record: Record, name: str, posterior: Any, X: torch.Tensor) -> None:
    """Every kind of answer; the rows of ``X`` are in standard units."""
    few = X[:NUM_JOINT]
    with torch.no_grad():
        record.add(name, {"function": posterior.predict(X), "target": posterior.predict(X, noise=True)})
        record.add(f"{name}/mean", posterior.mean(X))
        record.add(f"{name}/covariance", posterior.covariance(few, noise=True))
        record.add(f"{name}/cross covariance", posterior.covariance(few, X[-3:]))
        record.add(f"{name}/samples", posterior.sample(few, 3, generator=torch.Generator().manual_seed(5)))


# ---- saved models ----

NUMPY_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def decoded(path: Path) -> Any:
    """The tree of a saved model, read without the library: tensors as arrays."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__")
    arrays = {}
    for name, entry in header.items():
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(content[start:end], NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])

    def value(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "float" in node:
            return float(node["float"])
        if "tensor" in node:
            array = arrays[f"t{node['tensor']}"]
            order = node.get("order", list(range(array.ndim)))
            return array.transpose([order.index(dim) for dim in range(array.ndim)])
        if "list" in node:
            return [value(part) for part in node["list"]]
        return {key: _counted(key, value(part)) for key, part in node["items"] if key not in TIMES}

    return {"kind": metadata["kind"], "version": metadata["version"], **value(json.loads(metadata["state"]))}


def _counted(key: str | int, value: Any) -> Any:
    """Messages by their number; other texts as they are."""
    if key not in WORDS:
        return value
    return len(value) if isinstance(value, list) else "words"


# ---- estimators ----


def add_answers(record: Record, name: str, model: Any, table: Table) -> None:
    X, few = table.X_test, table.X_test[:NUM_JOINT]
    known = {} if table.noise_test is None else {"sample_noise": table.noise_test}
    known_few = {} if table.noise_test is None else {"sample_noise": table.noise_test[:NUM_JOINT]}
    mean, std = model.predict(X, return_std=True, **known)
    record.add(name, {"mean": mean, "std": std, "mean alone": model.predict(X)})
    record.add(f"{name}/std without known noise", model.predict(X, return_std=True)[1])
    record.add(f"{name}/quantiles", model.predict_quantiles(X, [0.025, 0.3, 0.5, 0.9], **known))
    record.add(f"{name}/interval", model.predict_interval(X, 0.8, **known))
    record.add(f"{name}/components", model.predict(X, return_components=True, **known)[1])
    record.add(f"{name}/covariance", model.predict(few, return_cov=True, **known_few)[1])
    record.add(f"{name}/samples", model.sample_y(few, 3, random_state=6))
    record.add(f"{name}/log density", model.log_predictive_density(X, table.y_test, **known))
    record.add(f"{name}/noise at rows", model.noise_std(X))
    record.add(f"{name}/score", model.score(X, table.y_test))
    levels, coverage, error = model.calibration(X, table.y_test, levels=[0.2, 0.5, 0.9], **known)
    record.add(f"{name}/calibration", {"levels": levels, "coverage": coverage, "error": error})


def add_model(record: Record, model: Any, table: Table, folder: Path) -> None:
    """A fitted estimator: its answers, its history, and its file."""
    add_answers(record, "predictions", model, table)
    record.add(
        "fitted",
        {
            "method": model.method_,
            "rows": model.n_rows_,
            "lengthscales": model.lengthscales_,
            "noise": model.noise_std_,
            "inputs": [str(name) for name in model.feature_names_out_],
            "targets": [str(name) for name in model.target_names_],
            "local scales": [getattr(posterior, "local_scale", None) for posterior in model.posteriors_],
        },
    )
    add_result(record, "history", model.fit_result_)
    path = folder / "model.cagp"
    model.save(path)
    record.add("file", decoded(path))
    mean, std = model.predict(table.X_test, return_std=True)
    again, std_again = cagp.load(path).predict(table.X_test, return_std=True)
    record.holds("a loaded model predicts the same", _same(mean, again) and _same(std, std_again))
    model.save(path, dtype="float32")
    record.add("file in float32/posteriors", decoded(path)["posteriors"])
    record.add("loaded from float32", cagp.load(path).predict(table.X_test, return_std=True))


def _same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def estimators(epochs: Mapping[str, int]) -> dict[str, Callable[[], Any]]:
    """Every estimator; ``epochs`` by method, with a value for the others under "*"."""

    def options(method: str, **others: Any) -> dict[str, Any]:
        return {"max_epochs": epochs.get(method, epochs["*"]), "max_memory": "2GB", "random_state": 7, **others}

    def cagp_regressor(method: str, **others: Any) -> Callable[[], Any]:
        return lambda: cagp.CaGPRegressor(method=method, **options(method, **others))

    return {
        "auto": cagp_regressor("auto"),
        "auto without local scale": cagp_regressor("auto", local_scale=None),
        "exact": cagp_regressor("exact"),
        "opt": cagp_regressor("opt", n_actions=48),
        "cg": cagp_regressor("cg", n_actions=32),
        "local": cagp_regressor("local"),
        "local without local scale": cagp_regressor("local", local_scale=None, n_neighbors=12),
        "hybrid": cagp_regressor("hybrid", n_actions=40),
        "hybrid without local scale": cagp_regressor("hybrid", local_scale=None),
        "CGGP": lambda: cagp.CGGPRegressor(**options("cggp")),
        "Exact": lambda: cagp.ExactGPRegressor(**options("exact", kernel="matern52")),
        "SGPR": lambda: cagp.SGPRRegressor(n_inducing=48, **options("sgpr")),
        "SVGP": lambda: cagp.SVGPRegressor(n_inducing=48, **options("svgp")),
    }


EPOCHS = {
    "terrain": {"*": 60, "auto": 20, "exact": 20, "cg": 15, "cggp": 10},
    "generated": {"*": 20, "opt": 90, "exact": 2, "cggp": 2, "cg": 6},
    "frame": {"*": 30, "opt": 60, "exact": 10, "cggp": 6},
}


def option_cases() -> dict[str, Callable[[], Any]]:
    """Options that the estimators have in common, on the first table."""
    common: dict[str, Any] = {"max_epochs": 6, "max_memory": "2GB"}
    own = kernels.Scale(kernels.Matern52(2, 0.5)) + kernels.Scale(kernels.Linear(2), 0.3) + kernels.Constant(0.2)
    regressor = cagp.CaGPRegressor
    return {
        "opt in float32": lambda: regressor(method="opt", n_actions=30, dtype="float32", **common),
        "local in float32": lambda: regressor(method="local", dtype="float32", **common),
        "svgp in float32": lambda: cagp.SVGPRegressor(n_inducing=30, dtype="float32", **common),
        "a fixed local scale": lambda: regressor(method="local", local_scale=3.0, **common),
        "matern12": lambda: regressor(method="exact", kernel="matern12", **common),
        "rbf": lambda: regressor(method="local", kernel="rbf", **common),
        "rational quadratic": lambda: regressor(method="opt", kernel="rational_quadratic", n_actions=30, **common),
        "an own kernel": lambda: regressor(method="exact", kernel=own, **common),
        "an own kernel, local": lambda: regressor(method="local", kernel=own, **common),
        "random state": lambda: regressor(method="hybrid", random_state=np.random.RandomState(3), **common),
        "little memory": lambda: regressor(method="hybrid", n_actions=30, **{**common, "max_memory": "1MB"}),
        "memory by default": lambda: regressor(method="local", max_epochs=6),
    }


def auto_cases() -> dict[str, tuple[Callable[[], Any], Table]]:
    """What "auto" may decide, by the method that it chooses."""
    few: dict[str, Any] = {"max_epochs": 10, "max_memory": "2GB"}
    regressor, smooth = cagp.CaGPRegressor, smooth_table()
    return {
        "local": (lambda: regressor(**few), smooth),
        "opt": (lambda: regressor(n_neighbors=3, n_actions=100, **few), smooth),
        "hybrid": (lambda: regressor(**few), terrain_table(2300)),
        "local, for lack of memory": (lambda: regressor(n_actions=500, max_epochs=4, max_memory="50MB"), smooth),
    }


def record_estimators(record: Record, folder: Path) -> None:
    tables = {"terrain": terrain_table(), "generated": generated_table(), "frame": frame_table()}

    def fitted(make: Callable[[], Any], table: Table) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            known = {} if table.noise is None else {"sample_noise": table.noise}
            add_model(record, make().fit(table.X, table.y, **known), table, folder)

        return run

    for table_name, table in tables.items():
        for name, make in estimators(EPOCHS[table_name]).items():
            record.case(f"estimators/{table_name}: {name}", fitted(make, table))
    for name, make in option_cases().items():
        record.case(f"estimators/options: {name}", fitted(make, tables["terrain"]))
    for name, (make, table) in auto_cases().items():
        record.case(f"estimators/auto chooses: {name}", fitted(make, table))

    def float32_targets(record: Record) -> None:
        table = tables["terrain"]
        model = cagp.CaGPRegressor(method="local", max_epochs=4, max_memory="2GB")
        model.fit(torch.from_numpy(table.X), torch.from_numpy(table.y.astype(np.float32)))
        record.add("predictions", model.predict(torch.from_numpy(table.X_test), return_std=True))

    def warm_start(record: Record) -> None:
        table = tables["terrain"]
        for name, model in {
            "exact": cagp.CaGPRegressor(method="exact", max_epochs=3, warm_start=True, max_memory="2GB"),
            "sgpr": cagp.SGPRRegressor(n_inducing=30, max_epochs=3, warm_start=True, max_memory="2GB"),
        }.items():
            model.fit(table.X[:400], table.y[:400]).fit(table.X, table.y)
            record.add(f"{name}/predictions", model.predict(table.X_test, return_std=True))
            add_result(record, f"{name}/history", model.fit_result_)

    record.case("estimators/options: tensors in float32", float32_targets)
    record.case("estimators/options: warm start", warm_start)


# ---- methods of the research level ----

STEPS = 12


def methods(data: Tensors) -> dict[str, Callable[[], Any]]:
    """Every method, made for these rows."""
    X = data.X

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(8)

    def opt(prior: GP | None = None, num_actions: int = 24, **choices: Any) -> CaGPOpt:
        return CaGPOpt.from_data(prior or prior_for(data), X, num_actions, **choices)

    def local(**choices: Any) -> CaGPLocal:
        return CaGPLocal(prior_for(data), 10, batch_size=128, seed=9, refresh_at=(3, 6), **choices)

    def shared() -> BlockActions:
        return BlockActions.from_data(X, 12, support_size=6, generator=generator())

    def two_targets() -> MultiTarget:
        first = opt(reblock_at=(4, 8))
        other = GP(first.prior.kernel, None, GaussianNoise(0.2))
        return MultiTarget([first, CaGPOpt(other, first.actions, first.loss, first.max_bytes, first.reblock_at)])

    def two_local() -> MultiTarget:
        kernel = prior_for(data).kernel
        priors = [GP(kernel, ConstantMean(), GaussianNoise(noise)) for noise in (0.1, 0.3)]
        return MultiTarget([CaGPLocal(prior, 10, batch_size=128, seed=9) for prior in priors])

    return {
        "CaGPOpt, blocks cut again": lambda: opt(reblock_at=(4, 8)),
        "CaGPOpt, projected": lambda: opt(loss="projected", reblock_at=()),
        "CaGPOpt, ordered and random": lambda: opt(blocks="ordered", start="random", generator=generator()),
        "CaGPOpt, eigenvectors": lambda: opt(
            start="eigenvector", reblock_at=(), support_size=10, generator=generator()
        ),
        "CaGPOpt, growth": lambda: opt(num_actions=32, start_actions=6, reblock_at=(2,)),
        "CaGPOpt, dense actions": lambda: CaGPOpt(prior_for(data), DenseActions(dense(len(X), 10), learn=True)),
        "CaGPOpt, linear mean": lambda: opt(prior_for(data, "RBF", mean=LinearMean(X.shape[1])), reblock_at=()),
        "CaGPCG": lambda: CaGPCG.from_data(prior_for(data), X, 20),
        "CaGPCG, projected": lambda: CaGPCG(prior_for(data, "Matern52"), 20, "projected", 1e-2),
        "CaGPCG, products not kept": lambda: CaGPCG(prior_for(data), 16, max_bytes=2**16),
        "CaGPLocal": lambda: local(),
        "CaGPLocal, ordered": lambda: local(objective="ordered"),
        "CaGPLocal, shared actions": lambda: local(shared=shared()),
        "CaGPLocal, scale": lambda: local(local_scale=2.0, shared=shared()),
        "CaGPLocal, by tree": lambda: local(**{LOCAL_INDEX_KIND: "tree"}),
        "CholeskyGP": lambda: CholeskyGP(prior_for(data, mean=ConstantMean())),
        "SGPR": lambda: SGPR.from_data(prior_for(data), X, 20),
        "SVGP, natural": lambda: SVGP.from_data(prior_for(data), X, 20, batch_size=128, seed=10),
        "SVGP, joint": lambda: SVGP.from_data(prior_for(data), X, 20, batch_size=128, seed=10, gradient="joint"),
        "SVGP, all rows": lambda: SVGP.from_data(prior_for(data, "Matern12"), X, 20, natural_rate=0.5),
        "CGGP": lambda: CGGP(prior_for(data), seed=11, num_probes=8, precondition_rank=30),
        "MAP of CholeskyGP": lambda: MAP(CholeskyGP(prior_for(data)), noise=LogNormal(-3.0, 1.0)),
        "MAP of CaGPLocal": lambda: MAP(local()),
        "MultiTarget CaGPOpt": two_targets,
        "MultiTarget CaGPLocal": two_local,
    }


def dense(num_rows: int, num_columns: int) -> torch.Tensor:
    return torch.randn(num_rows, num_columns, generator=torch.Generator().manual_seed(12), dtype=torch.float64)


def add_method(record: Record, method: Any, data: Tensors, noise: torch.Tensor | None = None, **changes: Any) -> None:
    """The objective and its gradient at the start, a fit, and the posterior after it."""
    X, y = data.X, data.y
    if isinstance(method, MultiTarget):
        y = torch.stack([y, (y.square() - y).contiguous()], 1)
        noise = None if noise is None else torch.stack([noise, 2 * noise], 1)
    terms = method.objective_terms(X, y, noise)
    record.add("start/terms", {name: float(term.detach()) for name, term in terms.items()})
    trained = {name: parameter for name, parameter in method.named_parameters() if parameter.requires_grad}
    total = torch.stack(list(terms.values())).sum()
    gradients = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    record.add("start/gradients", dict(zip(trained, gradients, strict=True)))
    result = fit(method, X, y, noise, **{"num_steps": STEPS, **changes})
    add_result(record, "history", result)
    record.add("parameters", dict(method.named_parameters()))
    posteriors = _condition(method, X, y, noise)
    for j, posterior in enumerate(posteriors):
        add_posterior(record, f"posterior {j}", posterior, data.X_test)


def _condition(method: Any, X: torch.Tensor, y: torch.Tensor, noise: torch.Tensor | None) -> list[Any]:
    inner = method.method if isinstance(method, MAP) else method
    found = inner.condition(X, y, noise)
    return found if isinstance(found, list) else [found]


def record_methods(record: Record) -> None:
    sources = {
        "terrain": tensors_of(terrain_table(), 500),
        "generated": tensors_of(generated_table(), 500),
    }

    def trained(make: Callable[[], Any], data: Tensors, noise: bool, **changes: Any) -> Callable[[Record], None]:
        return lambda record: add_method(record, make(), data, data.noise if noise else None, **changes)

    for source, data in sources.items():
        for name, make in methods(data).items():
            record.case(f"methods/{source}: {name}", trained(make, data, source == "generated"))
    data = sources["generated"]
    every = methods(data)
    for name in ("CaGPOpt, blocks cut again", "CaGPCG", "CholeskyGP", "SGPR", "SVGP, all rows"):
        record.case(f"methods/lbfgs: {name}", trained(every[name], data, False, optimizer="lbfgs"))
    single = data.to(torch.float32)
    for name in ("CaGPOpt, blocks cut again", "CaGPLocal, shared actions", "SGPR", "SVGP, natural", "CaGPCG"):
        record.case(f"methods/float32: {name}", trained(methods(single)[name], single, True))
    record.case("methods/settings", lambda record: _settings(record, data))
    record.case("methods/more actions", lambda record: _more_actions(record, data))
    record.case("methods/numbers of neighbours", lambda record: _numbers_of_neighbours(record, data))
    record.case("methods/known noise", lambda record: _known_noise(record, data))


def _settings(record: Record, data: Tensors) -> None:
    """What ``fit`` can be told, one fit each."""
    X, y = data.X, data.y
    for name, changes in {
        "cosine": {"schedule": "cosine", "warmup_steps": 3},
        "constant": {"schedule": "constant", "lr": 0.05},
        "rates by group": {"lr": {"hyperparameters": 0.1, "actions": 0.5}},
        "no better loss": {"num_steps": 60, "min_improvement": 0.2, "window": 4},
        "time limit": {"max_time": 1e-9},
        "paper": {"settings": "paper-adam"},
        "rates far too large": {"lr": 1e4, "max_failures": 3},
    }.items():
        method = CaGPOpt.from_data(prior_for(data), X, 16, reblock_at=())
        add_result(record, name, fit(method, X, y, **{"num_steps": STEPS, **changes}))

    method = CaGPOpt.from_data(prior_for(data), X, 16, reblock_at=())
    held_out = X[-50:], y[-50:]

    def evaluate() -> dict[str, float]:
        posterior = method.condition(X, y)
        return {"nll": float(metrics.row_nll(held_out[1], *posterior.predict(held_out[0], noise=True)).mean())}

    changes = {"evaluate": evaluate, "monitor": "nll", "evaluate_every": 2, "patience": 2, "lr": 2.0, "num_steps": 40}
    add_result(record, "monitor", fit(method, X, y, **changes))
    add_posterior(record, "monitor/posterior", method.condition(X, y), data.X_test)


def _more_actions(record: Record, data: Tensors) -> None:
    method = CaGPOpt.from_data(prior_for(data), data.X, 16, reblock_at=())
    fit(method, data.X, data.y, num_steps=STEPS)
    add_posterior(record, "refitted", method.condition(data.X, data.y, num_actions=40), data.X_test)
    posterior = method.condition(data.X, data.y, num_actions=40, refit_steps=0)
    add_posterior(record, "not refitted", posterior, data.X_test)


def _numbers_of_neighbours(record: Record, data: Tensors) -> None:
    actions = BlockActions.from_data(data.X, 12)
    for scale in (None, 4.0):
        method = CaGPLocal(prior_for(data), 10, shared=actions, local_scale=scale)
        for count in (0, 1, 25):
            posterior = method.condition(data.X, data.y, data.noise, num_neighbours=count)
            add_posterior(record, f"scale {scale}, {count} neighbours", posterior, data.X_test)


def _known_noise(record: Record, data: Tensors) -> None:
    prior = GP(kernels.Scale(kernels.Matern32(data.X.shape[1], 1.5)), None, KnownNoise())
    for name, method in {
        "CholeskyGP": CholeskyGP(prior),
        "CaGPLocal": CaGPLocal(prior, 10),
        "SGPR": SGPR.from_data(prior, data.X, 15),
    }.items():
        posterior = method.condition(data.X, data.y, data.noise)
        record.add(name, posterior.predict(data.X_test, noise=True, row_noise=data.noise[: len(data.X_test)]))


# ---- the iterative algorithm ----


def record_iterative(record: Record) -> None:
    data = tensors_of(generated_table(), 300)

    def run(name: str, dtype: torch.dtype, again: bool, noise: bool) -> Callable[[Record], None]:
        def with_policy(record: Record) -> None:
            rows = data.to(dtype)
            policy, known = policies(rows)[name], rows.noise if noise else None
            prior, stopping = prior_for(rows), Stopping(12, relative_residual=1e-5)
            whole = iterate(prior, rows.X, rows.y, policy, stopping, known, reorthogonalise=again)
            _add_iteration(record, "whole", whole, rows)
            part = iterate(prior, rows.X, rows.y, policy, Stopping(5), known, reorthogonalise=again)
            resumed = _resumed(part, stopping)
            record.holds(
                "a resumed run is the same",
                _same(whole.state.weights, resumed.state.weights)
                and whole.status.residual_norms == resumed.status.residual_norms,
            )

        return with_policy

    for name in policies(data):
        record.case(f"iterative/{name}", run(name, torch.float64, False, False))
        record.case(f"iterative/{name}, reorthogonalised", run(name, torch.float64, True, True))
        record.case(f"iterative/{name}, float32", run(name, torch.float32, False, True))


def policies(data: Tensors) -> dict[str, Any]:
    """Every policy, for these rows."""
    n = len(data.X)
    return {
        "CGResiduals": CGResiduals(),
        "Lanczos": Lanczos(),
        "Lanczos from a vector": Lanczos(dense(n, 1)[:, 0]),
        "UnitVectors": UnitVectors(),
        "UnitVectors, random": UnitVectors("random", seed=13),
        "UnitVectors, pivoted": UnitVectors("pivoted", rows=torch.arange(0, n, 2)),
        "RandomActions": RandomActions(seed=14),
        "RandomActions, signs": RandomActions("rademacher", seed=14),
        "GivenActions": GivenActions(dense(n, 15)),
        "KernelColumns": KernelColumns(data.X_test[:15]),
        "Mix": Mix((CGResiduals(), 5), (UnitVectors(), 3), (RandomActions(seed=15), 8)),
        "TopEigenvectors": TopEigenvectors(10),
        "TopEigenvectors, sparse": TopEigenvectors(6, dense_up_to=10, seed=16),
    }


def _add_iteration(record: Record, name: str, iteration: Any, data: Tensors) -> None:
    status, state = iteration.status, iteration.state
    record.add(
        name,
        {
            "steps": status.num_steps,
            "dropped": status.num_dropped,
            "converged": status.converged,
            "residuals": status.residual_norms,
            "actions": state.actions,
            "weights": state.weights,
            "residual": state.residual,
            "kernel variance": state.kernel_variance,
        },
    )
    add_posterior(record, f"{name}/posterior", iteration.posterior(), data.X_test)


def _resumed(iteration: Any, stopping: Stopping) -> Any:
    name = next(name for name in ("resume", "resumed", "extend", "continued", "go_on") if hasattr(iteration, name))
    return getattr(iteration, name)(stopping)


# ---- kernels ----


def kernel_zoo(num_dims: int) -> dict[str, kernels.Kernel]:
    lengthscale = torch.linspace(0.4, 1.6, num_dims, dtype=torch.float64)
    zoo: dict[str, kernels.Kernel] = {
        name: getattr(kernels, name)(num_dims, lengthscale) for name in ("RBF", "Matern12", "Matern32", "Matern52")
    }
    zoo["RationalQuadratic"] = kernels.RationalQuadratic(num_dims, lengthscale, alpha=0.7)
    zoo["Linear"], zoo["Constant"] = kernels.Linear(num_dims, 0.3), kernels.Constant(0.6)
    zoo["Scale"] = kernels.Scale(kernels.Matern32(num_dims, lengthscale), 2.5)
    zoo["Sum"] = kernels.Scale(kernels.RBF(num_dims, 0.8), 0.5) + kernels.Linear(num_dims) + kernels.Constant(0.1)
    zoo["Product"] = kernels.Matern52(num_dims, 1.2) * kernels.Constant(0.5) * kernels.Linear(num_dims)
    return zoo


def record_kernels(record: Record) -> None:
    generator = torch.Generator().manual_seed(17)
    X, Z = (torch.randn(count, 3, generator=generator, dtype=torch.float64) for count in (67, 45))
    W = torch.randn(45, 7, generator=generator, dtype=torch.float64)
    values, offsets = torch.randn(45, generator=generator, dtype=torch.float64), torch.tensor([0, 4, 5, 20, 33, 45])

    def products(kernel: kernels.Kernel, backend: Any, dtype: torch.dtype) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            for name, weights in {
                "matrix": None,
                "dense": W,
                "blocks": values,
                "blocks of the same rows": values,
            }.items():
                same = name == "blocks of the same rows"
                right = Z.to(dtype).requires_grad_(True)
                left = right if same else X.to(dtype).requires_grad_(True)
                inner = None if weights is None else weights.to(dtype, copy=True).requires_grad_(True)
                factor = BlockWeights(inner, offsets) if inner is not None and inner.ndim == 1 else inner
                product = kernel_product(
                    kernel, left, right, factor, **({} if backend is None else {"backend": backend})
                )
                sources = {"Z": right, **({} if same else {"X": left}), **({} if inner is None else {"W": inner})}
                sources |= dict(kernel.named_parameters())
                weighted = torch.linspace(-1, 1, product.numel(), dtype=dtype).view_as(product)
                gradients = torch.autograd.grad((product * weighted).sum(), list(sources.values()), allow_unused=True)
                record.add(name, {"value": product, "gradients": dict(zip(sources, gradients, strict=True))})
            record.add("reference", kernel(X.to(dtype), Z.to(dtype)))
            record.add("diagonal", kernel.diag(X.to(dtype)))

        return run

    for name, kernel in kernel_zoo(3).items():
        for dtype in (torch.float64, torch.float32):
            precision = str(dtype).removeprefix("torch.")
            record.case(f"kernels/{name}, chosen, {precision}", products(kernel, None, dtype))
            record.case(f"kernels/{name}, torch, {precision}", products(kernel, BACKENDS["torch"], dtype))
            if type(kernel).__name__ in ("RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic", "Scale"):
                record.case(f"kernels/{name}, compiled, {precision}", products(kernel, BACKENDS["compiled"], dtype))


# ---- helpers ----


def record_helpers(record: Record, folder: Path) -> None:
    data = tensors_of(generated_table(), 600)
    train = Tensors(data.X[:500], data.y[:500], data.noise[:500], data.X_test)
    held_out = data.X[500:], data.y[500:]

    def noise(record: Record) -> None:
        for name, method in {
            "CaGPOpt": CaGPOpt.from_data(prior_for(train, noise=1e-4), train.X, 16),
            "CholeskyGP": CholeskyGP(prior_for(train, noise=1e-4)),
            "MultiTarget": MultiTarget([SGPR.from_data(prior_for(train, noise=1e-4), train.X, 12)]),
        }.items():
            y = train.y[:, None] if name == "MultiTarget" else train.y
            record.add(f"{name}/before", method.hyperparameters())
            raise_noise(method, train.X, y)
            record.add(f"{name}/raised", method.hyperparameters())
            if name != "MultiTarget":
                fit(method, train.X, y, num_steps=5)
                calibrate_noise(method, train.X, y, *held_out)
                record.add(f"{name}/calibrated", method.hyperparameters())

    def starts(record: Record) -> None:
        zoo = kernel_zoo(data.X.shape[1])
        for name, kernel in zoo.items():
            prior = start_from_data(GP(kernel, LinearMean(data.X.shape[1])), 3 * data.X, 7 + 2 * data.y)
            record.add(f"data/{name}", dict(prior.named_parameters()))
        prior = GP(kernels.Scale(kernels.Matern32(data.X.shape[1])))
        start_from_neighbours(prior, data.X, data.y, data.noise, num_steps=8, seed=18)
        record.add("neighbours", dict(prior.named_parameters()))

    def scales(record: Record) -> None:
        for source, rows in {"terrain": tensors_of(terrain_table(), 600), "generated": data}.items():
            method = CaGPLocal(prior_for(rows), 16, seed=19)
            fit(method, rows.X, rows.y, num_steps=8)
            choose = getattr(method, "choose_local_scale", None) or method.learn_local_scale
            for name, known in {"without noise": None, "with noise": rows.noise}.items():
                record.add(f"{source}/{name}", tuple(choose(rows.X, rows.y, known)))

    def inducing(how: Any) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            lengthscale = torch.linspace(0.5, 2, data.X.shape[1], dtype=torch.float64)
            record.add("points", choose_inducing_points(prior_for(data), data.X, 20, how, lengthscale, seed=20))

        return run

    def neighbours(record: Record) -> None:
        X, lengthscale = data.X[:, :3], torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(21))
        rows = torch.arange(0, len(X), 7)
        for kind in ("scan", "tree", "auto"):
            index = NeighbourIndex(X, lengthscale, **{INDEX_KIND: kind})
            found = {
                "nearest": index.nearest(data.X_test[:, :3], 9),
                "others": index.nearest(X[rows], 9, left_out=rows),
                "earlier": index.earlier(rows, order, 9),
                "order": index.spatial_order(X),
            }
            record.add(kind, found)

    def blocks(record: Record) -> None:
        for name, choices in {
            "spatial": {},
            "in lengthscales": {"lengthscale": torch.linspace(0.2, 4, data.X.shape[1], dtype=torch.float64)},
            "ordered": {"blocks": "ordered", "start": "random"},
            "eigenvectors": {"kernel": kernels.RBF(data.X.shape[1]), "start": "eigenvector", "support_size": 7},
        }.items():
            generator = torch.Generator().manual_seed(22)
            actions = BlockActions.from_data(data.X, 30, generator=generator, **choices)
            record.add(name, {"support": actions.support, "offsets": actions.offsets, "values": actions.values})
            prior = prior_for(data)
            record.add(f"{name}/elbo", elbo(prior, actions, data.X, data.y, data.noise))
            record.add(f"{name}/projected", projected_nll(prior, actions, data.X, data.y, data.noise))
            projection = project(prior, actions, data.X, data.y, data.noise)
            record.add(f"{name}/projection", projection)
            record.add(f"{name}/information", mutual_information(projection))

    def scores(record: Record) -> None:
        posterior = CholeskyGP(prior_for(train)).condition(train.X, train.y)
        y, (mean, variance) = held_out[1], posterior.predict(held_out[0], noise=True)
        record.add("entropy", posterior_entropy(posterior, held_out[0][:20], noise=True))
        known = getattr(metrics, "scores", None)
        found = None if known is None else known(y, mean, variance)
        record.add("rows", metrics.row_nll(y, mean, variance))
        record.add("pit", metrics.pit(y, mean, variance))
        for name, (function, arguments) in {
            "nll": ("nll", (y, mean, variance)),
            "rmse": ("rmse", (y, mean)),
            "crps": ("crps", (y, mean, variance)),
            "coverage": ("coverage", (y, mean, variance)),
            "width": ("interval_width", (variance,)),
        }.items():
            value = getattr(metrics, function)(*arguments) if hasattr(metrics, function) else getattr(found, name)
            record.add(name, value)
            if found is not None:
                record.holds(f"{name} of scores", getattr(found, name) == value)
        record.add("calibration", list(metrics.calibration(y, mean, variance)))

    def subspaces(record: Record) -> None:
        prior = prior_for(data)
        iteration = iterate(prior, data.X, data.y, Lanczos(), Stopping(10), data.noise, reorthogonalise=True)
        record.add("alignment", eigenspace_alignment(iteration.system, iteration.state.actions))
        record.add("distance", grassmann_distance(iteration.state.actions, dense(len(data.X), 8)))

    def tables(record: Record) -> None:
        table = frame_table()
        encoder = Encoder.fit(table.X)
        record.add("encoded", encoder.transform(table.X))
        record.add("encoded test rows", encoder.transform(table.X_test))
        record.add("names", list(encoder.names_out))
        record.add("state", encoder.state())
        inputs = torch.from_numpy(np.ascontiguousarray(encoder.transform(table.X)))
        scaler = Standardizer.fit(inputs, torch.from_numpy(table.y.fillna(0).to_numpy()))
        record.add("scaler", dict(scaler._asdict()))
        record.add("standard", scaler.inputs(inputs))
        record.add("split", split(1000, 0.1, 23))

    def stored(record: Record) -> None:
        state = {
            "numbers": [1, 2.5, -0.0, math.nan, math.inf, True, None, "text"],
            "double": torch.linspace(0, 1, 7, dtype=torch.float64),
            "transposed": torch.arange(12, dtype=torch.float32).view(3, 4).mT,
            "same": torch.linspace(0, 1, 7, dtype=torch.float64),
            "bool": torch.tensor([True, False]),
            "empty": torch.zeros(0, 3),
            "nested": {3: {"bytes": torch.arange(5, dtype=torch.uint8)}},
        }
        path = folder / "state.safetensors"
        save_state(path, state, "checkpoint", 1)
        record.add("bytes", np.frombuffer(path.read_bytes(), np.uint8))

    record.case("helpers/noise", noise)
    record.case("helpers/starting values", starts)
    record.case("helpers/local scale", scales)
    record.case("helpers/inducing points greedy", inducing("greedy"))
    record.case("helpers/inducing points kmeans", inducing("kmeans"))
    record.case("helpers/neighbours", neighbours)
    record.case("helpers/blocks", blocks)
    record.case("helpers/metrics", scores)
    record.case("helpers/subspaces", subspaces)
    record.case("helpers/tables", tables)
    record.case("helpers/stored state", stored)


# ---- fits that are interrupted ----


class _KilledError(Exception):
    """Stands for a crash."""


def record_resumed(record: Record, folder: Path) -> None:
    data = tensors_of(generated_table(), 400)
    every = methods(data)

    def method_case(name: str, **changes: Any) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            y = torch.stack([data.y, -data.y], 1) if name.startswith("MultiTarget") else data.y
            changes.setdefault("num_steps", STEPS)

            def trained(stop_after: int | None, error: type[BaseException], where: str | None) -> tuple[Any, Any]:
                def callback(step: Any) -> None:
                    if step.number == stop_after:
                        raise error

                method = every[name]()
                place = None if where is None else folder / record._place.replace("/", " ") / where
                choices = {"callback": callback, "checkpoint_dir": place, "checkpoint_steps": 3, **changes}
                return method, fit(method, data.X, y, None, **choices)

            whole, result = trained(None, _KilledError, None)
            add_result(record, "whole", result)
            for j, posterior in enumerate(_condition(whole, data.X, y, None)):
                add_posterior(record, f"posterior {j}", posterior, data.X_test)
            trained(5, KeyboardInterrupt, "interrupted")
            with suppress(_KilledError):
                trained(8, _KilledError, "killed")
            for how in ("interrupted", "killed"):
                method, resumed = trained(None, _KilledError, how)
                record.holds(f"{how}: same history", _numbers(resumed) == _numbers(result))
                record.holds(f"{how}: same parameters", _same_states(method, whole))

        return run

    for name in every:
        if not name.startswith("MAP"):
            record.case(f"resumed/{name}", method_case(name))
    record.case("resumed/CholeskyGP by lbfgs", method_case("CholeskyGP", optimizer="lbfgs"))
    record.case("resumed/MAP of CaGPLocal", method_case("MAP of CaGPLocal"))

    table = terrain_table(300)

    def estimator_case(make: Callable[..., Any]) -> Callable[[Record], None]:
        def run(record: Record) -> None:
            place = folder / record._place.replace("/", " ")
            whole = make().fit(table.X, table.y)
            make(max_time=1e-9, checkpoint_dir=place).fit(table.X, table.y)
            resumed = make(checkpoint_dir=place).fit(table.X, table.y)
            record.add("predictions", whole.predict(table.X_test, return_std=True))
            for j, part in enumerate(whole.predict(table.X_test, return_std=True)):
                again = resumed.predict(table.X_test, return_std=True)[j]
                record.holds(f"same {'mean' if j == 0 else 'std'}", _same(part, again))
            record.holds("same history", _numbers(whole.fit_result_) == _numbers(resumed.fit_result_))

        return run

    common: dict[str, Any] = {"max_epochs": 8, "max_memory": "2GB"}
    for name, make in {
        "exact": lambda **more: cagp.CaGPRegressor(method="exact", **common, **more),
        "opt": lambda **more: cagp.CaGPRegressor(method="opt", n_actions=20, **common, **more),
        "local": lambda **more: cagp.CaGPRegressor(method="local", **common, **more),
        "hybrid": lambda **more: cagp.CaGPRegressor(method="hybrid", n_actions=20, **common, **more),
        "SVGP": lambda **more: cagp.SVGPRegressor(n_inducing=20, **common, **more),
    }.items():
        record.case(f"resumed/estimator {name}", estimator_case(make))


def _numbers(result: Any) -> list[Any]:
    """A history without times and words."""
    return [
        result.best_step,
        result.best_value,
        *([s.number, s.loss, s.terms, s.lr, s.gradient_norm, s.hyperparameters] for s in result.steps),
    ]


def _same_states(a: Any, b: Any) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


# ---- commands ----


@contextmanager
def one_thread() -> Iterator[Path]:
    """Everything on one thread, and a folder that is removed afterwards."""
    torch.set_num_threads(1)
    with threadpool_limits(1), tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def record_all(path: str, only: str) -> int:
    """Run every case and write one file of arrays."""
    record, start = Record(only), time.perf_counter()
    with one_thread() as folder:
        for part in (record_kernels, record_iterative, record_methods):
            part(record)
        for part in (record_helpers, record_resumed, record_estimators):
            part(record, folder)
    broken = [name for name, array in record.arrays.items() if name.endswith("(must hold)") and not array]
    about = {
        "library": str(Path(cagp.__file__).parent),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {"torch": torch.__version__, "numpy": np.__version__, "pandas": pd.__version__},
        "seconds": round(time.perf_counter() - start, 1),
        "errors": record.errors,
    }
    np.savez_compressed(path, **{"about": np.array(json.dumps(about)), **record.arrays})
    slowest = sorted(record.seconds.items(), key=lambda item: -item[1])[:10]
    print(f"{path}: {len(record.seconds)} cases, {len(record.arrays):,} arrays, {about['seconds']} s")
    print("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest))
    for name in broken:
        print(f"does not hold: {name}")
    for name in record.errors:
        print(f"failed: {name}")
    return 1 if broken or record.errors else 0


class Difference(NamedTuple):
    """How two arrays differ."""

    kind: str  # "identical", "order of a sum", "DIFFERENT"
    words: str


def difference(before: np.ndarray, after: np.ndarray) -> Difference:
    """Same bits, or the largest relative difference of two entries at the same place."""
    if before.dtype != after.dtype or before.shape != after.shape:
        types = f"{before.dtype}{list(before.shape)} and {after.dtype}{list(after.shape)}"
        if before.dtype.kind == after.dtype.kind == "U" and before.shape == after.shape == ():
            types = f"{str(before)!r} and {str(after)!r}"
        return Difference("DIFFERENT", types)
    if before.tobytes() == after.tobytes():
        return Difference("identical", "")
    if before.dtype.kind != "f":
        where = np.flatnonzero((before != after).reshape(-1))
        first = before.reshape(-1)[where[0]], after.reshape(-1)[where[0]]
        return Difference("DIFFERENT", f"{len(where)} of {before.size} entries, first {first[0]} and {first[1]}")
    a, b = before.astype(np.float64), after.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not np.array_equal(
        a[~np.isfinite(a)], b[~np.isfinite(b)], equal_nan=True
    ):
        return Difference("DIFFERENT", "NaN or infinite at other places")
    finite = np.isfinite(a)
    a, b = a[finite], b[finite]
    gap, size = np.abs(a - b), np.maximum(np.abs(a), np.abs(b))
    relative = float(np.max(np.divide(gap, size, out=np.zeros_like(gap), where=size > 0), initial=0.0))
    largest = float(size.max(initial=0.0))
    words = (
        f"{int((gap > 0).sum())} of {before.size} entries, relative {relative:.1e}, "
        f"{float(gap.max(initial=0.0)) / largest if largest else 0.0:.1e} of the largest entry"
    )
    return Difference("order of a sum" if relative <= SAME_SUM else "DIFFERENT", words)


def compare(before_path: str, after_path: str, only: str) -> int:
    """Print what differs; 1 where a difference is not listed."""
    with np.load(before_path, allow_pickle=False) as before_file, np.load(after_path, allow_pickle=False) as after_file:
        before, after = dict(before_file), dict(after_file)
    abouts = [json.loads(str(arrays.pop("about"))) for arrays in (before, after)]
    for path, about in zip((before_path, after_path), abouts, strict=True):
        print(f"{path}: {about['library']}, Python {about['python']}, {about['packages']}, {about['seconds']} s")
    if abouts[0]["packages"] != abouts[1]["packages"]:
        print("warning: the packages differ; so may the last digits.")

    kinds = ("identical", "order of a sum", "listed", "DIFFERENT")
    counts: dict[str, dict[str, int]] = {}
    lines: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name in dict.fromkeys([*before, *after]):
        if not fnmatchcase("/".join(name.split("/")[:2]), only):
            continue
        if name in before and name in after:
            kind, words = difference(before[name], after[name])
            if name.endswith("(must hold)") and not after[name]:
                kind, words = "DIFFERENT", "does not hold"
        else:
            kind, words = "DIFFERENT", f"only {'before' if name in before else 'after'}"
        reason = next((reason for pattern, reason in EXCEPTIONS.items() if fnmatchcase(name, pattern)), None)
        if kind == "DIFFERENT" and reason is not None:
            kind, words = "listed", f"{words} ({reason})"
        section = counts.setdefault(name.split("/")[0], dict.fromkeys(kinds, 0))
        section[kind] += 1
        if kind != "identical":
            lines[kind].append(f"  {name}: {words}")

    width = max(map(len, [*counts, "section", "all"]))
    print(f"\n{'section':{width}}" + "".join(f"  {kind:>14}" for kind in kinds))
    total = {kind: sum(section[kind] for section in counts.values()) for kind in kinds}
    for name, section in [*counts.items(), ("all", total)]:
        print(f"{name:{width}}" + "".join(f"  {section[kind]:14,}" for kind in kinds))
    for kind in kinds[1:]:
        if lines[kind]:
            print(f"\n{kind}:")
            print("\n".join(lines[kind]))
    return 1 if total["DIFFERENT"] else 0


def _small_tables() -> dict[str, Table]:
    return {"terrain": terrain_table(160), "frame": frame_table(160)}


def save_models(target: str) -> int:
    """Save a small model of every estimator, with what it predicts."""
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = {
            f"{table_name} {name}": (make, table)
            for table_name, table in _small_tables().items()
            for name, make in estimators({"*": 6}).items()
        }
        makers |= {f"terrain {name}": (make, _small_tables()["terrain"]) for name, make in option_cases().items()}
        for name, (make, table) in makers.items():
            known = {} if table.noise is None else {"sample_noise": table.noise}
            model = make().fit(table.X, table.y, **known)
            stem = name.replace(" ", "_").replace(",", "")
            model.save(folder / f"{stem}.cagp")
            record = Record("*")
            add_answers(record, "predictions", model, table)
            np.savez_compressed(folder / f"{stem}.npz", **record.arrays)
    print(f"{folder}: {len(makers)} models")
    return 0


def reload_models(source: str) -> int:
    """Load the models that ``save_models`` wrote, and compare what they predict."""
    failed, paths, tables = 0, sorted(Path(source).glob("*.cagp")), _small_tables()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in paths:
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
                expected = dict(file)
            record, words = Record("*"), []
            try:
                add_answers(record, "predictions", cagp.load(path), tables[path.stem.split("_")[0]])
            except Exception as error:
                words.append(f"{type(error).__name__}: {error}")
            for name in dict.fromkeys([*expected, *record.arrays]) if not words else ():
                if name not in expected or name not in record.arrays:
                    words.append(f"{name} only {'before' if name in expected else 'after'}")
                elif (found := difference(expected[name], record.arrays[name])).kind != "identical":
                    words.append(f"{name}: {found.kind}, {found.words}")
            failed += bool(words)
            print(f"{path.name}: {'the same' if not words else '; '.join(words)}")
    print(f"{len(paths) - failed} of {len(paths)} models load and predict the same.")
    return 1 if failed or not paths else 0


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, paths in {
        "record": ["out"],
        "compare": ["before", "after"],
        "models": ["folder"],
        "reload": ["folder"],
    }.items():
        command = commands.add_parser(name)
        for path in paths:
            command.add_argument(path)
        if name in ("record", "compare"):
            command.add_argument("--only", default="*", help="pattern of cases, e.g. 'methods/*' or '*local*'")
    chosen = parser.parse_args(arguments)
    if chosen.command == "record":
        return record_all(chosen.out, chosen.only)
    if chosen.command == "compare":
        return compare(chosen.before, chosen.after, chosen.only)
    return save_models(chosen.folder) if chosen.command == "models" else reload_models(chosen.folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
