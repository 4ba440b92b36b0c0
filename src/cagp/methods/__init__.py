"""Methods: class -> condition() -> objective(). Parameters only; data are arguments."""

from cagp.methods.base import Method
from cagp.methods.cagp import CaGPOpt

__all__ = ["CaGPOpt", "Method"]
