"""Processor time of training steps and predictions with float32 and float64 rows: python tools/float32_cost.py

Prints a line of JSON for each problem: seconds, the least of several calls, on one thread.
"""

import json
import time
from collections.abc import Callable

import torch

from cagp import GP, SGPR, CaGPCG, CaGPOpt, GaussianNoise
from cagp.kernels import Matern32, Scale
from cagp.local_inference import local_answers, local_nll
from cagp.neighbours import NeighbourIndex

SECONDS = 0.5  # of repeated calls
DTYPES = (torch.float32, torch.float64)


def least(call: Callable[[], object]) -> float:
    """The processor time of the fastest call."""
    call()
    times, end = [], time.process_time() + SECONDS
    while len(times) < 3 or time.process_time() < end:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def prior(d: int) -> GP:
    """Matérn 3/2 with noise of a tenth of its variance."""
    return GP(Scale(Matern32(d, d**0.5)), noise=GaussianNoise(0.1))


def local(dtype: torch.dtype, d: int, k: int) -> dict[str, float]:
    """A minibatch of 1,024 rows and 4,096 predictions, as in ``cagp bench local``."""
    generator = torch.Generator().manual_seed(0)
    X, Z = (torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype) for n in (16_384, 4_096))
    batch, index, y, model = torch.arange(1024), NeighbourIndex(X), torch.sin(X).sum(1), prior(d)
    near, around = index.nearest(Z, k), index.nearest(X[batch], k, left_out=batch)
    step = least(lambda: local_nll(model, X, y, None, batch, around).backward())
    with torch.no_grad():
        predict = least(lambda: local_answers(model, X, y, None, Z, near))
    return {"step": step, "predict": predict}


def shared(dtype: torch.dtype, method: str, n: int, i: int) -> dict[str, float]:
    """A step with all rows, and 2,048 predictions."""
    X = torch.randn(n, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    y = torch.sin(X).sum(1)
    fitted = {"opt": CaGPOpt, "sgpr": SGPR, "cg": CaGPCG}[method].from_data(prior(9), X, i)
    posterior = fitted.condition(X, y)
    step = least(lambda: fitted.objective(X, y).backward())
    return {"step": step, "predict": least(lambda: posterior.predict(X[:2048]))}


def main() -> None:
    """All problems."""
    torch.set_num_threads(1)
    for d in (2, 9):
        for k in (16, 32, 64):
            found = {str(dtype): local(dtype, d, k) for dtype in DTYPES}
            print(json.dumps({"method": "local", "d": d, "k": k, **found}), flush=True)
    for name, n, i in (("opt", 8192, 512), ("sgpr", 8192, 512), ("cg", 4096, 64)):
        found = {str(dtype): shared(dtype, name, n, i) for dtype in DTYPES}
        print(json.dumps({"method": name, "n": n, "i": i, **found}), flush=True)


if __name__ == "__main__":
    main()
