"""``local_moments`` and ``local_density``: many small conditionals at once, a few rows for each test point."""

from jaxtyping import Float, Int
from torch import Tensor

from cagp.engine.backend import Backend, LocalMoments
from cagp.engine.choice import choose_backend
from cagp.kernels import Kernel


def local_moments(
    kernel: Kernel,
    points: Float[Tensor, "t d"],
    X: Float[Tensor, "n d"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, "t k"] | Float[Tensor, ""],
    residual: Float[Tensor, "t k"] | Float[Tensor, " n"],
    gram: Float[Tensor, "t k k"] | None = None,
    cross: Float[Tensor, "t k"] | None = None,
    *,
    backend: Backend | None = None,
) -> LocalMoments:
    """Moments of every test point x with its rows N, C = k(N, N) + diag(noise) - gram, c = k(N, x) - cross, float64.

    All arithmetic is float64, also with float32 rows: k(x, x) - explained can be less than round-off of float32. Rows
    that the rows before them already determine (duplicates without noise) are left out. Mean and explained are
    differentiable once, in the kernel's parameters, ``points``, ``noise``, ``residual``, ``gram`` and ``cross``, but
    not in ``X``.

    Args:
        points: the test points.
        neighbours: rows of ``X`` for each test point; -1 for none.
        noise: the noise variance of each neighbour, or one for all.
        residual: target minus mean of each neighbour, or of each row of ``X``; then it need not be gathered.
        gram, cross: what other actions already explain (see the hybrid posterior).
        backend: None for the fastest that applies.

    Time O(t k² (d + k)), memory O(t (k + d)) compiled, O(t k²) in torch.
    """
    if residual.ndim == 1 and residual.requires_grad:
        residual = residual[neighbours.clamp_min(0)]
    residual = residual.to(X) if residual.ndim == 1 else residual.double()
    values = [None if v is None else v.double() for v in (gram, cross)]
    return choose_backend(kernel, X, backend).conditionals(
        kernel, points, X, neighbours, noise.expand(neighbours.shape).double(), residual, *values
    )


def local_density(
    kernel: Kernel,
    X: Float[Tensor, "n d"],
    y: Float[Tensor, " n"],
    rows: Int[Tensor, " t"],
    neighbours: Int[Tensor, "t k"],
    noise: Float[Tensor, ""],
    *,
    backend: Backend | None = None,
) -> Float[Tensor, ""] | None:
    """-Σ log p(y_r | y_N) over ``rows``, N the neighbours of r, with prior mean zero and one noise variance for all.

    Value and gradient in one sweep, without the moments of each row; None where the backend has no such sweep.
    Differentiable once, in the kernel's parameters and ``noise``. Time O(t k² (d + k)), memory O(k² + k d) per thread.
    """
    if X.requires_grad or y.requires_grad:
        return None
    return choose_backend(kernel, X, backend).density(kernel, X, y, rows, neighbours, noise)
