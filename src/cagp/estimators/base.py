"""What all estimators share: parameters of every fit, attributes of the fitted model, and the one way through a fit.

A table becomes units and rows, a recipe is trained on these, and the answer is a ``FittedModel``.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from cagp import kernel_registry, notices
from cagp.data.splits import validation_rule
from cagp.data.tables import Chunks, open_chunks
from cagp.dataset import Data
from cagp.engine import DEFAULT_MAX_BYTES
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.pieces import learn_chunks, learn_regions
from cagp.estimators.predictive import Baseline
from cagp.estimators.saved import save_model
from cagp.estimators.target_kinds import CopiesWarning, Fit, Labels, Prepared, check_targets, recipe_of
from cagp.estimators.units import EncodedTable, MappedRows, Points, TrainingRows, Units
from cagp.kernels import InputUnits, Kernel, kernel_class, named_kernel
from cagp.likelihood_registry import GAUSSIAN
from cagp.likelihoods import Likelihood
from cagp.memory import peak_memory
from cagp.posteriors import InducingPosterior
from cagp.posteriors.base import DTYPES
from cagp.quantities import seconds_of, size
from cagp.ranks import Ranks
from cagp.recipes import tried_in_words
from cagp.recipes.table import Recipe, check_values
from cagp.recipes.task import Fitted, Task
from cagp.recipes.train import train
from cagp.storage import fingerprint
from cagp.trees import Trees


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
    n_outputs_ = learned(lambda m: m.units.num_targets)
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

    def _check(self, anywhere: bool = False) -> None:
        """Raise ValueError for parameters that are not right.

        With ``anywhere``, the fit may have been on another computer, with devices that this one lacks.
        """
        values = self.get_params(deep=False)
        check_values({name: value for name, value in values.items() if name not in ("likelihood", "warm_start")})
        if not isinstance(kernel := self.kernel, str | Kernel):
            raise ValueError(f"kernel is a {type(kernel).__name__}, expected a name or a kernel of cagp.kernels.")
        _check_device(self.device, anywhere)
        check_targets(self, is_classifier(self))

    def _learn(self, X: Any, *given: Any, labels: Labels | None = None) -> None:
        """Learn from a table and keep what was learned."""
        fitted = learn(Fit(self, seed_of(self.random_state), Ranks.here(), time.perf_counter(), labels), X, *given)
        encoder = fitted.units.encoder
        if isinstance(X, Chunks | EncodedTable):
            self.n_features_in_ = encoder.num_columns
            if encoder.names_in is not None:
                self.feature_names_in_ = np.asarray(encoder.names_in, dtype=object)
        else:
            validate_data(self, X, skip_check_array=True)
        self.fitted_ = fitted
        if self.verbose and Ranks.here().is_first:
            print(fitted.report)

    def _points(self, X: Any, sample_noise: Any = None, noise: bool = True) -> Points:
        """The rows of a table as test points, with their known noise."""
        fitted = self.fitted
        if not isinstance(X, EncodedTable) and getattr(X, "ndim", 2) == 2:  # for others the encoder has better words
            validate_data(self, X, skip_check_array=True, reset=False)
        return fitted.points(X, sample_noise, noise, bool(self.verbose))

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
        return save_model(self, path, dtype, rows)


def refuse_keywords(unknown: dict[str, Any]) -> None:
    """Raise TypeError for keywords that fit does not know, with what to pass instead."""
    hint = ": a Gaussian process weighs rows by their noise. Pass sample_noise, the known noise variance of each row"
    for name in unknown:
        words = f"{hint}, e.g. sample_noise=variance / weight" if name == "sample_weight" else ""
        raise TypeError(f"fit() got an unexpected keyword argument {name!r}{words}.")


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
        words = f"device is {str(device)!r}, which this computer or this build of torch does not have"
        raise ValueError(f'{words} ({str(error).splitlines()[0].rstrip(".")}); use "cpu".') from error


def seed_of(random_state: Any) -> int:
    """A seed from what scikit-learn calls a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


# ---- one way through a fit ----


def learn(fit: Fit, *table: Any) -> FittedModel:
    """What there is to know about a table, given as to ``prepare``: its units, and posteriors trained on its rows."""
    ranks = fit.ranks
    with notices.collected() as warned, ranks.listening():
        fit = replace(fit, seed=int(ranks.broadcast(float(fit.seed))))
        prepared = prepare(fit, *table)
        parts = _trained(prepared, fit)
    units, first = prepared.units, parts[0]
    only = units.target_names[0] if units.num_targets == 1 else None
    trees = [part.fitted.trees for part in parts]
    if len(trees) > 1 and trees.count(None) < len(trees):  # the prior mean of a target without trees is zero
        trees = [Trees([() if own is None else own.texts[0] for own in trees])]
    chosen = ((part.target, part.fitted.choice) for part in parts if part.fitted.choice is not None)
    choices = [words if target is None else f"{target}: {words}" for target, words in chosen]
    fitted = FittedModel(
        units=units,
        posteriors=[posterior for part in parts for posterior in part.fitted.posteriors],
        row_noise=[noise for part in parts for noise in part.row_noise],
        target_rows=[part.num_rows for part in parts for _ in part.fitted.posteriors],
        num_rows=prepared.num_rows,
        methods=[part.fitted.method for part in parts],
        results=[part.fitted.result for part in parts],
        choice=" ".join(choices) or None,
        tried=[{"target": part.target or only, **trial} for part in parts for trial in part.fitted.tried],
        trees=trees[0],
        likelihood=first.fitted.likelihood,
        likelihood_name=fit.options.likelihood,
        offsets=tuple(first.fitted.offsets),
        baseline=first.baseline,
        labels=fit.labels,
    )
    counts = Counter(str(warning) for warning in warned)
    notes = [*prepared.notes, *(f"{text} ({times:,} times in this fit)" for text, times in counts.items())]
    notes += [words for part in parts for words in part.words(prepared.num_rows)]
    notes += [*fit.words(fitted.likelihood, float(units.scaler.target_std[0])), fitted.guarantee]
    spent = f"The fit took {time.perf_counter() - fit.began:,.1f} s; the process held at most {size(peak_memory())}."
    if prepared.warning is not None and ranks.is_first:
        notices.warn(prepared.warning, CopiesWarning, stacklevel=4)
    return replace(fitted, report="\n".join([*notes, spent]))


def prepare(fit: Fit, X: Any, y: Any = None, sample_noise: Any = None, time: Any = None, group: Any = None) -> Prepared:
    """The units of a table, its rows in them, and the recipe to train on these; on all processes.

    The rows of a table in pieces stay on disk. With ``shards``, each process learns from its own part of the table.
    """
    options, ranks, recipe, is_in_pieces = fit.options, fit.ranks, recipe_of(fit.options), isinstance(X, Chunks)
    if is_in_pieces and y is not None:
        raise ValueError("y is given beside a table in pieces, which has its own targets; leave y out.")
    if is_in_pieces and sample_noise is not None:
        words = "sample_noise is given beside a table in pieces; give it with the pieces"
        raise ValueError(f"{words}: open_chunks(..., noise=COLUMN), or (X, y, noise).")
    in_memory = not is_in_pieces and not recipe.shards
    fit.check(y, sample_noise, in_memory)
    if in_memory:
        units, rows = Units.learn(X, y, sample_noise, options.categories, options.exposure)
        notes = [*units.missing_words(rows), *units.encoder.missing_words(rows.inputs)]
        rule, words = validation_rule(rows.num_rows + rows.num_missing, rows.places, time, group)
        prepared = fit.prepare(units, rows._replace(rule=rule))
        return prepared._replace(notes=[*notes, *words, *prepared.notes])
    where = "in regions" if recipe.shards else "in pieces"
    if time is not None or group is not None:
        raise ValueError(f"time and group need the table in memory, and it is {where}; leave them out.")
    if options.copies == "once":
        raise ValueError(f'copies is "once", which needs the table in memory, and it is {where}; use "keep".')
    if recipe.shards:
        given = (X, y) if sample_noise is None else (X, y, sample_noise)
        return learn_regions(fit, recipe, X.part(ranks.rank, ranks.size) if is_in_pieces else open_chunks([given]))
    prepared = learn_chunks(fit, recipe, X)
    prepared.units.check_same(prepared.rows, ranks)
    return prepared


def task_of(fit: Fit, prepared: Prepared, target: int | None = None) -> Task:
    """The rows in standard units, with the limits of the user and starting values; of one target, or of all."""
    units, rows, recipe, num_rows = prepared[:4]
    if target is not None and isinstance(rows, TrainingRows):
        units, rows = units.of_target(target), rows.of_target(target)
    options, ranks, scaler, scratch = fit.options, fit.ranks, units.scaler, rows.scratch
    default = recipe.default_dtype(num_rows) if scratch is None else "float32"
    dtype, device = DTYPES[default if options.dtype == "auto" else options.dtype], ranks.device(options.device)
    memory = int(ranks.broadcast(float(fit.memory)))

    def tensor(values: Any) -> Tensor:
        return values.to(dtype=dtype, device=device)

    X, y, noise = rows.standard(units)
    start = _starting_values(fit, units, target)
    start["kernel"].set_units(InputUnits(scaler.input_mean, scaler.input_std, units.encoder.names_out))
    start["kernel"].to(device)
    if start["points"] is not None:
        start["points"] = tensor(scaler.inputs(start["points"]))
    if scratch is not None:
        start["mean"] = "zero"
    task = Task(
        data=Data(tensor(X), tensor(y), None if noise is None else tensor(noise)),
        inputs=rows.inputs,
        categorical=units.encoder.categorical,
        **start,
        start=1.0,
        seed=fit.seed,
        max_bytes=min(DEFAULT_MAX_BYTES, max(memory // 8, 2**20)),
        memory=memory,
        max_memory=options.max_memory,
        max_epochs=None if options.max_epochs is None else int(options.max_epochs),
        max_time=options.max_time,
        folder=None,
        verbose=bool(options.verbose) and ranks.is_first,
        names=None if units.encoder.names_in is None else units.encoder.names_out,
        began=fit.began,
        ranks=ranks,
        rule=rows.rule,
        scratch=scratch,
        known=None if rows.known is None else torch.from_numpy(rows.known).to(device),
        targets=fit.targets,
        likelihood=fit.start(),
    )
    if options.checkpoint_dir is None:
        return task
    return replace(task, folder=Path(options.checkpoint_dir) / _key(task, recipe, fit.options.likelihood))


def _key(task: Task, recipe: Recipe, likelihood: str) -> str:
    """The name of the folder for this fit's checkpoints; it depends on data, options and starting values."""
    tensors = [t for t in (*task.data, task.points, task.known, *task.kernel.state_dict().values()) if t is not None]
    parts = [[type(m).__name__, m.plain_arguments() if isinstance(m, Kernel) else {}] for m in task.kernel.modules()]
    plain = [recipe.name, recipe.values, parts, task.noise, task.from_data, task.seed, task.max_epochs]
    arrays = [*(t.detach().cpu().numpy() for t in tensors), *([] if task.rule.values is None else [task.rule.values])]
    return fingerprint([*plain, task.mean, task.kernels, likelihood, task.rule.kind], *arrays)[:12]


# ---- training ----


class _Part(NamedTuple):
    """A fit of all targets, or of one of them."""

    target: str | None  # its name; None for all together
    fitted: Fitted
    num_rows: int
    row_noise: list[Tensor | None]  # of each target: known variances of the rows that its posterior holds
    baseline: Baseline | None  # of counts, and of numbers with outliers

    @classmethod
    def of(cls, recipe: Recipe, task: Task, target: str | None, num_rows: int) -> "_Part":
        """What training a recipe on the rows of a task gives."""
        fitted, baseline = train(recipe, task), None
        noise: list[Tensor | None] = [None] * task.y.shape[1]
        if isinstance(fitted.likelihood, Likelihood) and task.targets != "classes":
            known = None if task.known is None else task.known.cpu()
            baseline = Baseline.of(task.y[:, 0].cpu(), fitted.likelihood, known)
        # With a likelihood, it is the sites that have variances.
        if task.row_noise is not None and fitted.held is not None and task.likelihood is None:
            noise = [column[fitted.held].contiguous() for column in task.row_noise.unbind(1)]
        return cls(target, fitted, num_rows, noise, baseline)

    def words(self, total: int) -> list[str]:
        """What the fit report says about it; ``total`` is the number of rows of the table."""
        alone = f"Target {self.target}, alone on the {self.num_rows:,} of {total:,} rows that have it:"
        first = [None if self.target is None else alone, self.fitted.choice]
        tried = tried_in_words(self.fitted.tried)
        return [*filter(None, first), *tried, *self.fitted.notes, str(self.fitted.result)]


def _trained(prepared: Prepared, fit: Fit) -> list[_Part]:
    """All targets together, with one kernel; where some are missing in some rows, each alone with its own kernel."""
    units, rows, recipe, num_rows = prepared[:4]
    if isinstance(rows, MappedRows) or not np.isnan(rows.targets).any():
        return [_Part.of(recipe, task_of(fit, prepared), None, num_rows)]
    parts: list[_Part] = []
    for j, name in enumerate(units.target_names):
        now = time.perf_counter()
        task = task_of(replace(fit, began=now), prepared, j)
        if fit.options.max_time is not None:  # the targets that are left share the time that is left
            left = seconds_of(fit.options.max_time) - fit.ranks.broadcast(now - fit.began)
            task = replace(task, max_time=max(left, 1e-9) / (units.num_targets - j))
        if parts and parts[-1].fitted.result.interrupted:
            task = replace(task, max_epochs=1)
        parts.append(_Part.of(recipe, task, name, task.num_rows))
    return parts


# ---- starting values ----


def _starting_values(fit: Fit, units: Units, target: int | None) -> dict[str, Any]:
    """Where the hyperparameters start, and the prior mean to train with, as fields of a ``Task``.

    A named kernel starts where the data suggest; a kernel object starts where its owner put it. With ``warm_start``, a
    fit with the same kernel and targets starts where the last one ended, with the kernel and the mean that "auto" chose
    then.
    """
    given, mean, names, num_inputs = fit.options.kernel, fit.options.mean, (), len(units.encoder.names_out)
    if isinstance(given, str):
        names = kernel_registry.CHOICES if given == kernel_registry.AUTO else (given,)
        kernel = named_kernel(names[0], num_inputs)
    else:
        kernel = copy.deepcopy(given)
    start = {"kernel": kernel, "kernels": names, "from_data": bool(names), "mean": mean, "noise": None, "points": None}
    last: FittedModel | None = getattr(fit.options, "fitted_", None) if fit.options.warm_start else None
    own = slice(None) if target is None else slice(target, target + 1)
    if last is None or len(last.posteriors[own]) != units.num_targets:
        return start
    first, scaler = last.posteriors[own][0], last.units.scaler
    learned: Any = first.prior.kernel
    if _structure(kernel) != _structure(learned):
        names = [name for name in names if type(getattr(learned, "kernel", None)) is kernel_class(name)]
        if not names or len(learned.kernel.lengthscale) != num_inputs:
            return start
        start["kernel"] = copy.deepcopy(learned).requires_grad_(True)
    else:
        kernel.load_state_dict(learned.state_dict())
    if isinstance(first, InducingPosterior):
        start["points"] = first.X.double().cpu() * scaler.input_std + scaler.input_mean
    if mean == "auto":
        has_trees = last.trees is not None and any(last.trees.texts[own])
        start["mean"] = "trees" if has_trees else "zero"
    noise = ((last.noise_std / scaler.target_std.numpy()) ** 2)[own].tolist()
    return start | {"kernels": tuple(names[:1]), "from_data": False, "noise": noise}


def _structure(kernel: Kernel) -> list[Any]:
    """The classes a kernel is made of, and the sizes of its parameters."""
    sizes = [(name, tuple(values.shape)) for name, values in kernel.state_dict().items()]
    return [type(part) for part in kernel.modules()] + sizes
