"""Gaussian process regression for large data, with error bars that include what was not computed."""

from importlib.metadata import version

from cagp import kernels, metrics
from cagp.actions import BlockActions, DenseActions
from cagp.engine import BlockWeights, backend_for, kernel_product
from cagp.linalg import JitterWarning, NotPositiveDefiniteError
from cagp.losses import elbo, projected_nll
from cagp.methods import MAP, CaGPOpt, LogNormal, Method
from cagp.posteriors import CaGPPosterior, Prediction
from cagp.prior import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean, ZeroMean
from cagp.projection import Projection, project
from cagp.starting import start_from_data
from cagp.training import FitResult, Settings, fit

__version__ = version("cagp")

__all__ = [
    "GP",
    "MAP",
    "BlockActions",
    "BlockWeights",
    "CaGPOpt",
    "CaGPPosterior",
    "ConstantMean",
    "DenseActions",
    "FitResult",
    "GaussianNoise",
    "JitterWarning",
    "KnownNoise",
    "LinearMean",
    "LogNormal",
    "Method",
    "NotPositiveDefiniteError",
    "Prediction",
    "Projection",
    "Settings",
    "ZeroMean",
    "backend_for",
    "elbo",
    "fit",
    "kernel_product",
    "kernels",
    "metrics",
    "project",
    "projected_nll",
    "start_from_data",
]
