"""``cagp bench engine``: kernel evaluations per second of k(X, Z) W, forward and backward, of every backend."""

import argparse
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.engine import COMPILED, TORCH, Backend, BlockWeights, kernel_product
from cagp.kernels import Matern32
from cagp_bench.options import add_repeats
from cagp_bench.records import best_of, machine, show

NUM_COLUMNS = 16_384
NUM_BLOCKS = 512
DIMENSIONS = (2, 9, 20)
# Rows of X: as many as columns for the compiled kernels; fewer for the others, which would take minutes.
NUM_ROWS = {"native": 16_384, "torch": 4_096, "keops": 1_024, "compile": 1_024}


class Contender(NamedTuple):
    """One way to compute k(X, Z) W with a Matern 3/2 kernel: a backend of the engine, or another library."""

    name: str
    threads: int
    product: Callable[[Tensor, Tensor, Tensor], Tensor]  # (X, Z, values of W) -> k(X, Z) W
    parameter: Tensor  # what the lengthscales are made of


def add_to(suite: argparse.ArgumentParser) -> None:
    """The options of ``cagp bench engine``."""
    suite.description = (
        "Kernel evaluations per second of k(X, Z) W, forward and backward, for every backend that is installed."
    )
    add_repeats(suite)
    suite.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure every installed backend in one process, and print one record for each of them and each dimension."""
    records = [_measure(contender, d, arguments.repeats) for d in DIMENSIONS for contender in _contenders(d)]
    show(
        records,
        {
            "backend": lambda r: r["backend"],
            "d": lambda r: str(r["d"]),
            "threads": lambda r: str(r["threads"]),
            "forward, 1e9/s": lambda r: _rate(r, "forward_per_s"),
            "backward, 1e9/s": lambda r: _rate(r, "backward_per_s"),
            "native is faster by": lambda r: _ratios(r, records),
        },
        arguments.json,
    )
    return 0


def _contenders(num_dims: int) -> list[Contender]:
    threads = torch.get_num_threads()
    contenders = [_engine(TORCH, threads, num_dims), _torch_compile(threads, num_dims)]
    if importlib.util.find_spec("pykeops"):
        contenders.insert(1, _keops(threads, num_dims))
    if COMPILED.instruction_set:
        contenders = [_engine(COMPILED, count, num_dims) for count in sorted({1, threads}, reverse=True)] + contenders
    return contenders


def _measure(contender: Contender, num_dims: int, repeats: int) -> dict[str, Any]:
    """A failure is also a record: its rates are missing and ``error`` says why."""
    num_rows = NUM_ROWS[contender.name]
    sizes = {"d": num_dims, "rows": num_rows, "columns": NUM_COLUMNS, "i": NUM_BLOCKS, "dtype": "float32"}
    record = {**machine(), "backend": contender.name, **sizes, "threads": contender.threads}
    before = torch.get_num_threads()
    torch.set_num_threads(contender.threads)
    try:
        forward, backward = _seconds(contender, num_rows, num_dims, repeats)
        evaluations = num_rows * NUM_COLUMNS
        return {**record, "forward_per_s": evaluations / forward, "backward_per_s": evaluations / backward}
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return {**record, "forward_per_s": None, "backward_per_s": None, "error": message}
    finally:
        torch.set_num_threads(before)


def _seconds(contender: Contender, num_rows: int, num_dims: int, repeats: int) -> tuple[float, float]:
    """Time of the product, and of its gradient in lengthscales and weights given the product."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, num_dims, generator=generator)
    Z = torch.randn(NUM_COLUMNS, num_dims, generator=generator)
    values = torch.randn(NUM_COLUMNS, generator=generator).requires_grad_()
    cotangent = torch.randn(num_rows, NUM_BLOCKS, generator=generator)

    def forward() -> Tensor:
        with torch.no_grad():
            return contender.product(X, Z, values)

    out = contender.product(X, Z, values)

    def backward() -> None:
        torch.autograd.grad(out, (contender.parameter, values), cotangent, retain_graph=True)

    return best_of(repeats, forward), best_of(repeats, backward)


def _engine(backend: Backend, threads: int, num_dims: int) -> Contender:
    """Our own engine, by its general product: Z is not X, so symmetry is not used."""
    offsets = torch.arange(0, NUM_COLUMNS + 1, NUM_COLUMNS // NUM_BLOCKS)
    kernel = Matern32(num_dims, num_dims**0.5)

    def product(X: Tensor, Z: Tensor, values: Tensor) -> Tensor:
        return kernel_product(kernel, X, Z, BlockWeights(values, offsets), backend=backend)

    return Contender(backend.name, threads, product, kernel.get_parameter("raw_lengthscale"))


def _keops(threads: int, num_dims: int) -> Contender:
    """KeOps with a batch dimension for the blocks, each summed into its own column."""
    pykeops = importlib.import_module("pykeops")
    pykeops.set_verbose(False)
    lazy = importlib.import_module("pykeops.torch").LazyTensor
    lengthscale = torch.full((num_dims,), num_dims**0.5).requires_grad_()

    def product(X: Tensor, Z: Tensor, values: Tensor) -> Tensor:
        rows = lazy((X / lengthscale).view(1, -1, 1, num_dims))
        columns = lazy((Z / lengthscale).view(NUM_BLOCKS, 1, -1, num_dims))
        weights = lazy(values.view(NUM_BLOCKS, 1, -1, 1))
        s = (3 * ((rows - columns) ** 2).sum(-1)).sqrt()
        return (((1 + s) * (-s).exp()) * weights).sum(2).squeeze(-1).mT

    return Contender("keops", threads, product, lengthscale)


def _torch_compile(threads: int, num_dims: int) -> Contender:
    """Differences, distance, profile and block sum as one function for torch.compile, a tile of rows at a time."""
    tile_rows = 64
    lengthscale = torch.full((num_dims,), num_dims**0.5).requires_grad_()

    @torch.compile(dynamic=False)
    def tile_product(tile: Tensor, Z: Tensor, values: Tensor) -> Tensor:
        s = (3 * (tile[:, None, :] - Z).square().sum(-1)).sqrt()
        return ((1 + s) * torch.exp(-s) * values).view(tile_rows, NUM_BLOCKS, -1).sum(-1)

    def product(X: Tensor, Z: Tensor, values: Tensor) -> Tensor:
        X, Z = X / lengthscale, Z / lengthscale
        return torch.cat([tile_product(tile, Z, values) for tile in X.split(tile_rows)])

    return Contender("compile", threads, product, lengthscale)


def _rate(record: dict[str, Any], key: str) -> str:
    return "failed" if record[key] is None else f"{record[key] / 1e9:.3f}"


def _ratios(record: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """How many times faster the compiled kernels were in this run, with all threads."""
    compiled = next((r for r in records if r["backend"] == "native" and r["d"] == record["d"]), None)
    if compiled is None or record is compiled or None in (compiled["forward_per_s"], record["forward_per_s"]):
        return ""
    forward, backward = (compiled[key] / record[key] for key in ("forward_per_s", "backward_per_s"))
    return f"{forward:.1f} forward, {backward:.1f} backward"
