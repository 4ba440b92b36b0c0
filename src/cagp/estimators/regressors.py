"""The regressors: each says how it trains; everything else is in ``base``."""

import math
import time
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cagp.estimators import choosing
from cagp.estimators.base import GPRegressor, check_whole_number
from cagp.estimators.saved import load_model
from cagp.estimators.task import Fitted, Task
from cagp.inducing import choose_inducing_points
from cagp.kernels import Kernel
from cagp.memory import bytes_of
from cagp.methods import CGGP, SGPR, SVGP, CaGPCG, CaGPLocal, CaGPOpt, CholeskyGP, Several
from cagp.methods.cholesky import memory_needed
from cagp.methods.common import lengthscale_of
from cagp.noise_tuning import raise_noise
from cagp.prior import GP
from cagp.starting import LOCAL_STEPS
from cagp.training import FitResult, seconds_of

CaGPMethod = Literal["auto", "exact", "opt", "cg", "local", "hybrid"]
METHODS = ("auto", "exact", "opt", "cg", "local", "hybrid")

NOISE_FLOOR, LOW_NOISE_FLOOR = 1e-6, 1e-9
"""In units of the targets' variance; the lower one where float64 data and exact or local answers can resolve it."""

REFINING_STEPS = 50
"""Steps of CaGP-Opt after "auto" has found the hyperparameters and chosen it."""

EVALUATE_EVERY, PATIENCE = 20, 4
"""CaGP-Opt is judged by held-out rows after so many steps, and ends when so many judgements bring nothing better."""

SMALL = 10_000
"""Up to so many rows, methods that would use float32 for speed use float64."""


class CaGPRegressor(GPRegressor):
    """Gaussian process regression whose error bars include what was not computed.

    Inputs and targets are standardised with the training rows; answers are in the units of the targets.

    Args:
        method: "local" answers every question from its nearest rows, "hybrid" from these and from actions that all
            questions share, "opt" (CaGP-Opt) from learned actions alone, "cg" (CaGP-CG) from those of conjugate
            gradients, "exact" from all rows. "auto" chooses and says why in ``fit_report_``: exact up to 2,000 rows;
            beyond, what predicts held-out training rows best, or local where shared actions need too much memory.
            With more than 2,000 rows "opt" holds a tenth of them out, at most 2,000, to choose its last step and the
            noise; predictions do not use these.
        n_actions: of "opt", "cg" and "hybrid"; "auto" is one for eight rows, at most 512, fewer where ``max_memory``
            does not allow them.
        n_neighbors: rows that a question is answered from in training; predictions use twice as many.
        local_scale: of "local" and "hybrid". "auto": where rows that are predicted from others say so, error bars
            follow the neighbours of each question, narrow where they vary little and wide where they vary much; None:
            one scale everywhere, with which variances are never below the exact ones; a number: how many neighbours
            the learned scale counts for.
        kernel: "matern12", "matern32", "matern52", "rbf", "rational_quadratic", or a kernel of ``cagp.kernels`` for
            standardised inputs, which then starts at its own hyperparameters.
        max_epochs: passes over the rows at most; None for 300 steps, be they of all rows or of minibatches.
        max_time: limit for training, in seconds or as text ("10min").
        max_memory: what fitting may take, in bytes or as text ("4GB"); None for half of what is free. "exact" raises
            MemoryError where that is not enough.
        device: where it is computed, as torch names it.
        dtype: "float32", "float64", or "auto": float64, but float32 for "opt" and "cg" beyond 10,000 rows.
        random_state: of minibatches and splits; the same gives the same result.
        verbose: show progress and the fit report.
        warm_start: start a further fit at the hyperparameters (and inducing points) of the last one.
        checkpoint_dir: folder for checkpoints; the same call with the same data goes on after a crash.
    """

    def __init__(
        self,
        method: CaGPMethod = "auto",
        n_actions: int | Literal["auto"] = "auto",
        n_neighbors: int = 32,
        local_scale: float | Literal["auto"] | None = "auto",
        kernel: str | Kernel = "matern32",
        max_epochs: int | None = None,
        max_time: float | str | None = None,
        max_memory: int | str | None = None,
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
    ):
        self.method = method
        self.n_actions = n_actions
        self.n_neighbors = n_neighbors
        self.local_scale = local_scale
        super().__init__(
            kernel, max_epochs, max_time, max_memory, device, dtype, random_state, verbose, warm_start, checkpoint_dir
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.method not in METHODS:
            raise ValueError(f"method is {self.method!r}, expected one of {', '.join(METHODS)}.")
        if self.n_actions != "auto":
            check_whole_number(self.n_actions, "n_actions", ' (or "auto")')
        check_whole_number(self.n_neighbors, "n_neighbors")
        scale = self.local_scale
        is_number = isinstance(scale, Real) and not isinstance(scale, bool) and 0 < float(scale) < math.inf
        if not (scale is None or scale == "auto" or is_number):
            raise ValueError(f'local_scale is {scale!r}, expected "auto", None or a positive number of neighbours.')

    def _default_dtype(self, num_rows: int) -> torch.dtype:
        return torch.float32 if self.method in ("opt", "cg") and num_rows > SMALL else torch.float64

    def _train(self, task: Task) -> Fitted:
        if self.method == "auto":
            return self._train_auto(task)
        if self.method == "exact":
            return _exact(self, task)
        if self.method == "opt":
            return self._train_opt_alone(task)
        if self.method == "cg":
            return self._train_cg(task)
        return self._train_local(task, self.method == "hybrid")

    def _num_actions(self, task: Task) -> int:
        if isinstance(self.n_actions, str):
            return choosing.number_of_actions(len(task.X), task.memory)
        return min(int(self.n_actions), len(task.X))

    def _local(self, task: Task, priors: list[GP], shared=None) -> Several:
        k, scale = int(self.n_neighbors), self.local_scale
        choices = {"shared": shared, "seed": task.seed, "max_bytes": task.max_bytes}
        choices["local_scale"] = None if scale is None or scale == "auto" else float(scale)
        return Several([CaGPLocal(prior, k, **choices) for prior in priors])

    def _train_local(self, task: Task, hybrid: bool) -> Fitted:
        priors = _priors(task, _low_floor(task))
        method = self._local(task, priors)
        result = self._run(task, method, "local")
        return self._conditioned(task, priors, hybrid, result, [])

    def _conditioned(self, task: Task, priors: list[GP], hybrid: bool, result: FitResult, notes: list[str]) -> Fitted:
        """CaGP-Local at these hyperparameters, with or without shared actions."""
        shared = None
        if hybrid:
            shared = choosing.constant_actions(priors[0].kernel, task.X, self._num_actions(task), task.seed)
            notes = [*notes, f"All questions share {shared.num_actions:,} actions of equal weights on nearby rows."]
        method = self._local(task, priors, shared)
        if self.local_scale == "auto":
            method, found = choosing.with_local_scales(method, task)
            notes = [*notes, *found]
        posteriors = method.condition(task.X, task.y, task.row_noise)
        return Fitted("hybrid" if hybrid else "local", posteriors, result, notes, _every(task))

    def _train_opt_alone(self, task: Task) -> Fitted:
        """With many rows: from the hyperparameters of a short fit of CaGP-Local, unless an earlier fit left some, and
        judged by held-out rows.
        """
        if len(task.X) <= choosing.EXACT_ROWS:
            return self._train_opt(task, _priors(task))
        start, parts, notes = time.perf_counter(), choosing.hold_out(task), []
        priors, steps = _priors(parts.train), None
        if task.from_data:
            method = self._local(parts.train, priors)
            local = self._run(parts.train.in_double(), method, "start", most_steps=LOCAL_STEPS)
            steps = 1 if local.interrupted else None
            notes = [_started_at(local)]
        limits = {"most_steps": steps, "max_time": self._time_left(start)}
        fitted = self._train_opt(parts.train, priors, task.from_data, parts.held_out, **limits)
        assert fitted.held is not None
        return fitted._replace(held=parts.rows[fitted.held], notes=[*notes, *fitted.notes])

    def _time_left(self, start: float) -> float:
        return max(seconds_of(self.max_time) - (time.perf_counter() - start), 1e-9)

    def _train_opt(
        self, task: Task, priors: list[GP], learned: bool = False, held_out: Task | None = None, **limits: Any
    ) -> Fitted:
        """CaGP-Opt; ``learned``: the hyperparameters are those of CaGP-Local, not a guess or those of CaGP-Opt."""
        num_actions, n = self._num_actions(task), len(task.X)
        first = CaGPOpt.from_data(
            priors[0],
            task.X,
            num_actions,
            max_bytes=task.max_bytes,
            reblock_at=() if learned else None,
            support_size=choosing.SUPPORT_SIZE if n > choosing.SUPPORT_ROWS else None,
            generator=torch.Generator().manual_seed(task.seed),
        )
        others = [CaGPOpt(p, first.actions, first.loss, first.max_bytes, first.reblock_at) for p in priors[1:]]
        method, notes = Several([first, *others]), []
        if learned:
            raise_noise(method, task.X, task.y, task.row_noise)
        if held_out is not None:
            limits |= {"evaluate": lambda: {"nll": choosing.held_out_nll(method, task, held_out)}, "monitor": "nll"}
            limits |= {"evaluate_every": EVALUATE_EVERY, "patience": PATIENCE}
        result = self._run(task, method, "opt", **limits)
        if held_out is not None:
            factors = [choosing.calibrate(part, task, held_out, j) for j, part in enumerate(method.parts)]
            notes = [
                f"{len(held_out.X):,} rows were held out to choose the step and the noise, which is "
                f"{' and '.join(f'{factor:.2g}' for factor in factors)} times that of the loss; predictions use the "
                f"other {n:,}."
            ]
        posteriors = method.condition(task.X, task.y, task.row_noise)
        return Fitted("opt", posteriors, result, notes, first.actions.support.detach().clone())

    def _train_cg(self, task: Task) -> Fitted:
        num_actions = self._num_actions(task)
        method = Several([CaGPCG(p, num_actions, max_bytes=task.max_bytes) for p in _priors(task)])
        result = self._run(task, method, "cg")
        return Fitted("cg", method.condition(task.X, task.y, task.row_noise), result, [], _every(task))

    def _train_auto(self, task: Task) -> Fitted:
        """Exact for few rows; else local, judged on held-out rows against what shared actions would add."""
        start, n = time.perf_counter(), len(task.X)
        if n <= choosing.EXACT_ROWS and memory_needed(n) <= task.memory:
            reason = f"Chose exact inference: {n:,} rows are few enough (at most {choosing.EXACT_ROWS:,})."
            return _exact(self, task)._replace(notes=[reason])
        _, train, held_out = choosing.hold_out(task)
        priors = _priors(train, _low_floor(task))
        result = self._run(train, self._local(train, priors), "local")
        num_actions = self._num_actions(task)
        reason = None
        if result.interrupted:
            reason = "Chose local: the fit was interrupted before other methods could be compared."
        elif 64 * n * num_actions > task.memory:
            reason = f"Chose local: memory does not allow {num_actions:,} actions that all questions share."
        if reason is not None:
            return self._conditioned(task, priors, False, result, [reason])
        shared = choosing.constant_actions(priors[0].kernel, train.X, self._num_actions(train), task.seed)
        local, hybrid = self._local(train, priors), self._local(train, priors, shared)
        if self.local_scale == "auto":
            local, _ = choosing.with_local_scales(local, train)
        found = [
            choosing.compare(a, b, train.column(j), held_out.column(j))
            for j, (a, b) in enumerate(zip(local.parts, hybrid.parts, strict=True))
        ]
        choice = choosing.Candidates(*(torch.stack(part).mean(0) for part in zip(*found, strict=True))).choose()
        notes = [
            f"Chose {choice.method}: {choice.reason}.",
            f"Hyperparameters were learned without the held-out rows; predictions use all {n:,} rows.",
        ]
        if choice.method != "opt":
            return self._conditioned(task, priors, choice.method == "hybrid", result, notes)
        notes[1] = _started_at(result)
        fitted = self._train_opt(task, priors, True, most_steps=REFINING_STEPS, max_time=self._time_left(start))
        return fitted._replace(notes=notes)


def _started_at(local: FitResult) -> str:
    return f"Hyperparameters start at those that CaGP-Local learned in {len(local.steps):,} steps."


def _priors(task: Task, noise_floor: float = NOISE_FLOOR) -> list[GP]:
    return [prior.to(task.X.device) for prior in task.priors(noise_floor)]


def _low_floor(task: Task) -> float:
    return LOW_NOISE_FLOOR if task.X.dtype == torch.float64 else NOISE_FLOOR


def _every(task: Task) -> Tensor:
    return torch.arange(len(task.X), device=task.X.device)


def _exact(regressor: GPRegressor, task: Task) -> Fitted:
    n, limit = len(task.X), regressor.max_memory
    if limit is not None and memory_needed(n) > bytes_of(limit):
        raise MemoryError(
            f"exact inference on {n:,} rows needs about {memory_needed(n) / 1e6:,.0f} MB, max_memory is {limit}; "
            'allow more, use fewer rows, or CaGPRegressor(method="local").'
        )
    method = Several([CholeskyGP(p, task.max_bytes) for p in _priors(task, _low_floor(task))])
    # A smooth loss of few parameters, every evaluation dear: what L-BFGS is for.
    result = regressor._run(task, method, "exact", optimizer="lbfgs", num_steps=100, min_improvement=1e-4, window=5)
    return Fitted("exact", method.condition(task.X, task.y, task.row_noise), result, [], _every(task))


class ExactGPRegressor(GPRegressor):
    """The exact Gaussian process, by Cholesky factorisation: for a few thousand rows. Time O(n³), memory O(n²).

    The parameters are those of ``CaGPRegressor``.
    """

    def _default_dtype(self, num_rows: int) -> torch.dtype:
        return torch.float64

    def _train(self, task: Task) -> Fitted:
        return _exact(self, task)


class CGGPRegressor(ExactGPRegressor):
    """The exact model with every solve by conjugate gradients (CGGP): O(n²) an iteration, in float64.

    The parameters are those of ``CaGPRegressor``.
    """

    def _train(self, task: Task) -> Fitted:
        method = Several([CGGP(p, seed=task.seed, max_bytes=task.max_bytes) for p in _priors(task)])
        result = self._run(task, method, "cggp")
        return Fitted("cggp", method.condition(task.X, task.y, task.row_noise), result, [], _every(task))


class SGPRRegressor(GPRegressor):
    """Inducing points with the best Gaussian in closed form (SGPR). Time O(n m²). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    def __init__(
        self,
        n_inducing: int = 512,
        kernel: str | Kernel = "matern32",
        max_epochs: int | None = None,
        max_time: float | str | None = None,
        max_memory: int | str | None = None,
        device: str | torch.device = "cpu",
        dtype: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
    ):
        self.n_inducing = n_inducing
        super().__init__(
            kernel, max_epochs, max_time, max_memory, device, dtype, random_state, verbose, warm_start, checkpoint_dir
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_whole_number(self.n_inducing, "n_inducing")

    def _default_dtype(self, num_rows: int) -> torch.dtype:
        return torch.float32 if num_rows > SMALL else torch.float64

    def _train(self, task: Task) -> Fitted:
        priors, m = _priors(task), min(int(self.n_inducing), len(task.X))
        Z = task.points
        if Z is None or len(Z) != m:
            Z = choose_inducing_points(priors[0], task.X, m, "greedy", lengthscale_of(priors[0].kernel), task.seed)
        methods = [self._method(task, prior, Z) for prior in priors]
        for method in methods:
            method.inducing_points = methods[0].inducing_points
        several = Several(methods)
        result = self._run(task, several, "inducing")
        name = type(methods[0]).__name__.lower()
        return Fitted(name, several.condition(task.X, task.y, task.row_noise), result, [], None)

    def _method(self, task: Task, prior: GP, Z: Tensor) -> SGPR | SVGP:
        """The method of one target; inducing points start at ``Z``."""
        return SGPR(prior, Z, task.max_bytes)


class SVGPRegressor(SGPRRegressor):
    """Inducing points with a learned Gaussian, trained on minibatches (SVGP). Its variance can be too small.

    Args:
        n_inducing: m; fewer where there are fewer rows. The other parameters are those of ``CaGPRegressor``.
    """

    def _method(self, task: Task, prior: GP, Z: Tensor) -> SGPR | SVGP:
        return SVGP(prior, Z, seed=task.seed, max_bytes=task.max_bytes)


REGRESSORS: dict[str, type[GPRegressor]] = {
    regressor.__name__: regressor
    for regressor in (CaGPRegressor, ExactGPRegressor, SGPRRegressor, SVGPRegressor, CGGPRegressor)
}


def load(path: str | Path, kernel: Kernel | None = None) -> GPRegressor:
    """The fitted regressor in a file that ``save`` wrote; nothing in the file is executed.

    Args:
        kernel: where the model has a kernel of a class of your own: an object of that class and structure, whose
            parameters are then those of the file.

    Raises ValueError where the file is damaged, incomplete, or something else.
    """
    return load_model(path, REGRESSORS, kernel)
