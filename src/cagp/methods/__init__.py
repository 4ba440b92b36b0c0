"""Methods: parameters with an objective to train them and a posterior given data. Data are arguments."""

from cagp.methods.base import Method
from cagp.methods.cagp_cg import CaGPCG
from cagp.methods.cagp_local import CaGPLocal, ScaleChoice
from cagp.methods.cagp_opt import CaGPOpt
from cagp.methods.cggp import CGGP
from cagp.methods.cholesky import CholeskyGP
from cagp.methods.hyperpriors import MAP, LogNormal
from cagp.methods.multi_target import MultiTarget
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
