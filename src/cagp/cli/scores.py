"""How good predictions are, added up piece by piece, and said in words."""

import math
from typing import Any

import numpy as np
import torch

from cagp import metrics
from cagp.quantities import number
from cagp.report.evidence import Scores

MEANINGS = {
    "nll": ("NLL", "lower is better; nats per row"),
    "rmse": ("RMSE", "lower is better; in the unit of the target"),
    "r2": ("R2", "higher is better, 1 is perfect: the share of the variance that is explained"),
    "crps": ("CRPS", "lower is better; in the unit of the target"),
    "coverage": ("95 % coverage", "closer to 95 % is better: the share of targets inside their 95 % intervals"),
    "width": ("95 % width", "narrower is better where the coverage is right; in the unit of the target"),
}


class Tally:
    """The metrics of one target over rows that come in pieces. Memory O(1)."""

    def __init__(self):
        self.num_rows = 0
        self._sums = {"nll": 0.0, "squares": 0.0, "crps": 0.0, "coverage": 0.0, "width": 0.0}
        self._mean, self._spread = 0.0, 0.0  # of the targets: mean, and sum of squared distances from it

    def add(self, y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
        """Count more rows."""
        n = len(y)
        if n == 0:
            return
        targets, centre, variance = (
            torch.from_numpy(np.array(part, dtype=np.float64)) for part in (y, mean, np.square(std))
        )
        found = {
            "nll": metrics.nll(targets, centre, variance),
            "squares": metrics.rmse(targets, centre) ** 2,
            "crps": metrics.crps(targets, centre, variance),
            "coverage": metrics.coverage(targets, centre, variance),
            "width": metrics.interval_width(variance),
        }
        for name, value in found.items():
            self._sums[name] += n * value
        # The spread of two pieces together: their own, and that of their means.
        distance, total = float(targets.mean()) - self._mean, self.num_rows + n
        own = float((targets - targets.mean()).square().sum())
        self._spread += own + distance**2 * self.num_rows * n / total
        self._mean += distance * n / total
        self.num_rows = total

    def scores(self) -> Scores:
        """The metrics of all rows so far."""
        if self.num_rows == 0:
            raise ValueError("there are no rows with a known target to test on.")
        mean = {name: value / self.num_rows for name, value in self._sums.items()}
        r2 = 1 - self._sums["squares"] / self._spread if self._spread > 0 else math.nan
        return Scores(mean["nll"], math.sqrt(mean["squares"]), r2, mean["crps"], mean["coverage"], mean["width"])


class Tallies:
    """The metrics of a model's targets, and of one prediction for all rows: the training targets' mean and spread."""

    def __init__(self, model: Any):
        self._model = model
        self.model = [Tally() for _ in model.target_names_]
        self.constant = [Tally() for _ in model.target_names_]

    def add(self, y: np.ndarray, inputs: Any) -> None:
        """Predict rows, and count them; y is (n, q)."""
        if len(y) == 0:
            return
        mean, std = (part.reshape(y.shape) for part in self._model.predict(inputs, return_std=True))
        centre, spread = self._model.scaler_.target_mean, self._model.scaler_.target_std
        for j in range(y.shape[1]):
            self.model[j].add(y[:, j], mean[:, j], std[:, j])
            ones = np.ones(len(y))
            self.constant[j].add(y[:, j], float(centre[j]) * ones, float(spread[j]) * ones)

    def record(self) -> dict[str, Any]:
        """The metrics for machines: by target, of the model and of the constant prediction."""
        return {
            name: {"model": model.scores()._asdict(), "constant": constant.scores()._asdict()}
            for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True)
        }

    def words(self) -> str:
        """A table with a line for each metric, and what each means."""
        lines = []
        for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True):
            if lines:
                lines.append("")
            lines.append(f"  {name if len(self.model) > 1 else '':<16}{'model':>12}{'constant':>12}")
            for field, (label, meaning) in MEANINGS.items():
                values = [_shown(field, getattr(tally.scores(), field)) for tally in (model, constant)]
                lines.append(f"  {label:<16}{values[0]:>12}{values[1]:>12}   {meaning}")
        lines.append("  (constant: one prediction for all rows, the mean and standard deviation of the training rows)")
        return "\n".join(lines)


def _shown(field: str, value: float) -> str:
    return f"{100 * value:.1f} %" if field == "coverage" else number(value)
