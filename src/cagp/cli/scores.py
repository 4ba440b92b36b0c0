"""How good a model's predictions are, on rows that come in pieces: as a record and as a table in words."""

from typing import Any

import numpy as np
import torch

from cagp.estimators import GPRegressor
from cagp.metrics import METRICS, Metric, ScoreSum
from cagp.quantities import number

UNITS = {"nats": "; nats per row", "target": "; target's unit", "share": "", "none": ""}


class Tallies:
    """The metrics of a model's targets, and of a constant prediction: mean and spread of the training targets."""

    def __init__(self, model: GPRegressor):
        self._model = model
        self.model = [ScoreSum() for _ in model.target_names_]
        self.constant = [ScoreSum() for _ in model.target_names_]

    def add(self, y: np.ndarray, inputs: Any, sample_noise: np.ndarray | None = None) -> None:
        """Predict rows and count them; y is (n, q)."""
        if len(y) == 0:
            return
        found = self._model.predict(inputs, return_std=True, sample_noise=sample_noise)
        mean, std = (part.reshape(y.shape) for part in found)
        centre, spread = self._model.scaler_.target_mean, self._model.scaler_.target_std
        for j in range(y.shape[1]):
            ones = np.ones(len(y))
            self.model[j].add(*_tensors(y[:, j], mean[:, j], std[:, j]))
            self.constant[j].add(*_tensors(y[:, j], float(centre[j]) * ones, float(spread[j]) * ones))

    def record(self) -> dict[str, Any]:
        """The metrics by target, of the model and of the constant prediction."""
        return {
            name: {"model": model.scores()._asdict(), "constant": constant.scores()._asdict()}
            for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True)
        }

    def words(self) -> str:
        """A table of the metrics, with how to read each one."""
        lines = []
        for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True):
            if lines:
                lines.append("")
            lines.append(f"  {name if len(self.model) > 1 else '':<16}{'model':>12}{'constant':>12}")
            for field, metric in METRICS.items():
                values = [_shown(metric, getattr(tally.scores(), field)) for tally in (model, constant)]
                lines.append(
                    f"  {metric.label:<16}{values[0]:>12}{values[1]:>12}   {metric.better}{UNITS[metric.unit]}"
                )
        lines.append("  constant: always predicts the mean and standard deviation of the training rows")
        return "\n".join(lines)


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    """Targets, means and variances from targets, means and standard deviations."""
    y, mean, std = (torch.from_numpy(np.array(part, dtype=np.float64)) for part in arrays)
    return [y, mean, std.square()]


def _shown(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.unit == "share" else number(value)
