"""The loop: prepare, evaluate, check, move, record, save; end with the best parameters whatever happens."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cagp.files import locked_folder
from cagp.linalg import NotPositiveDefiniteError
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.storage import State
from cagp.tensor_files import tensor_fingerprint
from cagp.training.checkpoints import check_run, load_checkpoint, not_whole, save_checkpoint
from cagp.training.description import describe
from cagp.training.history import History, Step, steps_from_state
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

MOST_TERMS = 16
"""Terms that a loss can have where several processes add it up: a process without rows does not know how many."""


class _StepError(ArithmeticError):
    """The loss or its gradient cannot be used."""


FAILURES: tuple[type[Exception], ...] = (_StepError, NotPositiveDefiniteError, LinAlgError)
"""What a step that is taken back can raise."""


class _OutOfTimeError(Exception):
    """The deadline has passed in the middle of a line search."""


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
    ranks: Ranks | None = None,
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
            it; the result is bit for bit that of a fit that was never interrupted. Only one fit at a time can use it.
        progress: show a progress bar (a line now and then where the output is not a terminal).
        input_names: what the columns of ``X`` are called in the report; None for their numbers.
        deadline: a time of ``time.perf_counter()`` after which no further step begins, whatever the time was spent on,
            and no line search continues; the first step is always taken.
        ranks: the processes that take each step together, e.g. ``Ranks.here()`` under ``torchrun``; all of them call
            ``fit`` with the same arguments, and end with the same parameters and result. Process 0 alone evaluates,
            writes and decides. None: this process alone.
        changes: single fields of ``Settings``, e.g. ``num_steps=50``.
    """
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise ValueError(f"settings is {settings!r}, expected a Settings or one of {', '.join(PRESETS)}.")
        settings = PRESETS[settings]
    settings = settings.with_changes(**changes)
    method.check(X, y, row_noise)
    until = math.inf if deadline is None else deadline
    ranks = Ranks.alone() if ranks is None else ranks
    run = _Run(method, X, y, row_noise, settings, evaluate, callback, checkpoint_dir, input_names, until, ranks)
    enabled = progress and ranks.is_first
    with run.resources, StepProgress(run.settings.num_steps, enabled=enabled) as bar, ranks.listening():
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
        self,
        method: Trainable,
        X: Tensor,
        y: Tensor,
        row_noise: Tensor | None,
        settings: Settings,
        evaluate: Callable[[], Mapping[str, float]] | None,
        callback: Callable[[Step], None] | None,
        checkpoint_dir: Path | str | None,
        input_names: tuple[str, ...] | None,
        deadline: float,
        ranks: Ranks,
    ):
        self.method, self.data, self.settings, self.ranks = method, (X, y, row_noise), settings, ranks
        self.evaluate, self.callback, self.input_names, self.deadline = evaluate, callback, input_names, deadline
        if settings.monitor != "loss" and evaluate is None:
            raise ValueError(f"monitor is {settings.monitor!r}, which needs an evaluate function that returns it.")
        if settings.patience is not None and settings.monitor == "loss":
            raise ValueError("patience counts evaluations: it needs evaluate, and monitor set to a name it returns.")
        _check_same(ranks, X, y, row_noise, method)
        ranks.share(method)
        self.optimizer = Optimizer(method.parameter_groups(), settings)
        self.resources = ExitStack()  # what is held until the fit ends: the lock of the folder
        self.has_folder = checkpoint_dir is not None
        self.folder = None if checkpoint_dir is None or not ranks.is_first else Path(checkpoint_dir)
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
        if self.has_folder:
            self._resume()
        end: _End | None = None
        try:
            while end is None:
                end = self._agreed_end() or self._attempt(bar)
        except KeyboardInterrupt:
            end = _End(FitStatus.INTERRUPTED, f"Interrupted after {len(self.history.steps)} steps.")
        reached = end
        told = self.ranks.from_first(lambda: self._finished(reached))
        self.method.load_state_dict(told["parameters"])
        return FitResult.from_state(told["result"], told["status"])

    def _finished(self, end: _End) -> dict[str, Any]:
        """The best parameters, and how the fit ended."""
        if self.folder is not None:
            self._save()  # where the optimiser was, so that a fit with more time resumes from there
        self._judge_last()
        self.method.load_state_dict(self.best["parameters"])
        X, y, _ = self.data
        found = [*trend(self.history.steps), *self.method.findings(X, y, self.input_names), *self._shares_in_words()]
        values = (end.reason, self.best["step"], self.best["value"], self.seconds, self.failures, found, end.status)
        result = FitResult(self.history.steps, *values)
        return {"parameters": self.best["parameters"], "result": result.state(), "status": end.status.value}

    def _shares_in_words(self) -> list[str]:
        if self.ranks.size == 1:
            return []
        if self._part(self._rows(0))[0] is None:
            others = "the other one" if self.ranks.size == 2 else f"the other {self.ranks.size - 1}"
            return [f"The loss needs all rows at once: process 0 computed it alone, and {others} waited."]
        return [f"{self.ranks.size} processes shared the rows of each step."]

    def _agreed_end(self) -> _End | None:
        """Whether the fit ends here, for all processes: by the clock and the history of process 0, or by Ctrl-C."""
        end = self._reason_to_stop() if self.ranks.is_first else None
        stops, interrupted = self.ranks.any(end is not None, self.ranks.interrupted.is_set())
        if stops:
            return end or _End(FitStatus.UNKNOWN, "Process 0 ended the fit.")
        if interrupted:
            raise KeyboardInterrupt
        return None

    def _attempt(self, bar: StepProgress) -> _End | None:
        """One step, or its failure taken back; a reason where the fit cannot continue."""
        index, start = len(self.history.steps), time.perf_counter()
        before = {"parameters": self._parameters(), "optimizer": self.optimizer.state()}
        events, changed_at, best = list(self.events), self.changed_at, self.best
        first: dict[str, Any] = {}
        self.last_index = index
        rows = self._rows(index)

        def loss_and_gradient() -> Tensor:
            if first and index and self._is_late():
                raise _OutOfTimeError
            loss, terms = self._loss_and_gradient(rows)
            if not first:  # a line search evaluates more than once
                hyperparameters = dict(self.method.hyperparameters())
                first.update(terms=terms, norm=self._gradient_norm(), hyperparameters=hyperparameters)
                self.good = before
                self._judge("loss", float(loss), index + 1)
            return loss

        try:
            told = {"step": index, "share": index / self.settings.num_steps, "flat": self._flat(), "rows": rows}
            change = self.ranks.together(lambda: self.method.prepare(*self.data, **told), FAILURES)
            if change is not None:
                self.events.append(change)
                self.changed_at, self.evaluated = index, None
                self.optimizer.forget()
                if _shapes(self._parameters()) != _shapes(self.best["parameters"]):
                    # A different model, with more actions: the best one so far does not stand for it.
                    self.best = {**self.best, "value": math.inf}
            rates = self.optimizer.rates(index)
            loss = self.optimizer.step(loss_and_gradient, index)
        except FAILURES as error:
            self.seconds += time.perf_counter() - start
            self.events, self.changed_at, self.best = events, changed_at, best
            return self._take_back(index + 1, error)
        except (KeyboardInterrupt, _OutOfTimeError) as error:
            self._return_to(before)
            self.events, self.changed_at = events, changed_at
            if isinstance(error, _OutOfTimeError):  # what the line search began with is judged, and may be the best
                return _End(FitStatus.TIME_LIMIT, f"Reached the time limit after {index} steps.")
            self.best = best
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

    def _is_late(self) -> bool:
        """Whether the deadline has passed, by the clock of process 0."""
        if self.deadline == math.inf:
            return False
        return self.ranks.any(self.ranks.is_first and time.perf_counter() >= self.deadline)[0]

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
        self.optimizer.clear_gradients()
        part, weight = self._part(rows)
        if self.ranks.size == 1:
            loss, terms = self._weighted_loss_and_gradient(part, weight)
        else:
            loss, terms = self._added_up(part, weight)
        for parameter in self.optimizer.parameters:
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                raise _StepError("a gradient is not finite")
        return loss, terms

    def _part(self, rows: Tensor | None) -> tuple[Tensor | None, float]:
        """This process's rows of a step, and what their loss weighs in that of the step; None for all rows.

        Each term of a loss is a mean over rows or does not depend on them: with these weights the losses of the parts
        add up to that of the step. A loss that needs all rows at once is computed by process 0, without the others.
        """
        if self.ranks.size == 1:
            return rows, 1.0
        if self.method.own_share is not None:
            return rows, self.method.own_share
        whole = self.method.divisible_rows(self.data[0].shape[0]) if rows is None else rows
        if whole is None:
            return None, float(self.ranks.is_first)
        part = self.ranks.part(whole)
        return part, len(part) / len(whole)

    def _weighted_loss_and_gradient(self, rows: Tensor | None, weight: float) -> tuple[Tensor, dict[str, float]]:
        terms = self.method.objective_terms(*self.data, rows=rows)
        loss = torch.stack([term.double() for term in terms.values()]).sum()
        if not bool(torch.isfinite(loss)):
            raise _StepError(f"the loss is {loss.item()}")
        loss = weight * loss
        loss.backward()
        return loss.detach(), {name: weight * float(term.detach()) for name, term in terms.items()}

    def _added_up(self, rows: Tensor | None, weight: float) -> tuple[Tensor, dict[str, float]]:
        """Loss, terms and gradients of all processes together, in one exchange of float64."""
        terms: dict[str, float] = {}
        problem: Exception | None = None
        try:
            if weight > 0:
                _, terms = self._weighted_loss_and_gradient(rows, weight)
        except FAILURES as error:
            problem = error
        if len(terms) > MOST_TERMS:
            raise ValueError(f"the loss has {len(terms)} terms; several processes add up at most {MOST_TERMS}.")
        parameters, X = self.optimizer.parameters, self.data[0]
        head = torch.zeros(self.ranks.size + MOST_TERMS + len(parameters), dtype=torch.float64, device=X.device)
        failed, sums, known = head.split([self.ranks.size, MOST_TERMS, len(parameters)])
        failed[self.ranks.rank] = float(problem is not None)
        sums[: len(terms)] = torch.tensor(list(terms.values()), dtype=torch.float64)
        gradients = []
        for j, parameter in enumerate(parameters):
            known[j] = float(parameter.grad is not None)
            gradients.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        flat = torch.cat([head, *(gradient.detach().double().flatten().to(X.device) for gradient in gradients)])
        failed, sums, known, *gradients = self.ranks.add_up(flat).split(
            [self.ranks.size, MOST_TERMS, len(parameters), *(p.numel() for p in parameters)]
        )
        if bool(failed.any()):
            words = self.ranks.words_of(int(failed.nonzero()[0, 0]), "" if problem is None else str(problem))
            raise _StepError(words)
        for j, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            parameter.grad = gradient.view(parameter.shape).to(parameter) if known[j] else None
        return sums.sum(), dict(zip(terms, sums.tolist(), strict=False))

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
        if settings.min_gain is not None and len(steps) > 1 and steps[-2].loss - steps[-1].loss < settings.min_gain:
            return _End(FitStatus.CONVERGED, f"The last step gained little; stopped after {len(steps)} steps.")
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
        if self.evaluate is None or not self.ranks.is_first:
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
        ignored = {"max_time", "checkpoint_steps", "checkpoint_seconds", "patience", "min_improvement", "min_gain"}
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ignored}
        tensors = [tensor for tensor in self.data if tensor is not None]
        parameters = self._parameters()
        described = [describe(self.method), self.optimizer.rates(0), list(parameters)]
        return tensor_fingerprint(settings, *described, *tensors, *parameters.values())

    def _save(self) -> None:
        assert self.folder is not None
        self.saved_at = (len(self.history.steps), self.seconds)
        self.history.sync()
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
        """Continue where the checkpoint of process 0 is, if there is one: the others may not see its disk."""
        state = self.ranks.from_first(self._loaded)
        if not state:
            return
        self.history.steps = steps_from_state(state["history"])
        try:
            self.method.load_state_dict(state["parameters"])
            self.optimizer.restore(state["optimizer"])
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise not_whole(CHECKPOINT if self.folder is None else self.folder / CHECKPOINT, str(error)) from error
        self.good, self.best = state["good"], state["best"]
        self.without_gain, self.seconds = state["without_gain"], state["seconds"]
        self.failures, self.events, self.changed_at = state["failures"], state["events"], state["changed_at"]
        self.saved_at = (state["steps"], state["seconds"])

    def _loaded(self) -> State:
        """The checkpoint and the history up to it; an empty state if there is none. The folder is locked from here."""
        assert self.folder is not None
        self.resources.enter_context(locked_folder(self.folder, "another fit"))
        path = self.folder / CHECKPOINT
        if not path.exists():
            self.history.clear()
            return {}
        state = load_checkpoint(path)
        if state.get("fingerprint") != self.fingerprint:
            raise ValueError(
                f"{path} belongs to another fit (other data, settings or starting values); choose another "
                "folder, or delete it to start from scratch."
            )
        check_run(path, state, self._parameters(), len(self.optimizer.parameters))
        self.history.load(state["steps"])
        return {**state, "history": [asdict(step) for step in self.history.steps]}


def _check_same(ranks: Ranks, X: Tensor, y: Tensor, row_noise: Tensor | None, method: Trainable) -> None:
    """Raise ValueError on all processes unless each was given the same data and the same method. Time O(n d)."""
    if ranks.size == 1:
        return
    noise = 0.0 if row_noise is None else float(row_noise.abs().sum(dtype=torch.float64))
    numbers = {
        "the number of inputs": float(X.shape[1]),
        "the number of parameters": float(sum(p.numel() for p in method.parameters())),
    }
    if method.own_share is not None:
        ranks.check_same(numbers, "give every process the same options")
        return
    numbers = {
        "the number of rows": float(X.shape[0]),
        **numbers,
        "the sum of all inputs, without their signs": float(X.abs().sum(dtype=torch.float64)),
        "the sum of all targets, without their signs": float(y.abs().sum(dtype=torch.float64)),
        "the sum of the known noise": noise,
    }
    ranks.check_same(numbers, "give every process the whole table and the same options")


def _shapes(parameters: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in parameters.items()}
