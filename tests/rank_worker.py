"""What one of several processes does in ``test_ranks.py``: ``python rank_worker.py FOLDER`` with torchrun's variables.

The functions that make problems are used by the test as well, which solves them in one process.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from cagp import GP, SVGP, CaGPLocal, CaGPOpt, CaGPRegressor, CholeskyGP, GaussianNoise, fit
from cagp.actions import BlockActions
from cagp.dataset import Data
from cagp.kernels import Matern32, Scale
from cagp.linalg import NotPositiveDefiniteError
from cagp.methods import MultiTarget
from cagp.ranks import LostProcessError, Ranks
from cagp.shards import Regions, exchange_rows, predict_in_regions
from cagp.training import Batch, FitResult, FitStatus, StepRows, Trainable

STEPS = 8
NUM_ROWS = 300
HALO, UNIT = 0.4, torch.tensor([0.4, 0.7], dtype=torch.float64)


def table(num_rows: int = NUM_ROWS, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A rough function of two inputs with noise."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, torch.sin(6 * X[:, 0]) * torch.cos(4 * X[:, 1]) + 0.1 * noise


def prior() -> GP:
    """A prior with a lengthscale for each input."""
    return GP(Scale(Matern32(2, torch.tensor([0.4, 0.7], dtype=torch.float64))), noise=GaussianNoise(0.05)).double()


def problems() -> dict[str, tuple[Trainable, Tensor, Tensor]]:
    """Methods with their data, by name. "all rows" has more rows in a minibatch than there are."""
    X, y = table()
    few: dict[str, Any] = {"support_size": 8, "generator": torch.Generator().manual_seed(0)}
    shared = BlockActions.from_data(X, 8, **few)
    kernel = prior().kernel
    two = [CaGPLocal(GP(kernel, noise=GaussianNoise(v)).double(), 8, batch_size=50) for v in (0.1, 0.05)]
    return {
        "local": (CaGPLocal(prior(), 10, batch_size=50), X, y),
        "all rows": (CaGPLocal(prior(), 10, batch_size=1000), X, y),
        "hybrid": (CaGPLocal(prior(), 10, shared=shared, batch_size=50), X, y),
        "opt": (CaGPOpt.from_data(prior(), X, 8, **few, batch_size=50), X, y),
        "opt, all rows": (CaGPOpt.from_data(prior(), X, 8), X, y),
        "opt, projected": (CaGPOpt.from_data(prior(), X, 8, loss="projected"), X, y),
        "opt, leave-one-out": (CaGPOpt.from_data(prior(), X, 8, loss="loo"), X, y),
        "svgp": (SVGP(prior(), X[:20].clone(), batch_size=50), X, y),
        "svgp, joint": (SVGP(prior(), X[:20].clone(), batch_size=50, gradient="joint"), X, y),
        "fewer rows than processes": (SVGP(prior(), X[:5].clone(), batch_size=3), X, y),
        "two targets": (MultiTarget(two), X, torch.stack([y, y.square()], 1)),
        "exact": (CholeskyGP(prior()), X[:60], y[:60]),
    }


def dense_problem() -> tuple[CaGPLocal, Tensor, Tensor]:
    """CaGP-Local whose rows have all rows before them as neighbours: its loss is the exact one."""
    X, y = table(40)
    return CaGPLocal(prior(), 39, objective="ordered", batch_size=1000, refresh_at=None), X, y


def left_by(result: FitResult, method: Trainable) -> dict[str, Any]:
    """What a fit leaves, as arrays."""
    parameters = torch.cat([value.double().flatten() for value in method.state_dict().values()])
    losses = np.array([step.loss for step in result.steps])
    return {"losses": losses, "parameters": parameters.numpy(), "status": result.status.value}


def model_of(method: str) -> CaGPRegressor:
    """A regressor that takes a second."""
    return CaGPRegressor(method, max_epochs=2, n_inducing=20 if method == "svgp" else 512)


class Failing(Trainable):
    """A parabola that cannot be computed by one process, once."""

    def __init__(self, fails: bool):
        super().__init__()
        self.place = torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
        self.fails, self.num_calls = fails, 0

    def rows(self, step: int, num_rows: int) -> StepRows:
        """All rows, which processes share."""
        return StepRows(divisible=True)

    def terms(self, data: Data, batch: Batch):
        """The mean squared distance to the targets."""
        self.num_calls += 1
        if self.fails and self.num_calls == 3:
            raise NotPositiveDefiniteError("this matrix is not positive definite")
        return {"distance": (self.place - data.y[batch.rows]).square().mean()}


def check_fits(ranks: Ranks, found: dict[str, Any], label: str) -> None:
    """Fit every problem."""
    for name, (method, X, y) in problems().items():
        found[f"{label} {name}"] = left_by(fit(method, X, y, num_steps=STEPS, ranks=ranks), method)
    method, X, y = dense_problem()
    fit(method, X, y, num_steps=1, ranks=ranks)
    gradients = [p.grad for group in method.parameter_groups().values() for p in group.parameters]
    found[f"{label} gradient"] = torch.cat([g.flatten() for g in gradients if g is not None]).numpy()


def check_failures(ranks: Ranks, found: dict[str, Any]) -> None:
    """One process fails, sees the end of its time, is interrupted, or has another table: all do the same."""
    X, y = table()
    method = Failing(ranks.rank == 2)
    result = fit(method, X, y, num_steps=STEPS, ranks=ranks)
    found["failures"] = [*result.failures, f"{len(result.steps)} steps"]
    deadline = time.perf_counter() - 1 if ranks.is_first else math.inf
    method, X, y = problems()["local"]
    found["deadline"] = left_by(fit(method, X, y, num_steps=STEPS, ranks=ranks, deadline=deadline), method)

    def press(step: Any) -> None:
        if step.number == 3 and ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = Ranks(ranks.rank, ranks.size)  # Ctrl-C stays known to the processes it was meant for
    found["interrupted"] = left_by(fit(method, X, y, num_steps=STEPS, ranks=interrupted, callback=press), method)
    try:
        fit(method, X[: len(X) - ranks.rank // 2], y[: len(X) - ranks.rank // 2], ranks=ranks)
    except ValueError as error:
        found["other table"] = str(error)


def check_resuming(ranks: Ranks, folder: Path, found: dict[str, Any]) -> None:
    """All processes begin a fit, and two of them end it. Only process 0 is told a folder that exists."""
    own = folder / ("checkpoints" if ranks.is_first else f"nowhere-{ranks.rank}")
    for name in ("local", "svgp, joint"):
        method, X, y = problems()[name]
        clock = {"max_time": 1e-9} if ranks.is_first else {}  # process 0 stops after its first step

        def first(**options: Any) -> FitResult:
            return fit(method, X, y, num_steps=STEPS, checkpoint_dir=own / name, **options)  # noqa: B023

        found[f"begun {name}"] = len(first(ranks=ranks, **clock).steps)
        pair = distributed.new_group([0, 1])
        if ranks.rank < 2:
            method, X, y = problems()[name]
            found[f"resumed {name}"] = left_by(first(ranks=Ranks(ranks.rank, 2, pair)), method)
        distributed.barrier()
    found["files"] = sorted(path.name for path in own.glob("*/*"))


def check_regressors(found: dict[str, Any]) -> None:
    """The regressors find the processes themselves."""
    X, y = (values.numpy() for values in table(600))
    for method in ("local", "svgp", "hybrid"):
        model = model_of(method).fit(X[:500], y[:500])
        found[f"predicted {method}"] = np.stack(model.predict(X[500:], return_std=True))
        found[f"report {method}"] = model.fit_report_
    try:
        CaGPRegressor("exact").fit(X, y)
    except ValueError as error:
        found["refused"] = str(error)


def check_shards(ranks: Ranks, found: dict[str, Any]) -> None:
    """Every process begins with some rows of the table, and ends with its region."""
    X, y = table()
    part = slice(ranks.rank, None, ranks.size)
    noise = 0.01 * y.square()
    regions = Regions.of_parts(X[part], ranks, UNIT)
    shard = exchange_rows(regions, HALO, ranks, X[part], y[part], noise[part])
    method = CaGPLocal(prior(), 10, batch_size=10_000)
    found["lower"], found["upper"] = regions.lower.numpy(), regions.upper.numpy()
    found["held"] = torch.cat([shard.X, shard.y[:, None], shard.row_noise[:, None]], 1).numpy()
    found["own"] = shard.own.num_rows
    result = fit(method.with_own_rows(shard.own), *shard[:3], num_steps=STEPS, ranks=ranks)
    found["sharded"] = left_by(result, method)
    test, _ = table(50, seed=1)
    found["in regions"] = torch.stack(predict_in_regions(method.condition(*shard[:3]), regions, ranks, test)).numpy()


def check_death(ranks: Ranks, found: dict[str, Any]) -> None:
    """The last process is killed within a step."""
    method, X, y = problems()["local"]

    def die(step: Any) -> None:
        if step.number == 3 and ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    start = time.perf_counter()
    try:
        fit(method, X, y, num_steps=1000, ranks=ranks, callback=die)
    except LostProcessError as error:
        found["lost"] = str(error)
        found["seconds until lost"] = time.perf_counter() - start


def main(folder: Path) -> None:
    """All checks, and what they found as a file."""
    ranks = Ranks.here()
    found: dict[str, Any] = {}
    pair = distributed.new_group([0, 1])
    if ranks.rank < 2:
        check_fits(Ranks(ranks.rank, 2, pair), found, "2")
    check_fits(ranks, found, "4")
    check_failures(ranks, found)
    check_resuming(ranks, folder, found)
    check_regressors(found)
    check_shards(ranks, found)
    check_death(ranks, found)
    np.save(folder / f"found-{ranks.rank}.npy", np.array(found, dtype=object), allow_pickle=True)
    os._exit(0 if found["interrupted"]["status"] == FitStatus.INTERRUPTED.value else 1)  # its peers are gone


if __name__ == "__main__":
    main(Path(sys.argv[1]))
