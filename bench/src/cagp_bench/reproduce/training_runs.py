"""Training runs of all methods on real tables: the measurements that four figures are drawn from.

Of each table, 10 % of the rows are for testing, by seed, and a tenth of the others, at most 2,000, for validation:
these choose learning rate and epoch. Inputs and targets are standardised with the training rows.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cagp import metrics
from cagp.data import split, standardized
from cagp.kernels import Scale, Stationary
from cagp.methods import CGGP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, Method
from cagp.prior import GP
from cagp.starting import raise_noise, start_from_data, start_from_neighbours
from cagp.training import Settings
from cagp_bench.gp_settings import LBFGS_ITERATIONS
from cagp_bench.reproduce.comparisons import Scores
from cagp_bench.reproduce.experiment import Record, Tables, Task, generator, select, values
from cagp_bench.reproduce.toy import NOISE_FLOOR, new_prior, noise_of, trained

SOURCE = "training-runs"
VALIDATION_ROWS = 2000
BATCH_SIZE = 1024
Optimizer = Literal["adam", "lbfgs"]


class Config(NamedTuple):
    """A method with the ways in which it is trained (Table S1)."""

    method: str
    optimizer: Optimizer
    rates: tuple[float | None, ...]  # None: the method's own
    epochs: int  # of L-BFGS: iterations, of which an epoch of the paper has several


SWEEP = (1.0, 0.1, 0.01, 0.001, 0.0001)
CONFIGS = (
    Config("CholeskyGP", "lbfgs", SWEEP, 100 * LBFGS_ITERATIONS),
    Config("SGPR", "adam", SWEEP, 1000),
    Config("SGPR", "lbfgs", SWEEP, 100 * LBFGS_ITERATIONS),
    Config("SVGP", "adam", SWEEP, 1000),
    Config("CGGP", "lbfgs", SWEEP, 100 * LBFGS_ITERATIONS),
    Config("CaGP-CG", "adam", SWEEP[:2], 250),
    Config("CaGP-Opt", "adam", SWEEP[:3], 1000),
    Config("CaGP-Opt", "lbfgs", SWEEP[:3], 100 * LBFGS_ITERATIONS),
    Config("CaGP-Opt (ours)", "adam", (None,), 300),
    Config("CaGP-Local", "adam", (None,), 300),
)
METHODS = tuple(dict.fromkeys(config.method for config in CONFIGS))
OURS = ("CaGP-Opt (ours)", "CaGP-Local")
LARGE = ("SVGP", "CaGP-Opt", *OURS)
FEASIBLE = {
    "parkinsons": METHODS,
    "bike": METHODS,
    "protein": tuple(name for name in METHODS if name != "CholeskyGP"),
    "keggu": tuple(name for name in METHODS if name != "CholeskyGP"),
    "road": LARGE,
    "power": LARGE,
}
"""What the paper trains on each of its tables, and ours."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    num_seeds: int
    tables: tuple[str, ...]
    optional: tuple[str, ...]  # tables that are used if they are there
    rows: int | None  # of each table, to train and validate with; None for all
    test_rows: int | None  # at most; None for all
    num_actions: int
    num_inducing: int
    # By method, or else by optimiser; those of the paper for what is not named.
    epochs: dict[str, int]
    rates: dict[str, tuple[float, ...]]
    evaluations: int
    gradient: Literal["natural", "joint"]  # of SVGP


PAPER_TABLES = ("parkinsons", "bike", "protein", "keggu")
SIZES = {
    "tiny": Size(
        num_seeds=1,
        tables=("parkinsons",),
        optional=(),
        rows=60,
        test_rows=20,
        num_actions=4,
        num_inducing=8,
        epochs={"CaGP-CG": 2, "adam": 4, "lbfgs": 2},
        rates={"adam": (1.0, 0.1), "lbfgs": (0.1,)},
        evaluations=2,
        gradient="natural",
    ),
    "quick": Size(
        num_seeds=1,
        tables=("parkinsons", "protein"),
        optional=(),
        rows=800,
        test_rows=400,
        num_actions=72,
        num_inducing=144,
        epochs={"CGGP": 4, "CaGP-CG": 25, "adam": 100, "lbfgs": 15},
        rates={"CGGP": (0.1,), "adam": (1.0, 0.1, 0.01), "lbfgs": (1.0, 0.1)},
        evaluations=20,
        gradient="natural",
    ),
    "full": Size(
        num_seeds=5,
        tables=PAPER_TABLES,
        optional=("road", "power"),
        rows=None,
        test_rows=None,
        num_actions=512,
        num_inducing=1024,
        epochs={},
        rates={},
        evaluations=100,
        gradient="joint",
    ),
}


def tasks(size: str, tables: Tables) -> list[Task]:
    """A task for each table, method, learning rate and seed."""
    s = SIZES[size]
    present = [*s.tables, *(name for name in s.optional if _has(tables, name))]
    common = {
        "rows": s.rows,
        "test_rows": s.test_rows,
        "num_actions": s.num_actions,
        "num_inducing": s.num_inducing,
        "noise_floor": NOISE_FLOOR,
    }
    common |= {"gradient": s.gradient, "evaluations": s.evaluations}
    found = []
    for seed in range(s.num_seeds):
        for name in present:
            for config in (config for config in CONFIGS if config.method in FEASIBLE[name]):
                epochs, rates = (_for(config, found) for found in (s.epochs, s.rates))
                for rate in (r for r in config.rates if r is None or rates is None or r in rates):
                    settings = {
                        "experiment": SOURCE,
                        "size": size,
                        "table": name,
                        "method": config.method,
                        "optimizer": config.optimizer,
                        "lr": rate,
                        "seed": seed,
                        "options": {**common, "epochs": epochs or config.epochs, "digest": tables.digest(name)},
                    }
                    found.append(Task(settings, partial(measure, tables, settings)))
    return found


def _for(config: Config, found: dict[str, Any]) -> Any:
    """What is said of a method, or else of its optimiser; None if nothing is."""
    return found.get(config.method, found.get(config.optimizer))


def _has(tables: Tables, name: str) -> bool:
    return tables.folder is not None and (tables.folder / f"{name}.npz").is_file()


def measure(tables: Tables, settings: dict[str, Any]) -> dict[str, Any]:
    """Loss, validation and test scores and hyperparameters during training, at evenly spaced steps."""
    options, name, seed = settings["options"], settings["method"], settings["seed"]
    is_double = settings["optimizer"] == "lbfgs"
    parts = _parts(tables, settings["table"], options, seed, torch.float64 if is_double else torch.float32)
    (X, y), validation, test = parts
    begin = time.perf_counter()
    prior = new_prior(X.shape[1])
    method = new_method(name, prior, X, y, options, seed)
    start_s = time.perf_counter() - begin  # choosing inducing points, blocks or starting values is training, too
    epochs = options["epochs"]
    num_steps = epochs * math.ceil(len(y) / BATCH_SIZE) if name == "SVGP" else epochs
    evaluate = _evaluation(method, prior, X, y, validation, test)
    first = evaluate()
    plan = Settings(
        optimizer=settings["optimizer"],
        num_steps=num_steps,
        lr=settings["lr"],
        evaluate_every=max(1, num_steps // options["evaluations"]),
    )
    result = trained(method, X, y, plan, evaluate=evaluate, checkpoint_dir=tables.checkpoints(settings))
    steps = [step for step in result.steps if step.evaluation]
    evaluations = [first, *(step.evaluation for step in steps if step.evaluation)]
    return {
        "n": len(y),
        "d": X.shape[1],
        "num_test": len(test[1]),
        "step": [0, *(step.number for step in steps)],
        "seconds_so_far": [_short(start_s + seconds) for seconds in (0.0, *(step.seconds for step in steps))],
        "loss": [_short(step.loss) for step in (result.steps[0], *steps)],
        **{key: [_short(evaluation[key]) for evaluation in evaluations] for key in first},
        "status": result.status.value,
        "failures": len(result.failures),
        "start_s": start_s,
        "fit_s": start_s + result.seconds,
    }


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _parts(
    tables: Tables, name: str, options: dict[str, Any], seed: int, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Training, validation and test rows of a table, standardised."""
    with np.load(tables.path(name), allow_pickle=False) as file:
        X, y = (torch.from_numpy(np.asarray(file[key], dtype=np.float64)) for key in ("X", "y"))
    outer = split(len(y), 0.1, seed)
    known, test = _some(outer.train, options["rows"], seed), _some(outer.test, options["test_rows"], seed)
    inner = split(len(known), min(0.1, VALIDATION_ROWS / len(known)), seed)
    return standardized(X, y, known[inner.train], known[inner.test], test, dtype=dtype)


def _some(rows: Tensor, most: int | None, seed: int) -> Tensor:
    """These rows, or ``most`` of them at random."""
    if most is None or most >= len(rows):
        return rows
    return rows[torch.randperm(len(rows), generator=generator(seed, 7))[:most]]


def new_method(name: str, prior: GP, X: Tensor, y: Tensor, options: dict[str, Any], seed: int) -> Method:
    """A method at its starting values."""
    i, m = min(options["num_actions"], len(y)), min(options["num_inducing"], len(y))
    if name == "CholeskyGP":
        return CholeskyGP(prior)
    if name == "SGPR":
        return SGPR.from_data(prior, X, m, seed=seed)
    if name == "SVGP":
        return SVGP.from_data(prior, X, m, seed=seed, gradient=options["gradient"], batch_size=BATCH_SIZE)
    if name == "CGGP":
        return CGGP(prior, max_iterations=i, precondition_rank=min(100, len(y)), seed=seed)
    if name == "CaGP-CG":
        return CaGPCG(prior, i, relative_residual=1e-4)
    if name == "CaGP-Opt":
        choices = {"blocks": "ordered", "start": "random", "generator": generator(seed, 2)}
        return CaGPOpt.from_data(prior, X, i, **choices)
    if name == "CaGP-Opt (ours)":
        start_from_neighbours(prior, X, y, seed=seed)
        method = CaGPOpt.from_data(prior, X, i, reblock_at=())
        raise_noise(method, X, y)
        return method
    start_from_data(prior, X, y)
    return CaGPLocal(prior, min(32, len(y) - 1), seed=seed)


def _evaluation(
    method: Method, prior: GP, X: Tensor, y: Tensor, validation: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> Callable[[], dict[str, float]]:
    """A function that scores the present parameters and reads them."""
    scale = next(part for part in prior.modules() if isinstance(part, Scale))
    shape = next(part for part in prior.modules() if isinstance(part, Stationary))

    def evaluate() -> dict[str, float]:
        posterior = method.condition(X, y)
        scores = metrics.scores(test[1], *posterior.predict(test[0], noise=True))
        lengthscales = shape.lengthscale.detach().tolist()[:3]
        return {
            "validation_nll": metrics.nll(validation[1], *posterior.predict(validation[0], noise=True)),
            "nll": scores.nll,
            "rmse": scores.rmse,
            "coverage_error": scores.coverage_error,
            "noise": noise_of(prior),
            "outputscale": float(scale.outputscale.detach()),
            **{f"lengthscale_{j + 1}": value for j, value in enumerate(lengthscales)},
        }

    return evaluate


# ---- what figures and claims read from the records ----


def chosen_point(record: Record) -> int | None:
    """The place in the curves where the validation NLL is lowest; None if it is never finite."""
    found = [(value, place) for place, value in enumerate(record["validation_nll"]) if value is not None]
    return min(found)[1] if found else None


def best_runs(records: list[Record], table: str, method: str) -> list[Record]:
    """The runs, one a seed, of the optimiser and learning rate with the lowest validation NLL on average."""
    found: dict[tuple[str, float | None], list[Record]] = {}
    for record in select(records, table=table, method=method):
        if chosen_point(record) is not None:
            found.setdefault((record["settings"]["optimizer"], record["settings"]["lr"]), []).append(record)
    if not found:
        return []
    most = max(map(len, found.values()))  # a rate that failed with some seeds is not compared by the others
    complete = [runs for runs in found.values() if len(runs) == most]
    return min(complete, key=lambda runs: fmean(chosen_value(run, "validation_nll") for run in runs))


def chosen_value(record: Record, name: str) -> float:
    """A number of a run at the step with the lowest validation NLL; NaN if it is not finite there."""
    place = chosen_point(record)
    value = None if place is None else record[name][place]
    return math.nan if value is None else value


def score(records: list[Record], table: str, method: str, name: str) -> tuple[float, float] | None:
    """Mean and standard deviation over seeds of a chosen number, at the best learning rate; None without records."""
    runs = best_runs(records, table, method)
    if not runs:
        return None
    found = [chosen_value(run, name) for run in runs]
    return fmean(found), stdev(found) if len(found) > 1 else 0.0


def scores(records: list[Record], name: str, methods: Sequence[str] = METHODS) -> Scores:
    """``score`` of each method on each table."""
    return {
        table: {method: found for method in methods if (found := score(records, table, method, name)) is not None}
        for table in tables_of(records)
    }


def tables_of(records: list[Record]) -> list[str]:
    """The tables that have records."""
    return values(records, "table")


def in_words(records: list[Record]) -> str:
    """What was trained on, for captions."""
    o = records[0]["settings"]["options"]
    counts = {table: select(records, table=table)[0]["n"] for table in tables_of(records)}
    rows = ", ".join(f"{table} ({count:,} training rows)" for table, count in counts.items())
    missing = [name for name in FEASIBLE if name not in counts]
    without = f" Of the paper's tables, {', '.join(missing)} are missing here." if missing else ""
    seeds = len(values(records, "seed"))
    return (
        f"Tables: {rows}. {o['num_actions']} actions, {o['num_inducing']} inducing points, noise variance at least "
        f"{o['noise_floor']:g}, {seeds} {'seed' if seeds == 1 else 'seeds'}. Learning rate and epoch are those with "
        f"the lowest NLL of validation rows.{without}"
    )


DIFFERS = (
    "The paper chooses learning rate and epoch on test rows; here validation rows choose, which are taken from the "
    "training rows. CaGP-Opt is as the paper defines it; CaGP-Opt (ours) has blocks of nearby rows, equal weights and "
    "starts from a short fit of CaGP-Local, whose time counts; CaGP-Local is ours."
)


def differs(records: list[Record]) -> str:
    """How runs differ from those of the paper, besides ``DIFFERS``."""
    s = records[0]["settings"]
    return "" if s["size"] == "full" else " The runs are short, on few rows, and SVGP has natural gradients."
