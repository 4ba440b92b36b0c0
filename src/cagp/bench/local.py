"""``cagp bench local``: how fast CaGP-Local computes, and, with tables, how well it predicts beside its peers.

Speed: rows per second of predictions with standard deviations and of training steps, compiled and in torch, float64.
Neighbours are given: finding them is not counted.

Quality: of each table, 90 % of the rows are for training and 10 % for testing, by seed; inputs and targets are
standardised with the training rows, the kernel is Matérn 3/2. Nothing is chosen by looking at test rows: every method
runs with fixed settings. Each run has a process of its own, which is killed at the time limit.
"""

import importlib
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cagp import metrics
from cagp.bench.generalization import load_table, new_method
from cagp.bench.records import best_of, collect, machine, show
from cagp.data import split, standardized
from cagp.engine import local as engine_local
from cagp.engine import native
from cagp.estimators.choosing import constant_actions
from cagp.kernels import Matern32, Scale
from cagp.local import local_answers, local_nll
from cagp.memory import current_memory, peak_memory
from cagp.methods.cagp_local import CaGPLocal, Objective
from cagp.neighbours import NeighbourSearch
from cagp.posteriors import Prediction
from cagp.prior import GP, GaussianNoise
from cagp.starting import start_from_data
from cagp.training import fit
from cagp.training.settings import seconds_of

# ---- speed ----

DIMENSIONS = (2, 9, 20)
NEIGHBOURS = (16, 32, 64)
NUM_TRAIN = 16_384
BATCH = 1_024
# Rows predicted: enough for a stable rate; in torch more would only take longer.
NUM_QUESTIONS = {"native": 16_384, "torch": 4_096}
# The machine may be busy with other work: every backend has its turn this many times, short calls are repeated for this
# long each time, and the fastest call counts.
TURNS = 3
SECONDS = 0.15


class Backend(NamedTuple):
    """One way to compute local moments."""

    name: Literal["native", "torch"]
    threads: int


def run_speed(repeats: int, as_json: bool) -> int:
    """Measure each backend for every k and d in one process, and print one record each; return 1 if any failed."""
    records = []
    for d in DIMENSIONS:
        for k in NEIGHBOURS:
            problem = _problem(d, k)
            turns = [[_speed(backend, problem, d, k, repeats) for backend in _backends()] for _ in range(TURNS)]
            group = [_fastest(records_of_one) for records_of_one in zip(*turns, strict=True)]
            records += [record | _ratios(record, group[-1]) for record in group]
    show(
        records,
        {
            "backend": lambda r: r["backend"],
            "threads": lambda r: str(r["threads"]),
            "d": lambda r: str(r["d"]),
            "k": lambda r: str(r["k"]),
            "predict, rows/s": lambda r: _rate(r, "predict_per_s"),
            "rows": lambda r: f"{r['predict_rows']:,}",
            "train, rows/s": lambda r: _rate(r, "train_per_s"),
            "predict / torch": lambda r: _factor(r, "predict_per_torch"),
            "train / torch": lambda r: _factor(r, "train_per_torch"),
        },
        as_json,
    )
    return int(any("error" in record for record in records))


def _backends() -> list[Backend]:
    """The compiled path with all threads and with one, where there is one; torch is last."""
    threads = torch.get_num_threads()
    compiled = [Backend("native", count) for count in sorted({1, threads}, reverse=True)] if native.available() else []
    return [*compiled, Backend("torch", threads)]


class _Problem(NamedTuple):
    """Rows in space with the neighbours of some of them: the questions, and the minibatch of a training step."""

    X: Tensor
    y: Tensor
    questions: Tensor
    neighbours: Tensor
    batch: Tensor
    batch_neighbours: Tensor


def _problem(num_dims: int, num_neighbours: int) -> _Problem:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(NUM_TRAIN, num_dims, generator=generator, dtype=torch.float64)
    y = torch.sin(X).sum(1) / num_dims**0.5
    questions = torch.randn(max(NUM_QUESTIONS.values()), num_dims, generator=generator, dtype=torch.float64)
    batch = torch.randperm(NUM_TRAIN, generator=generator)[:BATCH]
    search = NeighbourSearch(X)
    near = search.nearest(X[batch], num_neighbours, left_out=batch)
    return _Problem(X, y, questions, search.nearest(questions, num_neighbours), batch, near)


def _speed(backend: Backend, problem: _Problem, num_dims: int, num_neighbours: int, repeats: int) -> dict[str, Any]:
    """A failure is a record too: its rates are missing and ``error`` says why."""
    rows = NUM_QUESTIONS[backend.name]
    sizes = {"d": num_dims, "k": num_neighbours, "n": NUM_TRAIN, "predict_rows": rows, "batch": BATCH}
    sizes["tile_rows"] = _tile_rows(backend.name, num_neighbours)
    record = {**machine(), "backend": backend.name, **sizes, "threads": backend.threads, "dtype": "float64"}
    if rows < max(NUM_QUESTIONS.values()):
        record["note"] = f"predicts {rows:,} rows, not {max(NUM_QUESTIONS.values()):,}: it is slower"
    before = torch.get_num_threads()
    torch.set_num_threads(backend.threads)
    try:
        predict, step = _seconds(backend, problem, repeats)
        return {**record, "predict_per_s": rows / predict, "train_per_s": len(problem.batch) / step}
    except Exception as error:
        return {**record, "predict_per_s": None, "train_per_s": None, "error": _in_one_line(error)}
    finally:
        torch.set_num_threads(before)


def _fastest(records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The best rates of a backend's turns; a failure where there was one."""
    failed = [record for record in records if "error" in record]
    rates = ("predict_per_s", "train_per_s")
    return failed[0] if failed else records[0] | {rate: max(record[rate] for record in records) for rate in rates}


def _seconds(backend: Backend, problem: _Problem, repeats: int) -> tuple[float, float]:
    """Time of predictions with standard deviations, and of the objective and its gradient for one minibatch."""
    num_dims = problem.X.shape[1]
    prior = GP(Scale(Matern32(num_dims, num_dims**0.5)), noise=GaussianNoise(0.01))
    parameters = list(prior.parameters())
    rows = NUM_QUESTIONS[backend.name]
    questions, neighbours = problem.questions[:rows], problem.neighbours[:rows]

    @torch.no_grad()
    def predict() -> tuple[Tensor, Tensor]:
        mean, variance = answers(prior, problem.X, problem.y, questions, neighbours, backend.name)
        return mean, variance.sqrt()

    def step() -> tuple[Tensor, ...]:
        rows = (problem.batch, problem.batch_neighbours)
        nll = local_nll(prior, problem.X, problem.y, None, *rows, backend=backend.name)
        return torch.autograd.grad(nll / len(problem.batch), parameters)

    return best_of(repeats, predict, SECONDS), best_of(repeats, step, SECONDS)


def answers(
    prior: GP, X: Tensor, y: Tensor, questions: Tensor, neighbours: Tensor, backend: Literal["native", "torch"]
) -> Prediction:
    """Mean and variance of new targets from the neighbours given."""
    found = local_answers(prior, X, y, None, questions, neighbours, backend=backend)
    return Prediction(found.mean, found.variance.clamp_min(0) + prior.noise_variance(questions))


def _tile_rows(backend: str, num_neighbours: int) -> int:
    rows = NUM_QUESTIONS[backend]
    return rows if backend == "native" else min(rows, engine_local.TORCH_ENTRIES // num_neighbours**2)


def _ratios(record: dict[str, Any], torch_record: dict[str, Any]) -> dict[str, float]:
    """How many times the rates of torch with all threads a compiled record has."""
    if record["backend"] == "torch" or "error" in record or "error" in torch_record:
        return {}
    rates = {"predict_per_torch": "predict_per_s", "train_per_torch": "train_per_s"}
    return {name: record[rate] / torch_record[rate] for name, rate in rates.items()}


def _rate(record: dict[str, Any], key: str) -> str:
    return "failed" if record[key] is None else f"{record[key]:,.0f}"


def _factor(record: dict[str, Any], key: str) -> str:
    return f"{record[key]:.1f}" if key in record else ""


# ---- quality ----

METHODS = ("local", "local-scale", "hybrid", "opt", "gpboost")
NUM_ACTIONS = 512
NOISE_FLOOR = 1e-9
"""Of local and hybrid, in float64: on noise-free tables the usual 1e-6 would decide how wide the intervals are."""

GPBOOST_NEIGHBOURS = 20


class Run(NamedTuple):
    """What is fitted to which rows; see ``METHODS``."""

    table: str
    method: str
    seed: int
    num_neighbours: int = 32
    num_actions: int = NUM_ACTIONS
    num_rows: int | None = None
    objective: Objective = "loo"


class Outcome(NamedTuple):
    """Predictions of new targets at the test rows, and what they took."""

    prediction: Prediction
    fit_s: float  # everything before the first question, conditioning included
    predict_s: float
    details: dict[str, Any]


def run_quality(runs: list[Run], max_time: str, as_json: bool) -> int:
    """Carry out each run in a fresh process, and print one record each; return 1 if any failed."""
    seconds_of(max_time)  # a limit that cannot be read is an error now, not after the first table
    return collect(
        [partial(in_new_process, run, max_time) for run in runs], _in_words, partial(_show_quality, as_json=as_json)
    )


def _show_quality(records: list[dict[str, Any]], as_json: bool) -> None:
    def number(key: str, digits: int, scale: float = 1.0) -> Callable[[dict[str, Any]], str]:
        return lambda r: f"{r[key] / scale:,.{digits}f}" if key in r else ""

    show(
        records,
        {
            "table": lambda r: r["table"],
            "seed": lambda r: str(r["seed"]),
            "method": lambda r: r["method"],
            "NLL": lambda r: "failed" if "error" in r else f"{r['nll']:.3f}",
            "RMSE": number("rmse", 4),
            "CRPS": number("crps", 4),
            "cover": number("coverage", 3),
            "width": number("interval_width", 4),
            "fit, s": number("fit_s", 1),
            "predict, s": number("predict_s", 1),
            "MB": number("peak_bytes", 0, 1e6),
        },
        as_json,
    )


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, seed {record['seed']}, {record['method']}"
    if "error" in record:
        return f"{start} failed: {record['error']}"
    return f"{start}: NLL {record['nll']:.3f}, fit {record['fit_s']:.1f} s, predictions {record['predict_s']:.1f} s"


def in_new_process(run: Run, max_time: str) -> dict[str, Any]:
    """The record of one run. A failure is a record too: ``error`` says why, a run that was too long included."""
    record = {**machine(), "table": Path(run.table).stem, "method": run.method, "seed": run.seed, "max_time": max_time}
    start, limit = time.perf_counter(), seconds_of(max_time)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.json"  # libraries write to the standard output
        command = [sys.executable, "-m", "cagp.bench.local", json.dumps(run._asdict()), str(out)]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=limit if math.isfinite(limit) else None)
            result = json.loads(out.read_text()) if ended.returncode == 0 else {"error": _crash(ended)}
        except subprocess.TimeoutExpired:
            result = {"error": f"killed at the time limit ({max_time})"}
    return {**record, **result, "total_s": time.perf_counter() - start}


def _crash(ended: subprocess.CompletedProcess[bytes]) -> str:
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    if ended.returncode == -signal.SIGKILL:
        return f"the process was killed (out of memory?){last}"
    if ended.returncode < 0:
        return f"the process crashed ({signal.Signals(-ended.returncode).name}){last}"
    return f"the process ended with exit code {ended.returncode}{last}"


def measure(run: Run) -> dict[str, Any]:
    """Quality, times and peak memory of this process, for one run in it; a failure is a record with ``error``."""
    imports = {"imports_bytes": current_memory()}
    try:
        return {**machine(), **imports, **_quality(run), "peak_bytes": peak_memory()}
    except Exception as error:
        return {**machine(), **imports, "error": _in_one_line(error), "peak_bytes": peak_memory()}


def _quality(run: Run) -> dict[str, Any]:
    X, y = load_table(Path(run.table), run.num_rows)
    rows = split(len(y), 0.1, run.seed)
    dtype = torch.float32 if run.method == "opt" else torch.float64
    (X, y), (X_test, y_test) = standardized(X, y, rows.train, rows.test, dtype=dtype)
    outcome = _outcome(run, X, y, X_test)
    mean, variance = outcome.prediction
    return {
        "n": len(y),
        "d": X.shape[1],
        "num_test": len(y_test),
        "dtype": str(dtype).removeprefix("torch."),
        "nll": metrics.nll(y_test, mean, variance),
        "rmse": metrics.rmse(y_test, mean),
        "crps": metrics.crps(y_test, mean, variance),
        "coverage": metrics.coverage(y_test, mean, variance),
        "interval_width": metrics.interval_width(variance),
        "fit_s": outcome.fit_s,
        "predict_s": outcome.predict_s,
        **outcome.details,
    }


def _outcome(run: Run, X: Tensor, y: Tensor, X_test: Tensor) -> Outcome:
    if run.method not in METHODS:
        raise ValueError(f"method is {run.method!r}, expected one of {', '.join(METHODS)}.")
    return (_gpboost if run.method == "gpboost" else _ours)(run, X, y, X_test)


def _ours(run: Run, X: Tensor, y: Tensor, X_test: Tensor) -> Outcome:
    """CaGP-Opt; CaGP-Local; or at the hyperparameters of the latter a local scale, or constant actions on blocks."""
    start = time.perf_counter()
    details: dict[str, Any] = {"i": run.num_actions} if run.method in ("hybrid", "opt") else {}
    if run.method == "opt":
        method = new_method(X, y, run.num_actions, "spatial", "neighbours", run.seed)
        result = fit(method, X, y)
    else:
        prior = start_from_data(GP(Scale(Matern32(X.shape[1])), noise=GaussianNoise(noise_floor=NOISE_FLOOR)), X, y)
        method = CaGPLocal(prior, run.num_neighbours, objective=run.objective, seed=run.seed)
        result = fit(method, X, y)
        if run.method == "hybrid":
            shared = constant_actions(prior.kernel, X, run.num_actions, run.seed)
            method = CaGPLocal(prior, run.num_neighbours, shared=shared, seed=run.seed)
        elif run.method == "local-scale":
            choice = method.choose_local_scale(X, y)
            method = method.with_local_scale(choice.local_scale)
            details |= {"local_scale": choice.local_scale, "scale_rows": choice.num_rows, "scale_rows_nll": choice.nll}
        details |= {"k": run.num_neighbours, "k_predict": method.num_neighbours_predict, "noise_floor": NOISE_FLOOR}
        details |= {"objective": run.objective}
    posterior = method.condition(X, y)
    conditioned = time.perf_counter()
    prediction = posterior.predict(X_test, noise=True)
    predicted = time.perf_counter()
    details |= {"steps": len(result.steps), "train_s": result.seconds, "failures": len(result.failures)}
    details |= {"hyperparameters": method.hyperparameters(), "report": str(result)}
    return Outcome(prediction, conditioned - start, predicted - conditioned, details)


def _gpboost(run: Run, X: Tensor, y: Tensor, X_test: Tensor) -> Outcome:
    """GPBoost's Vecchia approximation with its own settings, in as many threads as ours; it predicts with 2k rows."""
    try:
        gpboost = importlib.import_module("gpboost")
    except ImportError as error:
        raise ImportError("gpboost is not installed: pip install 'cagp[peers]'") from error
    start = time.perf_counter()
    model = gpboost.GPModel(
        gp_coords=X.numpy(),
        cov_function="matern_ard",
        cov_fct_shape=1.5,
        gp_approx="vecchia",
        num_neighbors=GPBOOST_NEIGHBOURS,
        likelihood="gaussian",
        num_parallel_threads=torch.get_num_threads(),
        seed=run.seed,
    )
    model.fit(y=y.numpy())
    fitted = time.perf_counter()
    new = model.predict(gp_coords_pred=X_test.numpy(), predict_var=True, predict_response=True)
    seconds = time.perf_counter() - fitted
    values = model.get_cov_pars().iloc[0]
    details = {
        "k": GPBOOST_NEIGHBOURS,
        "k_predict": 2 * GPBOOST_NEIGHBOURS,
        "gpboost": gpboost.__version__,
        "hyperparameters": {str(name): float(value) for name, value in values.items()},
    }
    prediction = Prediction(torch.from_numpy(new["mu"]), torch.from_numpy(new["var"]))
    return Outcome(prediction, fitted - start, seconds, details)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(Run(**json.loads(sys.argv[1])))))
