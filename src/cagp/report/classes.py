"""The page on a classifier: how good its probabilities are on test rows, where it is wrong, and what it uses."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_curve, roc_auc_score, roc_curve

from cagp.class_metrics import ClassScores, class_scores, reliability
from cagp.estimators.classifier import CaGPClassifier
from cagp.report.columns import SHUFFLES, importance_of
from cagp.report.page import checked_path, page_words, sections_of, write_page
from cagp.report.subject import Subject, class_subject_of, model_values

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
    tested = tested_classes(subject)
    importance = importance_of(subject).for_target(0, "nll")
    curves = [(tested.classes[c], reliability(tested.codes, tested.probabilities, c)) for c in tested.shown]
    values = {
        "class_calibration": {"curves": curves},
        "confusion": {"tested": tested, **mistakes_of(tested)},
        "curves": curves_of(tested),
        "class_worst": {"subject": subject, "tested": tested, "rows": worst_of(tested), "columns": importance.ranked},
        "importance": {"target": None, "importance": importance, "weak": importance.weak("nll"), "shuffles": SHUFFLES},
    }
    goal = f"{len(tested.classes)} classes of {model.target_name_}"
    sections = sections_of(words, values | model_values(subject, goal))
    heading = f"Classes of {model.target_name_}" if title is None else title
    return write_page(path, heading, words.class_top(tested=tested), sections)


def tested_classes(subject: Subject) -> Tested:
    """The classes of the test rows as the model predicts them."""
    classes, codes = [str(label) for label in subject.model.classes_.tolist()], subject.y[:, 0].astype(np.int64)
    shares = np.broadcast_to(np.bincount(codes, minlength=len(classes)) / len(codes), subject.probabilities.shape)
    scores = class_scores(codes, subject.probabilities), class_scores(codes, shares)
    return Tested(classes, codes, subject.probabilities, *scores)


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
    return {
        "roc": [(classes[c], *roc_curve(codes == c, p[:, c])[:2]) for c in drawn],
        "recall": [(classes[c], *precision_recall_curve(codes == c, p[:, c])[1::-1]) for c in drawn],
        "areas": [
            (
                classes[c],
                (is_c := codes == c).sum(),
                roc_auc_score(is_c, p[:, c]),
                average_precision_score(is_c, p[:, c]),
            )
            for c in in_table
        ],
    }


def worst_of(tested: Tested) -> list[int]:
    """The wrong rows whose class had the lowest probability."""
    of_class = tested.probabilities[np.arange(len(tested.codes)), tested.codes]
    order = np.argsort(of_class, kind="stable")[:WORST_ROWS]
    return order[tested.predicted[order] != tested.codes[order]].tolist()
