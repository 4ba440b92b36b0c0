"""The loop: prepare, evaluate, check, move, record, save; end with the best parameters whatever happens."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.linalg import NotPositiveDefiniteError
from cagp.quantities import seconds_of
from cagp.tensor_files import tensor_fingerprint
from cagp.training.checkpoints import load_checkpoint, save_checkpoint
from cagp.training.description import describe
from cagp.training.history import History, Step
from cagp.training.optimizers import Optimizer
from cagp.training.result import FitResult, FitStatus
from cagp.training.settings import PRESETS, Settings
from cagp.training.step_progress import StepProgress
from cagp.training.summary import trend
from cagp.training.trainable import Trainable

LinAlgError: type[Exception] = torch.linalg.LinAlgError  # pyright: ignore[reportPrivateImportUsage]
CHECKPOINT = "checkpoint.safetensors"
HISTORY = "history.jsonl"
FLAT = 0.01
"""A loss is flat when one window of steps improves on the window before by less than this share of all improvement."""


class _StepError(ArithmeticError):
    """The loss or its gradient cannot be used."""


class _End(NamedTuple):
    """Why a fit ends, for programs and in words."""

    status: FitStatus
    reason: str


def fit(
    method: Trainable,
    X: Tensor,
    y: Tensor,
    row_noise: Tensor | None = None,
    settings: Settings | str = "default",
    *,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    callback: Callable[[Step], None] | None = None,
    checkpoint_dir: Path | str | None = None,
    progress: bool = False,
    input_names: tuple[str, ...] | None = None,
    deadline: float | None = None,
    **changes: Any,
) -> FitResult:
    """Minimise the method's objective in place, and leave it with the best parameters found.

    The data are checked once, at the start. The same arguments give the same bits on the same machine with the same
    number of threads; ``fit`` itself draws no random numbers. A step that fails is taken back and tried again with half
    the learning rates. Ctrl-C ends the fit like any other stopping rule.

    Args:
        settings: a ``Settings``, or the name of a preset: "default", "paper-adam", "paper-lbfgs".
        evaluate: called every ``evaluate_every`` steps, outside the time that is counted; returns named metrics, e.g.
            of validation rows.
        callback: called with every step.
        checkpoint_dir: a folder for checkpoints and the history. A fit that finds its own checkpoint there resumes from
            it; the result is bit for bit that of a fit that was never interrupted.
        progress: show a progress bar (a line now and then where the output is not a terminal).
        input_names: what the columns of ``X`` are called in the report; None for their numbers.
        deadline: a time of ``time.perf_counter()`` after which no further step begins, whatever the time was spent on;
            the first step is always taken.
        changes: single fields of ``Settings``, e.g. ``num_steps=50``.
    """
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise ValueError(f"settings is {settings!r}, expected a Settings or one of {', '.join(PRESETS)}.")
        settings = PRESETS[settings]
    settings = settings.with_changes(**changes)
    method.check(X, y, row_noise)
    until = math.inf if deadline is None else deadline
    run = _Run(method, X, y, row_noise, settings, evaluate, callback, checkpoint_dir, input_names, until)
    with StepProgress(run.settings.num_steps, enabled=progress) as bar:
        return run.run(bar)


class _Evaluated(NamedTuple):
    """A loss of all rows, and where it was computed."""

    parameters: dict[str, Tensor]
    loss: Tensor
    terms: dict[str, float]
    gradients: list[Tensor | None]


class _Run:
    """The state of one fit; what a checkpoint must hold of it is in ``_save``."""

    def __init__(
        self, method: Trainable, X, y, row_noise, settings, evaluate, callback, checkpoint_dir, input_names, deadline
    ):
        self.method, self.data, self.settings = method, (X, y, row_noise), settings
        self.evaluate, self.callback, self.input_names, self.deadline = evaluate, callback, input_names, deadline
        if settings.monitor != "loss" and evaluate is None:
            raise ValueError(f"monitor is {settings.monitor!r}, which needs an evaluate function that returns it.")
        if settings.patience is not None and settings.monitor == "loss":
            raise ValueError("patience counts evaluations: it needs evaluate, and monitor set to a name it returns.")
        self.optimizer = Optimizer(method.parameter_groups(), settings)
        self.folder = None if checkpoint_dir is None else Path(checkpoint_dir)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.history = History(None if self.folder is None else self.folder / HISTORY)
        self.good: dict[str, Any] | None = None  # parameters and optimiser where the loss was last known to be finite
        self.best: dict[str, Any] = {"value": math.inf, "step": 0, "parameters": self._parameters()}
        self.without_gain = 0
        self.failures: list[str] = []
        self.events: list[str] = []
        self.changed_at = 0  # the step before which the method last changed
        self.last_index: int | None = None  # of the step tried last, counted from 0
        self.evaluated: _Evaluated | None = None  # where L-BFGS last was
        self.seconds = 0.0
        self.saved_at = (0, 0.0)
        self.fingerprint = self._fingerprint() if self.folder is not None else ""

    # ---- the loop ----

    def run(self, bar: StepProgress) -> FitResult:
        if self.folder is not None:
            self._resume()
        end: _End | None = None
        try:
            while end is None:
                end = self._reason_to_stop() or self._attempt(bar)
        except KeyboardInterrupt:
            end = _End(FitStatus.INTERRUPTED, f"Interrupted after {len(self.history.steps)} steps.")
        if self.folder is not None:
            self._save()  # where the optimiser was, so that a fit with more time resumes from there
        self._judge_last()
        self.method.load_state_dict(self.best["parameters"])
        X, y, _ = self.data
        return FitResult(
            self.history.steps,
            end.reason,
            self.best["step"],
            self.best["value"],
            self.seconds,
            self.failures,
            [*trend(self.history.steps), *self.method.findings(X, y, self.input_names)],
            end.status,
        )

    def _attempt(self, bar: StepProgress) -> _End | None:
        """One step, or its failure taken back; a reason where the fit cannot continue."""
        index, start = len(self.history.steps), time.perf_counter()
        before = {"parameters": self._parameters(), "optimizer": self.optimizer.state()}
        events, changed_at, best = list(self.events), self.changed_at, self.best
        first: dict[str, Any] = {}
        self.last_index = index
        rows = self._rows(index)

        def loss_and_gradient() -> Tensor:
            loss, terms = self._loss_and_gradient(rows)
            if not first:  # a line search evaluates more than once
                hyperparameters = dict(self.method.hyperparameters())
                first.update(terms=terms, norm=self._gradient_norm(), hyperparameters=hyperparameters)
                self.good = before
                self._judge("loss", float(loss), index + 1)
            return loss

        try:
            share = index / self.settings.num_steps
            change = self.method.prepare(*self.data, step=index, share=share, flat=self._flat(), rows=rows)
            if change is not None:
                self.events.append(change)
                self.changed_at, self.evaluated = index, None
                self.optimizer.forget()
                if _shapes(self._parameters()) != _shapes(self.best["parameters"]):
                    # A different model, with more actions: the best one so far does not stand for it.
                    self.best = {**self.best, "value": math.inf}
            rates = self.optimizer.rates(index)
            loss = self.optimizer.step(loss_and_gradient, index)
        except (_StepError, NotPositiveDefiniteError, LinAlgError) as error:
            self.seconds += time.perf_counter() - start
            self.events, self.changed_at, self.best = events, changed_at, best
            return self._take_back(index + 1, error)
        except KeyboardInterrupt:
            self._return_to(before)
            self.events, self.changed_at, self.best = events, changed_at, best
            raise
        self.seconds += time.perf_counter() - start
        evaluation = self._evaluate(index + 1) if (index + 1) % self.settings.evaluate_every == 0 else None
        step = Step(
            index + 1,
            float(loss),
            first["terms"],
            rates,
            first["norm"],
            first["hyperparameters"],
            self.seconds,
            self.events,
            evaluation,
        )
        self.events = []
        self.history.append(step)
        if self.callback is not None:
            self.callback(step)
        bar.update(step)
        if self.folder is not None and self._checkpoint_is_due():
            self._save()
        return None

    def _rows(self, index: int) -> Tensor | None:
        """The rows of the step with this number, counted from 0; None for all."""
        X = self.data[0]
        rows = self.method.minibatch(index, X.shape[0])
        return None if rows is None else rows.to(X.device)

    def _loss_and_gradient(self, rows: Tensor | None) -> tuple[Tensor, dict[str, float]]:
        if self.settings.optimizer != "lbfgs" or rows is not None:
            return self._computed_loss_and_gradient(rows)
        # A line search mostly ends at the last point it looked at, and there the next step begins: half of all work.
        here, known = self._parameters(), self.evaluated
        if known is None or not all(torch.equal(value, known.parameters[name]) for name, value in here.items()):
            loss, terms = self._computed_loss_and_gradient(rows)
            gradients = [None if p.grad is None else p.grad.clone() for p in self.optimizer.parameters]
            self.evaluated = _Evaluated(here, loss, terms, gradients)
            return loss, terms
        for parameter, gradient in zip(self.optimizer.parameters, known.gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        return known.loss, known.terms

    def _computed_loss_and_gradient(self, rows: Tensor | None) -> tuple[Tensor, dict[str, float]]:
        self.optimizer.torch.zero_grad()
        terms = self.method.objective_terms(*self.data, rows=rows)
        loss = torch.stack([term.double() for term in terms.values()]).sum()
        if not bool(torch.isfinite(loss)):
            raise _StepError(f"the loss is {loss.item()}")
        loss.backward()
        for parameter in self.optimizer.parameters:
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                raise _StepError("a gradient is not finite")
        return loss.detach(), {name: float(term.detach()) for name, term in terms.items()}

    def _gradient_norm(self) -> float:
        return math.sqrt(
            sum(float(p.grad.double().square().sum()) for p in self.optimizer.parameters if p.grad is not None)
        )

    def _take_back(self, number: int, error: Exception) -> _End | None:
        """Return to the last good parameters with half the learning rates."""
        text = str(error).split(". ")[0]
        if self.good is None:
            return _End(FitStatus.BAD_START, f"The loss could not be computed at the starting values: {error}")
        self.failures.append(f"Step {number} failed and was taken back: {text}.")
        shrink = self.optimizer.shrink / 2
        self._return_to(self.good)
        self.optimizer.shrink = self.good["optimizer"]["shrink"] = shrink
        self.events.append(self.failures[-1])
        if len(self.failures) > self.settings.max_failures:
            return _End(
                FitStatus.TOO_MANY_FAILURES,
                f"Stopped after {len(self.failures)} failed steps: the learning rates, the scale of the data or the "
                "noise floor do not suit this problem.",
            )
        return None

    def _return_to(self, state: dict[str, Any]) -> None:
        self.method.load_state_dict(state["parameters"])
        self.optimizer.restore(state["optimizer"])

    def _reason_to_stop(self) -> _End | None:
        steps, settings = self.history.steps, self.settings
        if len(steps) >= settings.num_steps:
            return _End(
                FitStatus.ALL_STEPS,
                "Took 1 step." if settings.num_steps == 1 else f"Took all {settings.num_steps} steps.",
            )
        if self.seconds >= seconds_of(settings.max_time):
            reason = f"Reached the time limit ({settings.max_time}) after {len(steps)} steps."
            return _End(FitStatus.TIME_LIMIT, reason)
        if steps and time.perf_counter() >= self.deadline:
            return _End(FitStatus.TIME_LIMIT, f"Reached the time limit after {len(steps)} steps.")
        if settings.patience is not None and self.without_gain >= settings.patience:
            evaluations = f"No better {settings.monitor} in {self.without_gain} evaluations"
            return _End(FitStatus.NO_BETTER, f"{evaluations}; stopped after {len(steps)} steps.")
        if settings.min_improvement is not None and self._improves_by_less_than(settings.min_improvement, 0):
            return _End(FitStatus.CONVERGED, f"The loss no longer improves; stopped after {len(steps)} steps.")
        return None

    def _flat(self) -> bool:
        return self._improves_by_less_than(FLAT, self.changed_at)

    def _improves_by_less_than(self, fraction: float, since: int) -> bool:
        """Whether the mean loss of the last window improves on the window before by less than this fraction of all.

        Steps before ``since`` belong to a different objective and do not count.
        """
        losses, window = [step.loss for step in self.history.steps], self.settings.window
        if len(losses) - since < 2 * window + 1:
            return False
        last, before = sum(losses[-window:]) / window, sum(losses[-2 * window : -window]) / window
        return before - last <= fraction * max(losses[0] - last, 0.0)

    # ---- which parameters are best ----

    def _evaluate(self, number: int) -> dict[str, float | None] | None:
        """Metrics of the parameters after step ``number``; None if nothing can be computed with them."""
        if self.evaluate is None:
            return None
        try:
            metrics = {name: float(value) for name, value in self.evaluate().items()}
        except (NotPositiveDefiniteError, LinAlgError) as error:
            self.events.append(f"The evaluation after step {number} failed: {str(error).split('. ')[0]}.")
            return None
        if self.settings.monitor != "loss":
            if self.settings.monitor not in metrics:
                raise ValueError(f"monitor is {self.settings.monitor!r}, evaluate returned {', '.join(metrics)}.")
            better = self._judge(self.settings.monitor, metrics[self.settings.monitor], number + 1)
            self.without_gain = 0 if better else self.without_gain + 1
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def _judge(self, name: str, value: float, number: int) -> bool:
        """Keep the current parameters, which step ``number`` starts from, if the monitored quantity is better there."""
        if name != self.settings.monitor:
            return False
        if name == "loss" and self.method.stochastic:
            # A minibatch's loss says little about the parameters: keep the last ones, unless their loss is not finite.
            if not math.isfinite(value):
                return False
        elif not value < self.best["value"]:
            return False
        self.best = {"value": value, "step": number, "parameters": self._parameters()}
        return True

    def _judge_last(self) -> None:
        """Judge the parameters after the last step, by the loss on its rows."""
        number = len(self.history.steps) + 1
        try:
            if self.settings.monitor == "loss":
                rows = self._rows(max(number - 2, 0) if self.last_index is None else self.last_index)
                with torch.no_grad():
                    loss = sum(float(term) for term in self.method.objective_terms(*self.data, rows=rows).values())
                self._judge("loss", loss if math.isfinite(loss) else math.inf, number)
            elif self.history.steps and self.history.steps[-1].evaluation is None:
                self._evaluate(number - 1)
        except (NotPositiveDefiniteError, LinAlgError):
            pass  # the best so far stays the best

    def _parameters(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.method.state_dict().items()}

    # ---- checkpoints ----

    def _checkpoint_is_due(self) -> bool:
        step, seconds = self.saved_at
        return (
            len(self.history.steps) - step >= self.settings.checkpoint_steps
            or self.seconds - seconds >= self.settings.checkpoint_seconds
        )

    def _fingerprint(self) -> str:
        ignored = {"max_time", "checkpoint_steps", "checkpoint_seconds", "patience", "min_improvement"}
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ignored}
        tensors = [tensor for tensor in self.data if tensor is not None]
        parameters = self._parameters()
        described = [describe(self.method), self.optimizer.rates(0), list(parameters)]
        return tensor_fingerprint(settings, *described, *tensors, *parameters.values())

    def _save(self) -> None:
        assert self.folder is not None
        self.saved_at = (len(self.history.steps), self.seconds)
        state = {
            "fingerprint": self.fingerprint,
            "steps": len(self.history.steps),
            "seconds": self.seconds,
            "parameters": self._parameters(),
            "optimizer": self.optimizer.state(),
            "good": self.good,
            "best": self.best,
            "without_gain": self.without_gain,
            "failures": self.failures,
            "events": self.events,
            "changed_at": self.changed_at,
        }
        save_checkpoint(self.folder / CHECKPOINT, state)

    def _resume(self) -> None:
        assert self.folder is not None
        path = self.folder / CHECKPOINT
        if not path.exists():
            self.history.clear()
            return
        state = load_checkpoint(path)
        if state["fingerprint"] != self.fingerprint:
            raise ValueError(
                f"{path} belongs to another fit (other data, settings or starting values); choose another "
                "folder, or delete it to start from scratch."
            )
        self.history.load(state["steps"])
        self.method.load_state_dict(state["parameters"])
        self.optimizer.restore(state["optimizer"])
        self.good, self.best = state["good"], state["best"]
        self.without_gain, self.seconds = state["without_gain"], state["seconds"]
        self.failures, self.events, self.changed_at = state["failures"], state["events"], state["changed_at"]
        self.saved_at = (state["steps"], state["seconds"])


def _shapes(parameters: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in parameters.items()}
