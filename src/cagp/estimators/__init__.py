"""Regressors for scikit-learn: tables in, answers in the user's units out."""

from cagp.estimators.base import Calibration, GPRegressor
from cagp.estimators.regressors import (
    CaGPRegressor,
    CGGPRegressor,
    ExactGPRegressor,
    SGPRRegressor,
    SVGPRegressor,
    load,
)

__all__ = [
    "CGGPRegressor",
    "CaGPRegressor",
    "Calibration",
    "ExactGPRegressor",
    "GPRegressor",
    "SGPRRegressor",
    "SVGPRegressor",
    "load",
]
