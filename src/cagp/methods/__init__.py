"""Methods: parameters with an objective to train them and a posterior given data. Data are arguments."""

from cagp.methods.base import MAP, LogNormal, Method, MultiTarget
from cagp.methods.cagp import CaGPCG, CaGPOpt
from cagp.methods.cagp_local import CaGPLocal, ScaleChoice
from cagp.methods.compared import CGGP, SGPR, SVGP, CholeskyGP
from cagp.methods.score_regression import ScoreRegression

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
