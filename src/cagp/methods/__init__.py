"""Methods: class -> condition() -> objective(). Parameters only; data are arguments."""

from cagp.methods.base import Method
from cagp.methods.cagp import CaGPOpt
from cagp.methods.hyperpriors import MAP, LogNormal

__all__ = ["MAP", "CaGPOpt", "LogNormal", "Method"]
