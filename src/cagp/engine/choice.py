"""Which backend computes: chosen here and nowhere else."""

from torch import Tensor

from cagp.engine.backend import Backend
from cagp.engine.compiled_backend import COMPILED
from cagp.engine.torch_backend import TORCH
from cagp.kernels import Kernel

BACKENDS: tuple[Backend, ...] = (COMPILED, TORCH)
"""Fastest first; the last one can compute everything."""


def choose_backend(kernel: Kernel | None, X: Tensor, wanted: Backend | None = None) -> Backend:
    """The backend to use: ``wanted``, or the fastest that can compute with this kernel and these inputs.

    Args:
        kernel: None for nearest rows, which need no kernel.
        wanted: a ValueError says why where it cannot.
    """
    if wanted is None:
        return next(backend for backend in BACKENDS if backend.unsupported_reason(kernel, X) is None)
    if not isinstance(wanted, Backend):
        raise ValueError(f"backend is {wanted!r}, expected a Backend such as cagp.engine.TORCH, or None to choose one.")
    reason = wanted.unsupported_reason(kernel, X)
    if reason is not None:
        raise ValueError(f"backend is {wanted.name}, but {reason}; use backend=None to choose one that applies.")
    return wanted


def backend_for(kernel: Kernel, X: Tensor) -> str:
    """The backend that is chosen, in words: "native (avx2)", or "torch tiles" and why nothing faster applies."""
    parts = [part for _, part in kernel.linear_parts() if part.features(X[:1]) is None]
    if not parts:
        return "explicit features"
    slowest = max((choose_backend(part, X) for part in parts), key=BACKENDS.index)
    if slowest is not BACKENDS[-1]:
        return slowest.words
    reasons = {backend.unsupported_reason(part, X) for backend in BACKENDS[:-1] for part in parts}
    return f"{slowest.words} ({'; '.join(sorted(reason for reason in reasons if reason is not None))})"
