"""``cagp bench step``: time and peak memory of one CaGP-Opt training step, each size in a process of its own."""

import json
import subprocess
import sys
from typing import Any

import torch

from cagp.bench.records import best_of, machine, show
from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods import CaGPOpt
from cagp.prior import GP

SIZES = (5_120, 15_360)
NUM_DIMS = 20
NUM_ACTIONS = 512


def run(repeats: int, as_json: bool) -> int:
    """Measure each size in a fresh process, and print one record per size."""
    records = [_in_new_process(n, repeats) for n in SIZES]
    show(
        records,
        {
            "n": lambda r: f"{r['n']:,}",
            "d": lambda r: str(r["d"]),
            "i": lambda r: str(r["i"]),
            "forward, s": lambda r: f"{r['forward_s']:.3f}",
            "forward + backward, s": lambda r: f"{r['step_s']:.3f}",
            "peak above imports, MB": lambda r: f"{r['peak_bytes'] / 1e6:.0f}",
        },
        as_json,
    )
    return 0


def _in_new_process(num_rows: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "cagp.bench.step", str(num_rows), str(repeats)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(num_rows: int, repeats: int) -> dict[str, Any]:
    """Time of the loss and of loss plus gradient, and the peak of memory above what the imports hold."""
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
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
