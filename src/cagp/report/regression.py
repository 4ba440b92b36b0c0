"""The page on a regressor: how well it predicts test rows, and why."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from cagp import plots
from cagp.estimators.overlap import MANY_IN_GROUPS, Overlap, group_words, overlap_with
from cagp.metrics import METRICS
from cagp.plots import Z95, shortened
from cagp.report.columns import InputColumn
from cagp.report.effects import Effect, Surface, effects_of
from cagp.report.groups import groups_of
from cagp.report.importance import SHUFFLES, importance_of
from cagp.report.model import inputs_of, model_values
from cagp.report.page import Section, Template, checked_path, counted, fixed, listed, number, share, text, write_page
from cagp.report.places import maps_of, places_of
from cagp.report.residuals import NUM_INPUTS, residuals_of
from cagp.report.subject import Subject, as_matrix, subject_of
from cagp.report.targets import Target, targets_of

UNITS = {"nats": ", in nats per row", "target": ", in the unit of {}", "share": "", "none": ""}

MAX_TARGETS = 12
"""Targets with sections of their own; the others are in the table of all targets."""
FEW_TARGETS = 3
"""With more targets, the sections on each have fewer figures of residuals and fewer maps."""
SPLIT_ROWS = 300
"""Rows whose variance is split into parts: that may cost far more than a prediction."""
WORST_ROWS = 5
DOTS = 300  # rows that are drawn one by one beside means of residuals


def write_report(
    model: Any,
    X_test: Any,
    y_test: Any,
    path: str | Path,
    *,
    title: str | None = None,
    max_rows: int | None = 20_000,
    sample_noise: Any = None,
    shared_groups: Mapping[str, float] | None = None,
) -> Path:
    """Write one HTML file on how well a fitted model predicts test rows, and why; return its path.

    The file needs no network and no scripts, follows the reader's light or dark scheme, can be printed, and is written
    completely or not at all. Its folder is created if it does not exist.

    Args:
        model: a fitted regressor of ``cagp``, a scikit-learn ``Pipeline`` that ends in one, or a search over one
            (``GridSearchCV``, ``RandomizedSearchCV``). With a pipeline, columns are those of the table it takes.
        X_test: inputs that it was not trained on; a warning says if they are. Rows with a missing target are left out,
            and the report says so.
        path: of the file, e.g. "report.html".
        title: the heading; by default it names the targets.
        max_rows: the largest number of rows that are tested; of more, this many are drawn at random. None for all.
        sample_noise: known noise variance of the test rows.
        shared_groups: columns that say which rows belong together, each with the share of the test rows whose value a
            training row has, too (``cagp.data.shared_groups``); there is a warning if it is large.

    Time: predictions of these rows and of at most about 50,000 more for the importance and the effects of columns
    (whatever the table's size), the parts of the variance of 300 rows, and some seconds for the figures.
    """
    path = checked_path(path)
    subject = subject_of(model, X_test, y_test, max_rows, sample_noise)
    targets, template = targets_of(subject), Template()
    overlap = overlap_with(subject.model.fitted, subject.encoded_rows, subject.y)
    shown = targets[:MAX_TARGETS]
    ranges = [(target.name, float(target.y.min()), float(target.y.max())) for target in shown]
    goal, trees = counted(len(targets), "target"), trees_rows(subject, targets)
    values = model_values(subject, tested_rows(overlap), goal, ranges=ranges, trees=trees)
    of_target = _TargetValues(subject)
    if len(targets) == 1:
        sections = template.sections(values | of_target(targets[0]))
    else:
        data, *last = template.sections(values)
        overview = template("targets", targets=targets, num_shown=MAX_TARGETS)
        sections = [data, Section("targets", "All targets", "All targets", overview)]
        for target in shown:
            name = f"target-{target.number + 1}"
            parts = tuple(template.sections(of_target(target), f"{name}-"))
            sections.append(Section(name, shortened(target.name, 24), text(target.name), parts=parts))
        sections += last
    groups = group_warnings(shared_groups or {})
    header = template("warnings", overlap=overlap, groups=groups) + template("top", targets=targets)
    heading = f"Predicting {listed([target.name for target in targets])}" if title is None else title
    return write_page(path, heading, header, sections)


class _TargetValues:
    """The values of the sections on one target, from what is computed once for all targets."""

    def __init__(self, subject: Subject):
        self._subject, self._is_brief = subject, subject.y.shape[1] > FEW_TARGETS
        self._places = places_of(subject.columns)
        self._importance = importance_of(subject)
        self._effects = effects_of(subject, self._importance.ranked)
        inputs, rows = subject.encoded_rows, subject.sample(SPLIT_ROWS)
        noise = subject.take_noise(rows)
        self._parts = subject.model.predict(inputs.take(rows), return_components=True, sample_noise=noise)[-1]

    def __call__(self, target: Target) -> dict[str, dict[str, Any]]:
        subject, importance = self._subject, self._importance.for_target(target.number)
        ranked, num_inputs = importance.ranked, 2 if self._is_brief else NUM_INPUTS
        effects, of_effects = effects_on(target, self._effects, subject)
        values = {
            "metrics": metrics_of(target),
            "errors": {},
            "calibration": {},
            "groups": {"groups": groups_of(target, ranked)},
            "residuals": {"residuals": residuals_of(target, ranked, num_inputs), "dots": subject.sample(DOTS)},
            "worst": {"tables": worst_of(subject, target, ranked)},
            "importance": {"importance": importance, "weak": importance.weak(), "shuffles": SHUFFLES},
            effects: of_effects,
            "uncertainty": {**uncertainty_of(self._parts, target.number), "guarantee": subject.model.guarantee_},
        }
        if self._places is not None:
            values["map"] = {"shown": maps_of(target, self._places, self._is_brief)}
        return {macro: {"target": target, **content} for macro, content in values.items()}


# ---- the test rows ----


def tested_rows(overlap: Overlap) -> str:
    """Which rows the model is tested on, after "is tested on"."""
    if overlap.num_same_inputs is None:
        return (
            f"{counted(overlap.num_rows, 'row')}. It keeps no training rows, so this page cannot tell whether these "
            "are other rows."
        )
    if overlap.is_training:
        return f"{counted(overlap.num_rows, 'row')} that were used in training."
    rows = f"{counted(overlap.num_rows, 'other row')}."
    return rows if overlap.is_large or not overlap.num_same_inputs else f"{rows} {overlap.words()}"


def group_warnings(shared_groups: Mapping[str, float]) -> list[Markup]:
    """Warnings of groups that have both training rows and test rows."""
    words = "{}: split by this column."
    many = {name: part for name, part in shared_groups.items() if part >= MANY_IN_GROUPS}
    return [Markup(words).format(Markup(group_words(text(name, 60), part))) for name, part in many.items()]


def trees_rows(subject: Subject, targets: Sequence[Target]) -> list[tuple[Any, ...]]:
    """The errors of the training mean, of the trees alone and of the model; nothing if the prior mean is zero."""
    if subject.model.trees_ is None:
        return []
    alone = as_matrix(subject.model.prior_mean(subject.encoded_rows), subject.num_rows)
    rmse = np.sqrt(np.square(subject.y - alone).mean(0))
    return [
        (text(target.name, 60), *map(number, (target.baseline.rmse, rmse[target.number], target.scores.rmse)))
        for target in targets
    ]


# ---- one target ----


def metrics_of(target: Target) -> dict[str, Any]:
    """Every metric beside that of the baseline, with how to read it."""
    low, high = map(share, target.expected_coverage)
    remarks = {
        "coverage": f" If the error bars are right, it lies between {low} and {high}, and those of 18 other levels in "
        f"their ranges, 19 times in 20. Here: {target.verdict.words}."
    }
    rows, notes = [], []
    for field, metric in METRICS.items():
        shown = {"share": share, "none": lambda value: fixed(value, 4)}.get(metric.unit, number)
        rows.append((metric.label, *(shown(getattr(scores, field)) for scores in (target.scores, target.baseline))))
        unit = Markup(UNITS[metric.unit]).format(text(target.name, 40))
        name = metric.name[0].upper() + metric.name[1:]
        note = Markup("{}{}; {}. {}{}")
        notes.append(note.format(name, unit, metric.better, metric.meaning, remarks.get(field, "")))
    return {"rows": rows, "notes": notes}


def worst_of(subject: Subject, target: Target, columns: Sequence[InputColumn]) -> list[tuple[str, list, list]]:
    """Tables of the rows with the largest errors, in standard deviations and in the unit of the target.

    Args:
        columns: the columns that matter most, first; their values are shown.
    """
    by_std, by_unit = (np.argsort(-np.abs(errors), kind="stable")[:WORST_ROWS] for errors in (target.z, target.error))
    tables = {"Largest errors in standard deviations.": by_std, "Largest errors in the unit of the target.": by_unit}
    if set(by_std) == set(by_unit):
        tables = {"The rows with the largest errors of both kinds.": by_unit}
    return [(caption, *_worst_table(subject, target, columns, rows.tolist())) for caption, rows in tables.items()]


def _worst_table(
    subject: Subject, target: Target, columns: Sequence[InputColumn], chosen: list[int]
) -> tuple[list[tuple[Any, ...]], list[Markup]]:
    rows, notes = [], []
    for row in chosen:
        values = number(float(target.y[row])), number(float(target.mean[row])), fixed(float(target.z[row]), 1, "+")
        rows.append((text(subject.label(row), 30), *values))
        low, high = (number(float(end[row])) for end in target.interval)
        notes.append(Markup("; ").join(filter(None, (f"95 % interval {low} to {high}", inputs_of(columns, row)))))
    return rows, notes


def effects_on(target: Target, learned: list[Effect] | Surface, subject: Subject) -> tuple[str, dict[str, Any]]:
    """The macro for effects of several columns, for the fit in one column or for maps over two, and its values."""
    if isinstance(learned, Surface):
        return "surface", {"surface": learned.for_target(target.number), "dots": subject.sample(600)}
    learned = [effect.for_target(target.number) for effect in learned]
    if learned and learned[0].is_alone:
        return "fit_in_one_input", {"effect": learned[0], "dots": subject.sample(2000)}
    ends = [effect.mean + sign * Z95 * effect.std for effect in learned for sign in (-1, 1)]
    low, high = (float(np.concatenate(ends).min()), float(np.concatenate(ends).max())) if ends else (0.0, 1.0)
    margin = 0.06 * (high - low) or 0.5
    return "effects", {"effects": learned, "limits": (low - margin, high + margin)}


def uncertainty_of(parts: Mapping[str, Any], j: int) -> dict[str, Any]:
    """The parts of the variance of some test rows, as figures and tables take them."""
    names = ("noise", "latent", "computational")
    noise, latent, computational = (as_matrix(parts[name], len(parts["noise"]))[:, j] for name in names)
    kind = parts["computational_kind"]
    unknown = kind == "unknown" or not np.isfinite(computational).all()
    stacked = plots.variance_parts(noise, latent, None if unknown else computational)
    means = np.array([part.variance.clip(0).mean() for part in stacked])
    rows = [
        (part.name.capitalize(), number(float(np.sqrt(mean))), plots.percent(float(mean / means.sum())))
        for part, mean in zip(stacked, means, strict=True)
    ]
    return {"parts": stacked, "kind": kind, "rows": rows}
