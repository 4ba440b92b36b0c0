"""What happened at each step, in memory and as lines of JSON on disk."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cagp.storage import write_atomically


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


class History:
    """The steps so far; with a path, every step is also appended to a file of JSON lines."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.steps: list[Step] = []

    def append(self, step: Step) -> None:
        """Add a step, in memory and on disk."""
        self.steps.append(step)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(step)) + "\n")

    def load(self, num_steps: int) -> None:
        """Read the first ``num_steps`` steps back, and drop later ones from the file: they will be taken again."""
        assert self.path is not None
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()[:num_steps]
            self.steps = [Step(**json.loads(line)) for line in lines]
            if len(self.steps) != num_steps:
                raise ValueError(f"it has {len(self.steps)} steps, its checkpoint was written after {num_steps}")
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"{self.path} cannot be read: {error}; delete its folder to start from scratch."
            ) from error
        write_atomically(self.path, "".join(line + "\n" for line in lines).encode())

    def clear(self) -> None:
        """Start a new file."""
        if self.path is not None:
            write_atomically(self.path, b"")
