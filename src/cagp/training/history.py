"""What a fit writes down: each step, in memory and as lines of JSON; how it ended; and checkpoints."""

import json
import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from numbers import Real
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor, nn

from cagp.fields import is_finite
from cagp.files import append_durably, write_atomically
from cagp.storage import fingerprint


@dataclass(frozen=True)
class Step:
    """One step: the state it started from, and what was done there."""

    number: int  # from 1
    loss: float
    terms: dict[str, float]  # the parts of the loss
    lr: dict[str, float]  # of each group of parameters
    gradient_norm: float
    hyperparameters: dict[str, float | list]  # lists nested, as a tensor
    seconds: float  # of training, up to the end of this step; evaluations do not count
    events: list[str] = field(default_factory=list)  # what changed before the step: blocks, failures
    evaluation: dict[str, float | None] | None = None  # None for a metric that is not finite


def steps_from_state(state: Any) -> list[Step]:
    """Steps from the dicts of their fields; ValueError unless they are those of steps 1, 2, 3 and so on."""
    if not isinstance(state, list):
        raise ValueError("the steps are not a list")
    steps = []
    for number, fields in enumerate(state, start=1):
        try:
            step = Step(**fields)
        except TypeError as error:
            raise ValueError(f"step {number} is not whole") from error
        if not _is_whole(step):
            raise ValueError(f"step {number} is not one that cagp writes")
        if step.number != number:
            raise ValueError(f"step {step.number} is where step {number} should be; two fits may have written to it")
        steps.append(step)
    return steps


def _is_whole(value: Any) -> bool:
    """Whether every field of a dataclass is of the type of its annotation."""
    kinds = get_type_hints(type(value))
    return all(is_a(field, kinds[name]) for name, field in vars(value).items())


def is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of the type of an annotation; integers are floats, too, and booleans are neither."""
    parts = get_args(kind)
    if isinstance(kind, UnionType):
        return any(is_a(value, part) for part in parts)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(is_a(item, parts[0]) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(is_a(k, parts[0]) and is_a(v, parts[1]) for k, v in value.items())
    if kind in (int, float):
        return isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
    return isinstance(value, kind)


class History:
    """The steps so far; with a path, every step is also appended to a file of JSON lines."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.steps: list[Step] = []

    def append(self, step: Step) -> None:
        """Add a step, in memory and in the file."""
        self.steps.append(step)
        if self.path is not None:
            append_durably(self.path, _line(step), sync=False)

    def sync(self) -> None:
        """Put the file with all steps onto the disk, so that a checkpoint that refers to them can follow."""
        if self.path is None:
            return
        size, expected = self.path.stat().st_size, sum(len(_line(step)) for step in self.steps)
        if size > expected:
            raise ValueError(f"{self.path} has more than this fit wrote: another fit writes to it, too; stop one.")
        if size < expected:  # Ctrl-C came before the last line
            self.write()
        else:
            append_durably(self.path, b"", sync=True)

    def load(self, num_steps: int) -> None:
        """Read the first ``num_steps`` steps back, and drop later ones from the file: they will be taken again."""
        assert self.path is not None
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()[:num_steps]
            self.steps = steps_from_state([json.loads(line) for line in lines])
            if len(self.steps) != num_steps:
                raise ValueError(f"it has {len(self.steps)} steps, its checkpoint was written after {num_steps}")
        except (OSError, ValueError, RecursionError) as error:
            remedy = "delete its folder to start from scratch"
            raise ValueError(f"{self.path} cannot be read: {error}; {remedy}.") from error
        self.write()

    def write(self) -> None:
        """Write the file with the steps so far and nothing else."""
        assert self.path is not None
        write_atomically(self.path, b"".join(map(_line, self.steps)))


def _line(step: Step) -> bytes:
    return json.dumps(asdict(step)).encode() + b"\n"


class FitStatus(str, Enum):
    """Why a fit ended; ``FitResult.reason`` says it in words."""

    ALL_STEPS = "all steps"
    NO_PROGRESS = "no progress"  # all steps, and the starting values are the best
    TIME_LIMIT = "time limit"
    NO_BETTER = "no better"  # the monitored quantity, for as many evaluations as ``patience``
    CONVERGED = "converged"  # the loss no longer improves
    INTERRUPTED = "interrupted"  # by Ctrl-C
    BAD_START = "bad start"  # no loss at the starting values
    TOO_MANY_FAILURES = "too many failures"


@dataclass(frozen=True)
class FitResult:
    """What ``fit`` did; the method itself holds the best parameters."""

    steps: list[Step]
    reason: str  # why it ended, in words
    best_step: int  # the step whose parameters were kept
    best_value: float  # of the monitored quantity
    seconds: float
    failures: list[str]
    findings: list[str]
    status: FitStatus

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit."""
        return self.status is FitStatus.INTERRUPTED

    def __str__(self) -> str:
        """The report, in plain words."""
        return "\n".join([self.reason, *self.failures, *self.findings])

    def state(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "FitResult":
        """The inverse of ``state``; ValueError unless every value is one that ``state`` can give."""
        result = cls(**{**state, "steps": steps_from_state(state["steps"]), "status": FitStatus(state["status"])})
        if not _is_whole(result):
            raise ValueError("the result of the fit is not one that cagp writes")
        return result


def trend(steps: list[Step]) -> list[str]:
    """Whether the loss was still falling when the fit ended."""
    if len(steps) < 20:
        return []
    tenth = len(steps) // 10
    losses = [step.loss for step in steps]
    total = losses[0] - min(losses)
    late = sum(losses[-2 * tenth : -tenth]) / tenth - sum(losses[-tenth:]) / tenth
    if total > 0 and late > 0.01 * total:
        return [f"The loss was still falling ({late / total:.0%} of all progress in the last tenth): take more steps."]
    return []


# ---- checkpoints: files that may always be deleted to start from scratch ----


def is_like(value: Any, like: Any) -> bool:
    """Whether a value from a file is built as one that this program made.

    A type stands for any of its values. Numbers are not NaN, counts not negative, tensors finite; a tensor of integers
    can have another length: the number of blocks of actions can change.
    """
    if isinstance(like, Tensor):
        alike = isinstance(value, Tensor) and value.dtype == like.dtype and value.ndim == like.ndim
        return alike and is_finite(value) and (value.shape == like.shape or not like.is_floating_point())
    if isinstance(like, dict):
        return isinstance(value, dict) and value.keys() == like.keys() and all(is_like(value[k], like[k]) for k in like)
    if isinstance(like, list):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(like, int):
        return type(value) is int and 0 <= value < 2**63
    if isinstance(like, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and value > -math.inf
    return isinstance(value, like if isinstance(like, type) else type(like))


def describe(method: nn.Module) -> list[Any]:
    """The kinds of a method's parts, and their plain attributes: what besides its tensors makes it what it is."""

    def counts(value: Any) -> bool:
        return isinstance(value, int | float | str | tuple) or hasattr(value, "description")

    return [
        [name, type(part).__name__, {k: plain_values(v) for k, v in vars(part).items() if counts(v)}]
        for name, part in method.named_modules()
    ]


def plain_values(value: Any) -> Any:
    """Numbers and text as they are, tensors by their digest, containers by what they hold, and objects by what their
    ``description()`` returns, such as that of a policy; of any other object only its class counts.
    """
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, Tensor):
        return fingerprint(value)
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if hasattr(value, "description"):
        return plain_values(value.description())
    return f"{type(value).__module__}.{type(value).__qualname__}"
