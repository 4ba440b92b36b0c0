"""``cagp bench step``: time and peak memory of one CaGP-Opt training step, each size in a process of its own."""

from typing import Any

import torch

from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods import CaGPOpt
from cagp.prior import GP
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import best_of, machine, show

SIZES = (5_120, 15_360)
NUM_DIMS = 20
NUM_ACTIONS = 512


def run(repeats: int, as_json: bool) -> int:
    """Measure each size in a process of its own and print a record for each; return 1 if any failed."""
    records = [
        {"n": n, "d": NUM_DIMS, "i": NUM_ACTIONS}
        | in_new_process("cagp_bench.step", {"num_rows": n, "repeats": repeats})
        for n in SIZES
    ]
    show(
        records,
        {
            "n": lambda r: f"{r['n']:,}",
            "d": lambda r: str(r["d"]),
            "i": lambda r: str(r["i"]),
            "forward, s": lambda r: "failed" if "error" in r else f"{r['forward_s']:.3f}",
            "forward + backward, s": lambda r: f"{r['step_s']:.3f}" if "step_s" in r else "",
            "peak above imports, MB": lambda r: f"{r['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in r else "",
        },
        as_json,
    )
    return int(any("error" in record for record in records))


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
