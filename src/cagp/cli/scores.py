"""How good a model's predictions are, on rows that come in pieces: as a record and as a table in words."""

from typing import Any, final

import numpy as np
import torch

from cagp.class_metrics import class_scores
from cagp.cli.tables import Model
from cagp.estimators import CaGPClassifier, GPRegressor
from cagp.likelihood_registry import likelihoods_of
from cagp.metrics import METRICS, Metric, ScoreSum
from cagp.quantities import number

UNITS = {"nats": "; nats per row", "target": "; target's unit", "share": "", "none": ""}


@final
class TargetTally:
    """The metrics of a model's targets, and of a constant prediction: mean and spread of the training targets."""

    def __init__(self, model: GPRegressor):
        self._model = model
        self.model = [ScoreSum() for _ in model.target_names_]
        self.constant = [ScoreSum() for _ in model.target_names_]

    def add(self, y: np.ndarray, inputs: Any, sample_noise: np.ndarray | None = None) -> None:
        """Predict rows and count them for the targets that they have; y is (n, q), NaN where it is missing."""
        if len(y) == 0:
            return
        predicted = self._model.predictive(inputs, sample_noise)
        constant = self._model.fitted.constant_prediction(len(y), predicted)
        for j in range(y.shape[1]):
            known = ~np.isnan(y[:, j])
            values = torch.from_numpy(y[known, j])
            for tally, distribution in ((self.model[j], predicted), (self.constant[j], constant)):
                tally.add_rows(values, distribution.take(known).row_scores(j, y[known, j]))

    def record(self) -> dict[str, Any]:
        """The metrics by target, of the model and of the constant prediction."""
        return {
            name: {
                which: tally.scores()._asdict() if tally.num_rows else None
                for which, tally in (("model", model), ("constant", constant))
            }
            for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True)
        }

    def words(self) -> str:
        """A table of the metrics, with how to read each one."""
        parts, several = [], len(self.model) > 1
        for name, model, constant in zip(self._model.target_names_, self.model, self.constant, strict=True):
            lines = [f"  {name if several else '':<16}{'model':>12}{'constant':>12}"]
            for field, metric in METRICS.items() if model.num_rows or not several else []:
                values = [_shown(metric, getattr(tally.scores(), field)) for tally in (model, constant)]
                lines.append(
                    f"  {metric.label:<16}{values[0]:>12}{values[1]:>12}   {metric.better}{UNITS[metric.unit]}"
                )
            parts.append("\n".join(lines if len(lines) > 1 else [*lines, "  no test row has this target"]))
        notes = [f"  constant: always predicts {self._model.fitted.constant_words} of the training rows"]
        if self._model.likelihood in likelihoods_of("counts"):
            notes.append("  intervals of counts hold at least their share, since they end at integers")
        logs = [n for n, t in zip(self._model.target_names_, self._model.target_transforms_, strict=True) if t == "log"]
        if logs:
            notes.append(f"  {', '.join(logs)}: fitted on a log scale, and so is the constant prediction")
        return "\n".join(["\n\n".join(parts), *notes])


@final
class ClassTally:
    """The metrics of a classifier; y are the numbers of classes."""

    def __init__(self, model: CaGPClassifier):
        self._model, self._codes, self._probabilities = model, [], []

    def add(self, y: np.ndarray, inputs: Any, sample_noise: np.ndarray | None = None) -> None:
        """Predict the probabilities of rows."""
        if len(y):
            self._codes.append(y[:, 0].astype(np.int64))
            self._probabilities.append(self._model.predict_proba(inputs))

    def record(self) -> dict[str, Any]:
        """The metrics of all rows."""
        if not self._codes:
            raise ValueError("there is no row with a label.")
        return class_scores(np.concatenate(self._codes), np.concatenate(self._probabilities))._asdict()

    def words(self) -> str:
        """A line for each metric."""
        metrics = self.record()
        return (
            f"  log loss           {metrics['log_loss']:.4f} nats per row\n"
            f"  wrong              {metrics['error']:.2%}\n"
            f"  Brier score        {metrics['brier']:.4f}\n"
            f"  calibration error  {metrics['calibration_error']:.4f}"
        )


Tally = TargetTally | ClassTally


def tally_of(model: Model) -> Tally:
    """Nothing tested yet."""
    return ClassTally(model) if isinstance(model, CaGPClassifier) else TargetTally(model)


def _shown(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.unit == "share" else number(value)
