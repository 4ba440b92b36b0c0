"""Regressors for scikit-learn: tables in, answers in the user's units out."""

from cagp.estimators.classifier import CaGPClassifier
from cagp.estimators.regressors import (
    CaGPRegressor,
    CGGPRegressor,
    ExactGPRegressor,
    GPRegressor,
    SGPRRegressor,
    SVGPRegressor,
    load,
)
from cagp.estimators.target_kinds import CopiesWarning
from cagp.estimators.units import EncodedTable, Units

__all__ = [
    "CGGPRegressor",
    "CaGPClassifier",
    "CaGPRegressor",
    "CopiesWarning",
    "EncodedTable",
    "ExactGPRegressor",
    "GPRegressor",
    "SGPRRegressor",
    "SVGPRegressor",
    "Units",
    "load",
]
