"""``cagp bench step``: time and peak memory of one CaGP-Opt training step, each size in a process of its own."""

import argparse
from typing import Any

import torch

from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods import CaGPOpt
from cagp.prior import GP
from cagp_bench.options import add_repeats
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import FAILED, best_of, cell, machine, show

SIZES = (5_120, 15_360)
NUM_DIMS = 20
NUM_ACTIONS = 512


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench step``."""
    suite.description = "Time and peak memory of a training step (loss and gradient) with 20 inputs and 512 actions."
    add_repeats(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure each size in a process of its own and print a record for each; return 1 if any failed."""
    records = [
        {"n": n, "d": NUM_DIMS, "i": NUM_ACTIONS}
        | in_new_process("cagp_bench.step", {"num_rows": n, "repeats": arguments.repeats})
        for n in SIZES
    ]
    return show(
        records,
        {
            "n": cell("n", "{:,}"),
            "d": cell("d"),
            "i": cell("i"),
            "forward, s": cell("forward_s", "{:.3f}", FAILED),
            "forward + backward, s": cell("step_s", "{:.3f}"),
            "peak above imports, MB": cell("peak_bytes", "{:.0f}", unit=1e6),
        },
        arguments.json,
    )


def measure(num_rows: int, repeats: int) -> dict[str, Any]:
    """Time of the loss and of loss plus gradient, and the peak memory above that of the imports."""
    before = current_memory()
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, NUM_DIMS, generator=generator)
    y = torch.sin(X).sum(1) / NUM_DIMS**0.5
    method = CaGPOpt.from_data(GP(Scale(Matern32(NUM_DIMS, NUM_DIMS**0.5))), X, NUM_ACTIONS)

    def forward() -> None:
        with torch.no_grad():
            method.objective(X, y)

    def step() -> None:
        method.zero_grad()
        method.objective(X, y).backward()

    seconds = {"forward_s": best_of(repeats, forward), "step_s": best_of(repeats, step)}
    sizes = {"n": num_rows, "d": NUM_DIMS, "i": NUM_ACTIONS, "dtype": "float32"}
    return {**machine(), **sizes, **seconds, "peak_bytes": peak_memory() - before}


if __name__ == "__main__":
    answer(measure)
