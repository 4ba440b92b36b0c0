"""The contract of every regressor: tables in, answers in the user's units out."""

import time as clock
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cagp import notices
from cagp.data.chunks import Chunks
from cagp.data.encoding import Encoder
from cagp.data.row_rules import validation_rule
from cagp.data.scaling import Standardizer
from cagp.estimators import answers, learned
from cagp.estimators.copies import CopiesWarning, counted
from cagp.estimators.likelihood_fits import check_likelihood, fit_with_likelihood
from cagp.estimators.mapped_rows import learn_chunks
from cagp.estimators.observations import Baseline, Observations
from cagp.estimators.predictive import Predictive
from cagp.estimators.regions import learn_regions
from cagp.estimators.saved import save_model
from cagp.estimators.several_targets import train_targets
from cagp.estimators.target_choice import choose_transforms
from cagp.estimators.tasks import check_parameters, check_same_table, refuse_keywords, remember_columns, seed_of
from cagp.estimators.units import EncodedTable, Quantity, Units
from cagp.estimators.variances import noise_deviations, variance_parts
from cagp.kernels import Kernel
from cagp.lazy import lazy_module
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.likelihoods import Likelihood
from cagp.memory import peak_memory
from cagp.metrics import Calibration
from cagp.posteriors import Posterior
from cagp.quantities import size
from cagp.ranks import Ranks
from cagp.recipes import Recipe, check_processes
from cagp.recipes.local import Local
from cagp.training import FitResult
from cagp.trees import Trees

report_page: Any = lazy_module("cagp.report")  # it draws, and comes above this layer


class GPRegressor(RegressorMixin, BaseEstimator, ABC):
    """What all regressors share; each says which recipe it trains (``_recipe``).

    Attributes, after ``fit``:
        method_: the name of the method that was fitted; what "auto" chose.
        choice_: why "auto" chose it, in words; None where nothing was chosen.
        choices_: what "auto" tried, a dict for each model: the "target" (None for several that are fitted together),
            the model in words ("model"), its scores on held-out rows ("nll" and "crps", in standard units), what it
            gains over the best model before it, in nats per row ("gain", "gain_error"), its "steps", "seconds" and
            "outcome".
        trees_: the boosted trees in the prior mean (``cagp.trees.Trees``); None where it is zero.
        guarantee_: what holds for the variance of its predictions, in one sentence.
        fit_report_: what a user should know about the fit, in words.
        fit_result_: steps, losses and status of training, see ``cagp.FitResult``; ``fit_results_`` and ``methods_``
            have one for each target where targets were fitted alone.
        posteriors_: a posterior for each target, in standard units.
        units_: encoder and scaler; what maps tables to standard units and answers back.
        lengthscales_, noise_std_: learned hyperparameters.
        kernel_parts_: every part of the kernel: its inputs, outputscale, lengthscales, periods and other parameters. Of
            an average of two models, these and lengthscales_ are of the one with the larger weight, and noise_std_ is
            that of the average; ``posteriors_[j].components`` are the two.
        feature_names_out_: the names of the encoded inputs.
        target_names_, n_outputs_: of the targets.
        target_transforms_: "identity" or "log" for each target; see ``target``.
        n_rows_: the number of training rows; ``target_rows_``: of those that have each target.
        likelihood_: where it is not Gaussian, the likelihood (``cagp.likelihoods``) with its learned parameters, for
            targets in standard units; None with Gaussian noise. ``offset_``: the constant part of the function.
    """

    # What only some regressors can choose.
    likelihood, exposure = GAUSSIAN, None
    likelihood_: Likelihood | None = None
    offset_: float = 0.0
    baseline_: Baseline | None = None
    posteriors_: list[Posterior]
    units_: Units
    fit_results_: list[FitResult]
    methods_: list[str]
    target_rows_: list[int]
    _left_out_scores: list[np.ndarray] | None  # what conformal intervals have computed of the fit so far
    choice_: str | None
    choices_: list[dict[str, Any]]
    trees_: Trees | None
    fit_report_: str
    n_rows_: int
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        kernel: str | Kernel = "auto",
        max_epochs: int | None = None,
        max_time: float | str | None = None,
        max_memory: int | str | None = None,
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
        mean: str = "auto",
        target: str = "auto",
        categories: Sequence[Any] = (),
        copies: str = "keep",
    ):
        self.kernel = kernel
        self.max_epochs = max_epochs
        self.max_time = max_time
        self.max_memory = max_memory
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start
        self.checkpoint_dir = checkpoint_dir
        self.mean = mean
        self.target = target
        self.categories = categories
        self.copies = copies

    @abstractmethod
    def _recipe(self) -> Recipe:
        """The method and its options; raises ValueError for options that are not right."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.likelihood == GAUSSIAN
        tags.target_tags.positive_only = self.likelihood in likelihoods_of("counts")
        tags.input_tags.allow_nan = True
        return tags

    # ---- fit ----

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_noise: Any = None,
        *,
        time: Any = None,
        group: Any = None,
        **unknown: Any,
    ) -> "GPRegressor":
        """Learn from a table.

        Args:
            X: rows and columns: an array, a tensor, or a data frame, whose text and categories are encoded (see
                ``cagp.data.Encoder``). Values may be missing: such a column gets a further input that says where, and
                the fit report says how many. Or a table in pieces, with its targets (``cagp.data.open_chunks``): its
                rows stay on disk, so that they can be more than fit into memory.
            y: one target for each row, or several columns of them. Rows without any target are left out, and the fit
                report says how many. Where rows have some targets but not all, each target is fitted alone, with its
                own kernel, on the rows that have it.
            sample_noise: known noise variance of each row, in squared units of y, on top of the learned one.
            time: a number or date for each row, where later rows are to be predicted: the rows that judge models are
                then the latest ones. It is an input only if ``X`` has it as a column.
            group: anything that is the same for the rows of a person, place or thing, where others are to be predicted:
                the rows that judge models are then whole groups. Without time and group they are drawn at random.
            unknown: nothing else is accepted. For weights with Gaussian noise, pass ``sample_noise=variance / weight``.
        """
        if unknown:
            refuse_keywords(unknown)
        began, of_copies = clock.perf_counter(), None
        check_parameters(self)
        check_likelihood(self)
        if self.likelihood != GAUSSIAN:
            fit_with_likelihood(self, X, y, sample_noise, time, group, began)
            if self.verbose:
                print(self.fit_report_)
            return self
        self.likelihood_, self.offset_, self.baseline_ = None, 0.0, None
        recipe, ranks = self._recipe(), Ranks.here()
        check_processes(recipe, ranks.size)
        if y is None and not isinstance(X, Chunks):
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if y is not None and isinstance(X, Chunks):
            raise ValueError("y is given beside a table in pieces, which has its own targets; leave y out.")
        sharded = recipe if isinstance(recipe, Local) and recipe.shards else None
        if isinstance(X, Chunks) or sharded is not None:
            where = "in pieces" if sharded is None else "in regions"
            if self.copies == "once":
                raise ValueError(f'copies is "once", which needs the table in memory, and it is {where}; use "keep".')
            if time is not None or group is not None:
                raise ValueError(f"time and group need the table in memory, and it is {where}; leave them out.")
        with notices.collected() as warned, ranks.listening():
            seed = int(ranks.broadcast(float(seed_of(self.random_state))))
            rows = None
            if sharded is not None:
                found = learn_regions(self, sharded, X, y, sample_noise, seed, began, ranks)
                units, trained, num_rows, notes, scales = found
            elif isinstance(X, Chunks):
                units, rows, notes, scales = learn_chunks(self, recipe, X, sample_noise, seed, ranks)
                check_same_table(ranks, units, rows)
            else:
                units, rows = Units.learn(X, y, sample_noise, self.categories)
                missing = rows.missing_words(), units.encoder.missing_words(rows.inputs)
                notes = [words for words in missing if words is not None]
                rule, which_rows = validation_rule(rows.num_rows + rows.num_missing, rows.places, time, group)
                units, rows, found, of_copies = counted(self.copies, units, rows._replace(rule=rule))
                notes += [*which_rows, *found]
                check_same_table(ranks, units, rows)
                units, rows, scales = choose_transforms(self, recipe, units, rows, seed, ranks)
            if rows is not None:
                num_rows = rows.num_rows
                trained = train_targets(self, recipe, units, rows, began, seed, ranks)
        counts = Counter(str(warning) for warning in warned)
        notes += [f"{text} ({times:,} times in this fit)" for text, times in counts.items()]

        remember_columns(self, EncodedTable(units.encoder, np.empty((0, 0))) if isinstance(X, Chunks) else X)
        self.units_, self.n_rows_ = units, num_rows
        self.posteriors_, self.target_rows_, self._row_noise = trained.posteriors, trained.num_rows, trained.row_noise
        self.fit_results_ = [fitted.result for fitted in trained.fits]
        self.methods_ = [fitted.method for fitted in trained.fits]
        names = units.target_names
        self.choice_, self.choices_, self.trees_ = trained.choice(names), trained.tried(names), trained.trees
        self._left_out_scores = None
        spent = f"The fit took {clock.perf_counter() - began:,.1f} s; the process held at most {size(peak_memory())}."
        self.fit_report_ = "\n".join([*notes, *trained.notes, *scales, self.guarantee_, spent])
        if self.verbose and ranks.is_first:
            print(self.fit_report_)
        if of_copies is not None and ranks.is_first:
            notices.warn(of_copies, CopiesWarning, stacklevel=2)
        return self

    # ---- answers ----

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_components: bool = False,
        sample_noise: Any = None,
        noise: bool = True,
    ) -> Any:
        """The mean at each row; with more asked for, a tuple that begins with it.

        Args:
            return_std: also the standard deviation of a new observation. It includes the noise, what more data would
                tell, and what more computation would tell.
            return_cov: also the joint covariance of new observations at all rows (at most 20,000 rows).
            return_components: also a dict of the parts of the variance of each row: "noise"; "latent", which more data
                would lower; "computational", which more computation would lower; and "computational_kind": "exact",
                "estimate" (from below) or "unknown".
            sample_noise: known noise variance of the rows of ``X``.
            noise: False for the standard deviation or covariance of the function, without the noise.

        A target that was fitted on a log scale is lognormal: its mean is above its median, ``predict_quantiles(X,
        0.5)``. Its function is exp(f), whose mean with ``noise=False`` is lower than that of new observations, and the
        parts of its variance are those of the law of total variance; see docs/targets.md.

        Answers are float32 where the targets of fit were; covariances and variances are float64. Tensors give tensors.
        """
        if sum((return_std, return_cov, return_components)) > 1:
            raise ValueError("At most one of return_std, return_cov and return_components can be requested.")
        if return_components and not noise:
            raise ValueError('return_components gives the noise as a part: leave noise=False out and read "noise".')
        points = answers.points_of(self, X)
        known = answers.known_noise(self, sample_noise, points, noise)
        answer = self.units_.answer
        if return_std:
            found = answers.predictive(self, points, known, noise)
            return answer(found.mean(), points), answer(found.std(), points)
        mean = answers.mean(self, points, known, noise)
        if return_cov:
            joint = answers.covariance(self, points, known, noise, mean)
            return answer(mean, points), answer(joint, points, 2, squared=True)
        if return_components:
            parts, kind = variance_parts(self, points, known, mean)
            shown = {name: answer(part, points, squared=True) for name, part in parts.items()}
            return answer(mean, points), {**shown, "computational_kind": kind}
        return answer(mean, points)

    def predictive(self, X: Any, sample_noise: Any = None) -> Predictive | Observations:
        """The distribution of a new observation of every target at every row, as arrays of rows by targets."""
        points = answers.points_of(self, X)
        return answers.predictive(self, points, answers.known_noise(self, sample_noise, points))

    def prior_mean(self, X: Any) -> Any:
        """The prior mean at each row, in the unit of the targets: what trees predict, or a constant without them.

        In an average of a model with trees and one without, it is the prior mean of the one with trees. On a log scale
        it is the median that the prior mean of the logarithm stands for.
        """
        points = answers.points_of(self, X)
        if self.likelihood_ is not None:
            return self.units_.answer(
                answers.prior_observations(self, points).function().at(np.zeros(1))[..., 0], points
            )
        values = self.units_.restore(points.average(answers.prior_mean(self, points.inputs)), Quantity.VALUE)
        return self.units_.answer(self.units_.inverse(values), points)

    def predict_interval(
        self,
        X: Any,
        level: float = 0.95,
        sample_noise: Any = None,
        noise: bool = True,
        method: str = "model",
        calibration: Any = None,
    ) -> tuple[Any, Any]:
        """Lower and upper end of an interval that holds a new observation with probability ``level``.

        Args:
            noise: False for the interval of the function.
            method: "model" takes the predicted distribution at its word. "conformal" widens or narrows all intervals by
                one factor for each target, so that they hold ``level`` of rows that were predicted without their own
                target: of training rows (methods "local", "hybrid" and "exact"), or of ``calibration``.
            calibration: for "conformal", rows that were not trained on: (X, y), or (X, y, sample_noise). Intervals then
                hold a new row with at least probability ``level`` if it is exchangeable with these rows; see
                docs/uncertainty.md.
        """
        points = answers.points_of(self, X)
        known = answers.known_noise(self, sample_noise, points, noise)
        low, high = answers.interval(self, points, level, known, noise, method, calibration)
        counts = noise and self._predicts_counts
        return self.units_.answer(low, points, counts=counts), self.units_.answer(high, points, counts=counts)

    def predict_quantiles(
        self,
        X: Any,
        quantiles: float | Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
        sample_noise: Any = None,
        noise: bool = True,
    ) -> Any:
        """Quantiles of a new observation at each row, in the last axis; without that axis for a single number.

        With ``noise=False``, quantiles of the function.
        """
        wanted = answers.probabilities(quantiles)
        points = answers.points_of(self, X)
        found = answers.predictive(self, points, answers.known_noise(self, sample_noise, points, noise), noise)
        values = found.quantiles(np.atleast_1d(wanted).tolist())
        found = self.units_.answer(values, points, counts=noise and self._predicts_counts)
        return found if wanted.ndim else found[..., 0]

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, sample_noise: Any = None, noise: bool = True
    ) -> Any:
        """Joint draws of new observations, in the last axis; with ``noise=False``, of the function."""
        points = answers.points_of(self, X)
        known = answers.known_noise(self, sample_noise, points, noise)
        values = answers.samples(self, points, n_samples, random_state, known, noise)
        return self.units_.answer(values, points, counts=noise and self._predicts_counts)

    def log_predictive_density(self, X: Any, y: Any, sample_noise: Any = None) -> Any:
        """log p(y | X) of each row, in nats; higher is better. With several targets, a column for each."""
        points = answers.points_of(self, X)
        values = self.units_.observed(points, y)
        found = answers.predictive(self, points, answers.known_noise(self, sample_noise, points))
        return self.units_.answer(found.log_density(values), points)

    def calibration(
        self, X: Any, y: Any, levels: Sequence[float] | None = None, sample_noise: Any = None
    ) -> Calibration:
        """Promised and observed coverage of central intervals, over all rows and targets."""
        points = answers.points_of(self, X)
        values = self.units_.observed(points, y)
        found = answers.predictive(self, points, answers.known_noise(self, sample_noise, points))
        return answers.calibration(found, values, levels)

    @property
    def _predicts_counts(self) -> bool:
        return self.likelihood_ is not None and self.likelihood_.are_counts

    # ---- what was learned ----

    @property
    def method_(self) -> str:
        """The name of the method that was fitted, to the first target if targets were fitted alone."""
        check_is_fitted(self, "posteriors_")
        return self.methods_[0]

    @property
    def fit_result_(self) -> FitResult:
        """How training went, of the first target if targets were fitted alone."""
        check_is_fitted(self, "posteriors_")
        return self.fit_results_[0]

    @property
    def target_transforms_(self) -> tuple[str, ...]:
        """The scale on which each target is fitted: "identity" or "log"."""
        check_is_fitted(self, "posteriors_")
        return tuple(transform.name for transform in self.units_.transforms)

    @property
    def guarantee_(self) -> str:
        """What holds for the variance of the function at a test point, in one sentence."""
        check_is_fitted(self, "posteriors_")
        return learned.guarantee(self)

    @property
    def lengthscales_(self) -> np.ndarray:
        """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none.

        Of a sum or product it is that of the first part that has one; ``kernel_parts_`` has all.
        """
        check_is_fitted(self, "posteriors_")
        return learned.lengthscales(self)

    @property
    def kernel_parts_(self) -> list[dict[str, Any]]:
        """Every part of the kernel, what it sees and what it learned; as plain values (docs/own-kernels.md)."""
        check_is_fitted(self, "posteriors_")
        return learned.parts_of_kernel(self)

    @property
    def noise_std_(self) -> np.ndarray:
        """The learned standard deviation of the noise of each target, in its unit; of its logarithm on a log scale."""
        check_is_fitted(self, "posteriors_")
        return learned.noise_std(self)

    def noise_std(self, X: Any) -> Any:
        """The standard deviation of the noise at each row, in the unit of the target.

        It is ``noise_std_``, unless error bars follow a local scale or the target is fitted on a log scale.
        """
        points = answers.points_of(self, X)
        return self.units_.answer(noise_deviations(self, points), points)

    @property
    def encoder_(self) -> Encoder:
        """What turns tables into numbers."""
        return self.units_.encoder

    @property
    def scaler_(self) -> Standardizer:
        """Means and standard deviations of the training rows."""
        return self.units_.scaler

    @property
    def feature_names_out_(self) -> np.ndarray:
        """The names of the encoded inputs."""
        return np.asarray(self.units_.encoder.names_out, dtype=object)

    @property
    def target_names_(self) -> tuple[str, ...]:
        """The names of the targets."""
        return self.units_.target_names

    @property
    def n_outputs_(self) -> int:
        """The number of targets."""
        return self.units_.num_targets

    # ---- files ----

    def save(self, path: str | Path, dtype: str | None = None, rows: str = "inside") -> Path:
        """Write the fitted model to a file, whole or not at all; ``cagp.load`` reads it back.

        The file holds the rows that predictions need: all training rows for "local", "hybrid" and "exact", those with
        weight for "opt" and "cg", inducing points for SGPR and SVGP. Share it as you would share these rows.

        Args:
            dtype: "float32" stores rounded rows and targets: about half the size, and answers that differ in their
                last digits. None: answers after loading are the same to the last bit.
            rows: "beside" writes these rows to a second file, whose name has ".rows" added. A loaded model leaves them
                on disk, where the system reads what predictions use. Keep the two files together, and as they are.
        """
        check_is_fitted(self, "posteriors_")
        return save_model(self, path, dtype, version("cagp"), rows)

    def report(
        self,
        X: Any,
        y: Any,
        path: str | Path = "report.html",
        title: str | None = None,
        sample_noise: Any = None,
    ) -> Path:
        """Write one HTML page on how well the model predicts these test rows, and why; see docs/report.md."""
        check_is_fitted(self, "posteriors_")
        X = self.encoder_.typed(X)
        return report_page.write_report(self, X, y, path, title=title, sample_noise=sample_noise)
