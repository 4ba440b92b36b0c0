"""What all estimators share: parameters of every fit, attributes of the fitted model, files and reports."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from cagp.data.tables import Chunks
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.learning import learn
from cagp.estimators.rows import Fit
from cagp.estimators.saved import save_model
from cagp.estimators.sources import Table
from cagp.estimators.target_kinds import TargetKind
from cagp.estimators.units import EncodedTable, Points
from cagp.kernels import Kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.ranks import Ranks
from cagp.recipes.options import check_values


def learned(read: Callable[[FittedModel], Any]) -> Any:
    """An attribute that an estimator has after ``fit``, read off its fitted model."""
    return property(lambda estimator: read(estimator.fitted))


@dataclass(eq=False, repr=False, kw_only=True)
class GPEstimator(BaseEstimator, ABC):
    """What regressors and classifiers share.

    Attributes, after ``fit``:
        fitted: everything that was learned, as one value (``cagp.estimators.fitted_model.FittedModel``). All others are
            read off it.
        method_: the name of the method that was fitted; what "auto" chose.
        choice_: why "auto" chose it, in words; None where nothing was chosen.
        choices_: what "auto" tried, a dict for each model: the "target" (None for several that are fitted together),
            the model in words ("model"), its scores on held-out rows ("nll" and "crps", in standard units), what it
            gains over the best model before it, in nats per row ("gain", "gain_error"), its "steps", "seconds" and
            "outcome".
        trees_: the boosted trees in the prior mean (``cagp.trees.Trees``); None where it is constant.
        guarantee_: what holds for the variance of its predictions, in one sentence.
        fit_report_: what a user should know about the fit, in words.
        fit_result_: steps, losses and status of training, see ``cagp.FitResult``; ``fit_results_`` and ``methods_``
            have one for each target where targets were fitted alone.
        posteriors_: a posterior for each latent function, in standard units.
        units_: what maps tables to standard units and answers back; encoder_ and scaler_ are its parts.
        lengthscales_: of each encoded input, in its standard deviations; NaN where the kernel has none. Of a sum or
            product it is that of the first part that has one.
        kernel_parts_: every part of the kernel: its inputs, outputscale, lengthscales, periods and other parameters. Of
            an average of two models, these and lengthscales_ are of the one with the larger weight;
            ``posteriors_[j].components`` are the two.
        feature_names_out_: the names of the encoded inputs.
        target_names_, n_outputs_: of the targets; of a classifier, n_outputs_ is the number of latent functions.
        n_rows_: the number of training rows; target_rows_: of those that have each target.
        likelihood_: where it is not Gaussian, the likelihood (``cagp.likelihoods``) with its learned parameters, for
            targets in standard units; None with Gaussian noise.
    """

    kernel: str | Kernel = "auto"
    mean: str = "auto"
    categories: Sequence[Any] = ()
    max_epochs: int | None = None
    max_time: float | str | None = None
    max_memory: int | str | None = None
    device: str | torch.device = "cpu"
    dtype: str = "auto"
    random_state: Any = 0
    verbose: bool = False
    checkpoint_dir: str | Path | None = None

    # Unless an estimator can choose them:
    likelihood, target, copies, exposure, warm_start = GAUSSIAN, "identity", "keep", None, False

    method_ = learned(lambda m: m.methods[0])
    methods_ = learned(lambda m: m.methods)
    choice_ = learned(lambda m: m.choice)
    choices_ = learned(lambda m: m.tried)
    trees_ = learned(lambda m: m.trees)
    guarantee_ = learned(lambda m: m.guarantee)
    fit_report_ = learned(lambda m: m.report)
    fit_result_ = learned(lambda m: m.results[0])
    fit_results_ = learned(lambda m: m.results)
    posteriors_ = learned(lambda m: m.posteriors)
    units_ = learned(lambda m: m.units)
    encoder_ = learned(lambda m: m.units.encoder)
    scaler_ = learned(lambda m: m.units.scaler)
    lengthscales_ = learned(lambda m: m.lengthscales)
    kernel_parts_ = learned(lambda m: m.kernel_parts)
    feature_names_out_ = learned(lambda m: np.asarray(m.units.encoder.names_out, dtype=object))
    target_names_ = learned(lambda m: m.units.target_names if m.labels is None else (m.labels.name,))
    n_outputs_ = learned(lambda m: m.num_functions)
    n_rows_ = learned(lambda m: m.num_rows)
    target_rows_ = learned(lambda m: m.target_rows)
    likelihood_ = learned(lambda m: m.likelihood)

    @property
    def fitted(self) -> FittedModel:
        """What ``fit`` has learned, in one value."""
        check_is_fitted(self, "fitted_")
        return self.fitted_  # pyright: ignore[reportAttributeAccessIssue]

    @property
    @abstractmethod
    def method(self) -> str:
        """The name of the method."""

    def _check(self, anywhere: bool = False) -> TargetKind:
        """The kind of targets and the method that learns them; ValueError for parameters that are not right.

        Args:
            anywhere: the fit may have been on another computer, with devices that this one lacks.
        """
        values = self.get_params(deep=False)
        check_values({name: value for name, value in values.items() if name not in ("likelihood", "warm_start")})
        if not isinstance(self.kernel, str | Kernel):
            kernel = type(self.kernel).__name__
            raise ValueError(f"kernel is a {kernel}, expected a name or a kernel of cagp.kernels.")
        _check_device(self.device, anywhere)
        return TargetKind.of(values | {"likelihood": self.likelihood, "method": self.method}, is_classifier(self))

    def _learn(self, table: Table, kind: TargetKind) -> None:
        """Learn from a table and keep what was learned."""
        fitted = learn(table, Fit(self, kind, seed_of(self.random_state), Ranks.here(), time.perf_counter()))
        encoder = fitted.units.encoder
        if isinstance(table.X, Chunks | EncodedTable):
            self.n_features_in_ = encoder.num_columns
            if encoder.names_in is not None:
                self.feature_names_in_ = np.asarray(encoder.names_in, dtype=object)
        else:
            validate_data(self, table.X, skip_check_array=True)
        self.fitted_ = fitted
        if self.verbose and Ranks.here().is_first:
            print(fitted.report)

    def _points(self, X: Any) -> Points:
        """The rows of a table as test points."""
        fitted = self.fitted
        if not isinstance(X, EncodedTable) and getattr(X, "ndim", 2) == 2:  # for others the encoder has better words
            validate_data(self, X, skip_check_array=True, reset=False)
        return fitted.points(X, bool(self.verbose))

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
        return save_model(self, self.fitted, path, dtype, version("cagp"), rows)


def refuse_keywords(unknown: dict[str, Any]) -> None:
    """Raise TypeError for keywords that fit does not know, with what to pass instead."""
    for name in unknown:
        hint = ""
        if name == "sample_weight":
            hint = (
                ": a Gaussian process weighs rows by their noise. Pass sample_noise, the known noise variance of each "
            )
            hint += "row, e.g. sample_noise=variance / weight"
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}{hint}.")


def _check_device(device: str | torch.device, anywhere: bool) -> None:
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'device is {device!r}, expected a device of torch, e.g. "cpu" or "cuda".') from error
    if anywhere:
        return
    try:
        torch.empty(1, device=parsed)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device is {str(device)!r}, which this computer or this build of torch does not have ({reason}); use "
            '"cpu".'
        ) from error


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
