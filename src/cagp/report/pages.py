"""The pages on regressors and on classifiers: how well they predict test rows, and why."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_curve, roc_auc_score, roc_curve

from cagp import plots
from cagp.class_metrics import ClassScores, class_scores, reliability
from cagp.estimators.classifier import CaGPClassifier
from cagp.estimators.overlap import MANY_IN_GROUPS, group_words, overlap_with
from cagp.plots import shortened
from cagp.report.columns import SHUFFLES, Surface, effects_of, importance_of, limits_of
from cagp.report.page import Section, checked_path, counted, listed, page_words, sections_of, text, write_page
from cagp.report.subject import Subject, as_matrix, class_subject_of, model_values, subject_of
from cagp.report.targets import NUM_INPUTS, Target, farthest, groups_of, maps_of, places_of, residuals_of, targets_of

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
    subject, words = subject_of(model, X_test, y_test, max_rows, sample_noise), page_words()
    targets, model = targets_of(subject), subject.model
    shown, inputs, trees = targets[:MAX_TARGETS], subject.encoded_rows, []
    if model.trees_ is not None:
        alone = np.square(subject.y - as_matrix(model.prior_mean(inputs), subject.num_rows)).mean(0)
        trees = list(zip(targets, np.sqrt(alone), strict=True))
    overlap = overlap_with(model.fitted, inputs, subject.y)
    ranges = [(target.name, target.y.min(), target.y.max()) for target in shown]
    values = model_values(subject, counted(len(targets), "target"), overlap=overlap, ranges=ranges, trees=trees)
    of_target = _target_values(subject)
    if len(targets) == 1:
        sections = sections_of(words, values | of_target(targets[0]))
    else:
        sections = sections_of(words, values | {"targets": {"targets": targets, "num_shown": MAX_TARGETS}})
        for place, target in enumerate(shown, start=2):  # after those on the data and on all targets
            name = f"target-{target.number + 1}"
            parts = tuple(sections_of(words, of_target(target), f"{name}-"))
            sections.insert(place, Section(name, shortened(target.name, 24), text(target.name), parts=parts))
    shared = [(text(name, 60), part) for name, part in (shared_groups or {}).items() if part >= MANY_IN_GROUPS]
    warnings = [Markup(f"{group_words(name, part)}: split by this column.") for name, part in shared]
    header = words.warnings(overlap=overlap, groups=warnings) + words.top(targets=targets)
    heading = f"Predicting {listed([target.name for target in targets])}" if title is None else title
    return write_page(path, heading, header, sections)


def _target_values(subject: Subject) -> Callable[[Target], dict[str, dict[str, Any]]]:
    """The values of the sections on one target, as a function of it; what all targets share is computed once."""
    is_brief = subject.y.shape[1] > FEW_TARGETS
    places, importance_of_all = places_of(subject.columns), importance_of(subject)
    effects, rows = effects_of(subject, importance_of_all.ranked), subject.sample(SPLIT_ROWS)
    noise, inputs = None if subject.noise is None else subject.noise[rows], subject.encoded_rows.take(rows)
    parts = subject.model.predict(inputs, return_components=True, sample_noise=noise)[-1]

    def of_target(target: Target) -> dict[str, dict[str, Any]]:
        j, importance = target.number, importance_of_all.for_target(target.number)
        ranked = importance.ranked
        if isinstance(effects, Surface):
            learned = {"learned": effects.for_target(j), "limits": None, "dots": subject.sample(600)}
        else:
            own = [effect.for_target(j) for effect in effects]
            learned = {"learned": own, "limits": limits_of(own), "dots": subject.sample(2000)}
        panels = residuals_of(target, ranked, 2 if is_brief else NUM_INPUTS)
        values = {
            "metrics": {},
            "errors": {},
            "calibration": {},
            "groups": {"groups": groups_of(target, ranked)},
            "residuals": {"panels": panels, "farthest": farthest(panels), "dots": subject.sample(DOTS)},
            "worst": {"tables": worst_of(target), "subject": subject, "columns": ranked},
            "importance": {"importance": importance, "weak": importance.weak(), "shuffles": SHUFFLES},
            "effects": learned,
            "uncertainty": {**uncertainty_of(parts, j), "guarantee": subject.model.guarantee_},
        }
        if places is not None:
            values["map"] = maps_of(target, places, is_brief)
        return {macro: {"target": target, **content} for macro, content in values.items()}

    return of_target


def worst_of(target: Target) -> list[tuple[str, list[int]]]:
    """The rows with the largest errors, in standard deviations and in the unit of the target, each with a caption."""
    by_std, by_unit = (
        np.argsort(-np.abs(errors), kind="stable")[:WORST_ROWS].tolist() for errors in (target.z, target.error)
    )
    if set(by_std) == set(by_unit):
        return [("The rows with the largest errors of both kinds.", by_unit)]
    return [("Largest errors in standard deviations.", by_std), ("Largest errors in the unit of the target.", by_unit)]


def uncertainty_of(parts: Mapping[str, Any], j: int) -> dict[str, Any]:
    """The parts of the variance of some test rows, their means and their shares of the variance."""
    names = ("noise", "latent", "computational")
    noise, latent, computational = (as_matrix(parts[name], len(parts["noise"]))[:, j] for name in names)
    kind = parts["computational_kind"]
    unknown = kind == "unknown" or not np.isfinite(computational).all()
    stacked = plots.variance_parts(noise, latent, None if unknown else computational)
    means = np.array([part.variance.clip(0).mean() for part in stacked])
    return {"parts": stacked, "kind": kind, "means": list(zip(stacked, means, means / means.sum(), strict=True))}


# ---- classifiers ----

SHOWN_CLASSES = 4
"""Classes that have curves of their own, the most frequent ones."""

LISTED_CLASSES, UNLIKELY_ROWS = 30, 12


class Tested(NamedTuple):
    """The classes of test rows, their predicted probabilities and scores."""

    classes: list[str]
    codes: np.ndarray
    probabilities: np.ndarray
    scores: ClassScores
    baseline: ClassScores  # of always predicting the shares of the classes

    @property
    def predicted(self) -> np.ndarray:
        """The place of the most probable class of each row."""
        return self.probabilities.argmax(1)

    @property
    def shown(self) -> list[int]:
        """The places of the classes that have curves: the second of two, the most frequent of several."""
        if len(self.classes) == 2:
            return [1]
        return np.argsort(-np.bincount(self.codes, minlength=len(self.classes)), kind="stable")[:SHOWN_CLASSES].tolist()


def write_class_report(
    model: CaGPClassifier,
    X_test: Any,
    y_test: Any,
    path: str | Path,
    *,
    title: str | None = None,
    max_rows: int | None = 20_000,
) -> Path:
    """Write one HTML file on how well a fitted classifier predicts test rows; return its path.

    The arguments are those of ``write_report``. Rows without a label are left out, and the page says so.

    Time: predictions of these rows, of at most 40,000 more for the importance of columns, and some seconds.
    """
    path = checked_path(path)
    subject, words = class_subject_of(model, X_test, y_test, max_rows), page_words()
    codes, p = subject.y[:, 0].astype(np.int64), subject.predicted
    shares = np.broadcast_to(np.bincount(codes, minlength=p.shape[1]) / len(codes), p.shape)
    classes = [str(label) for label in model.classes_.tolist()]
    tested = Tested(classes, codes, p, class_scores(codes, p), class_scores(codes, shares))
    importance = importance_of(subject).for_target(0, "nll")
    curves = [(classes[c], reliability(codes, p, c)) for c in tested.shown]
    # The wrong rows whose class had the lowest probability.
    least = np.argsort(p[np.arange(len(codes)), codes], kind="stable")[:UNLIKELY_ROWS]
    least = least[tested.predicted[least] != codes[least]]
    values = {
        "class_calibration": {"curves": curves},
        "confusion": {"tested": tested, **mistakes_of(tested)},
        "curves": curves_of(tested),
        "class_worst": {"subject": subject, "tested": tested, "rows": least.tolist(), "columns": importance.ranked},
        "importance": {"target": None, "importance": importance, "weak": importance.weak("nll"), "shuffles": SHUFFLES},
    }
    goal = f"{len(classes)} classes of {model.target_name_}"
    sections = sections_of(words, values | model_values(subject, goal))
    heading = f"Classes of {model.target_name_}" if title is None else title
    return write_page(path, heading, words.class_top(tested=tested), sections)


def mistakes_of(tested: Tested) -> dict[str, Any]:
    """The confusion matrix, and where its largest entries beside the diagonal are."""
    counts = confusion_matrix(tested.codes, tested.predicted, labels=range(len(tested.classes)))
    wrong = counts - np.diag(np.diagonal(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    return {"counts": counts, "mistakes": [np.unravel_index(k, wrong.shape) for k in order if wrong.flat[k]]}


def curves_of(tested: Tested) -> dict[str, Any]:
    """The ROC and precision against recall of a few classes, and the areas under both of more."""
    codes, p, classes = tested.codes, tested.probabilities, tested.classes
    present = [c for c in range(len(classes)) if 0 < (codes == c).sum() < len(codes)]
    drawn = [c for c in tested.shown if c in present]
    in_table = drawn if len(classes) == 2 else present[:LISTED_CLASSES]
    areas = roc_auc_score, average_precision_score
    return {
        "roc": [(classes[c], *roc_curve(codes == c, p[:, c])[:2]) for c in drawn],
        "recall": [(classes[c], *precision_recall_curve(codes == c, p[:, c])[1::-1]) for c in drawn],
        "areas": [(classes[c], (codes == c).sum(), *(area(codes == c, p[:, c]) for area in areas)) for c in in_table],
    }
