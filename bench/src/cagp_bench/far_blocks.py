"""``cagp bench far-blocks``: kernel evaluations of a step of CaGP-Opt, and how many of them the kernel does not reach.

The hyperparameters are those that CaGP-Local and CaGP-Opt learn. Rows are taken together as a compiled product leaves
them out: the rows of a block, and 32 rows of a minibatch that lie near each other. Two groups are out of reach if the
kernel between their bounding boxes, which is at least as large as that of any two of their rows, is below round-off of
float32 times its variance.
"""

import argparse
import itertools
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cagp.actions import BlockActions
from cagp.data import standardized
from cagp.kernel_registry import CHOICES as KERNELS
from cagp.kernels import Scale, Stationary, kernel_class
from cagp.methods import CaGPOpt
from cagp.neighbours import NeighbourIndex
from cagp.prior import GP, GaussianNoise
from cagp.starting import raise_noise, start_from_neighbours
from cagp.training import fit
from cagp_bench.options import NUM_ACTIONS, NUMBERS, add_rows, add_tables
from cagp_bench.protocol import PAPER_START, load_table, rows_by_purpose
from cagp_bench.records import FAILED, attempt, cell, collect, machine, show

SUPPORT_SIZE, BATCH_SIZE, TOGETHER = 32, 1024, 32


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench far-blocks``."""
    suite.description = (
        "Kernel evaluations in a step of CaGP-Opt on tables (.npz with X and y; 1,024 rows, 32 rows with weight in a "
        "block), and how many are left without pairs of blocks farther apart than the kernel reaches: where it is "
        "below round-off of float32. Products with the compiled kernels leave these pairs out. Distances are in "
        "lengthscales: those of CaGP-Local (0 steps), or of CaGP-Opt after some steps."
    )
    suite.epilog = "example:\n  cagp bench far-blocks terrain.npz --kernels matern32 rbf --steps 0 100"
    add_tables(suite, words=".npz files")
    suite.add_argument("--kernels", nargs="+", choices=KERNELS, default=[KERNELS[0]], help="(default: %(default)s)")
    suite.add_argument("--n-actions", **NUMBERS, default=[NUM_ACTIONS], help="numbers of actions (default: 512)")
    suite.add_argument(
        "--steps", **NUMBERS, default=[0, 100], help="steps of CaGP-Opt before counting (default: 0 100)"
    )
    add_rows(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Count for every table, kernel and number of actions and print a record for each; return 1 if any failed."""
    cases = itertools.product(arguments.tables, arguments.kernels, arguments.n_actions, arguments.steps)
    measurements = [partial(_measure, arguments.rows, *case) for case in cases]
    return collect(measurements, _in_words, partial(show, columns=COLUMNS, as_json=arguments.json, num_keys=4))


def _in_words(record: dict[str, Any]) -> str:
    start = f"{record['table']}, {record['kernel']}, {record['i']} actions, {record['steps']} steps"
    return f"{start} failed: {record['error']}" if "error" in record else f"{start}: {_fewer(record)} times fewer"


def _fewer(record: dict[str, Any]) -> str:
    return f"{record['pairs'] / record['pairs_reached']:.2f}"


COLUMNS = {
    "table": cell("table"),
    "kernel": cell("kernel"),
    "i": cell("i"),
    "steps": cell("steps"),
    "lengthscales": lambda r: ", ".join(f"{value:.3g}" for value in r.get("lengthscale", [])),
    "reach": cell("reach", "{:.3g}"),
    "farthest rows": cell("farthest", "{:.3g}"),
    "evaluations": cell("pairs", "{:,.1f} M", unit=1e6),
    "times fewer": lambda r: FAILED if "error" in r else _fewer(r),
}


def _measure(num_rows: int | None, table: Path, kernel: str, num_actions: int, steps: int) -> dict[str, Any]:
    record = {**machine(), "table": table.stem, "kernel": kernel, "i": num_actions, "steps": steps}
    return record | attempt(lambda: _counts(*load_table(table, num_rows), kernel, num_actions, steps))


def _counts(X: Tensor, y: Tensor, kernel: str, num_actions: int, steps: int) -> dict[str, Any]:
    (X, y), *_ = standardized(X, y, *rows_by_purpose(len(y), 0), dtype=torch.float32)
    base: Any = kernel_class(kernel)(X.shape[1], PAPER_START)
    prior = GP(Scale(base, PAPER_START), noise=GaussianNoise(PAPER_START))
    start_from_neighbours(prior, X, y)
    generator = torch.Generator().manual_seed(0)
    options = {"support_size": SUPPORT_SIZE, "generator": generator, "reblock_at": (), "batch_size": BATCH_SIZE}
    method = CaGPOpt.from_data(prior, X, num_actions, **options)
    if steps:
        raise_noise(method, X, y, rows=method.rows(0, len(y)).drawn)
        fit(method, X, y, num_steps=steps)
    assert isinstance(method.actions, BlockActions)
    batch = method.rows(0, len(y)).drawn
    counted = count_pairs(base, X, method.actions, torch.arange(len(y)) if batch is None else batch)
    return {"n": len(y), **counted, "hyperparameters": method.hyperparameters()}


@torch.no_grad()
def count_pairs(
    kernel: Stationary, X: Float[Tensor, "n d"], actions: BlockActions, batch: Int[Tensor, " b"]
) -> dict[str, Any]:
    """Evaluations of a step, each pair of the support once: all of them, and those of groups within reach."""
    scaled = X.double() / kernel.lengthscale
    support, rows = scaled[actions.support], scaled[batch]
    rows = rows[NeighbourIndex(rows, kind="tree").spatial_order(rows)]
    groups = torch.cat([torch.arange(0, len(rows), TOGETHER), torch.tensor([len(rows)])])
    blocks, tiles = boxes(support, actions.offsets), boxes(rows, groups)
    sizes, tile_sizes = actions.offsets.diff(), groups.diff()
    reach = kernel.support_radius(torch.finfo(X.dtype).eps / 2)
    among = (box_distances(blocks, blocks) <= reach).triu()
    beside = box_distances(tiles, blocks) <= reach
    corners = boxes(scaled, torch.tensor([0, len(scaled)]))
    return {
        "lengthscale": kernel.lengthscale.tolist(),
        "reach": reach,
        "farthest": float((corners.high - corners.low).norm()),
        "pairs": _pairs(torch.ones_like(among).triu(), sizes, sizes) + len(batch) * len(support),
        "pairs_reached": _pairs(among, sizes, sizes) + _pairs(beside, tile_sizes, sizes),
    }


def _pairs(reached: Bool[Tensor, "g h"], left: Int[Tensor, " g"], right: Int[Tensor, " h"]) -> int:
    return int(left.double() @ reached.double() @ right.double())


class Boxes(NamedTuple):
    """The least and the greatest coordinates in each group of rows."""

    low: Float[Tensor, "g d"]
    high: Float[Tensor, "g d"]


def boxes(X: Float[Tensor, "n d"], offsets: Int[Tensor, " ends"]) -> Boxes:
    """The boxes around consecutive groups of rows, none of them empty."""
    sizes = offsets.diff()
    group = torch.arange(len(sizes)).repeat_interleave(sizes)[:, None].expand_as(X)
    empty = X.new_zeros(len(sizes), X.shape[1])
    low, high = (empty.scatter_reduce(0, group, X, how, include_self=False) for how in ("amin", "amax"))
    return Boxes(low, high)


def box_distances(A: Boxes, B: Boxes) -> Float[Tensor, "g h"]:
    """The distance of the nearest points of every two boxes: no rows of theirs are nearer to each other."""
    squares = torch.zeros(len(A.low), len(B.low), dtype=A.low.dtype)
    for low_a, high_a, low_b, high_b in zip(*(bound.unbind(1) for bound in (*A, *B)), strict=True):
        gap = torch.maximum(low_a[:, None] - high_b, low_b - high_a[:, None]).clamp_min(0)
        squares += gap.square()
    return squares.sqrt()
