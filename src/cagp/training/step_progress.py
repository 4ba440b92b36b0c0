"""The steps of a fit as they are taken."""

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

    def update(self, step: Step) -> None:
        """Show one more step."""
        rate = f"{step.number / max(step.seconds, 1e-9):.2f}"
        if self.bar is not None:
            self.draw(completed=step.number, loss=f"{step.loss:.4f}", rate=rate)
        elif step.number == self.num_steps or step.number % math.ceil(self.num_steps / LINES) == 0:
            self.say(f"{self.label}: {step.number}/{self.num_steps} steps, loss {step.loss:.4f}, {rate} steps/s")
