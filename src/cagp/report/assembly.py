"""Writes the report: what is computed, and the order of the sections."""

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cagp.estimators import GPRegressor
from cagp.plots import shortened
from cagp.report import accuracy, leakage, model_sections
from cagp.report.effect_figures import effect_figures_of
from cagp.report.error_bars import calibration_figures
from cagp.report.html import section, text, whole_page
from cagp.report.input_effects import Effect, Surface, input_effects_of
from cagp.report.rows import held_out_rows, predictions
from cagp.report.svg import Drawing, listed
from cagp.report.targets import Target, targets_of
from cagp.report.uncertainty import VarianceParts, variance_figures, variance_parts_of
from cagp.storage import write_atomically


def write_report(
    model: GPRegressor,
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
        model: a fitted regressor of ``cagp``.
        X_test: inputs that it was not trained on; a warning says if they are. Rows with a missing target are left out,
            and the report says so.
        path: of the file, e.g. "report.html".
        title: the heading; by default it names the targets.
        max_rows: the largest number of rows that are tested; of more, this many are drawn at random. None for all.
        sample_noise: known noise variance of the test rows.
        shared_groups: columns that say which rows belong together, each with the share of the test rows whose value a
            training row has, too (``cagp.data.shared_groups``); there is a warning if it is large.

    Time: predictions of these rows and of about 5,000 more, and the parts of the variance of 300.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is the folder {path}, expected a file, e.g. {path / 'report.html'}.")
    rows = held_out_rows(model, X_test, y_test, max_rows, sample_noise)
    targets = targets_of(model, rows, predictions(model, rows.X, rows.noise))
    overlap = leakage.overlap_of(model, rows)
    own = _TargetSections(model, variance_parts_of(model, rows), input_effects_of(model, rows))
    draw = own.draw

    data = section(2, "data", "Data and model", *model_sections.data_and_model(model, rows, targets, overlap))
    learning = section(2, "learning", "Learning curve", *model_sections.learning_curves(draw, model))
    relevance = section(2, "relevance", "Which inputs matter", *model_sections.relevance_figure(draw, model, rows))
    fit = section(2, "fit", "The fit", *model_sections.fit_and_settings(model))
    if len(targets) > 1:
        shown = targets[: accuracy.MAX_TARGETS]
        overview = section(2, "targets", "All targets", accuracy.overview(targets))
        main = [data, overview, learning, relevance, *map(own.together, shown), fit]
        links = {"data": "Data", "targets": "All targets", "learning": "Learning", "relevance": "Inputs"}
        links |= {f"target-{t.number + 1}": shortened(t.name, 24) for t in shown}
    else:
        metrics, errors, calibration, uncertainty, effects = own.apart(targets[0], 2, "")
        main = [data, metrics, learning, errors, calibration, uncertainty, relevance, effects, fit]
        links = {"data": "Data", "metrics": "Metrics", "learning": "Learning", "errors": "Errors"}
        links |= {"calibration": "Calibration", "uncertainty": "Uncertainty", "relevance": "Inputs"}
        links |= {"effects": "Effects"}
    links["fit"] = "Fit"
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
    """The sections on one target: metrics, errors, calibration, uncertainty, effects."""

    def __init__(self, model: GPRegressor, parts: VarianceParts, learned: list[Effect] | Surface):
        self.draw, self._parts, self._learned = Drawing(), parts, learned
        self._guarantee = model.guarantee_

    def apart(self, target: Target, level: int, prefix: str) -> list[str]:
        """One by one, with headings of this level."""
        draw = self.draw
        sections = {
            "metrics": ("How good the predictions are", [accuracy.metrics_table(target)]),
            "errors": ("Actual against predicted values", accuracy.errors(draw, target)),
            "calibration": ("Are the error bars right?", calibration_figures(draw, target)),
            "uncertainty": (
                "Where the uncertainty comes from",
                variance_figures(draw, target, self._parts, self._guarantee),
            ),
            "effects": ("What the inputs do", effect_figures_of(draw, target, self._learned)),
        }
        return [section(level, f"{prefix}{name}", title, *content) for name, (title, content) in sections.items()]

    def together(self, target: Target) -> str:
        """As one section under the name of the target."""
        prefix = f"target-{target.number + 1}"
        return section(2, prefix, text(target.name), *self.apart(target, 3, f"{prefix}-"))
