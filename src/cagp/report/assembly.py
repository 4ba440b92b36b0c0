"""Writes the report: what is computed, and the order of the sections."""

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cagp.files import write_atomically
from cagp.plots import shortened
from cagp.report import accuracy, choice_section, leakage, model_sections
from cagp.report.columns import input_columns
from cagp.report.effect_figures import effect_figures_of
from cagp.report.error_bars import calibration_figures
from cagp.report.groups import group_figures
from cagp.report.html import section, text, whole_page
from cagp.report.importance import importance_figures, importance_of
from cagp.report.input_effects import input_effects_of
from cagp.report.map_section import map_figures, places_of
from cagp.report.residuals import NUM_INPUTS, residual_figures
from cagp.report.rows import HeldOutRows, held_out_rows, predictions
from cagp.report.subject import Model, subject_of
from cagp.report.svg import Drawing, listed
from cagp.report.targets import Target, targets_of
from cagp.report.uncertainty import variance_figures, variance_parts_of
from cagp.report.worst_rows import worst_rows

HEADINGS = {
    "metrics": ("Metrics", "How good the predictions are"),
    "errors": ("Errors", "Actual against predicted values"),
    "calibration": ("Calibration", "Are the error bars right?"),
    "groups": ("Groups", "Are they right in every group of rows?"),
    "residuals": ("Residuals", "What is left in the errors"),
    "worst": ("Worst rows", "The worst rows"),
    "map": ("Map", "Where the errors are"),
    "importance": ("Importance", "Which columns matter"),
    "effects": ("Effects", "What the columns do"),
    "uncertainty": ("Uncertainty", "Where the uncertainty comes from"),
}
"""The sections on a target, in their order: what the links call them, and their headings."""

FEW_TARGETS = 3
"""With more targets, the sections on each have fewer figures of residuals and fewer maps."""


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
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is the folder {path}, expected a file, e.g. {path / 'report.html'}.")
    subject = subject_of(model)
    rows = held_out_rows(subject, X_test, y_test, max_rows, sample_noise)
    targets = targets_of(subject, rows, predictions(subject, rows.X, rows.noise))
    overlap = leakage.overlap_of(subject, rows)
    own = _TargetSections(subject, rows)
    draw = own.draw

    data = section(
        2,
        "data",
        "Data and model",
        *model_sections.data_and_model(subject, rows, targets, overlap),
        *choice_section.trees_table(subject, rows, targets),
    )
    learning = section(2, "learning", "Learning curve", *model_sections.learning_curves(draw, subject))
    kernel = [*model_sections.relevance_figure(draw, subject, rows), *model_sections.kernel_table(subject)]
    relevance = section(2, "relevance", "Lengthscales", *kernel)
    fit = section(2, "fit", "The fit", *choice_section.tried_table(subject), *model_sections.fit_and_settings(subject))
    links = {"data": "Data"}
    if len(targets) > 1:
        shown = targets[: accuracy.MAX_TARGETS]
        middle = [section(2, "targets", "All targets", accuracy.overview(targets)), *map(own.together, shown)]
        links |= {"targets": "All targets"} | {f"target-{t.number + 1}": shortened(t.name, 24) for t in shown}
    else:
        middle = own.apart(targets[0], 2, "")
        links |= own.links
    main = [data, *middle, relevance, learning, fit]
    links |= {"relevance": "Lengthscales", "learning": "Learning", "fit": "Fit"}
    heading = f"Predicting {listed([target.name for target in targets])}" if title is None else title
    warning = leakage.warning(overlap, shared_groups or {})
    header = "\n".join(
        [f"<h1>{text(heading, 300)}</h1>", warning, accuracy.summary(targets), accuracy.key_numbers(targets)]
    )
    footer = f"Written by cagp {version('cagp')} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."
    html = whole_page(heading, header, list(links.items()), "\n".join(main), footer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html.encode("utf-8", errors="replace"))
    return path


class _TargetSections:
    """The sections on one target, from what is computed once for all targets."""

    def __init__(self, model: Model, rows: HeldOutRows):
        self.draw, self._model, self._rows = Drawing(), model, rows
        self._is_brief = rows.y.shape[1] > FEW_TARGETS
        columns = input_columns(rows)
        self._places = places_of(columns)
        self._importance = importance_of(model, rows, columns)
        self._learned = input_effects_of(model, rows, [*self._importance.columns, *self._importance.not_measured])
        self._parts = variance_parts_of(model, rows)

    @property
    def links(self) -> dict[str, str]:
        """The sections of the only target and what the top of the page calls them."""
        return {name: words for name, (words, _) in HEADINGS.items() if name != "map" or self._places is not None}

    def apart(self, target: Target, level: int, prefix: str) -> list[str]:
        """One by one, with headings of this level."""
        draw, ranked = self.draw, self._importance.ranked(target.number)
        contents = {
            "metrics": [accuracy.metrics_table(target)],
            "importance": importance_figures(draw, target, self._importance),
            "effects": effect_figures_of(draw, target, self._learned),
            "errors": accuracy.errors(draw, target),
            "residuals": residual_figures(draw, target, ranked, 2 if self._is_brief else NUM_INPUTS),
            "worst": worst_rows(self._rows, target, ranked),
            "calibration": calibration_figures(draw, target),
            "groups": group_figures(draw, target, ranked),
            "uncertainty": variance_figures(draw, target, self._parts, self._model.guarantee_),
        }
        if self._places is not None:
            contents["map"] = map_figures(draw, target, self._places, errors_alone=self._is_brief)
        return [
            section(level, f"{prefix}{name}", title, *contents[name])
            for name, (_, title) in HEADINGS.items()
            if name in contents
        ]

    def together(self, target: Target) -> str:
        """As one section under the name of the target."""
        prefix = f"target-{target.number + 1}"
        return section(2, prefix, text(target.name), *self.apart(target, 3, f"{prefix}-"))
