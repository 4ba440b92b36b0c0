"""The regressors: tables in, answers in the user's units out."""

from abc import ABC
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import torch
from sklearn.base import RegressorMixin

from cagp import metrics
from cagp.estimators.base import GPEstimator, learned, refuse_keywords, seed_of
from cagp.estimators.classifier import CaGPClassifier
from cagp.estimators.predictive import Observations, Predictive
from cagp.estimators.saved import load_model
from cagp.kernels import Kernel
from cagp.likelihood_registry import GAUSSIAN, likelihoods_of
from cagp.metrics import Calibration


@dataclass(eq=False, repr=False, kw_only=True)
class GPRegressor(RegressorMixin, GPEstimator, ABC):
    """What all regressors share.

    Attributes, after ``fit``, besides those of ``GPEstimator``:
        target_transforms_: "identity" or "log" for each target, the scale on which it is fitted; see ``target``.
        noise_std_: the learned standard deviation of the noise of each target, in its unit; of its logarithm on a log
            scale, NaN for counts.
        offset_: where the likelihood is not Gaussian, the constant part of the function.
    """

    warm_start: bool = False
    target: str = "auto"
    copies: str = "keep"

    target_transforms_ = learned(lambda m: tuple(transform.name for transform in m.units.transforms))
    noise_std_ = learned(lambda m: m.noise_std)
    offset_ = learned(lambda m: m.offsets[0] if m.offsets else 0.0)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.likelihood == GAUSSIAN
        tags.target_tags.positive_only = self.likelihood in likelihoods_of("counts")
        tags.input_tags.allow_nan = True
        return tags

    # ---- fit ----

    def fit(
        self, X: Any, y: Any = None, sample_noise: Any = None, *, time: Any = None, group: Any = None, **unknown: Any
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
            time: a number or date for each row, if later rows are to be predicted: models are then validated on the
                latest rows. It is an input only if ``X`` has it as a column.
            group: anything that is the same for the rows of a person, place or thing, if others are to be predicted:
                models are then validated on held-out groups. Without time and group, validation rows are random.
            unknown: nothing else is accepted. For weights with Gaussian noise, pass ``sample_noise=variance / weight``.
        """
        refuse_keywords(unknown)
        self._check()
        self._learn(X, y, sample_noise, time, group)
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
        points = self._points(X, sample_noise, noise)
        fitted, answer = self.fitted, self.fitted.units.answer
        if return_std:
            predicted = fitted.predictive(points, noise)
            return answer(predicted.mean(), points), answer(predicted.std(), points)
        mean = fitted.mean(points, noise)
        if return_cov:
            joint = fitted.covariance(points, noise, mean)
            return answer(mean, points), answer(joint, points, 2, squared=True)
        if return_components:
            parts, kind = fitted.variance_parts(points, mean)
            shown = {name: answer(part, points, squared=True) for name, part in parts.items()}
            return answer(mean, points), {**shown, "computational_kind": kind}
        return answer(mean, points)

    def predictive(self, X: Any, sample_noise: Any = None) -> Predictive | Observations:
        """The distribution of a new observation of every target at every row, as arrays of rows by targets."""
        return self.fitted.predictive(self._points(X, sample_noise))

    def prior_mean(self, X: Any) -> Any:
        """The prior mean at each row, in the unit of the targets: what trees predict, or a constant without them.

        In an average of a model with trees and one without, it is the prior mean of the one with trees. On a log scale
        it is the median that the prior mean of the logarithm stands for.
        """
        points = self._points(X)
        return self.units_.answer(self.fitted.prior_mean(points), points)

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
            method: "model" uses the predicted distribution. "conformal" widens or narrows all intervals by
                one factor for each target, so that they hold ``level`` of rows that were predicted without their own
                target: of training rows (methods "local", "hybrid" and "exact"), or of ``calibration``.
            calibration: for "conformal", rows that were not trained on: (X, y), or (X, y, sample_noise). Intervals then
                hold a new row with at least probability ``level`` if it is exchangeable with these rows; see
                docs/uncertainty.md.
        """
        points = self._points(X, sample_noise, noise)
        self._check_interval(level, noise, method, calibration)
        predicted = self.fitted.predictive(points, noise)
        if method == "model":
            ends = predicted.quantiles([0.5 - level / 2, 0.5 + level / 2])
        else:
            scores = None
            if calibration is not None:
                X, y, *known = calibration
                others = self._points(X, *known)
                z = self.fitted.predictive(others).standardized(self.units_.observed(others, y))
                scores = list(np.abs(z).T)
            ends = self.fitted.conformal_ends(predicted, float(level), scores)
        counts = noise and self.fitted.predicts_counts
        low, high = (self.units_.answer(ends[..., k], points, counts=counts) for k in (0, 1))
        return low, high

    def _check_interval(self, level: float, noise: bool, method: str, calibration: Any) -> None:
        """Raise ValueError for arguments of ``predict_interval`` that are wrong or do not go together."""
        if not isinstance(level, Real) or not 0 < level < 1:
            raise ValueError(
                f"level is {level!r}, expected one probability between 0 and 1, e.g. 0.95; for several, use "
                "predict_quantiles."
            )
        if method not in ("model", "conformal"):
            raise ValueError(f'method is {method!r}, expected "model" or "conformal".')
        if method == "model" and calibration is not None:
            raise ValueError('calibration is for method="conformal"; remove it or ask for that method.')
        if method == "conformal" and not noise:
            raise ValueError("conformal intervals are of new observations; noise=False asks for the function.")
        if method == "conformal" and self.likelihood_ is not None:
            raise ValueError(
                f'method is "conformal", which is not for the likelihood {self.likelihood!r}; use "model".'
            )
        if calibration is not None and (not isinstance(calibration, tuple | list) or len(calibration) not in (2, 3)):
            raise ValueError(f"calibration is a {type(calibration).__name__}, expected (X, y) or (X, y, sample_noise).")

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
        try:
            wanted = np.asarray(quantiles, dtype=float)
        except (TypeError, ValueError):
            wanted = np.empty(0)
        if wanted.ndim > 1 or wanted.size == 0 or not ((wanted > 0) & (wanted < 1)).all():
            raise ValueError(f"quantiles are {quantiles!r}, expected probabilities between 0 and 1.")
        points = self._points(X, sample_noise, noise)
        values = self.fitted.predictive(points, noise).quantiles(np.atleast_1d(wanted).tolist())
        answer = self.units_.answer(values, points, counts=noise and self.fitted.predicts_counts)
        return answer if wanted.ndim else answer[..., 0]

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, sample_noise: Any = None, noise: bool = True
    ) -> Any:
        """Joint draws of new observations, in the last axis; with ``noise=False``, of the function."""
        points = self._points(X, sample_noise, noise)
        values = self.fitted.samples(points, n_samples, seed_of(random_state), noise)
        return self.units_.answer(values, points, counts=noise and self.fitted.predicts_counts)

    def log_predictive_density(self, X: Any, y: Any, sample_noise: Any = None) -> Any:
        """log p(y | X) of each row, in nats; higher is better. With several targets, a column for each."""
        points = self._points(X, sample_noise)
        values = self.units_.observed(points, y)
        return self.units_.answer(self.fitted.predictive(points).log_density(values), points)

    def calibration(
        self, X: Any, y: Any, levels: Sequence[float] | None = None, sample_noise: Any = None
    ) -> Calibration:
        """Promised and observed coverage of central intervals, over all rows and targets.

        Of counts, the place of each in its distribution is random between the two probabilities on either side of it:
        no interval of integers has exactly the probability it should have.
        """
        points = self._points(X, sample_noise)
        z = self.fitted.predictive(points).standardized(self.units_.observed(points, y))
        error = torch.from_numpy(z).reshape(-1)
        zero, one = torch.zeros_like(error), torch.ones_like(error)
        return metrics.calibration(error, zero, one, levels=19 if levels is None else levels)

    def noise_std(self, X: Any) -> Any:
        """The standard deviation of the noise at each row, in the unit of the target.

        It is ``noise_std_``, unless error bars follow a local scale or the target is fitted on a log scale.
        """
        points = self._points(X)
        return self.units_.answer(self.fitted.noise_deviations(points), points)

    def report(
        self, X: Any, y: Any, path: str | Path = "report.html", title: str | None = None, sample_noise: Any = None
    ) -> Path:
        """Write one HTML page on how well the model predicts these test rows, and why; see docs/report.md."""
        X = self.encoder_.typed(X)
        from cagp.report import write_report  # it draws, and comes above this layer

        return write_report(self, X, y, path, title=title, sample_noise=sample_noise)


@final
@dataclass(eq=False, repr=False)
class CaGPRegressor(GPRegressor):
    """Gaussian process regression whose error bars include what was not computed.

    Inputs and targets are standardised with the training rows; answers are in the units of the targets. An option that
    the chosen method does not use is an error.

    Args:
        method: "local" predicts each test point from its nearest rows, "hybrid" from these and from actions that all
            test points share, "opt" (CaGP-Opt) from learned actions alone, "cg" (CaGP-CG) from those of conjugate
            gradients, "exact" from all rows. "sgpr", "svgp" and "cggp" are the methods it is compared with. "auto"
            tries several models and says in ``fit_report_`` and ``choices_`` what it tried: up to 2,000 rows it is
            exact, with the kernel and mean that predict each row best from all others; beyond, a tenth of the rows, at
            most 2,000, is held out, and the model that predicts them best by log density and CRPS is taken. A simpler
            model stays unless another is better by more than chance. With more than 2,000 rows "opt" holds as many
            rows out, to choose its last step and the noise; its predictions do not use them.
        n_actions: of "opt", "cg", "hybrid" and "auto". "auto" is one for eight rows, at most 512, fewer where
            ``max_memory`` does not allow them.
        n_neighbors: of "local", "hybrid", "auto" and "opt" (for its starting values): training rows that predict each
            row in training; predictions use twice as many. "auto" is 32, and the method "auto" also tries 128 in
            predictions. As many as there are training rows, or more, is an error.
        local_scale: of "local", "hybrid" and "auto". "auto": if validation improves, error bars adapt to the neighbours
            of each test point, narrow where these vary little and wide where they vary much. None: one scale
            everywhere; the variance is then never below the exact one. A number: how many neighbours the learned scale
            is worth.
        n_inducing: of "sgpr" and "svgp"; fewer where there are fewer rows.
        kernel: "matern12", "matern32", "matern52", "rbf", "rational_quadratic", "periodic" (a season beside a smooth
            function and a line), or a kernel of ``cagp.kernels`` for standardised inputs, which then starts at its own
            hyperparameters. "auto" is "matern32", and the method "auto" compares others with it. Periods and degrees
            are in the units of ``X``. A kernel that does not decay with distance is learned from rows far apart as
            well.
        max_epochs: passes over the rows at most, for each model that is tried; None for 300 steps, of all rows or of
            minibatches, fewer for models that are only compared.
        max_time: limit for the whole fit, with the choice of a model, in seconds or as text ("10min"). ``choices_``
            lists what was not tried for lack of time.
        max_memory: what fitting may take, in bytes or as text ("4GB"); None for half of what is free. "exact" raises
            MemoryError where that is not enough.
        device: where to compute, as torch names it.
        dtype: "float32", "float64", or "auto": float64, but float32 for "opt", "cg", "sgpr" and "svgp" beyond 10,000
            rows.
        random_state: of minibatches and splits; the same state gives the same result.
        verbose: show progress and the fit report.
        warm_start: start a further fit at the hyperparameters (and inducing points) of the last one.
        checkpoint_dir: folder for checkpoints. After a crash, the same call with the same data resumes there. Each
            fit has a subfolder, so that fits of other data or options can share the folder.
        mean: the prior mean. "zero" is the mean of the targets. "trees" are boosted trees (LightGBM), fitted out of
            fold: the Gaussian process models the residuals. "auto" is zero, and the method "auto" tries trees.
        effort: of "auto", how much is tried: "fast" (one model), "default" or "thorough" (more starts, kernels and
            neighbours).
        objective: of "local", "hybrid" and "auto". Hyperparameters are learned by predicting each row from its nearest
            other rows ("loo"), or from the nearest rows before it in a random order ("ordered", Vecchia). "auto" is
            "loo", and the method "auto" compares both.
        target: "log" fits the logarithm of y, which must be positive: predictions are lognormal, in the units of y.
            "identity" fits y as it is. "auto" takes the logarithm of a positive, skewed target if that predicts
            held-out training rows clearly better; ``fit_report_`` says what it found.
        categories: columns to take as levels although they hold numbers, for example codes: names of columns, or
            positions where ``X`` is an array.
        shards: of "local", for tables that no machine can hold: each process that ``torchrun`` starts has a region of
            the inputs. Arrays are then the part of the table that the process is given; of a table in pieces, it reads
            its part. Predictions are made by all processes together, for the same rows. See docs/scaling.md.
        copies: "keep" takes rows as they come, and warns if many are copies of others, inputs and targets alike:
            held-out rows then have copies among training rows. "once" counts copies as one row, in training and
            validation: use it if new rows will not be copies of old ones.
        likelihood: "gaussian", or how else targets vary about the function: "student_t" for numbers with outliers,
            "poisson" and "negative_binomial" for counts, whose mean is the exponential of the function. There is then
            one target, ``method`` is "auto" (exact up to 1,000 rows, local beyond), "exact", "local", "hybrid", "opt"
            or "cg", and ``mean="auto"`` compares zero with trees on held-out rows. See docs/likelihoods.md.
        exposure: for counts, the column of ``X`` that their mean is proportional to, e.g. hours of observation: its
            name, or its position where ``X`` is an array. It is not an input.
    """

    method: str = "auto"
    _: KW_ONLY
    n_actions: int | Literal["auto"] = "auto"
    n_neighbors: int | Literal["auto"] = "auto"
    local_scale: float | Literal["auto"] | None = "auto"
    n_inducing: int = 512
    effort: str = "default"
    objective: str = "auto"
    shards: bool = False
    likelihood: str = GAUSSIAN
    exposure: Any = None


@final
@dataclass(eq=False, repr=False)
class ExactGPRegressor(GPRegressor):
    """The exact Gaussian process, by Cholesky factorisation: for a few thousand rows. Time O(n³), memory O(n²).

    The parameters are those of ``CaGPRegressor``.
    """

    kernel: str | Kernel = "auto"
    method: ClassVar[str] = "exact"


@final
@dataclass(eq=False, repr=False)
class CGGPRegressor(GPRegressor):
    """The exact model with every solve by conjugate gradients (CGGP): O(n²) an iteration, in float64.

    The parameters are those of ``CaGPRegressor``.
    """

    kernel: str | Kernel = "auto"
    method: ClassVar[str] = "cggp"


@final
@dataclass(eq=False, repr=False)
class SGPRRegressor(GPRegressor):
    """Inducing points with the best Gaussian in closed form (SGPR). Time O(n m²). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    n_inducing: int = 512
    kernel: str | Kernel = "auto"
    method: ClassVar[str] = "sgpr"


@final
@dataclass(eq=False, repr=False)
class SVGPRegressor(GPRegressor):
    """Inducing points with a learned Gaussian, trained on minibatches (SVGP). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    n_inducing: int = 512
    kernel: str | Kernel = "auto"
    method: ClassVar[str] = "svgp"


def load(path: str | Path, kernel: Kernel | None = None) -> Any:
    """The fitted regressor or classifier in a file that ``save`` wrote; nothing in the file is executed.

    Args:
        kernel: where the model has a kernel of a class of your own: an object of that class and structure. Its
            parameters are then those of the file.

    Raises ValueError where the file is damaged, incomplete, or not a model.
    """
    known = (CaGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor, CGGPRegressor, CaGPClassifier)
    return load_model(path, {estimator.__name__: estimator for estimator in known}, kernel)
