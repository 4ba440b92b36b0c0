"""The progress of a fit."""

import math

from rich.progress import MofNCompleteColumn, TextColumn

from cagp.progress import LINES, Bar
from cagp.training.history import Step


class StepProgress(Bar):
    """Shows steps with their loss."""

    def __init__(self, num_steps: int, enabled: bool, label: str = "fit"):
        words = (TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[rate]} steps/s"))
        super().__init__(label, enabled, num_steps, (MofNCompleteColumn(), *words), {"loss": "", "rate": ""})
        self.num_steps = num_steps
        self._number, self._loss, self._rate = 0, "", ""

    def update(self, step: Step) -> None:
        """Show the step that was taken."""
        self._number, self._loss = step.number, f"{step.loss:.4f}"
        self._rate = f"{step.number / max(step.seconds, 1e-9):.2f}"
        if self.bar is not None:
            self.draw(completed=step.number, loss=self._loss, rate=self._rate)
        elif step.number == self.num_steps or step.number % math.ceil(self.num_steps / LINES) == 0:
            self.print_line()

    def line(self) -> str:
        steps = f"{self._number}/{self.num_steps} steps"
        return f"{self.label}: {steps}, loss {self._loss}, {self._rate} steps/s"
