"""A kernel as a linear combination of simpler ones: each part can take its own best path."""

from collections.abc import Iterator

from torch import Tensor

from cagp.kernels import Constant, Kernel, Product, Scale, Sum


def linear_parts(kernel: Kernel, coefficient: Tensor | None = None) -> Iterator[tuple[Tensor | None, Kernel]]:
    """(c, k') with k = Σ c k'; c is None for one."""
    if isinstance(kernel, Sum):
        for part in kernel.parts:
            yield from linear_parts(part, coefficient)
    elif isinstance(kernel, Scale):
        scale = kernel.outputscale
        yield from linear_parts(kernel.kernel, scale if coefficient is None else coefficient * scale)
    elif isinstance(kernel, Product):
        numbers = [k.variance for k in kernel.parts if isinstance(k, Constant)]
        others = [k for k in kernel.parts if not isinstance(k, Constant)]
        for number in numbers:
            coefficient = number if coefficient is None else coefficient * number
        if len(others) == 1:
            yield from linear_parts(others[0], coefficient)
        else:
            yield coefficient, Product(*others) if others else Constant().requires_grad_(False)
    else:
        yield coefficient, kernel
