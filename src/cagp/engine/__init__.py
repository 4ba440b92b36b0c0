"""How kernels are evaluated on many rows: by a backend, compiled CPU code where it applies and torch for the rest."""

from cagp.engine.backend import NEGLIGIBLE, Backend, BlockWeights, LocalMoments, recomputed
from cagp.engine.compiled_backend import COMPILED, INSTRUCTION_SETS, CompiledBackend
from cagp.engine.dispatch import (
    BACKENDS,
    DEFAULT_MAX_BYTES,
    backend_for,
    choose_backend,
    kernel_product,
    local_density,
    local_moments,
    precise_product,
)
from cagp.engine.row_tree import OrderedRows, RowTree, column_means, spatial_order
from cagp.engine.torch_backend import TORCH

__all__ = [
    "BACKENDS",
    "COMPILED",
    "DEFAULT_MAX_BYTES",
    "INSTRUCTION_SETS",
    "NEGLIGIBLE",
    "TORCH",
    "Backend",
    "BlockWeights",
    "CompiledBackend",
    "LocalMoments",
    "OrderedRows",
    "RowTree",
    "backend_for",
    "choose_backend",
    "column_means",
    "kernel_product",
    "local_density",
    "local_moments",
    "precise_product",
    "recomputed",
    "spatial_order",
]
