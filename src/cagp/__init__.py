"""Gaussian process regression for large data, with error bars that include what was not computed."""

from importlib.metadata import version

from cagp import kernels, metrics
from cagp.action_search import SearchResult, search_num_actions
from cagp.actions import BlockActions, DenseActions
from cagp.engine import BlockWeights, backend_for, kernel_product
from cagp.estimators import (
    CaGPRegressor,
    CGGPRegressor,
    ExactGPRegressor,
    SGPRRegressor,
    SVGPRegressor,
    load,
)
from cagp.iterative import Iteration, Stopping, iterate
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.losses import elbo, projected_nll
from cagp.methods import (
    CGGP,
    MAP,
    SGPR,
    SVGP,
    CaGPCG,
    CaGPLocal,
    CaGPOpt,
    CholeskyGP,
    LogNormal,
    Method,
)
from cagp.neighbours import NeighbourSearch
from cagp.noise_tuning import calibrate_noise, raise_noise
from cagp.posteriors import CaGPPosterior, CGPosterior, InducingPosterior, LocalPosterior, Posterior, Prediction
from cagp.prior import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean, ZeroMean
from cagp.projection import Projection, project
from cagp.solver import CGWarning
from cagp.starting import start_from_data, start_from_neighbours
from cagp.training import FitResult, FitStatus, Settings, Trainable, fit

__version__ = version("cagp")

__all__ = [
    "CGGP",
    "GP",
    "MAP",
    "SGPR",
    "SVGP",
    "BlockActions",
    "BlockWeights",
    "CGGPRegressor",
    "CGPosterior",
    "CGWarning",
    "CaGPCG",
    "CaGPLocal",
    "CaGPOpt",
    "CaGPPosterior",
    "CaGPRegressor",
    "CholeskyGP",
    "ConstantMean",
    "DenseActions",
    "ExactGPRegressor",
    "FitResult",
    "FitStatus",
    "GaussianNoise",
    "InducingPosterior",
    "Iteration",
    "JitterWarning",
    "KnownNoise",
    "LinearMean",
    "LocalPosterior",
    "LogNormal",
    "Method",
    "NeighbourSearch",
    "NotPositiveDefiniteError",
    "Posterior",
    "Prediction",
    "Projection",
    "SGPRRegressor",
    "SVGPRegressor",
    "SearchResult",
    "Settings",
    "Stopping",
    "Trainable",
    "ZeroMean",
    "backend_for",
    "calibrate_noise",
    "elbo",
    "fit",
    "iterate",
    "kernel_product",
    "kernels",
    "load",
    "metrics",
    "project",
    "projected_nll",
    "raise_noise",
    "search_num_actions",
    "start_from_data",
    "start_from_neighbours",
]
