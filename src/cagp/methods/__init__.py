"""Methods: class -> condition() -> objective(). Parameters only; data are arguments."""

from cagp.methods.base import Method
from cagp.methods.cagp import CaGPOpt
from cagp.methods.cagp_cg import CaGPCG
from cagp.methods.cggp import CGGP
from cagp.methods.cholesky import CholeskyGP
from cagp.methods.hyperpriors import MAP, LogNormal
from cagp.methods.local import CaGPLocal, LocalPosterior
from cagp.methods.several import Several
from cagp.methods.sgpr import SGPR
from cagp.methods.svgp import SVGP

__all__ = [
    "CGGP",
    "MAP",
    "SGPR",
    "SVGP",
    "CaGPCG",
    "CaGPLocal",
    "CaGPOpt",
    "CholeskyGP",
    "LocalPosterior",
    "LogNormal",
    "Method",
    "Several",
]
