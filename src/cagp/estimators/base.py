"""What the scikit-learn regressors share: users' tables in, answers in users' units out."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from numbers import Integral
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from cagp import kernels, metrics
from cagp.data.encoding import Encoder, encode_target
from cagp.data.scaling import Standardizer
from cagp.diagnostics import reference_for, variance_components
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.saved import save_model
from cagp.estimators.task import Fitted, Task
from cagp.kernels import Kernel, Scale
from cagp.linalg import JitterWarning
from cagp.memory import available_memory, bytes_of
from cagp.methods import Several
from cagp.methods.common import lengthscale_of
from cagp.posteriors import InducingPosterior, Posterior
from cagp.prior import GaussianNoise
from cagp.progress import RowProgress
from cagp.solver import CGWarning
from cagp.training import FitResult, fit

KERNELS: dict[str, type[kernels.Stationary]] = {
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "rbf": kernels.RBF,
    "rational_quadratic": kernels.RationalQuadratic,
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
PREDICT_ROWS = 16_384
"""Rows that are answered at a time: what is held of them does not grow with the table."""

COVARIANCE_ROWS = 20_000

Rows = slice | np.ndarray
"""Which rows of a table: some that follow each other, or any."""


class Calibration(NamedTuple):
    """Whether intervals hold what they promise; one entry for each nominal level."""

    levels: np.ndarray
    coverage: np.ndarray  # the share of targets inside the central interval of that probability
    error: float  # the mean absolute difference of the two


class GPRegressor(RegressorMixin, BaseEstimator, ABC):
    """The contract; a regressor of its own says how it trains (``_train``)."""

    def __init__(
        self,
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

    @abstractmethod
    def _train(self, task: Task) -> Fitted:
        """Hyperparameters learned and posteriors conditioned on the rows of the task."""

    @abstractmethod
    def _default_dtype(self, num_rows: int) -> torch.dtype:
        """What ``dtype="auto"`` means."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    # ---- fit ----

    def fit(self, X: Any, y: Any, sample_noise: Any = None) -> "GPRegressor":
        """Learn from a table.

        Args:
            X: rows and columns: an array, a tensor, or a frame, whose text and categories are encoded (see
                ``cagp.data.Encoder``). Missing values are an error that names the columns.
            y: one target for each row, or several columns of them. Rows with a missing target are left out, and the
                fit report says how many.
            sample_noise: known noise variance of each row (in squared units of y), on top of the one learned.
        """
        self._check_parameters()
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        encoder = Encoder.fit(X)
        inputs = np.ascontiguousarray(encoder.transform(X))
        target = encode_target(y)
        values = target.values[:, None] if target.values.ndim == 1 else target.values
        if len(values) != len(inputs):
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"X has {len(inputs):,} rows, y has {len(values):,}."
            )
        noise = _sample_noise(sample_noise, values.shape)
        notes = []
        if target.missing.any():
            kept = ~target.missing
            inputs, values, noise = inputs[kept], values[kept], None if noise is None else noise[kept]
            notes.append(f"Left out {int(target.missing.sum()):,} of {len(kept):,} rows, whose target is missing.")
        if len(inputs) < 2:
            raise ValueError(f"Found n_samples={len(inputs)} with a target, while a minimum of 2 is required to learn.")
        scaler = Standardizer.fit(torch.from_numpy(inputs), torch.from_numpy(values))
        task = self._task(inputs, values, noise, scaler, None if encoder.names_in is None else encoder.names_out)
        with _told_in(notes):
            fitted = self._train(task)

        validate_data(self, X, skip_check_array=True)
        self.encoder_, self.scaler_ = encoder, scaler
        self.feature_names_out_ = np.asarray(encoder.names_out, dtype=object)
        self.target_names_, self.n_outputs_, self._target_is_matrix = target.names, values.shape[1], _is_matrix(y)
        self._target_dtype = np.dtype(np.float32 if _is_float32(y) else np.float64)
        self.n_rows_ = len(inputs)
        self.method_, self.posteriors_, self.fit_result_ = fitted.method, fitted.posteriors, fitted.result
        known = None if task.row_noise is None or fitted.held is None else task.row_noise[fitted.held]
        self._row_noise = [None if known is None else known[:, j].contiguous() for j in range(values.shape[1])]
        self.fit_report_ = "\n".join([*notes, *fitted.notes, str(fitted.result)])
        if self.verbose:
            print(self.fit_report_)
        return self

    def _check_parameters(self) -> None:
        if isinstance(self.kernel, str):
            if self.kernel not in KERNELS:
                raise ValueError(f"kernel is {self.kernel!r}, expected one of {', '.join(KERNELS)}, or a cagp kernel.")
        elif not isinstance(self.kernel, Kernel):
            raise ValueError(f"kernel is a {type(self.kernel).__name__}, expected a name or a kernel of cagp.kernels.")
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ValueError(f'dtype is {self.dtype!r}, expected "auto", "float32" or "float64".')
        if self.max_epochs is not None:
            check_whole_number(self.max_epochs, "max_epochs", " (or None)")
        try:
            torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f'device is {self.device!r}, expected one of torch, e.g. "cpu" or "cuda".') from error

    def _task(
        self,
        inputs: np.ndarray,
        values: np.ndarray,
        noise: np.ndarray | None,
        scaler: Standardizer,
        names: tuple[str, ...] | None,
    ) -> Task:
        device = torch.device(self.device)
        num_rows, num_columns = inputs.shape
        dtype = self._default_dtype(num_rows) if self.dtype == "auto" else DTYPES[self.dtype]
        memory = (available_memory() or 2**32) // 2 if self.max_memory is None else bytes_of(self.max_memory)

        def tensor(values: Tensor) -> Tensor:
            return values.to(dtype=dtype, device=device)

        # Divided twice: the square of a tiny unit would be zero.
        row_noise = None if noise is None else torch.from_numpy(noise) / scaler.target_std / scaler.target_std
        kernel, from_data = self._starting_kernel(num_columns)
        starts = points = None
        if self._continues(kernel, values.shape[1]):
            kernel.load_state_dict(self.posteriors_[0].prior.kernel.state_dict())
            if isinstance(last := self.posteriors_[0], InducingPosterior):
                points = last.X.double().cpu() * self.scaler_.input_std + self.scaler_.input_mean
            from_data, starts = False, (self.noise_std_ / self.scaler_.target_std.numpy()) ** 2
        return Task(
            tensor(scaler.inputs(torch.from_numpy(inputs))),
            tensor(scaler.targets(torch.from_numpy(values))),
            None if row_noise is None else tensor(row_noise),
            kernel.to(device),
            None if starts is None else starts.tolist(),
            from_data,
            _seed(self.random_state),
            min(DEFAULT_MAX_BYTES, max(memory // 8, 2**20)),
            memory,
            None if self.checkpoint_dir is None else Path(self.checkpoint_dir),
            bool(self.verbose),
            names,
            None if points is None else tensor(scaler.inputs(points)),
        )

    def _starting_kernel(self, num_columns: int) -> tuple[Kernel, bool]:
        """A named kernel starts where the data suggest; a kernel object starts where its owner put it."""
        if isinstance(self.kernel, str):
            return Scale(KERNELS[self.kernel](num_columns)), True
        return copy.deepcopy(self.kernel), False

    def _continues(self, kernel: Kernel, num_targets: int) -> bool:
        """Whether this fit starts at the hyperparameters of the last one: those of the same kernel and targets."""
        if not self.warm_start or not hasattr(self, "posteriors_") or self.n_outputs_ != num_targets:
            return False
        return _structure(kernel) == _structure(self.posteriors_[0].prior.kernel)

    def _run(self, task: Task, method: Several, name: str, most_steps: int | None = None, **changes: Any) -> FitResult:
        """Train with the user's limits; ``name`` is the subfolder of checkpoints."""
        limits = [limit for limit in (self._num_steps(task, method), most_steps) if limit is not None]
        if limits:
            changes["num_steps"] = min(limits)
        changes.setdefault("max_time", self.max_time)
        for part in method.parts:
            part.input_names = task.names
        folder = None if task.folder is None else task.folder / name
        data = (task.X, task.y, task.row_noise)
        return fit(method, *data, progress=task.verbose, checkpoint_dir=folder, **changes)

    def _num_steps(self, task: Task, method: Several) -> int | None:
        """An epoch is one pass over the rows: one step, or as many as minibatches it takes."""
        if self.max_epochs is None:
            return None
        batch = getattr(method.parts[0], "batch_size", len(task.X))
        return math.ceil(self.max_epochs * max(1.0, len(task.X) / batch))

    # ---- answers ----

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        return_components: bool = False,
        sample_noise: Any = None,
    ) -> Any:
        """The mean at each row; with more asked for, a tuple that begins with it.

        Args:
            return_std: also the standard deviation of a new observation: noise, what more data would tell, and what
                more computation would tell.
            return_cov: also the joint covariance of new observations at all rows (not for many rows).
            return_components: also a dict of the variance of each row, taken apart: "noise"; "latent", which more data
                would lower; "computational", which more computation would lower, and "computational_kind": "exact",
                "estimate" (from below) or "unknown".
            sample_noise: known noise variance of the rows asked for.

        Answers are float32 where the targets of fit were, covariances and variances float64; tensors for tensors.
        """
        if sum((return_std, return_cov, return_components)) > 1:
            raise ValueError("At most one of return_std, return_cov and return_components can be requested.")
        inputs, back = self._inputs(X)
        noise = _sample_noise(sample_noise, (len(inputs), self.n_outputs_))
        if return_std:
            mean, std = self._answers(inputs, noise)
            return back(mean), back(std)
        mean = back(self._mean(inputs))
        if return_cov:
            return mean, back(self._covariance(inputs, noise), targets_axis=2, squared=True)
        if return_components:
            parts, kind = self._components(inputs, noise)
            return mean, {
                **{name: back(part, squared=True) for name, part in parts.items()},
                "computational_kind": kind,
            }
        return mean

    def predict_interval(self, X: Any, level: float = 0.95, sample_noise: Any = None) -> tuple[Any, Any]:
        """Lower and upper end of the central interval that a new observation is in with probability ``level``."""
        if not 0 < level < 1:
            raise ValueError(f"level is {level}, expected a probability between 0 and 1, e.g. 0.95.")
        quantiles = self.predict_quantiles(X, [0.5 - level / 2, 0.5 + level / 2], sample_noise)
        return quantiles[..., 0], quantiles[..., 1]

    def predict_quantiles(
        self, X: Any, quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95), sample_noise: Any = None
    ) -> Any:
        """Quantiles of a new observation at each row, in the last axis."""
        if not all(0 < q < 1 for q in quantiles):
            raise ValueError(f"quantiles are {list(quantiles)}, expected probabilities between 0 and 1.")
        inputs, back = self._inputs(X)
        noise = _sample_noise(sample_noise, (len(inputs), self.n_outputs_))
        mean, std = self._answers(inputs, noise)
        z = np.array([NormalDist().inv_cdf(q) for q in quantiles])
        return back(mean[..., None] + std[..., None] * z)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Joint draws of new observations, in the last axis."""
        inputs, back = self._inputs(X)
        self._check_joint(len(inputs))
        generator = torch.Generator().manual_seed(_seed(random_state))
        draws = []
        for j, posterior in enumerate(self.posteriors_):
            sample = posterior.sample(self._standard(inputs, posterior), n_samples, noise=True, generator=generator)
            draws.append(sample.mT.double().cpu().numpy() * _number(self.scaler_.target_std, j))
        return back(np.stack(draws, 1) + self.scaler_.target_mean.numpy()[:, None])

    def log_predictive_density(self, X: Any, y: Any, sample_noise: Any = None) -> Any:
        """log p(y | X) of each row, in nats; higher is better. With several targets, a column for each."""
        inputs, back = self._inputs(X)
        values = self._observed(inputs, y)
        noise = _sample_noise(sample_noise, values.shape)
        mean, std = self._answers(inputs, noise)
        return back(-0.5 * ((values - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi))

    def calibration(
        self, X: Any, y: Any, levels: Sequence[float] | None = None, sample_noise: Any = None
    ) -> Calibration:
        """Nominal against observed coverage of central intervals, over all rows and targets."""
        inputs, _ = self._inputs(X)
        values = self._observed(inputs, y)
        mean, std = self._answers(inputs, _sample_noise(sample_noise, values.shape))
        chosen = np.linspace(0.05, 0.95, 19) if levels is None else np.asarray(levels, dtype=float)
        error = torch.from_numpy((values - mean) / std).reshape(-1)
        zero, one = torch.zeros_like(error), torch.ones_like(error)
        coverage = np.array([metrics.coverage(error, zero, one, level=float(level)) for level in chosen])
        return Calibration(chosen, coverage, float(np.abs(coverage - chosen).mean()))

    @property
    def lengthscales_(self) -> np.ndarray:
        """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none."""
        check_is_fitted(self, "posteriors_")
        found = lengthscale_of(self.posteriors_[0].prior.kernel)
        return np.full(len(self.feature_names_out_), np.nan) if found is None else found.cpu().numpy()

    @property
    def noise_std_(self) -> np.ndarray:
        """The learned standard deviation of the noise of each target, in its unit."""
        check_is_fitted(self, "posteriors_")
        variances = [
            float(p.prior.noise.noise.detach()) if isinstance(p.prior.noise, GaussianNoise) else 0.0
            for p in self.posteriors_
        ]
        return np.sqrt(variances) * self.scaler_.target_std.numpy()

    def noise_std(self, X: Any) -> Any:
        """The standard deviation of the noise at each row: ``noise_std_`` unless a local scale says otherwise."""
        inputs, back = self._inputs(X)
        std = np.tile(self.noise_std_, (len(inputs), 1))
        for rows, tile in self._tiles(inputs):
            for j, posterior in enumerate(self.posteriors_):
                scale = posterior.scale(self._standard(tile, posterior))
                if scale is not None:
                    std[rows, j] *= np.sqrt(_array(scale))
        return back(std)

    # ---- files ----

    def save(self, path: str | Path, dtype: str | None = None) -> Path:
        """Write the fitted model to one file, whole or not at all; ``cagp.load`` reads it back.

        It holds the rows it needs to predict: all training rows for "local", "hybrid" and "exact", those that carry
        weight for "opt" and "cg", inducing points for SGPR and SVGP. Share it as you would share these rows.

        Args:
            dtype: "float32" stores rows and targets rounded: about half the size, and answers that differ in their
                last digits. None: answers after loading are the same to the last bit.
        """
        check_is_fitted(self, "posteriors_")
        return save_model(self, path, dtype, version("cagp"))

    def report(self, X: Any, y: Any, path: str | Path = "report.html", title: str | None = None) -> Path:
        """Write one HTML page on how well the model predicts these test rows, and why; see docs/report.md."""
        check_is_fitted(self, "posteriors_")
        return import_module("cagp.report").write_report(self, X, y, path, title=title)  # a layer above this one

    # ---- inside ----

    def _inputs(self, X: Any) -> tuple[np.ndarray, Callable[..., Any]]:
        """The rows asked for as numbers, and what gives answers the shape and type a user expects."""
        check_is_fitted(self, "posteriors_")
        if getattr(X, "ndim", 2) == 2:  # the encoder has better words for what is no table
            validate_data(self, X, skip_check_array=True, reset=False)
        inputs = np.ascontiguousarray(self.encoder_.transform(X))

        def back(values: np.ndarray, targets_axis: int = 1, squared: bool = False) -> Any:
            """Without the axis of targets where there was none; squares leave the range of float32 too easily."""
            if not self._target_is_matrix:
                values = np.squeeze(values, targets_axis)
            values = values if squared else values.astype(self._target_dtype, copy=False)
            if isinstance(X, Tensor):
                return torch.from_numpy(np.ascontiguousarray(values)).to(X.device)
            return values

        return inputs, back

    def _standard(self, inputs: np.ndarray, posterior: Posterior) -> Tensor:
        """Rows in standard units, in the dtype and on the device of the posterior."""
        like = posterior.X
        # Squares must stay finite; so far from all rows, no kernel tells places apart.
        farthest = torch.finfo(like.dtype).max ** 0.4
        return self.scaler_.inputs(torch.from_numpy(inputs)).clamp(-farthest, farthest).to(like)

    def _mean(self, inputs: np.ndarray) -> np.ndarray:
        """The mean at each row, (n, q)."""
        mean = np.empty((len(inputs), self.n_outputs_))
        for rows, tile in self._tiles(inputs):
            for j, posterior in enumerate(self.posteriors_):
                mean[rows, j] = _array(posterior.mean(self._standard(tile, posterior)))
        return self._in_units(mean)

    def _answers(self, inputs: np.ndarray, sample_noise: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of new observations, (n, q) each."""
        mean, variance = np.empty((2, len(inputs), self.n_outputs_))
        for rows, tile in self._tiles(inputs):
            for j, posterior in enumerate(self.posteriors_):
                X = self._standard(tile, posterior)
                answer = posterior.predict(X, noise=True, row_noise=self._known(sample_noise, rows, j, X))
                mean[rows, j], variance[rows, j] = _array(answer.mean), _array(answer.variance)
        return self._in_units(mean), np.sqrt(variance) * self.scaler_.target_std.numpy()

    def _in_units(self, mean: np.ndarray) -> np.ndarray:
        return mean * self.scaler_.target_std.numpy() + self.scaler_.target_mean.numpy()

    def _known(self, sample_noise: np.ndarray | None, rows: Rows, j: int, like: Tensor) -> Tensor | None:
        """Known noise of some rows of one target, in standard units."""
        if sample_noise is None:
            return None
        scale = _number(self.scaler_.target_std, j)
        return like.new_tensor(sample_noise[rows, j] / scale / scale)

    def _tiles(self, inputs: np.ndarray) -> Iterator[tuple[Rows, np.ndarray]]:
        many, first, order = len(inputs) > PREDICT_ROWS, self.posteriors_[0], None
        if many:
            order = first.order(self._standard(inputs, first))
        with RowProgress(len(inputs), enabled=bool(self.verbose) and many) as progress:
            for start in range(0, len(inputs), PREDICT_ROWS):
                part = slice(start, min(start + PREDICT_ROWS, len(inputs)))
                rows = part if order is None else order[part].cpu().numpy()
                yield rows, inputs[rows]
                progress.advance(part.stop - start)

    def _covariance(self, inputs: np.ndarray, sample_noise: np.ndarray | None) -> np.ndarray:
        """Joint covariance of new observations, (n, n, q)."""
        self._check_joint(len(inputs))
        parts = []
        for j, posterior in enumerate(self.posteriors_):
            X, scale = self._standard(inputs, posterior), _number(self.scaler_.target_std, j)
            known = self._known(sample_noise, slice(None), j, X)
            parts.append(_array(posterior.covariance(X, noise=True, row_noise=known)) * scale**2)
        return np.stack(parts, -1)

    def _check_joint(self, num_rows: int) -> None:
        if num_rows > COVARIANCE_ROWS:
            raise ValueError(
                f"joint answers at {num_rows:,} rows would take {8 * num_rows**2 / 1e9:.0f} GB and more; the limit is "
                f"{COVARIANCE_ROWS:,} rows. Ask for return_std, which is for each row alone, or for fewer rows."
            )

    def _components(self, inputs: np.ndarray, sample_noise: np.ndarray | None) -> tuple[dict[str, np.ndarray], str]:
        """The variance of new observations taken apart, (n, q) each, and what is known of the computational part."""
        parts = {name: np.empty((len(inputs), self.n_outputs_)) for name in ("noise", "latent", "computational")}
        kind = "unknown"
        for j, posterior in enumerate(self.posteriors_):
            reference = reference_for(posterior, self._row_noise[j], self.n_rows_)
            kind = reference.kind
            for rows, tile in self._tiles(inputs):
                found = variance_components(posterior, reference, self._standard(tile, posterior))
                for name, part in parts.items():
                    part[rows, j] = _array(getattr(found, name)) * _number(self.scaler_.target_std, j) ** 2
        if sample_noise is not None:
            parts["noise"] += sample_noise
        return parts, kind

    def _observed(self, inputs: np.ndarray, y: Any) -> np.ndarray:
        """Targets to compare with, (n, q), none missing."""
        target = encode_target(y)
        values = target.values[:, None] if target.values.ndim == 1 else target.values
        if values.shape != (len(inputs), self.n_outputs_):
            raise ValueError(f"y has shape {np.shape(y)}, expected {len(inputs)} rows and {self.n_outputs_} target(s).")
        if target.missing.any():
            raise ValueError(f"y has {int(target.missing.sum())} missing values; leave these rows out of X and y.")
        return values


@contextmanager
def _told_in(notes: list[str]) -> Iterator[None]:
    """Put this package's warnings into the notes, each once: a fit meets many matrices, and its report is the place."""
    ours = (JitterWarning, CGWarning)
    with warnings.catch_warnings(record=True) as caught:
        for category in ours:
            warnings.simplefilter("always", category)
        yield
    for warning in caught:
        if not issubclass(warning.category, ours):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    counts = Counter(str(warning.message) for warning in caught if issubclass(warning.category, ours))
    notes.extend(f"{text} ({times:,} times in this fit)" for text, times in counts.items())


def _number(values: Tensor, j: int) -> float:
    return float(values[j])


def _seed(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


def _structure(kernel: Kernel) -> list[Any]:
    """The classes a kernel is made of, and the sizes of its parameters."""
    sizes = [(name, tuple(values.shape)) for name, values in kernel.state_dict().items()]
    return [type(part) for part in kernel.modules()] + sizes


def _is_matrix(y: Any) -> bool:
    return (y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim) == 2


def _is_float32(y: Any) -> bool:
    dtypes = list(y.dtypes) if hasattr(y, "dtypes") and np.iterable(y.dtypes) else [getattr(y, "dtype", None)]
    return all(str(dtype).removeprefix("torch.").lower() == "float32" for dtype in dtypes)


def check_whole_number(value: Any, name: str, or_else: str = "") -> None:
    """Raise ValueError unless ``value`` is a whole number, 1 or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}, expected a whole number, 1 or more{or_else}.")


def _sample_noise(sample_noise: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Known variances as (n, q); one column serves all targets."""
    if sample_noise is None:
        return None
    values = np.asarray(sample_noise.cpu() if isinstance(sample_noise, Tensor) else sample_noise, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[0] != shape[0] or values.shape[1] not in (1, shape[1]):
        raise ValueError(
            f"sample_noise has shape {np.shape(sample_noise)}, expected one variance for each of the {shape[0]} rows"
            + (f", or {shape[1]} columns of them." if shape[1] > 1 else ".")
        )
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        raise ValueError(
            f"sample_noise has {int(bad.sum())} values that are negative, NaN or infinite (first in row "
            f"{int(np.argwhere(bad)[0, 0])}); expected variances: square standard deviations first."
        )
    return np.broadcast_to(values, shape).copy()
