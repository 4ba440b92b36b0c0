"""How k(X, Z) W is computed: compiled CPU kernels where they apply, torch tiles for everything else."""

from cagp.engine.local import NEGLIGIBLE, LocalMoments, local_density, local_moments
from cagp.engine.product import DEFAULT_MAX_BYTES, Backend, backend_for, kernel_product
from cagp.engine.weights import BlockWeights

__all__ = [
    "DEFAULT_MAX_BYTES",
    "NEGLIGIBLE",
    "Backend",
    "BlockWeights",
    "LocalMoments",
    "backend_for",
    "kernel_product",
    "local_density",
    "local_moments",
]
