"""Posteriors: frozen snapshots that answer mean, variance, covariance and samples."""

from cagp.posteriors.averaged import AveragedPosterior
from cagp.posteriors.base import Posterior, Prediction
from cagp.posteriors.conjugate_gradients import CGPosterior
from cagp.posteriors.inducing import InducingPosterior
from cagp.posteriors.nearest_rows import LocalPosterior, predict_columns
from cagp.posteriors.projected import CaGPPosterior
from cagp.posteriors.stored import posterior_from_state
from cagp.posteriors.storing import Sharing

__all__ = [
    "AveragedPosterior",
    "CGPosterior",
    "CaGPPosterior",
    "InducingPosterior",
    "LocalPosterior",
    "Posterior",
    "Prediction",
    "Sharing",
    "posterior_from_state",
    "predict_columns",
]
