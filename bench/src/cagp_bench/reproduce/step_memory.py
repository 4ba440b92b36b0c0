"""Memory of a training step of CaGP-Opt, for a process of its own: imports little."""

import time
from typing import Any

import torch

from cagp.kernels import Matern32, Scale
from cagp.memory import current_memory, peak_memory
from cagp.methods import CaGPOpt
from cagp.prior import GP
from cagp_bench.processes import answer


def measure(num_rows: int, num_actions: int, num_dims: int) -> dict[str, Any]:
    """Seconds and peak memory, above that of the imports and the data, of a training step of CaGP-Opt."""
    X = torch.randn(num_rows, num_dims, generator=torch.Generator().manual_seed(0))
    y = torch.sin(X).sum(1)
    prior, weights = GP(Scale(Matern32(num_dims))), torch.Generator().manual_seed(1)
    # Blocks that are cut in the order of the rows need no memory of their own: a step alone is measured.
    method = CaGPOpt.from_data(prior, X, num_actions, blocks="ordered", start="random", generator=weights)
    before, start = current_memory(), time.perf_counter()
    method.objective(X, y).backward()
    return {"peak_bytes": peak_memory() - before, "step_s": time.perf_counter() - start}


if __name__ == "__main__":
    answer(measure)
