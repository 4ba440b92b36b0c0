"""Sections on the choice of the model: what "auto" tried, and what trees in the mean and the process each explain."""

import numpy as np

from cagp.report.html import number, table, text
from cagp.report.rows import HeldOutRows, as_matrix
from cagp.report.subject import Model
from cagp.report.targets import Target


def tried_table(model: Model) -> list[str]:
    """What "auto" tried, what each model gained and what it cost; nothing where nothing was compared."""
    if len(model.choices_) < 2:
        return []
    owners = [trial.get("target") for trial in model.choices_]  # older files do not say
    alone, cells = len(set(owners)) > 1, []
    for owner, trial in zip(owners, model.choices_, strict=True):
        named = [text(str(owner), 60)] if alone else []
        if "nll" not in trial:
            cells.append([*named, text(trial["model"], 120), "–", "–", "–", "–", text(trial["outcome"], 80)])
            continue
        gain = "–" if trial["gain"] is None else f"{trial['gain']:+.3f} ± {trial['gain_error']:.3f}"
        cells.append(
            [
                *named,
                text(trial["model"], 120),
                number(trial["nll"]),
                number(trial["crps"]),
                gain.replace("-", "−"),
                number(trial["seconds"]),
                text(trial["outcome"], 80),
            ]
        )
    caption = (
        "In the order of trial, on training rows that were held out. NLL and CRPS are in standard deviations of the "
        "target; lower is better. The gain over the best model before, in nats per row with its standard error, is "
        "half in log density and half in CRPS."
    )
    return [
        "<p>These models were compared. A simpler model stays unless another is better by more than chance.</p>",
        table(
            [*(["Target"] if alone else []), "Model", "NLL", "CRPS", "Gain", "Seconds", "Outcome"],
            cells,
            caption,
            kind="dense",
        ),
    ]


def trees_table(model: Model, rows: HeldOutRows, targets: list[Target]) -> list[str]:
    """What the trees explain of the test rows and what the process adds; nothing where the prior mean is zero."""
    if model.trees_ is None:
        return []
    alone = as_matrix(model.prior_mean(rows.X), len(rows.X))
    cells = []
    for target in targets:
        error = float(np.sqrt(np.square(target.y - alone[:, target.number]).mean()))
        cells.append(
            [
                text(target.name, 60),
                number(target.baseline.rmse),
                number(error),
                number(target.scores.rmse),
            ]
        )
    return [
        "<p>The prior mean of this model is boosted trees, fitted out of fold. The Gaussian process learns what they "
        "leave, and gives the error bars.</p>",
        table(
            ["Target", "Training mean", "Trees alone", "Trees and process"],
            cells,
            "Root mean squared error on the test rows, in the unit of the target; lower is better.",
            kind="dense",
        ),
    ]
