"""``cagp bench scale``: one minibatch step at growing numbers of rows, each size in a process of its own.

The rows are uniform in a cube, the targets a rough function of them plus noise. Preparing a method (blocks of nearby
rows, an index of them) takes time that grows with the rows and is shown beside the steps.
"""

import argparse
import time
from typing import Any

import torch
from torch import Tensor

from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods import CaGPLocal, CaGPOpt, Method
from cagp.prior import GP, GaussianNoise
from cagp.training import Batch
from cagp_bench.options import add_actions, add_methods, positive
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, cell, machine, show

NUM_DIMS = 3
BATCH_SIZE = 1024
NUM_NEIGHBOURS = 32
SUPPORT_SIZE = 32
LENGTHSCALE, NOISE = 0.1, 0.1
STEPS = 10
"""Steps that are timed, after one that is not."""


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench scale``."""
    suite.description = (
        "Time and peak memory of one minibatch step (1,024 rows, objective and gradient) of local and opt on generated "
        "tables with 3 columns, each in a process of its own. The time should not depend on the number of rows."
    )
    suite.epilog = "example:\n  cagp bench scale --rows 10000 100000 1000000 --json"
    suite.add_argument(
        "--rows",
        type=positive,
        nargs="+",
        default=[10_000, 100_000, 1_000_000],
        metavar="N",
        help="numbers of rows (default: 10000 100000 1000000)",
    )
    add_methods(suite, ("local", "opt"), ("local", "opt"))
    add_actions(suite, "actions of opt")
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure each method at each number of rows and print a record for each; return 1 if any failed."""
    records = []
    for method in arguments.methods:
        for rows in arguments.rows:
            options = {"method": method, "rows": rows, "num_actions": arguments.n_actions}
            records.append({**machine(), **options, **in_new_process("cagp_bench.scale", options)})
    return show(
        records,
        {
            "method": cell("method"),
            "rows": cell("rows", "{:,}"),
            "a step, ms": cell("step_seconds", "{:.1f}", FAILED, unit=1e-3),
            "CPU of a step, ms": cell("step_cpu_seconds", "{:.1f}", unit=1e-3),
            "preparation, s": cell("prepare_seconds", "{:.1f}"),
            "peak, MB": cell("peak_bytes", "{:,.0f}", unit=1e6),
        },
        arguments.json,
        num_keys=2,
    )


def measure(method: str, rows: int, num_actions: int) -> dict[str, Any]:
    """Seconds of a step (its rows, objective and gradient) and of what comes before, and the peak memory."""
    before = current_memory()
    X, y = table(rows)
    prior = GP(Scale(Matern32(NUM_DIMS, LENGTHSCALE)), noise=GaussianNoise(NOISE))
    start = time.perf_counter()
    trained: Method
    if method == "opt":
        choices = {"support_size": SUPPORT_SIZE, "generator": torch.Generator().manual_seed(0)}
        trained = CaGPOpt.from_data(prior, X, min(num_actions, rows), batch_size=BATCH_SIZE, **choices)
    else:
        trained = CaGPLocal(prior, NUM_NEIGHBOURS, batch_size=BATCH_SIZE)
    data = Data(X, y, trusted=True)
    _step(trained, data, 0)
    prepared = time.perf_counter(), time.process_time()
    for step in range(1, STEPS + 1):
        _step(trained, data, step)
    ended = time.perf_counter(), time.process_time()
    return {
        "columns": NUM_DIMS,
        "batch_size": BATCH_SIZE,
        "prepare_seconds": prepared[0] - start,
        "step_seconds": (ended[0] - prepared[0]) / STEPS,
        "step_cpu_seconds": (ended[1] - prepared[1]) / STEPS,
        "peak_bytes": peak_memory(),
        "imports_bytes": before,
    }


def _step(method: Method, data: Data, step: int) -> None:
    """What a fit does in a step, except for the move and for checks of the data, which a fit makes once."""
    method.zero_grad()
    terms = method.terms(data, Batch(method.rows(step, data.num_rows).drawn))
    torch.stack(list(terms.values())).sum().backward()


def table(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows in the unit cube, float32, and targets that vary over a tenth of it."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(rows, NUM_DIMS, generator=generator)
    noise = NOISE**0.5 * torch.randn(rows, generator=generator)
    return X, torch.sin(20 * X[:, 0]) * torch.cos(15 * X[:, 1]) + torch.sin(25 * X[:, 2]) + noise


if __name__ == "__main__":
    answer(measure)
