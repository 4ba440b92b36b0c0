"""All kernels of the package, by name: what a user can choose, and how each is described. Needs no torch."""

from typing import NamedTuple


class KernelEntry(NamedTuple):
    """A kernel of ``cagp.kernels``."""

    name: str
    class_name: str
    words: str
    selectable: bool  # whether a user may choose it by its name


KERNELS: dict[str, KernelEntry] = {
    entry.name: entry
    for entry in (
        KernelEntry("matern12", "Matern12", "Matern 1/2 (rough, continuous functions)", True),
        KernelEntry("matern32", "Matern32", "Matern 3/2 (once differentiable functions)", True),
        KernelEntry("matern52", "Matern52", "Matern 5/2 (twice differentiable functions)", True),
        KernelEntry("rbf", "RBF", "RBF (infinitely smooth functions)", True),
        KernelEntry(
            "rational_quadratic",
            "RationalQuadratic",
            "rational quadratic (smooth functions on several scales)",
            True,
        ),
        KernelEntry("constant", "Constant", "constant", False),
        KernelEntry("linear", "Linear", "linear", False),
        KernelEntry("scale", "Scale", "scaled kernel", False),
        KernelEntry("sum", "Sum", "sum of kernels", False),
        KernelEntry("product", "Product", "product of kernels", False),
    )
}

NAMES = tuple(name for name, entry in KERNELS.items() if entry.selectable)
"""The names that a user may choose."""
