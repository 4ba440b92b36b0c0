"""The regressors. Each names its recipe; everything else is in ``base``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, final

import torch

from cagp.estimators.base import GPRegressor
from cagp.estimators.classifier import CaGPClassifier
from cagp.estimators.likelihood_fits import likelihood_recipe
from cagp.estimators.saved import load_model
from cagp.kernels import Kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.recipes import OPTIONS, Recipe, recipe_for


@final
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
        local_scale: of "local", "hybrid" and "auto". "auto": where it pays, error bars follow the neighbours of each
            test point, narrow where they vary little and wide where they vary much. None: one scale everywhere; the
            variance is then never below the exact one. A number: how many neighbours the learned scale counts for.
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
            fold: the Gaussian process learns what they leave. "auto" is zero, and the method "auto" tries trees.
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
        copies: "keep" takes rows as they come, and warns if many are copies of others, inputs and targets alike: models
            are then judged by how well they repeat them. "once" counts copies as one row, in training and judgement:
            use it if new rows will not be copies of old ones.
        likelihood: "gaussian", or how else targets vary about the function: "student_t" for numbers with outliers,
            "poisson" and "negative_binomial" for counts, whose mean is the exponential of the function. There is then
            one target, ``method`` is "auto" (exact up to 1,000 rows, local beyond), "exact", "local", "hybrid", "opt"
            or "cg", and ``mean="auto"`` compares zero with trees on held-out rows. See docs/likelihoods.md.
        exposure: for counts, the column of ``X`` that their mean is proportional to, e.g. hours of observation: its
            name, or its position where ``X`` is an array. It is not an input.
    """

    def __init__(
        self,
        method: str = "auto",
        n_actions: int | Literal["auto"] = "auto",
        n_neighbors: int | Literal["auto"] = "auto",
        local_scale: float | Literal["auto"] | None = "auto",
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
        n_inducing: int = 512,
        mean: str = "auto",
        effort: str = "default",
        objective: str = "auto",
        target: str = "auto",
        categories: Sequence[Any] = (),
        shards: bool = False,
        copies: str = "keep",
        likelihood: str = "gaussian",
        exposure: Any = None,
    ):
        self.method = method
        self.likelihood = likelihood
        self.exposure = exposure
        self.n_actions = n_actions
        self.n_neighbors = n_neighbors
        self.local_scale = local_scale
        self.n_inducing = n_inducing
        self.effort = effort
        self.objective = objective
        self.shards = shards
        limits = (max_epochs, max_time, max_memory)
        general = (device, dtype, random_state, verbose, warm_start, checkpoint_dir, mean, target, categories, copies)
        super().__init__(kernel, *limits, *general)

    def _recipe(self) -> Recipe:
        if self.likelihood != GAUSSIAN:
            return likelihood_recipe(self)
        return recipe_for(self.method, {name: getattr(self, name) for name in OPTIONS})


@final
class ExactGPRegressor(GPRegressor):
    """The exact Gaussian process, by Cholesky factorisation: for a few thousand rows. Time O(n³), memory O(n²).

    The parameters are those of ``CaGPRegressor``.
    """

    def _recipe(self) -> Recipe:
        return recipe_for("exact", {})


@final
class CGGPRegressor(GPRegressor):
    """The exact model with every solve by conjugate gradients (CGGP): O(n²) an iteration, in float64.

    The parameters are those of ``CaGPRegressor``.
    """

    def _recipe(self) -> Recipe:
        return recipe_for("cggp", {})


class InducingRegressor(GPRegressor):
    """What the regressors with inducing points share: their parameters."""

    def __init__(
        self,
        n_inducing: int = 512,
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
        self.n_inducing = n_inducing
        limits = (max_epochs, max_time, max_memory)
        general = (device, dtype, random_state, verbose, warm_start, checkpoint_dir, mean, target, categories, copies)
        super().__init__(kernel, *limits, *general)


@final
class SGPRRegressor(InducingRegressor):
    """Inducing points with the best Gaussian in closed form (SGPR). Time O(n m²). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    def _recipe(self) -> Recipe:
        return recipe_for("sgpr", {"n_inducing": self.n_inducing})


@final
class SVGPRegressor(InducingRegressor):
    """Inducing points with a learned Gaussian, trained on minibatches (SVGP). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    def _recipe(self) -> Recipe:
        return recipe_for("svgp", {"n_inducing": self.n_inducing})


REGRESSORS: dict[str, type[GPRegressor]] = {
    regressor.__name__: regressor
    for regressor in (CaGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor, CGGPRegressor)
}


def load(path: str | Path, kernel: Kernel | None = None) -> Any:
    """The fitted regressor or classifier in a file that ``save`` wrote; nothing in the file is executed.

    Args:
        kernel: where the model has a kernel of a class of your own: an object of that class and structure. Its
            parameters are then those of the file.

    Raises ValueError where the file is damaged, incomplete, or not a model.
    """
    return load_model(path, {**REGRESSORS, CaGPClassifier.__name__: CaGPClassifier}, kernel)
