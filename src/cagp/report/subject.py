"""What a report is about: a regressor of this package, alone, behind a pipeline's steps, or found by a search."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from cagp.estimators import CaGPClassifier, GPRegressor

ASKED_WITH_ROWS = (
    "predict",
    "predictive",
    "predict_interval",
    "predict_quantiles",
    "log_predictive_density",
    "noise_std",
    "prior_mean",
    "sample_y",
    "calibration",
)
"""The methods of a regressor whose first argument is a table."""


class PipelineModel:
    """The regressor at the end of a pipeline, asked with rows of the table that the pipeline takes.

    Methods that take a table transform it by the earlier steps first. Everything else is the regressor's own.
    """

    def __init__(self, steps: Sequence[Pipeline], regressor: GPRegressor):
        self._steps, self.regressor = tuple(steps), regressor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("feature_names_in_", "n_features_in_"):
            return getattr(self._steps[0], name)
        found = getattr(self.regressor, name)
        return partial(self._ask, found) if name in ASKED_WITH_ROWS else found

    def transform(self, X: Any) -> Any:
        """The table that the regressor itself gets for this one."""
        for step in self._steps:
            X = step.transform(X)
        return X

    def _ask(self, method: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        return method(self.transform(X), *arguments, **options)


Model = GPRegressor | PipelineModel
"""What the sections of a report ask."""

AnyModel = Model | CaGPClassifier
"""What the sections on data and training ask."""


def subject_of(estimator: Any) -> Model:
    """The model to report on: the estimator itself, or what its pipeline and its search lead to."""
    steps = []
    while not isinstance(estimator, GPRegressor):
        if isinstance(estimator, Pipeline):
            if len(estimator.steps) > 1:
                steps.append(estimator[:-1])
            estimator = estimator.steps[-1][1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "refit") and hasattr(estimator, "cv"):
            raise NotFittedError(
                f"this {type(estimator).__name__} has no best_estimator_ to report on: fit it first, with refit=True."
            )
        elif isinstance(estimator, TransformedTargetRegressor):
            raise TypeError(
                "a report on a TransformedTargetRegressor would need error bars in the units of y, which it does not "
                'give. For a logarithm, use CaGPRegressor(target="log"), whose error bars are in these units.'
            )
        else:
            raise TypeError(
                f"model is a {type(estimator).__name__}, expected a fitted regressor of cagp, a Pipeline that ends in "
                "one, or a search (GridSearchCV, RandomizedSearchCV) over one."
            )
    return PipelineModel(steps, estimator) if steps else estimator


def regressor_of(model: Model) -> GPRegressor:
    """The regressor itself, which takes ``regressor_inputs``."""
    return model.regressor if isinstance(model, PipelineModel) else model


def regressor_inputs(model: AnyModel, X: Any) -> Any:
    """The table that the regressor itself gets for this one."""
    return model.transform(X) if isinstance(model, PipelineModel) else X
