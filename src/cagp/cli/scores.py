"""How good a model's predictions are, on rows that come in pieces: as a record and as a table in words."""

import argparse
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import pandas as pd
import torch

from cagp.class_metrics import class_scores
from cagp.cli.tables import Model, as_target, inputs_of, noise_column, targets_of
from cagp.estimators import CaGPClassifier, EncodedTable, GPRegressor
from cagp.likelihood_registry import likelihoods_of
from cagp.metrics import METRICS, Metric, ScoreSum
from cagp.quantities import number

UNITS = {"nats": "; nats per row", "target": "; target's unit", "share": "", "none": ""}


@final
class TargetTally:
    """The metrics of a model's targets, and of a constant prediction: mean and spread of the training targets."""

    def __init__(self, model: GPRegressor):
        self._model = model
        self._sums = {name: {"model": ScoreSum(), "constant": ScoreSum()} for name in model.target_names_}

    def add(self, y: np.ndarray, inputs: EncodedTable, sample_noise: np.ndarray | None = None) -> None:
        """Predict rows and count them for the targets that they have; y is (n, q), NaN where it is missing."""
        if len(y) == 0:
            return
        predicted = self._model.predictive(inputs, sample_noise)
        answers = {"model": predicted, "constant": self._model.fitted.constant_prediction(predicted)}
        for j, sums in enumerate(self._sums.values()):
            known = ~np.isnan(y[:, j])
            for which, total in sums.items():
                rows = answers[which].take(known).row_scores(j, y[known, j])
                total.add_rows(torch.from_numpy(y[known, j]), rows)

    def record(self) -> dict[str, Any]:
        """The metrics by target, of the model and of the constant prediction; None for a target that no row has."""
        return {
            name: {which: total.scores()._asdict() if total.num_rows else None for which, total in sums.items()}
            for name, sums in self._sums.items()
        }

    def words(self) -> str:
        """A table of the metrics, with how to read each one."""
        parts, several = [], len(self._sums) > 1
        for name, scores in self.record().items():
            lines = [f"  {name if several else '':<16}{'model':>12}{'constant':>12}"]
            if scores["model"] is None:
                lines.append("  no test row has this target")
            for field, metric in METRICS.items() if len(lines) == 1 else ():
                one, other = (_shown(metric, scores[which][field]) for which in ("model", "constant"))
                lines.append(f"  {metric.label:<16}{one:>12}{other:>12}   {metric.better}{UNITS[metric.unit]}")
            parts.append("\n".join(lines))
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

    def add(self, y: np.ndarray, inputs: EncodedTable, sample_noise: np.ndarray | None = None) -> None:
        """Predict the probabilities of rows."""
        if len(y):
            self._codes.append(y[:, 0].astype(np.int64))
            self._probabilities.append(self._model.predict_proba(inputs))

    def record(self) -> dict[str, Any]:
        """The metrics of all rows."""
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


def tally_of(model: Model) -> TargetTally | ClassTally:
    """Nothing tested yet."""
    return ClassTally(model) if isinstance(model, CaGPClassifier) else TargetTally(model)


def write_report(
    model: Model, frame: pd.DataFrame, arguments: argparse.Namespace, shared_groups: Mapping[str, float] | None = None
) -> None:
    """Write the page of --report on rows with known targets; ``shared_groups`` as for ``cagp.report.write_report``."""
    from cagp import report  # it draws

    X = model.encoder_.typed(inputs_of(model, frame, arguments))
    y = targets_of(model, frame, arguments.table)
    if isinstance(model, CaGPClassifier):
        labels = pd.Series(model.classes_[y[:, 0].astype(np.int64)], name=model.target_name_)
        report.write_class_report(model, X, labels, arguments.report)
        return
    known = None if arguments.noise is None else noise_column(frame, arguments.noise)
    targets = as_target(pd.DataFrame(y, columns=list(model.target_names_)))
    report.write_report(model, X, targets, arguments.report, sample_noise=known, shared_groups=shared_groups)


def _shown(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f} %" if metric.unit == "share" else number(value)
