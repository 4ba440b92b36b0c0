"""What happened at each step, in memory and as lines of JSON on disk."""

import json
from dataclasses import asdict, dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any

from cagp.files import append_durably, write_atomically


@dataclass(frozen=True)
class Step:
    """One step: the state it started from, and what was done there."""

    number: int  # from 1
    loss: float
    terms: dict[str, float]  # the parts of the loss
    lr: dict[str, float]  # of each group of parameters
    gradient_norm: float
    hyperparameters: dict[str, Any]
    seconds: float  # of training, up to the end of this step; evaluations do not count
    events: list[str] = field(default_factory=list)  # what changed before the step: blocks, failures
    evaluation: dict[str, float | None] | None = None  # None for a metric that is not finite


def steps_from_state(state: Any) -> list[Step]:
    """Steps from the dicts of their fields; ValueError unless they are those of steps 1, 2, 3 and so on."""
    if not isinstance(state, list):
        raise ValueError("the steps are not a list")
    return [_checked_step(fields, number) for number, fields in enumerate(state, start=1)]


def _checked_step(fields: Any, number: int) -> Step:
    try:
        step = Step(**fields)
    except TypeError as error:
        raise ValueError(f"step {number} is not whole") from error
    numbers = (step.loss, step.gradient_norm, step.seconds)
    evaluation = {} if step.evaluation is None else step.evaluation
    right = (
        type(step.number) is int
        and all(map(_is_number, numbers))
        and all(_is_dict_of(values, _is_number) for values in (step.terms, step.lr))
        and _is_dict_of(step.hyperparameters, _is_numbers)
        and isinstance(step.events, list)
        and all(isinstance(event, str) for event in step.events)
        and _is_dict_of(evaluation, lambda value: value is None or _is_number(value))
    )
    if not right:
        raise ValueError(f"step {number} is not one that cagp writes")
    if step.number != number:
        raise ValueError(f"step {step.number} is where step {number} should be; two fits may have written to it")
    return step


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_numbers(value: Any) -> bool:
    """Whether a value is a number, or nested lists of them."""
    return all(map(_is_numbers, value)) if isinstance(value, list) else _is_number(value)


def _is_dict_of(values: Any, is_one: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(name, str) and is_one(value) for name, value in values.items())


class History:
    """The steps so far; with a path, every step is also appended to a file of JSON lines."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.steps: list[Step] = []
        self._sizes: list[int] = []  # bytes of each line

    def append(self, step: Step) -> None:
        """Add a step, in memory and in the file."""
        self.steps.append(step)
        if self.path is not None:
            line = _line(step)
            self._sizes.append(len(line))
            append_durably(self.path, line, sync=False)

    def sync(self) -> None:
        """Put the file with all steps onto the disk: a checkpoint that counts on them can follow."""
        if self.path is None:
            return
        self._sizes += [len(_line(step)) for step in self.steps[len(self._sizes) :]]
        size, expected = self.path.stat().st_size, sum(self._sizes)
        if size > expected:
            raise ValueError(f"{self.path} has more than this fit wrote: another fit writes to it, too; stop one.")
        if size < expected:  # Ctrl-C came before the last line
            self._write()
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
            raise ValueError(
                f"{self.path} cannot be read: {error}; delete its folder to start from scratch."
            ) from error
        self._write()

    def clear(self) -> None:
        """Start a new file."""
        if self.path is not None:
            self.steps = []
            self._write()

    def _write(self) -> None:
        """Write the file again, with the steps so far and nothing else."""
        assert self.path is not None
        lines = [_line(step) for step in self.steps]
        self._sizes = [len(line) for line in lines]
        write_atomically(self.path, b"".join(lines))


def _line(step: Step) -> bytes:
    return json.dumps(asdict(step)).encode() + b"\n"
