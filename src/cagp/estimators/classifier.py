"""The classifier: tables and labels in, probabilities out."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Float
from sklearn.base import ClassifierMixin

from cagp.class_metrics import ClassScores, class_scores
from cagp.data.tables import Chunks
from cagp.estimators.base import GPEstimator, learned, refuse_keywords
from cagp.estimators.target_kinds import Labels, check_whole, codes_of
from cagp.ranks import Ranks


@final
@dataclass(eq=False, repr=False)
class CaGPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian process classification whose probabilities know what was not computed.

    Latent functions with a Gaussian process prior give the log odds of the classes: one function for two classes, the
    softmax of one function for each of several. Labels are regressed on by their scores, with hyperparameters that give
    left-out labels the highest probability (docs/likelihoods.md). Inputs are encoded and standardised as by
    ``CaGPRegressor``.

    Args:
        method: "local" predicts each test point from its nearest rows, "hybrid" from these and from actions that all
            test points share, "opt" from learned actions alone, "cg" from those of conjugate gradients, "exact" from
            all rows. "auto" is exact up to 1,000 rows, and local beyond.
        likelihood: "logit" or "probit", the link of the latent function; "probit" is for two classes.
        n_actions: of "opt", "cg" and "hybrid"; "auto" is one for eight rows, at most 512.
        n_neighbors: of "local", "hybrid" and "opt": rows that predict each row in training; predictions by nearest
            rows use twice as many. "auto" is 64.
        kernel: a name or a kernel of ``cagp.kernels``, as for ``CaGPRegressor``; "auto" is "matern32".
        mean: the prior mean of the latent function. "zero" is the log odds of the classes. "trees" are the log odds of
            boosted trees (LightGBM), fitted out of fold. "auto" is "zero" up to 1,000 rows, and beyond whichever
            predicts held-out rows better; ``choice_`` says which.
        class_weight: what the log likelihood of a row counts, by its class: None for one, a dict from labels to
            positive numbers (one for labels that it lacks), or "balanced" for n / (number of classes * rows of the
            class). The probabilities are then those of a table with as many rows of each class as the weights say.
        categories: columns to take as levels although they hold numbers.

    The other parameters are those of ``CaGPRegressor``.

    Attributes, after ``fit``, besides those of ``GPEstimator``:
        classes_: the labels, sorted; target_name_: of the column that had them, or "y".
        offsets_: the constant part of each latent function; zero with trees.
    """

    method: str = "auto"
    _: KW_ONLY
    likelihood: str = "logit"
    n_actions: int | Literal["auto"] = "auto"
    n_neighbors: int | Literal["auto"] = "auto"
    class_weight: dict[Any, float] | str | None = None

    classes_ = learned(lambda m: m.labels and m.labels.classes)
    target_name_ = learned(lambda m: m.labels and m.labels.name)
    offsets_ = learned(lambda m: list(m.offsets))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # ---- fit ----

    def fit(self, X: Any, y: Any = None, **unknown: Any) -> "CaGPClassifier":
        """Learn from a table and the label of each row.

        Args:
            X: rows and columns: an array, a tensor, or a data frame. Values may be missing.
            y: labels of any type that can be sorted; at least two classes, none missing.
            unknown: nothing else is accepted.
        """
        refuse_keywords(unknown)
        self._check()
        check_whole("a classifier", Ranks.here(), not isinstance(X, Chunks))
        labels, codes = Labels.learn(y)
        noise = labels.row_noise(codes, self.class_weight)
        self._learn(X, labels.indicators(codes), noise, labels=labels)
        return self

    # ---- answers ----

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n c"]:
        """The probability of each class at each row, in the order of ``classes_``.

        It is the integral of the link over the latent function's distribution: far from all rows, where that is wide,
        it is close to undecided.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Float[np.ndarray, "n c"]:
        """The logarithm of the probability of each class."""
        return self.fitted.log_probabilities(self._points(X))

    def decision_function(self, X: Any) -> Float[np.ndarray, "n *c"]:
        """The log odds of the second class; with more than two classes, the log odds of each against the others."""
        log_p = self.predict_log_proba(X)
        if len(self.classes_) == 2:
            return log_p[:, 1] - log_p[:, 0]
        return log_p - np.log(np.maximum(-np.expm1(np.minimum(log_p, -1e-15)), 1e-300))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def scores(self, X: Any, y: Any) -> ClassScores:
        """Log loss, error, Brier score and calibration error of the predicted probabilities of these labels."""
        return class_scores(codes_of(self.classes_, y), self.predict_proba(X))

    def report(self, X: Any, y: Any, path: str | Path = "report.html", title: str | None = None) -> Path:
        """Write one HTML page on how well the model predicts these test rows; see docs/report.md."""
        from cagp.report import write_class_report  # it draws, and comes above this layer

        return write_class_report(self, self.encoder_.typed(X), y, path, title=title)
