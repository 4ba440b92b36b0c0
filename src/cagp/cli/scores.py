"""How good a model's predictions are, on rows that come in pieces: as a record and as a table in words."""

from typing import Any

import numpy as np
import torch

from cagp.estimators import GPRegressor
from cagp.likelihood_registry import likelihoods_of
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
        """Predict rows and count them for the targets that they have; y is (n, q), NaN where it is missing."""
        if len(y) == 0:
            return
        found = self._model.predictive(inputs, sample_noise)
        constant = self._model.fitted.constant_prediction(len(y), found)
        for j in range(y.shape[1]):
            known = ~np.isnan(y[:, j])
            values = torch.from_numpy(y[known, j])
            self.model[j].add_rows(values, found.take(known).row_scores(j, y[known, j]))
            self.constant[j].add_rows(values, constant.take(known).row_scores(j, y[known, j]))

    def record(self) -> dict[str, Any]:
        """The metrics by target, of the model and of the constant prediction."""
        return {
            name: {"model": _record(model), "constant": _record(constant)}
            for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True)
        }

    def words(self) -> str:
        """A table of the metrics, with how to read each one."""
        lines = []
        for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True):
            if lines:
                lines.append("")
            lines.append(f"  {name if len(self.model) > 1 else '':<16}{'model':>12}{'constant':>12}")
            if model.num_rows == 0 and len(self.model) > 1:
                lines.append("  no test row has this target")
                continue
            for field, metric in METRICS.items():
                values = [_shown(metric, getattr(tally.scores(), field)) for tally in (model, constant)]
                lines.append(
                    f"  {metric.label:<16}{values[0]:>12}{values[1]:>12}   {metric.better}{UNITS[metric.unit]}"
                )
        lines.append(f"  constant: always predicts {self._model.fitted.constant_words} of the training rows")
        if self._model.likelihood in likelihoods_of("counts"):
            lines.append("  intervals of counts hold at least their share, since they end at integers")
        logs = [n for n, t in zip(self._model.target_names_, self._model.target_transforms_, strict=True) if t == "log"]
        if logs:
            lines.append(f"  {', '.join(logs)}: fitted on a log scale, and so is the constant prediction")
        return "\n".join(lines)


def _record(tally: ScoreSum) -> dict[str, float] | None:
    return tally.scores()._asdict() if tally.num_rows else None


def _shown(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.unit == "share" else number(value)
