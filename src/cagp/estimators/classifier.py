"""The classifier: tables and labels in, probabilities out."""

import time as clock
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from cagp import notices
from cagp.class_metrics import ClassScores, class_scores
from cagp.data.chunks import Chunks
from cagp.data.encoding import Encoder
from cagp.estimators import answers, learned
from cagp.estimators.labels import Labels, codes_of, name_of
from cagp.estimators.saved import save_model
from cagp.estimators.tasks import check_parameters, new_task, refuse_keywords, remember_columns, seed_of
from cagp.estimators.units import Units, as_array
from cagp.kernels import Kernel
from cagp.lazy import lazy_module
from cagp.likelihood_registry import likelihoods_of
from cagp.likelihoods import ClassLikelihood, class_likelihood
from cagp.memory import peak_memory
from cagp.posteriors import Posterior, predict_columns
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import OPTIONS, RECIPES, SITES_GUARANTEE, Recipe, recipe_for
from cagp.recipes.class_training import train_classes
from cagp.training import FitResult
from cagp.trees import Trees

report_page: Any = lazy_module("cagp.report")  # it draws, and comes above this layer

METHODS = ("auto", *(name for name, recipe in RECIPES.items() if recipe.takes_likelihoods))
"""The methods that a classifier can have."""

EXACT_ROWS = 1000
"""Up to this many rows, "auto" is exact."""

USED_OPTIONS = ("n_actions", "n_neighbors")


@final
class CaGPClassifier(ClassifierMixin, BaseEstimator):
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
            predicts held-out rows better; ``choice_`` says what it found.
        class_weight: what the log likelihood of a row counts, by its class: None for one, a dict from labels to
            positive numbers (one for labels that it lacks), or "balanced" for n / (number of classes * rows of the
            class). The probabilities are then those of a table with as many rows of each class as the weights say.
        categories: columns to take as levels although they hold numbers.

    The other parameters are those of ``CaGPRegressor``.

    Attributes, after ``fit``:
        classes_: the labels, sorted; target_name_: of the column that had them, or "y".
        method_, choice_, fit_report_, fit_result_, guarantee_: as for ``CaGPRegressor``.
        likelihood_: see ``cagp.likelihoods``.
        offsets_: the constant part of each latent function; zero with trees.
        posteriors_: of each latent function, without its offset.
        lengthscales_, kernel_parts_, feature_names_out_, units_, trees_, n_rows_: as for ``CaGPRegressor``.
    """

    # What regressors can choose and classifiers cannot.
    warm_start, target, copies = False, "identity", "keep"

    classes_: np.ndarray
    target_name_: str
    likelihood_: ClassLikelihood
    offsets_: list[float]
    posteriors_: list[Posterior]
    units_: Units
    fit_results_: list[FitResult]
    methods_: list[str]
    target_rows_: list[int]
    choice_: str | None
    choices_: list[dict[str, Any]]
    trees_: Trees | None
    fit_report_: str
    n_rows_: int
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        method: str = "auto",
        likelihood: str = "logit",
        n_actions: int | Literal["auto"] = "auto",
        n_neighbors: int | Literal["auto"] = "auto",
        kernel: str | Kernel = "auto",
        mean: str = "auto",
        class_weight: dict[Any, float] | str | None = None,
        categories: Sequence[Any] = (),
        max_epochs: int | None = None,
        max_time: float | str | None = None,
        max_memory: int | str | None = None,
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
        checkpoint_dir: str | Path | None = None,
    ):
        self.method = method
        self.likelihood = likelihood
        self.n_actions = n_actions
        self.n_neighbors = n_neighbors
        self.kernel = kernel
        self.mean = mean
        self.class_weight = class_weight
        self.categories = categories
        self.max_epochs = max_epochs
        self.max_time = max_time
        self.max_memory = max_memory
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint_dir = checkpoint_dir

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def _recipe(self, num_rows: int | None = None) -> Recipe:
        """The method and its options; raises ValueError for options that are not right.

        Args:
            num_rows: by which "auto" chooses; None where the options are only checked.
        """
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}, expected one of {', '.join(METHODS)}.")
        if self.likelihood not in likelihoods_of("classes"):
            listed = ", ".join(likelihoods_of("classes"))
            raise ValueError(f"likelihood is {self.likelihood!r}, expected one of {listed}.")
        values = {name: getattr(self, name) for name in USED_OPTIONS}
        if self.method != "auto":
            return recipe_for(self.method, values)
        if num_rows is not None and num_rows <= EXACT_ROWS:
            for name, value in values.items():
                OPTIONS[name].check(value)
            return recipe_for("exact", {})
        return recipe_for("local", values)

    # ---- fit ----

    def fit(self, X: Any, y: Any = None, **unknown: Any) -> "CaGPClassifier":
        """Learn from a table and the label of each row.

        Args:
            X: rows and columns: an array, a tensor, or a data frame. Values may be missing.
            y: labels of any type that can be sorted; at least two classes, none missing.
            unknown: nothing else is accepted.
        """
        if unknown:
            refuse_keywords(unknown)
        began, ranks = clock.perf_counter(), Ranks.here()
        check_parameters(self)
        self._recipe()
        if ranks.size > 1:
            raise ValueError(f"a classifier trains in one process, and {ranks.size} were started; start a single one.")
        if isinstance(X, Chunks):
            raise ValueError("a classifier takes the whole table in memory, and it is in pieces; read it first.")
        with notices.collected() as warned:
            labels = Labels.learn(y)
            likelihood = class_likelihood(self.likelihood, len(labels.classes))
            weight = labels.weights(self.class_weight)
            units, rows = Units.learn(X, labels.indicators(), None, self.categories)
            if weight is not None:
                rows = rows._replace(noise=np.broadcast_to(1 / weight[:, None], rows.targets.shape).copy())
            plain = units.scaler.target_mean
            scaler = units.scaler._replace(target_mean=torch.zeros_like(plain), target_std=torch.ones_like(plain))
            units = replace(units, scaler=scaler)
            missing = units.encoder.missing_words(rows.inputs)
            recipe = self._recipe(rows.num_rows)
            task = new_task(self, recipe, units, rows, began=began, seed=seed_of(self.random_state), ranks=ranks)
            found = train_classes(recipe, task, likelihood)
        counts = Counter(str(warning) for warning in warned)
        notes = [] if missing is None else [missing]
        notes += [f"{text} ({times:,} times in this fit)" for text, times in counts.items()]
        remember_columns(self, X)
        self.target_name_ = name_of(y)
        fitted, q = found.fitted, units.num_targets
        self.classes_, self.units_, self.n_rows_ = labels.classes, units, rows.num_rows
        self.likelihood_, self.offsets_ = found.likelihood, found.offsets
        self.posteriors_, self.trees_ = fitted.posteriors, fitted.trees
        self.fit_results_, self.methods_ = [fitted.result], [fitted.method]
        self.target_rows_, self._row_noise, self._left_out_scores = [rows.num_rows] * q, [None] * q, None
        self.choice_, self.choices_ = fitted.choice, []
        notes += [] if fitted.choice is None else [fitted.choice]
        spent = f"The fit took {clock.perf_counter() - began:,.1f} s; the process held at most {size(peak_memory())}."
        self.fit_report_ = "\n".join([*notes, *fitted.notes, str(fitted.result), self.guarantee_, spent])
        if self.verbose:
            print(self.fit_report_)
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
        points = answers.points_of(self, X)
        found = np.empty((len(points.inputs), len(self.classes_)))
        for rows, Z in answers.tiles(self, points):
            mean, variance = predict_columns(self.posteriors_, Z.to(self.posteriors_[0].X))
            known = answers.prior_mean(self, points.inputs[rows]) + np.asarray(self.offsets_)
            mean = mean + torch.from_numpy(known).to(mean)
            found[rows] = as_array(self.likelihood_.log_probabilities(mean, variance))
        if points.has_stand_ins:  # a level that fit has not seen is one of the known ones
            found = np.log(points.average(np.exp(found)))
        return found

    def decision_function(self, X: Any) -> Float[np.ndarray, "n *c"]:
        """The log odds of the second class; with more than two classes, the log odds of each against the others."""
        log_p = self.predict_log_proba(X)
        if len(self.classes_) == 2:
            return log_p[:, 1] - log_p[:, 0]
        return log_p - np.log(np.maximum(-np.expm1(np.minimum(log_p, -1e-15)), 1e-300))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        places = self.predict_log_proba(X).argmax(1)
        return self.classes_[places]

    def scores(self, X: Any, y: Any) -> ClassScores:
        """Log loss, error, Brier score and calibration error of the predicted probabilities of these labels."""
        probabilities = self.predict_proba(X)
        return class_scores(codes_of(self.classes_, y), probabilities)

    # ---- what was learned ----

    @property
    def method_(self) -> str:
        """The name of the method that was fitted."""
        check_is_fitted(self, "posteriors_")
        return self.methods_[0]

    @property
    def fit_result_(self) -> FitResult:
        """How training went."""
        check_is_fitted(self, "posteriors_")
        return self.fit_results_[0]

    @property
    def guarantee_(self) -> str:
        """What holds for the variance of the latent function, in one sentence."""
        check_is_fitted(self, "posteriors_")
        return SITES_GUARANTEE

    @property
    def lengthscales_(self) -> np.ndarray:
        """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none."""
        check_is_fitted(self, "posteriors_")
        return learned.lengthscales(self)

    @property
    def kernel_parts_(self) -> list[dict[str, Any]]:
        """Every part of the kernel, what it sees and what it learned; as plain values."""
        check_is_fitted(self, "posteriors_")
        return learned.parts_of_kernel(self)

    @property
    def encoder_(self) -> Encoder:
        """What turns tables into numbers."""
        return self.units_.encoder

    @property
    def scaler_(self) -> Any:
        """Means and standard deviations of the inputs of the training rows."""
        return self.units_.scaler

    @property
    def feature_names_out_(self) -> np.ndarray:
        """The names of the encoded inputs."""
        return np.asarray(self.units_.encoder.names_out, dtype=object)

    @property
    def target_names_(self) -> tuple[str, ...]:
        """The name of the column of labels, as regressors have those of their targets."""
        return (self.target_name_,)

    @property
    def n_outputs_(self) -> int:
        """The number of latent functions."""
        return self.units_.num_targets

    # ---- files ----

    def report(self, X: Any, y: Any, path: str | Path = "report.html", title: str | None = None) -> Path:
        """Write one HTML page on how well the model predicts these test rows; see docs/report.md."""
        check_is_fitted(self, "posteriors_")
        return report_page.write_class_report(self, self.encoder_.typed(X), y, path, title=title)

    def save(self, path: str | Path, dtype: str | None = None, rows: str = "inside") -> Path:
        """Write the fitted model to a file, whole or not at all; ``cagp.load`` reads it back.

        The parameters are those of ``CaGPRegressor.save``.
        """
        check_is_fitted(self, "posteriors_")
        return save_model(self, path, dtype, version("cagp"), rows)
