"""Methods: parameters with an objective to train them and a posterior given data. Data are arguments."""

from cagp.methods.base import MAP, LogNormal, Method, MultiTarget
from cagp.methods.cagp import CaGPCG, CaGPOpt
from cagp.methods.cagp_local import CaGPLocal, ScaleChoice
from cagp.methods.exact import CGGP, CholeskyGP
from cagp.methods.score_regression import ScoreRegression
from cagp.methods.variational import SGPR, SVGP

__all__ = [
    "CGGP",
    "MAP",
    "SGPR",
    "SVGP",
    "CaGPCG",
    "CaGPLocal",
    "CaGPOpt",
    "CholeskyGP",
    "LogNormal",
    "Method",
    "MultiTarget",
    "ScaleChoice",
    "ScoreRegression",
]
