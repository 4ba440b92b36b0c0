"""How far a kernel reaches: rows farther apart than that are left out of products with block-sparse weights."""

import math
from functools import lru_cache

import torch

from cagp.kernels import RBF, Kernel, Matern12, Matern32, Matern52, RationalQuadratic, Stationary

_FARTHEST = 1e9  # lengthscales: a kernel that has not vanished there has no end


def round_off(dtype: torch.dtype) -> float:
    """Half the distance of 1 to the next number: a kernel below this times its variance counts as zero."""
    return torch.finfo(dtype).eps / 2


def reach_of(kernel: Kernel, tolerance: float) -> float:
    """The distance in lengthscales beyond which the kernel is at most ``tolerance`` times its variance.

    Infinity for a tolerance of zero, and for kernels that are not known to fall with distance: all but the stationary
    ones of this package.
    """
    if tolerance < 0:
        raise ValueError(f"tolerance is {tolerance}, expected 0 (leave nothing out) or more.")
    if tolerance == 0:
        return math.inf
    if type(kernel) is RationalQuadratic:
        alpha = float(kernel.alpha.detach())
        power = -math.log(min(tolerance, 1.0)) / alpha  # (1 + r² / 2α)^-α = tolerance
        return math.sqrt(2 * alpha * math.expm1(power)) if power < 600 else math.inf
    known = (RBF, Matern12, Matern32, Matern52)
    return _by_bisection(type(kernel), tolerance) if type(kernel) in known else math.inf


@lru_cache(maxsize=64)
def _by_bisection(kind: type[Stationary], tolerance: float) -> float:
    """Of a profile that falls with distance and has no parameters."""
    kernel = kind(1)

    def too_near(r: float) -> bool:
        return float(kernel.profile(torch.tensor(r, dtype=torch.float64))) > tolerance

    low, high = 0.0, 1.0
    while too_near(high):
        low, high = high, 2 * high
        if high > _FARTHEST:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if too_near(middle) else (low, middle)
    return high
