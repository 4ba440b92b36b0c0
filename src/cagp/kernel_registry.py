"""The one list of kernels: their names, their classes in ``cagp.kernels``, and what they are in words.

Everything that lists kernels reads it: estimators, the command line, saved models and the compiled module. It imports
nothing, so that help texts need no torch.
"""

from functools import partial
from typing import NamedTuple


class KernelEntry(NamedTuple):
    """A kernel of this package."""

    name: str
    class_name: str
    words: str
    selectable: bool = True  # whether a user can choose it by name
    stationary: bool = True  # whether it has a lengthscale for each input
    beside: tuple[str, ...] = ()  # the kernels that are added to it where a user chooses it by name


_part = partial(KernelEntry, selectable=False, stationary=False)

KERNELS: dict[str, KernelEntry] = {
    entry.name: entry
    for entry in (
        KernelEntry("matern12", "Matern12", "Matern 1/2 (rough, continuous functions)"),
        KernelEntry("matern32", "Matern32", "Matern 3/2 (once differentiable functions)"),
        KernelEntry("matern52", "Matern52", "Matern 5/2 (twice differentiable functions)"),
        KernelEntry("rbf", "RBF", "RBF (infinitely smooth functions)"),
        KernelEntry(
            "rational_quadratic", "RationalQuadratic", "rational quadratic (smooth functions on several scales)"
        ),
        KernelEntry(
            "periodic", "Periodic", "periodic (functions that repeat)", stationary=False, beside=("matern32", "linear")
        ),
        _part("cosine", "Cosine", "cosine (waves)"),
        _part("great_circle", "GreatCircle", "Matern on the sphere (places on the Earth)"),
        _part("constant", "Constant", "constant"),
        _part("linear", "Linear", "linear"),
        _part("active_dims", "ActiveDims", "a kernel of some columns"),
        _part("scale", "Scale", "a kernel times a number"),
        _part("sum", "Sum", "a sum of kernels"),
        _part("product", "Product", "a product of kernels"),
    )
}

NAMES: tuple[str, ...] = tuple(entry.name for entry in KERNELS.values() if entry.selectable)
"""The names a user can choose from."""

AUTO = "auto"
"""Stands for a kernel that the method chooses; methods that choose none take the first of ``CHOICES``."""

CHOICES: tuple[str, ...] = ("matern32", "matern12", "matern52", "rbf", "rational_quadratic")
"""The kernels that "auto" chooses from, the usual one first."""
