"""Sections on how close the predictions are: the top of the page, the table of all targets, metrics and errors."""

from collections.abc import Sequence

import numpy as np

from cagp import plots
from cagp.metrics import LEVEL, METRICS, Metric
from cagp.plots import shortened
from cagp.report.html import count, number, share, side_by_side, table, text, tiles
from cagp.report.svg import Drawing
from cagp.report.targets import Target
from cagp.report.verdicts import expected_coverage, verdict

MAX_TARGETS = 12
"""Targets with sections of their own; the others are in the table of all targets."""

UNITS = {"nats": ", in nats per row", "target": ", in the unit of {}", "share": "", "none": ""}


def summary(targets: Sequence[Target]) -> str:
    """The result in a sentence or two."""
    if len(targets) > 1:
        right = sum(verdict(t).is_right for t in targets)
        return (
            f'<p class="lead">{count(len(targets), "target")} on {count(len(targets[0].y), "test row")}. The error '
            f"bars are as they should be at all levels, up to chance, for {right} of {len(targets)} targets.</p>"
        )
    (target,) = targets
    found, base = target.scores, target.baseline
    if target.counts is not None:
        return (
            f'<p class="lead">On {count(len(target.y), "test row")}, predicted counts of {text(target.name, 60)} have '
            f"a root mean squared error of {number(found.rmse)}; predicting the training mean has {number(base.rmse)}. "
            f"The 95 % intervals, which end at integers, contain {share(found.coverage)} of the actual counts. By "
            "their places in the predicted distributions, which are random within a count, "
            f"{share(float((np.abs(target.normal[0]) <= plots.Z95).mean()))} lie in the middle 95 %: "
            f"{verdict(target).words}.</p>"
        )
    if target.allows_outliers:
        median, quantile = np.quantile(np.abs(target.y - target.mean), [0.5, 0.9])
        return (
            f'<p class="lead">On {count(len(target.y), "test row")}, half of the errors of predicted '
            f"{text(target.name, 60)} are below {number(float(median))}, and 90 % below {number(float(quantile))}. The "
            f"root mean squared error, in which outliers have the greatest weight, is {number(found.rmse)}. The 95 % "
            f"intervals contain {share(found.coverage)} of the actual values: {verdict(target).words}.</p>"
        )
    return (
        f'<p class="lead">On {count(len(target.y), "test row")}, predictions of {text(target.name, 60)} have a root '
        f"mean squared error of {number(found.rmse)}; always predicting the training mean has {number(base.rmse)}. "
        f"The 95 % intervals contain {share(found.coverage)} of the actual values: {verdict(target).words}.</p>"
    )


def key_numbers(targets: Sequence[Target]) -> str:
    """The most important metrics of the only target; nothing if there are several."""
    if len(targets) > 1:
        return ""
    found, base = targets[0].scores, targets[0].baseline
    low, high = expected_coverage(LEVEL, len(targets[0].y))
    return tiles(
        [
            ("RMSE", number(found.rmse), f"baseline {number(base.rmse)}"),
            _second(targets[0]),
            ("95 % coverage", share(found.coverage), f"expected {100 * low:.1f} to {share(high)}"),
            ("Negative log-likelihood", number(found.nll), f"baseline {number(base.nll)}"),
        ]
    )


def _second(target: Target) -> tuple[str, str, str]:
    """The share of the variance explained; where outliers are to be expected, the median error."""
    if target.allows_outliers:
        return "Median absolute error", number(float(np.median(np.abs(target.y - target.mean)))), "half are below"
    return "R²", f"{target.scores.r2:.3f}" if np.isfinite(target.scores.r2) else "–", "1 is perfect"


def overview(targets: Sequence[Target]) -> str:
    """A table of all targets."""
    cells = [
        [
            text(t.name) if t.number >= MAX_TARGETS else f'<a href="#target-{t.number + 1}">{text(t.name)}</a>',
            number(t.scores.rmse),
            f"{t.scores.r2:.3f}" if np.isfinite(t.scores.r2) else "–",
            number(t.scores.nll),
            share(t.scores.coverage),
        ]
        for t in targets
    ]
    caption = "RMSE in the unit of each target, NLL in nats per row: lower is better. R²: higher is better."
    if len(targets) > MAX_TARGETS:
        caption += f" The first {MAX_TARGETS} targets have their own sections."
    return table(["Target", "RMSE", "R²", "NLL", "95 % coverage"], cells, caption, kind="dense")


def metrics_table(target: Target) -> str:
    """Every metric beside that of the baseline, with how to read it."""
    low, high = expected_coverage(LEVEL, len(target.y))
    remarks = {
        "coverage": f" If the error bars are right, it lies between {share(low)} and {share(high)}, and those of "
        f"18 other levels in their ranges, 19 times in 20. Here: {verdict(target).words}."
    }
    cells, notes = [], []
    for field, metric in METRICS.items():
        values = [_shown(metric, getattr(found, field)) for found in (target.scores, target.baseline)]
        unit = UNITS[metric.unit].format(text(target.name, 40))
        cells.append([metric.label, *values])
        name = metric.name[0].upper() + metric.name[1:]
        notes.append(f"{name}{unit}; {metric.better}. {metric.meaning}{remarks.get(field, '')}")
    caption = f"On {count(len(target.y), 'test row')}. The baseline predicts {target.baseline_words}."
    return table(["Metric", "Model", "Baseline"], cells, caption, notes)


def _shown(metric: Metric, value: float) -> str:
    if metric.unit == "share":
        return share(value)
    if metric.unit == "none" and np.isfinite(value):
        return f"{value:.4f}".replace("-", "−")
    return number(value)


def errors(draw: Drawing, target: Target) -> list[str]:
    """Actual against predicted values, and the sizes of the errors."""
    y, mean, std = target.y, target.mean, target.std
    many = len(y) > 300
    caption = (
        "The darker the colour, the more rows (logarithmic scale). The lines are 95 % intervals, averaged over rows "
        "with similar predictions: about one row in 20 should lie outside."
        if many
        else "Each row with its 95 % interval: about one row in 20 should lie outside."
    )
    alt = f"Actual against predicted values of {target.name}, {len(y)} rows; R squared {target.scores.r2:.3f}."
    error = y - mean
    worst = int(np.abs(error).argmax())
    quantiles = np.quantile(np.abs(error), [0.5, 0.9])
    cells = {
        "Median absolute error": (float(quantiles[0]), "Half of the rows have a smaller error"),
        "90 % quantile of absolute errors": (float(quantiles[1]), "One row in ten has a larger error"),
        "Largest absolute error": (
            float(np.abs(error[worst])),
            f"Predicted {number(float(mean[worst]))}, actual {number(float(y[worst]))}",
        ),
        "Mean error": (float(error.mean()), "Actual minus predicted; near 0 if the predictions are unbiased"),
    }
    picture = draw(
        lambda ax: plots.predicted_against_actual(ax, y, mean, std, shortened(target.name, 22), target.interval),
        alt,
        caption,
        3.2,
    )
    sizes = table(
        ["Error", "Value"],
        [[name, number(value)] for name, (value, _) in cells.items()],
        "In the unit of the target.",
        [note for _, note in cells.values()],
    )
    return ["<p>Correct predictions lie on the dashed diagonal.</p>", side_by_side(picture, sizes)]
