"""The page on a classifier: how good its probabilities are on test rows, where it is wrong, and what it uses."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_curve, roc_auc_score, roc_curve

from cagp.class_metrics import ClassScores, class_scores, reliability
from cagp.estimators.classifier import CaGPClassifier
from cagp.report.columns import InputColumn
from cagp.report.importance import SHUFFLES, importance_of
from cagp.report.model import inputs_of, model_values
from cagp.report.page import Template, checked_path, counted, fixed, number, share, text, write_page
from cagp.report.subject import Subject, class_subject_of

SHOWN_CLASSES = 4
"""Classes that have curves of their own, the most frequent ones."""

LISTED_CLASSES, WORST_ROWS = 30, 12


class Tested(NamedTuple):
    """The classes of test rows, their predicted probabilities and scores."""

    classes: list[str]
    codes: np.ndarray
    probabilities: np.ndarray
    scores: ClassScores
    baseline: ClassScores  # of always predicting the shares of the classes

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
    subject, template = class_subject_of(model, X_test, y_test, max_rows), Template()
    tested = tested_classes(subject)
    rows, goal = counted(subject.num_rows, "row"), f"{len(tested.classes)} classes of {model.target_name_}"
    importance = importance_of(subject).for_target(0, "nll")
    curves = [(tested.classes[c], reliability(tested.codes, tested.probabilities, c)) for c in tested.shown]
    values = {
        "class_calibration": {"curves": curves},
        "confusion": {"tested": tested, **mistakes_of(tested)},
        "curves": curves_of(tested),
        "class_worst": worst_of(subject, tested, importance.ranked),
        "importance": {"target": None, "importance": importance, "weak": importance.weak("nll"), "shuffles": SHUFFLES},
    }
    sections = template.sections(values | model_values(subject, f"{rows}.", goal))
    heading = f"Classes of {model.target_name_}" if title is None else title
    return write_page(path, heading, template("class_top", tested=tested), sections)


def tested_classes(subject: Subject) -> Tested:
    """The classes of the test rows as the model predicts them."""
    classes, codes = [str(label) for label in subject.model.classes_.tolist()], subject.y[:, 0].astype(np.int64)
    shares = np.broadcast_to(np.bincount(codes, minlength=len(classes)) / len(codes), subject.probabilities.shape)
    scores = class_scores(codes, subject.probabilities), class_scores(codes, shares)
    return Tested(classes, codes, subject.probabilities, *scores)


def mistakes_of(tested: Tested) -> dict[str, Any]:
    """The confusion matrix, and its largest entries beside the diagonal."""
    predicted, names = tested.probabilities.argmax(1), [text(name, 40) for name in tested.classes]
    counts = confusion_matrix(tested.codes, predicted, labels=range(len(names)))
    wrong = counts - np.diag(np.diagonal(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    rows = [(names[i], names[j], f"{wrong[i, j]:,}", share(wrong[i, j] / counts[i].sum())) for i, j in pairs]
    return {"counts": counts, "mistakes": rows}


def curves_of(tested: Tested) -> dict[str, Any]:
    """The ROC and precision against recall of a few classes, and the areas under both of more."""
    codes, p, classes = tested.codes, tested.probabilities, tested.classes
    present = [c for c in range(len(classes)) if 0 < (codes == c).sum() < len(codes)]
    drawn = [c for c in tested.shown if c in present]
    in_table = [1] if len(classes) == 2 and 1 in present else present[:LISTED_CLASSES]
    areas = [(c, roc_auc_score(codes == c, p[:, c]), average_precision_score(codes == c, p[:, c])) for c in in_table]
    rows = [
        (text(classes[c], 40), f"{(codes == c).sum():,}", fixed(float(under_roc), 4), fixed(float(precision), 4))
        for c, under_roc, precision in areas
    ]
    return {
        "roc": [(classes[c], *roc_curve(codes == c, p[:, c])[:2]) for c in drawn],
        "recall": [(classes[c], *precision_recall_curve(codes == c, p[:, c])[1::-1]) for c in drawn],
        "rows": rows,
    }


def worst_of(subject: Subject, tested: Tested, columns: Sequence[InputColumn]) -> dict[str, Any]:
    """The wrong rows whose class had the lowest probability, with their values in the first of these columns."""
    p, codes = tested.probabilities, tested.codes
    of_class, best = p[np.arange(len(codes)), codes], p.argmax(1)
    order = [row for row in np.argsort(of_class, kind="stable")[:WORST_ROWS].tolist() if best[row] != codes[row]]
    rows = [
        (
            text(subject.label(row), 30),
            text(tested.classes[codes[row]], 30),
            number(float(of_class[row]), 2),
            text(tested.classes[best[row]], 30),
            number(float(p[row, best[row]]), 3),
        )
        for row in order
    ]
    return {"rows": rows, "notes": [inputs_of(columns, row) for row in order]}
