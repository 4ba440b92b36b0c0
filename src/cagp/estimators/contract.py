"""What regressors and classifiers have in common for the modules that serve both."""

from cagp.estimators.base import GPRegressor
from cagp.estimators.classifier import CaGPClassifier

Estimator = GPRegressor | CaGPClassifier
