"""The loop: prepare, evaluate, check, move, record, save; end with the best parameters whatever happens."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cagp.dataset import Data
from cagp.files import locked_folder
from cagp.progress import Progress
from cagp.quantities import seconds_of
from cagp.ranks import Ranks
from cagp.storage import State, fingerprint, load_state, save_state
from cagp.training.history import FitResult, FitStatus, History, Step, describe, is_like, steps_from_state, trend
from cagp.training.optimizers import PRESETS, Optimizer, Settings, copied
from cagp.training.trainable import FAILURES, Batch, Coming, ParameterGroup, StepError, StepRows, Trainable, added_up

CHECKPOINT, HISTORY = "checkpoint.safetensors", "history.jsonl"
KIND, VERSION, REMEDY = "checkpoint", 2, "delete it to start from scratch"
FLAT = 0.01
"""A loss is flat when one window of steps improves on the window before by less than this share of all improvement."""


class _OutOfTimeError(Exception):
    """The deadline has passed in the middle of a line search."""


class _End(NamedTuple):
    """Why a fit ends, for programs and in words."""

    status: FitStatus
    reason: str


def fit(
    method: Trainable,
    X: Tensor | Data,
    y: Tensor | None = None,
    row_noise: Tensor | None = None,
    settings: Settings | str = "default",
    *,
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    callback: Callable[[Step], None] | None = None,
    checkpoint_dir: Path | str | None = None,
    progress: bool = False,
    input_names: tuple[str, ...] | None = None,
    deadline: float | None = None,
    fixed: Iterable[nn.Parameter] = (),
    ranks: Ranks | None = None,
    **changes: Any,
) -> FitResult:
    """Minimise the method's objective in place, and leave it with the best parameters.

    The same arguments give the same bits on the same machine with the same number of threads; ``fit`` itself draws no
    random numbers. A step that fails is taken back and tried again with half the learning rates. Ctrl-C ends the fit
    like any other stopping rule.

    Args:
        settings: a ``Settings``, or the name of a preset: "default", "paper-adam", "paper-lbfgs".
        evaluate: called every ``evaluate_every`` steps, outside the time that is counted; returns named metrics, e.g.
            of validation rows.
        checkpoint_dir: a folder for checkpoints and the history. A fit that finds its own checkpoint there resumes from
            it; the result is bit for bit that of a fit that was never interrupted. Only one fit at a time can use it.
        progress: show a progress bar (a line now and then where the output is not a terminal).
        input_names: what the columns of ``X`` are called in the report; None for their numbers.
        deadline: a time of ``time.perf_counter()`` after which no further step begins, whatever the time was spent on,
            and no line search continues; the first step is always taken.
        fixed: parameters that stay as they are.
        ranks: the processes that take each step together, e.g. ``Ranks.here()`` under ``torchrun``; all of them call
            ``fit`` with the same arguments, and end with the same parameters and result. Process 0 alone evaluates,
            writes and decides. None: this process alone.
        changes: single fields of ``Settings``, e.g. ``num_steps=50``.
    """
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise ValueError(f"settings is {settings!r}, expected a Settings or one of {', '.join(PRESETS)}.")
        settings = PRESETS[settings]
    settings, data = settings.with_changes(**changes), method.checked(X, y, row_noise)
    ranks, folder = ranks or Ranks.alone(), None if checkpoint_dir is None else Path(checkpoint_dir)
    deadline, held = math.inf if deadline is None else deadline, {id(parameter) for parameter in fixed}
    run = _Run(method, data, settings, ranks, evaluate, callback, folder, input_names, deadline, held)
    progress = progress and ranks.is_first
    with run.resources, Progress("fit", progress, settings.num_steps) as bar, ranks.listening():
        return run.run(bar)


@dataclass(frozen=True)
class _State:
    """Where a fit stands, as a checkpoint holds it; ``parameters`` and ``optimizer`` are those of ``_Run.here``."""

    parameters: dict[str, Tensor]
    optimizer: dict[str, Any]
    best: dict[str, Any]  # value, step and parameters
    good: dict[str, Any] | None = None  # parameters and optimizer where the loss was last known to be finite
    without_gain: int = 0  # evaluations without a better value
    failures: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # since the last step
    changed_at: int = 0  # the step before which the method last changed
    seconds: float = 0.0


@dataclass(eq=False)
class _Run:
    """One fit."""

    method: Trainable
    data: Data
    settings: Settings
    ranks: Ranks
    evaluate: Callable[[], Mapping[str, float]] | None
    callback: Callable[[Step], None] | None
    checkpoint_dir: Path | None
    input_names: tuple[str, ...] | None
    deadline: float
    fixed: set[int]  # parameters, by identity
    resources: ExitStack = field(default_factory=ExitStack)  # held until the fit ends: the lock of the folder
    last_index: int | None = None  # of the step tried last, counted from 0
    batch: Batch | None = None  # of that step
    evaluated: tuple[dict[str, Tensor], Tensor, dict[str, float], list[Any]] | None = None  # where L-BFGS last was
    saved_at: tuple[int, float] = (0, 0.0)
    fingerprint: str = ""

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.monitor != "loss" and self.evaluate is None:
            raise ValueError(f"monitor is {settings.monitor!r}, which needs an evaluate function that returns it.")
        if settings.patience is not None and settings.monitor == "loss":
            raise ValueError("patience counts evaluations: it needs evaluate, and monitor set to a name it returns.")
        self.method.check_same(self.ranks, self.data)
        self.ranks.share(self.method)
        groups = self.method.parameter_groups().items()
        free = {name: [p for p in group.parameters if id(p) not in self.fixed] for name, group in groups}
        self.optimizer = Optimizer({name: ParameterGroup(free[name], group.lr) for name, group in groups}, settings)
        best = {"value": math.inf, "step": 0, "parameters": self._parameters()}
        self.state = _State(best["parameters"], self.optimizer.state(), best)
        self.folder = self.checkpoint_dir if self.ranks.is_first else None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.fingerprint = self._fingerprint()
        self.history = History(None if self.folder is None else self.folder / HISTORY)

    def here(self) -> _State:
        """The state with the present parameters and optimiser."""
        return replace(self.state, parameters=self._parameters(), optimizer=self.optimizer.state())

    def _return_to(self, state: _State) -> None:
        self.method.load_state_dict(state.parameters)
        self.optimizer.restore(state.optimizer)
        self.state = state

    def _note(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def _parameters(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.method.state_dict().items()}

    # ---- the loop ----

    def run(self, bar: Progress) -> FitResult:
        if self.checkpoint_dir is not None:
            self._resume()
        end: _End | None = None
        try:
            while end is None:
                end = self._end_of_all() or self._attempt(bar)
        except KeyboardInterrupt:
            end = _End(FitStatus.INTERRUPTED, f"Interrupted after {len(self.history.steps)} steps.")
        reason = end
        state = self.ranks.from_first(lambda: self._finished(reason))
        self.method.load_state_dict(state["parameters"])
        return FitResult.from_state(state["result"])

    def _finished(self, end: _End) -> dict[str, Any]:
        """The best parameters, and how the fit ended."""
        if self.folder is not None:
            self._save()  # where the optimiser was, so that a fit with more time resumes from there
        self._consider_last()
        best, steps = self.state.best, self.history.steps
        self.method.load_state_dict(best["parameters"])
        if end.status is FitStatus.ALL_STEPS and best["step"] <= 1:
            words = f"{end.reason[:-1]}, which made no progress: the starting values are the best."
            end = _End(FitStatus.NO_PROGRESS, words)
        findings = [*trend(steps), *self.method.findings(self.data, self.input_names)]
        findings += self._rows(0).words(self.ranks)
        ended = (end.reason, best["step"], best["value"], self.state.seconds, self.state.failures, findings, end.status)
        return {"parameters": best["parameters"], "result": FitResult(steps, *ended).state()}

    def _end_of_all(self) -> _End | None:
        """Whether the fit ends here, for all processes: by the clock and the history of process 0, or by Ctrl-C."""
        end = self._reason_to_stop() if self.ranks.is_first else None
        stops, interrupted = self.ranks.any(end is not None, self.ranks.interrupted.is_set())
        if stops:
            return end or _End(FitStatus.ALL_STEPS, "")  # process 0 says how
        if interrupted:
            raise KeyboardInterrupt
        return None

    def _attempt(self, bar: Progress) -> _End | None:
        """One step, or its failure taken back; a reason where the fit cannot continue."""
        index, start, before = len(self.history.steps), time.perf_counter(), self.here()
        first: dict[str, Any] = {}  # what a step is recorded by, where it began
        rows, last = self._rows(index), self.batch
        part, weight = rows.part(self.ranks, self.data.num_rows)
        self.last_index, self.batch = index, None
        flat = self._improves_by_less_than(FLAT, self.state.changed_at)
        coming = Coming(index, index / self.settings.num_steps, flat, rows.drawn, part, last)

        def loss_and_gradient() -> Tensor:
            if first and index and self.ranks.any(self.ranks.is_first and time.perf_counter() >= self.deadline)[0]:
                raise _OutOfTimeError
            assert self.batch is not None
            loss, terms = self._loss_and_gradient(self.batch, weight)
            if not first:  # a line search evaluates more than once
                gradients = [p.grad.double() for p in self.optimizer.parameters if p.grad is not None]
                norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
                first.update(terms=terms, norm=norm, hyperparameters=dict(self.method.hyperparameters()))
                self._note(good={"parameters": before.parameters, "optimizer": before.optimizer})
                self._consider("loss", float(loss), index + 1, rows.stochastic)
            return loss

        try:
            self.batch = self.ranks.together(lambda: self.method.before_step(self.data, coming), FAILURES)
            if self.batch.event is not None:
                self._note(events=[*self.state.events, self.batch.event], changed_at=index)
                self.evaluated = None
                self.optimizer.forget()
                best = self.state.best
                if any(value.shape != best["parameters"][name].shape for name, value in self._parameters().items()):
                    # A different model, with more actions: the best one so far does not stand for it.
                    self._note(best={**best, "value": math.inf})
            rates = self.optimizer.rates(index)
            loss = self.optimizer.step(loss_and_gradient, index)
        except FAILURES as error:
            return self._take_back(before, time.perf_counter() - start, error)
        except _OutOfTimeError:  # where the line search began was evaluated, and may be the best
            self._return_to(replace(before, good=self.state.good, best=self.state.best))
            return _End(FitStatus.TIME_LIMIT, f"Reached the time limit after {index} steps.")
        except KeyboardInterrupt:
            self._return_to(replace(before, good=self.state.good))
            raise
        self._note(seconds=before.seconds + time.perf_counter() - start)
        number, seconds = index + 1, self.state.seconds
        evaluation = self._evaluate(number) if number % self.settings.evaluate_every == 0 else None
        of_step = float(loss), first["terms"], rates, first["norm"], first["hyperparameters"]
        step = Step(number, *of_step, seconds, self.state.events, evaluation)
        self._note(events=[])
        self.history.append(step)
        if self.callback is not None:
            self.callback(step)
        bar.step(step.number, step.loss, step.seconds)
        (saved, at), settings = self.saved_at, self.settings
        due = number - saved >= settings.checkpoint_steps or seconds - at >= settings.checkpoint_seconds
        if self.folder is not None and due:
            self._save()
        return None

    def _rows(self, index: int) -> StepRows:
        """The rows of the step with this number, counted from 0."""
        rows = self.method.rows(index, self.data.num_rows)
        return rows if rows.drawn is None else rows._replace(drawn=rows.drawn.to(self.data.X.device))

    def _loss_and_gradient(self, batch: Batch, weight: float) -> tuple[Tensor, dict[str, float]]:
        """The loss of a batch and its terms, times ``weight``; of several processes, the sums of theirs."""
        parameters = self.optimizer.parameters
        if self.settings.optimizer != "lbfgs" or batch.rows is not None:
            return self._computed_loss_and_gradient(batch, weight)
        # A line search mostly ends at the last point it looked at, and there the next step begins: half of all work.
        here, known = self._parameters(), self.evaluated
        if known is None or not all(torch.equal(value, known[0][name]) for name, value in here.items()):
            loss, terms = self._computed_loss_and_gradient(batch, weight)
            known = self.evaluated = (here, loss, terms, copied([p.grad for p in parameters]))
        _, loss, terms, gradients = known
        for parameter, gradient in zip(parameters, copied(gradients), strict=True):
            parameter.grad = gradient
        return loss, terms

    def _computed_loss_and_gradient(self, batch: Batch, weight: float) -> tuple[Tensor, dict[str, float]]:
        def of_this_process() -> tuple[Tensor, dict[str, float]]:
            terms = self.method.terms(self.data, batch)
            loss = torch.stack([term.double() for term in terms.values()]).sum()
            if not bool(torch.isfinite(loss)):
                raise StepError(f"the loss is {loss.item()}")
            loss = weight * loss
            loss.backward()
            return loss.detach(), {name: weight * float(term.detach()) for name, term in terms.items()}

        parameters = self.optimizer.parameters
        for parameter in parameters:
            parameter.grad = None
        loss, terms = added_up(self.ranks, parameters, weight, of_this_process, self.data.X.device)
        if not all(bool(torch.isfinite(p.grad).all()) for p in parameters if p.grad is not None):
            raise StepError("a gradient is not finite")
        return loss, terms

    def _take_back(self, before: _State, seconds: float, error: Exception) -> _End | None:
        """Return to the last good parameters with half the learning rates."""
        good = self.state.good
        if good is None:
            self.state = replace(before, seconds=before.seconds + seconds)
            return _End(FitStatus.BAD_START, f"The loss could not be computed at the starting values: {error}")
        failure = f"Step {len(self.history.steps) + 1} failed and was taken back: {str(error).split('. ')[0]}."
        good = {**good, "optimizer": {**good["optimizer"], "shrink": self.optimizer.shrink / 2}}
        failures = [*before.failures, failure]
        kept = {"failures": failures, "events": [*before.events, failure], "seconds": before.seconds + seconds}
        self._return_to(replace(before, **good, good=good, **kept))
        if len(failures) > self.settings.max_failures:
            cause = "the learning rates, the scale of the data or the noise floor do not suit this problem"
            return _End(FitStatus.TOO_MANY_FAILURES, f"Stopped after {len(failures)} failed steps: {cause}.")
        return None

    def _reason_to_stop(self) -> _End | None:
        steps, settings, without_gain = self.history.steps, self.settings, self.state.without_gain
        after = f"after {len(steps)} steps"
        if len(steps) >= settings.num_steps:
            words = "Took 1 step." if settings.num_steps == 1 else f"Took all {settings.num_steps} steps."
            return _End(FitStatus.ALL_STEPS, words)
        limit = f" ({settings.max_time})" if self.state.seconds >= seconds_of(settings.max_time) else ""
        if limit or (steps and time.perf_counter() >= self.deadline):
            return _End(FitStatus.TIME_LIMIT, f"Reached the time limit{limit} {after}.")
        if settings.patience is not None and without_gain >= settings.patience:
            words = f"No better {settings.monitor} in {without_gain} evaluations; stopped {after}."
            return _End(FitStatus.NO_BETTER, words)
        if settings.min_gain is not None and len(steps) > 1 and steps[-2].loss - steps[-1].loss < settings.min_gain:
            words = f"Converged {after}: the last step improved the loss by less than {settings.min_gain:g}."
            return _End(FitStatus.CONVERGED, words)
        if settings.min_improvement is not None and self._improves_by_less_than(settings.min_improvement, 0):
            return _End(FitStatus.CONVERGED, f"The loss no longer improves; stopped {after}.")
        return None

    def _improves_by_less_than(self, fraction: float, since: int) -> bool:
        """The rule of ``Settings.min_improvement``, for steps from ``since`` on: before, the objective was another."""
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
        except FAILURES as error:
            failure = f"The evaluation after step {number} failed: {str(error).split('. ')[0]}."
            self._note(events=[*self.state.events, failure])
            return None
        monitor = self.settings.monitor
        if monitor != "loss":
            if monitor not in metrics:
                raise ValueError(f"monitor is {monitor!r}, evaluate returned {', '.join(metrics)}.")
            better = self._consider(monitor, metrics[monitor], number + 1)
            self._note(without_gain=0 if better else self.state.without_gain + 1)
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def _consider(self, name: str, value: float, number: int, estimated: bool = False) -> bool:
        """Keep the current parameters, which step ``number`` starts from, if the monitored quantity is better there."""
        # A minibatch's loss says little about the parameters: keep the last ones, unless their loss is not finite.
        better = math.isfinite(value) if estimated else value < self.state.best["value"]
        if name != self.settings.monitor or not better:
            return False
        self._note(best={"value": value, "step": number, "parameters": self._parameters()})
        return True

    def _consider_last(self) -> None:
        """Consider the parameters after the last step, by the loss on its rows."""
        number = len(self.history.steps) + 1
        try:
            if self.settings.monitor == "loss":
                rows = self._rows(max(number - 2, 0) if self.last_index is None else self.last_index)
                batch = Batch(rows.drawn) if self.batch is None or self.ranks.size > 1 else self.batch
                with torch.no_grad():
                    loss = sum(float(term) for term in self.method.terms(self.data, batch).values())
                self._consider("loss", loss if math.isfinite(loss) else math.inf, number, rows.stochastic)
            elif self.history.steps and self.history.steps[-1].evaluation is None:
                self._evaluate(number - 1)
        except FAILURES:
            pass  # the best so far stays the best

    # ---- checkpoints ----

    def _fingerprint(self) -> str:
        ignored = {"max_time", "checkpoint_steps", "checkpoint_seconds", "patience", "min_improvement", "min_gain"}
        settings = {name: value for name, value in asdict(self.settings).items() if name not in ignored}
        tensors = [tensor for tensor in self.data if tensor is not None]
        parameters = self._parameters()
        described = [describe(self.method), self.optimizer.rates(0), list(parameters)]
        return fingerprint(settings, *described, *tensors, *parameters.values())

    def _checkpoint(self) -> State:
        return {"fingerprint": self.fingerprint, "steps": len(self.history.steps), **vars(self.here())}

    def _save(self) -> None:
        assert self.folder is not None
        self.saved_at = (len(self.history.steps), self.state.seconds)
        self.history.sync()
        save_state(self.folder / CHECKPOINT, self._checkpoint(), KIND, VERSION)

    def _check(self, path: Path, state: State) -> None:
        """Raise ValueError unless the state is one that this fit writes."""
        expected, good = {**self._checkpoint(), "optimizer": dict}, state.get("good")
        if good is not None:
            expected["good"] = {name: expected[name] for name in ("parameters", "optimizer")}
        for name, like in expected.items():
            if not is_like(state.get(name), like):
                raise _not_whole(path, f"{name} is not what a fit writes")
        for part in [state] if good is None else [state, good]:
            if not self.optimizer.accepts(part["optimizer"]):
                raise _not_whole(path, "the optimiser remembers other parameters")

    def _resume(self) -> None:
        """Continue where the checkpoint of process 0 is, if there is one: the others may not see its disk."""
        state = self.ranks.from_first(self._loaded)
        if not state:
            return
        self.history.steps = steps_from_state(state["history"])
        try:
            self._return_to(_State(**{name: state[name] for name in vars(self.state)}))
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise _not_whole(CHECKPOINT if self.folder is None else self.folder / CHECKPOINT, str(error)) from error
        self.saved_at = (state["steps"], state["seconds"])

    def _loaded(self) -> State:
        """The checkpoint and the history up to it; an empty state if there is none. The folder is locked from here."""
        assert self.folder is not None
        self.resources.enter_context(locked_folder(self.folder, "another fit"))
        path = self.folder / CHECKPOINT
        if not path.exists():
            self.history.write()
            return {}
        state = load_state(path, KIND, VERSION, remedy=REMEDY)
        if state.get("fingerprint") != self.fingerprint:
            remedy = "choose another folder, or delete it to start from scratch"
            raise ValueError(f"{path} belongs to another fit (other data, settings or starting values); {remedy}.")
        self._check(path, state)
        self.history.load(state["steps"])
        return {**state, "history": [asdict(step) for step in self.history.steps]}


def _not_whole(path: Path | str, what: str) -> ValueError:
    """The error for a checkpoint that a fit cannot have written."""
    return ValueError(f"{path} cannot be read: it is not what cagp writes ({what}); {REMEDY}.")
