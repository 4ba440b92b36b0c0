"""``cagp bench cluster``: what a fit in regions costs on many machines, modelled from constants measured on this one.

Measured, each in a process of its own and in processor time of one thread: reading rows from Parquet, building the tree
over them, a training step, a prediction; and between two processes of this machine: how long gloo takes to add up the
vector of a step, and how fast it moves rows. The model divides rows and steps among machines, one process each; see
docs/scaling.md for its formulas.
"""

import argparse
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import distributed

from cagp import Ranks
from cagp.data import open_chunks
from cagp.kernels import Matern32, Scale
from cagp.methods import CaGPLocal
from cagp.prior import GP, GaussianNoise
from cagp.training import fit
from cagp_bench import neighbour_speed, scale, table_on_disk
from cagp_bench.options import positive, rate
from cagp_bench.processes import answer, in_new_process
from cagp_bench.records import best_of, cell, machine, show

STEPS, BATCH = 300, 1024
"""Of a fit."""

NEIGHBOURS = 64
"""Of a prediction."""

WIDTH = 1.25
"""The halo is this many times as wide as the mean distance of the last neighbour: it holds about 99 % of them."""

NUMBER = 4  # bytes of a number in a row
CUTS = 2
"""How often rows are exchanged and trees built: for training, and for predictions in learned units."""

PASSES = 3
"""Over a table that is read in pieces: to learn its columns, its scales and its rows."""

TREE_COLUMN, TREE_ROW = 5, 8
"""Bytes of the compiled tree, for each number in the rows and for each row."""

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PEER = "CAGP_BENCH_PEER"
MOVED = 2**23
"""Float64 numbers that are moved between processes to measure a rate."""


class Quantity(NamedTuple):
    """One number of the table."""

    what: str
    value: float
    unit: str
    source: str  # "measured", "given" or "modelled"


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench cluster``."""
    suite.description = (
        "Measure what reading, a tree, a training step and a sum over processes cost on this machine, in processor "
        "time of one thread, and model a fit of CaGP-Local in regions on many machines; see docs/scaling.md."
    )
    suite.epilog = "example:\n  cagp bench cluster --rows 1000000000 --machines 64"
    suite.add_argument(
        "--rows", type=positive, default=1_000_000_000, metavar="N", help="rows of the model (default: %(default)s)"
    )
    suite.add_argument(
        "--machines", type=positive, default=64, metavar="M", help="machines of the model (default: %(default)s)"
    )
    suite.add_argument(
        "--network", type=rate, default=1.25, metavar="GB", help="gigabytes a second (default: %(default)s)"
    )
    suite.add_argument(
        "--measured-rows", type=positive, default=1_000_000, metavar="N", help="to measure with (default: %(default)s)"
    )
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, model, and print both; return 1 if a measurement failed."""
    found: dict[str, Any] = {}
    for part in ("reading", "tree", "step", "gloo"):
        found |= in_new_process("cagp_bench.cluster", {"part": part, "rows": arguments.measured_rows})
        if "error" in found:
            return show([{**machine(), "what": part, **found}], {"what": cell("what")}, arguments.json)
    quantities = [*_measured(found), *modelled(found, arguments.rows, arguments.machines, arguments.network)]
    return show(
        [{**machine(), **quantity._asdict()} for quantity in quantities],
        {
            "quantity": cell("what"),
            "value": lambda r: f"{r['value']:,.3g}" if r["value"] < 1000 else f"{r['value']:,.0f}",
            "unit": cell("unit"),
            "from": cell("source"),
        },
        arguments.json,
    )


# ---- the model ----


def _measured(found: dict[str, Any]) -> list[Quantity]:
    constants = {
        "reading a row of Parquet, three passes": ("read_s", 1e6, "µs"),
        "building the tree, a row": ("tree_s", 1e6, "µs"),
        "a prediction's search of the tree": ("search_s", 1e6, "µs"),
        "a training step of 1,024 rows": ("step_s", 1e3, "ms"),
        "gloo adds up the vector of a step, 2 processes": ("reduce_s", 1e6, "µs"),
        "sums of all processes in a step": ("sums", 1, ""),
        "bytes of these sums": ("step_bytes", 1, "bytes"),
        "gloo moves rows, 2 processes": ("move_rate", 1e-9, "GB/s"),
    }
    return [Quantity(what, found[key] * factor, unit, "measured") for what, (key, factor, unit) in constants.items()]


def modelled(found: dict[str, Any], rows: int, machines: int, gigabytes: float) -> list[Quantity]:
    """Time, traffic and memory of a fit in regions, a region on each machine.

    A sum goes around the ring of machines twice: 2 (M - 1) messages, where two processes need 2.
    """
    own = rows / machines
    halo = halo_rows(own, scale.NUM_DIMS) if machines > 1 else 0.0
    held, row_bytes = own + halo, NUMBER * (scale.NUM_DIMS + 1)
    moved = CUTS * row_bytes * (own * (machines - 1) / machines + halo)
    tree_bytes = TREE_COLUMN * scale.NUM_DIMS + TREE_ROW
    latency = found["reduce_s"] * (machines - 1)
    step = found["step_s"] / machines
    fit_s = found["read_s"] * own + CUTS * found["tree_s"] * held + STEPS * (step + found["sums"] * latency)
    fit_s += moved / (gigabytes * 1e9)
    return [
        Quantity("rows", rows, "", "given"),
        Quantity("machines", machines, "", "given"),
        Quantity("network", gigabytes, "GB/s", "given"),
        Quantity("rows of a region", own, "", "modelled"),
        Quantity("rows of its halo", halo, "", "modelled"),
        Quantity("reading Parquet", found["read_s"] * own, "s", "modelled"),
        Quantity("exchange of rows, each machine", moved / 1e9, "GB", "modelled"),
        Quantity("exchange of rows", moved / (gigabytes * 1e9), "s", "modelled"),
        Quantity("building trees", CUTS * found["tree_s"] * held, "s", "modelled"),
        Quantity("300 steps, computing", STEPS * step, "s", "modelled"),
        Quantity("300 steps, waiting for sums", STEPS * found["sums"] * latency, "s", "modelled"),
        Quantity("traffic of a step, each machine", 2 * found["step_bytes"], "bytes", "modelled"),
        Quantity("the fit", fit_s, "s", "modelled"),
        Quantity("memory of rows and tree, each machine", held * (row_bytes + tree_bytes) / 1e9, "GB", "modelled"),
        Quantity("the same with all rows on each machine", rows * (row_bytes + tree_bytes) / 1e9, "GB", "modelled"),
        Quantity("building a tree of all rows", found["tree_s"] * rows, "s", "modelled"),
    ]


def halo_rows(own: float, num_dims: int) -> float:
    """Rows within the halo of a cube of ``own`` rows: (L + 2w)ᵈ - Lᵈ, in units of the distance between rows.

    w is ``WIDTH`` times the radius of a ball that holds the neighbours.
    """
    ball = math.pi ** (num_dims / 2) / math.gamma(num_dims / 2 + 1)
    width = WIDTH * (NEIGHBOURS / ball) ** (1 / num_dims)
    side = own ** (1 / num_dims)
    return (side + 2 * width) ** num_dims - side**num_dims


# ---- the constants ----


def measure(part: str, rows: int) -> dict[str, Any]:
    """Constants of one kind."""
    return {"reading": _reading, "tree": _tree, "step": _step, "gloo": _gloo}[part](rows)


def _reading(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        table_on_disk.make_table(Path(folder), rows)
        chunks = open_chunks(f"{folder}/*.parquet", table_on_disk.TARGET)
        start = time.process_time()
        for _ in range(PASSES):
            for chunk in chunks.read():
                np.asarray(chunk.inputs, dtype=np.float64).sum(0)
        return {"read_s": (time.process_time() - start) / rows}


def _tree(rows: int) -> dict[str, Any]:
    found = neighbour_speed.measure("tree", "uniform", rows, scale.NUM_DIMS, 1, 20_000, NEIGHBOURS)
    return {"tree_s": found["build_cpu_s"] / rows, "search_s": found["point_cpu_us"] / 1e6}


def _step(rows: int) -> dict[str, Any]:
    return {"step_s": scale.measure("local", rows, 1)["step_cpu_seconds"]}


def _gloo(rows: int) -> dict[str, Any]:
    """This process is the first of two; the second one runs the same function."""
    if PEER not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            told = ("1", "2", "127.0.0.1", str(free.getsockname()[1]))
        shared = dict(zip(LAUNCHED, told, strict=True))
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "cagp_bench.cluster", '{"part": "gloo", "rows": 0}', f"{folder}/peer"]
            peer = subprocess.Popen(command, env={**os.environ, **shared, PEER: "1"}, stderr=subprocess.DEVNULL)
            try:
                os.environ.update({**shared, "RANK": "0"})
                return _exchanged()
            finally:
                peer.kill()
                peer.wait()
    return _exchanged()


def _exchanged() -> dict[str, Any]:
    ranks = Ranks.here()
    X, y = scale.table(2_000)
    method = CaGPLocal(GP(Scale(Matern32(scale.NUM_DIMS)), noise=GaussianNoise()), 8)
    with _counted_sums() as lengths:
        fit(method, X, y, num_steps=1, ranks=ranks)
        before = len(lengths)
        again = CaGPLocal(GP(Scale(Matern32(scale.NUM_DIMS)), noise=GaussianNoise()), 8)
        fit(again, X, y, num_steps=6, ranks=ranks)
    of_fits = np.array([before, len(lengths) - before])
    sums = int(of_fits[1] - of_fits[0]) // 5
    of_step = lengths[before + int(of_fits[0]) - 1 :][:sums]  # a step in the middle
    vector, rows = torch.zeros(max(of_step), dtype=torch.float64), torch.zeros(MOVED // 8, 8, dtype=torch.float64)
    reduce_s = best_of(200, lambda: ranks.add_up(vector))
    move_s = best_of(3, lambda: ranks.exchange([rows[: len(rows) // 2]] * 2))
    ranks.add_up(vector)
    num_bytes = rows.element_size() * rows.numel() / 2  # half of what a process sends stays with it
    return {"reduce_s": reduce_s, "sums": sums, "step_bytes": 8 * sum(of_step), "move_rate": num_bytes / move_s}


@contextmanager
def _counted_sums() -> Iterator[list[int]]:
    """The lengths of the vectors that are added up meanwhile."""
    lengths: list[int] = []
    plain: Callable[..., Any] = distributed.all_reduce

    def counted(values: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        lengths.append(values.numel())
        return plain(values, *arguments, **options)

    distributed.all_reduce = counted
    try:
        yield lengths
    finally:
        distributed.all_reduce = plain


if __name__ == "__main__":
    answer(measure)
