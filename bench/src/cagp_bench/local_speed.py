"""``cagp bench local`` without tables: how fast CaGP-Local computes.

Rows per second of predictions with standard deviations and of training steps, compiled and in torch, in float64. The
neighbours are given: the time to find them does not count.
"""

import argparse
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cagp.engine import COMPILED, TORCH
from cagp.kernels import Matern32, Scale
from cagp.local_inference import local_answers, local_nll
from cagp.neighbours import NeighbourIndex
from cagp.posteriors import Prediction
from cagp.prior import GP, GaussianNoise
from cagp_bench.options import add_repeats
from cagp_bench.records import FAILED, best_of, cell, in_one_line, machine, show

DIMENSIONS = (2, 9, 20)
NEIGHBOURS = (16, 32, 64)
NUM_TRAIN = 16_384
BATCH = 1_024
# Test points: enough for a stable rate; more would only take longer in torch.
NUM_POINTS = {"native": 16_384, "torch": 4_096}
# The machine may be busy with other work. So every variant has this many turns, short calls are repeated for this long
# in each turn, and the fastest call counts.
TURNS = 3
SECONDS = 0.15
ENGINES = {"native": COMPILED, "torch": TORCH}


class Variant(NamedTuple):
    """One way to compute conditionals on a few rows."""

    backend: Literal["native", "torch"]
    threads: int


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench local``."""
    suite.description = (
        "Rows per second of predictions and training steps of CaGP-Local, compiled and in torch. Its quality on tables "
        "is a suite: cagp bench run local."
    )
    add_repeats(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure each variant for every k and d in one process and print a record for each; return 1 if any failed."""
    records = []
    for d in DIMENSIONS:
        for k in NEIGHBOURS:
            problem = _problem(d, k)
            turns = [
                [_speed(variant, problem, d, k, arguments.repeats) for variant in _variants()] for _ in range(TURNS)
            ]
            group = [_fastest(records_of_one) for records_of_one in zip(*turns, strict=True)]
            records += [record | _ratios(record, group[-1]) for record in group]
    return show(
        records,
        {
            "backend": cell("backend"),
            "threads": cell("threads"),
            "d": cell("d"),
            "k": cell("k"),
            "predict, rows/s": cell("predict_per_s", "{:,.0f}", FAILED),
            "rows": cell("predict_rows", "{:,}"),
            "train, rows/s": cell("train_per_s", "{:,.0f}", FAILED),
            "predict / torch": cell("predict_per_torch", "{:.1f}"),
            "train / torch": cell("train_per_torch", "{:.1f}"),
        },
        arguments.json,
        num_keys=4,
    )


def _variants() -> list[Variant]:
    """Compiled with all threads and with one, if it is installed; torch comes last."""
    threads = torch.get_num_threads()
    counts = sorted({1, threads}, reverse=True) if COMPILED.instruction_set else []
    return [*(Variant("native", count) for count in counts), Variant("torch", threads)]


class _Problem(NamedTuple):
    """Training rows; test points and the minibatch of a training step, each with their neighbours."""

    X: Tensor
    y: Tensor
    points: Tensor
    neighbours: Tensor
    batch: Tensor
    batch_neighbours: Tensor


def _problem(num_dims: int, num_neighbours: int) -> _Problem:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(NUM_TRAIN, num_dims, generator=generator, dtype=torch.float64)
    y = torch.sin(X).sum(1) / num_dims**0.5
    points = torch.randn(max(NUM_POINTS.values()), num_dims, generator=generator, dtype=torch.float64)
    batch = torch.randperm(NUM_TRAIN, generator=generator)[:BATCH]
    index = NeighbourIndex(X)
    near = index.nearest(X[batch], num_neighbours, left_out=batch)
    return _Problem(X, y, points, index.nearest(points, num_neighbours), batch, near)


def _speed(variant: Variant, problem: _Problem, num_dims: int, num_neighbours: int, repeats: int) -> dict[str, Any]:
    """A failure is a record too: its rates are missing and ``error`` says why."""
    rows = NUM_POINTS[variant.backend]
    sizes = {"d": num_dims, "k": num_neighbours, "n": NUM_TRAIN, "predict_rows": rows, "batch": BATCH}
    record = {**machine(), "backend": variant.backend, **sizes, "threads": variant.threads, "dtype": "float64"}
    if rows < max(NUM_POINTS.values()):
        record["note"] = f"predicts {rows:,} rows, not {max(NUM_POINTS.values()):,}, because it is slower"
    before = torch.get_num_threads()
    torch.set_num_threads(variant.threads)
    try:
        predict, step = _seconds(variant, problem, repeats)
        return {**record, "predict_per_s": rows / predict, "train_per_s": len(problem.batch) / step}
    except Exception as error:
        return {**record, "predict_per_s": None, "train_per_s": None, "error": in_one_line(error)}
    finally:
        torch.set_num_threads(before)


def _fastest(records: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The best rates of the turns of a variant, or its first failure."""
    failed = [record for record in records if "error" in record]
    rates = ("predict_per_s", "train_per_s")
    return failed[0] if failed else records[0] | {rate: max(record[rate] for record in records) for rate in rates}


def _seconds(variant: Variant, problem: _Problem, repeats: int) -> tuple[float, float]:
    """Time of predictions with standard deviations, and of the objective and its gradient for one minibatch."""
    num_dims = problem.X.shape[1]
    prior = GP(Scale(Matern32(num_dims, num_dims**0.5)), noise=GaussianNoise(0.01))
    parameters = list(prior.parameters())
    rows = NUM_POINTS[variant.backend]
    points, neighbours = problem.points[:rows], problem.neighbours[:rows]

    @torch.no_grad()
    def predict() -> tuple[Tensor, Tensor]:
        mean, variance = predict_from(prior, problem.X, problem.y, points, neighbours, variant.backend)
        return mean, variance.sqrt()

    def step() -> tuple[Tensor, ...]:
        rows = (problem.batch, problem.batch_neighbours)
        nll = local_nll(prior, problem.X, problem.y, None, *rows, backend=ENGINES[variant.backend])
        return torch.autograd.grad(nll / len(problem.batch), parameters)

    return best_of(repeats, predict, SECONDS), best_of(repeats, step, SECONDS)


def predict_from(
    prior: GP, X: Tensor, y: Tensor, points: Tensor, neighbours: Tensor, backend: Literal["native", "torch"]
) -> Prediction:
    """Mean and variance of new targets at the points, given their neighbours."""
    found = local_answers(prior, X, y, None, points, neighbours, backend=ENGINES[backend])
    return Prediction(found.mean, found.variance.clamp_min(0) + prior.noise_variance(points))


def _ratios(record: dict[str, Any], torch_record: dict[str, Any]) -> dict[str, float]:
    """The rates of a compiled record divided by those of torch with all threads."""
    if record["backend"] == "torch" or "error" in record or "error" in torch_record:
        return {}
    rates = {"predict_per_torch": "predict_per_s", "train_per_torch": "train_per_s"}
    return {name: record[rate] / torch_record[rate] for name, rate in rates.items()}
