"""The page on a classifier: how good its probabilities are on test rows, where it is wrong, and what it uses."""

from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from cagp import plots
from cagp.class_metrics import ClassScores, class_scores, reliability
from cagp.estimators.classifier import CaGPClassifier
from cagp.estimators.labels import codes_of, column_of
from cagp.files import write_atomically
from cagp.recipes import method_words
from cagp.report import model_sections
from cagp.report.columns import InputColumn, input_columns, with_values_of
from cagp.report.html import count, number, section, share, side_by_side, table, text, tiles, whole_page, with_error
from cagp.report.rows import SEED, HeldOutRows, column_names, sample, tested_rows_of
from cagp.report.svg import Drawing, listed

SHOWN_CLASSES = 4
"""Classes that have curves of their own, the most frequent ones."""

LISTED_CLASSES, WORST_ROWS, SHOWN_COLUMNS = 30, 12, 6
IMPORTANCE_ROWS, IMPORTANCE_COLUMNS = 500, 30


class Judged(NamedTuple):
    """Test rows with their classes and predicted probabilities."""

    rows: HeldOutRows
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

    Time: predictions of these rows, of at most 15,000 more for the importance of columns, and some seconds.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"path is the folder {path}, expected a file, e.g. {path / 'report.html'}.")
    labels = column_of(y_test)
    known = ~np.asarray(pd.isna(labels))
    codes = np.full(len(labels), -1)
    codes[known] = codes_of(model.classes_, labels[known])
    rows = tested_rows_of(model, X_test, codes[:, None].astype(float), ~known, max_rows)
    codes = rows.y[:, 0].astype(np.int64)
    found, classes = model.predict_proba(rows.X), [str(label) for label in model.classes_.tolist()]
    shares = np.broadcast_to(np.bincount(codes, minlength=len(classes)) / len(codes), found.shape)
    judged = Judged(rows, classes, codes, found, class_scores(codes, found), class_scores(codes, shares))
    draw = Drawing()
    parts = {
        "data": ("Data", "Data and model", _data(model, judged)),
        "calibration": ("Calibration", "Are the probabilities right?", _calibration(draw, judged)),
        "confusion": ("Confusion", "Which classes are taken for others", _confusion(draw, judged)),
        "curves": ("ROC", "How well the classes are told apart", _curves(draw, judged)),
        "worst": ("Worst rows", "The most confidently wrong rows", _worst(judged)),
        "importance": ("Importance", "Which columns matter", _importance(draw, model, judged)),
        "relevance": ("Lengthscales", "Lengthscales", model_sections.relevance_figure(draw, model, rows)),
        "learning": ("Learning", "Learning curve", model_sections.learning_curves(draw, model)),
        "fit": ("Fit", "The fit", model_sections.fit_and_settings(model)),
    }
    heading = f"Classes of {model.target_name_}" if title is None else title
    header = f"<h1>{text(heading, 300)}</h1>{_summary(judged)}{_key_numbers(judged)}"
    main = "\n".join(section(2, name, words, *content) for name, (_, words, content) in parts.items())
    footer = f"Written by cagp {version('cagp')} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}."
    html = whole_page(heading, header, [(name, link) for name, (link, _, _) in parts.items()], main, footer)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, html.encode("utf-8", errors="replace"))
    return path


def _summary(judged: Judged) -> str:
    found, base = judged.scores, judged.baseline
    return (
        f'<p class="lead">On {count(len(judged.codes), "test row")}, {share(1 - found.error)} of the predicted classes '
        f"are right; always predicting the most frequent class has {share(1 - base.error)}. The log loss of the "
        f"probabilities is {number(found.log_loss)}; that of the shares of the classes is {number(base.log_loss)}.</p>"
    )


def _key_numbers(judged: Judged) -> str:
    found, base = judged.scores, judged.baseline
    return tiles(
        [
            ("Wrong classes", share(found.error), f"baseline {share(base.error)}"),
            ("Log loss", number(found.log_loss), f"baseline {number(base.log_loss)}"),
            ("Brier score", number(found.brier), f"baseline {number(base.brier)}"),
            ("Calibration error", number(found.calibration_error), "0 is perfect"),
        ]
    )


def _data(model: CaGPClassifier, judged: Judged) -> list[str]:
    rows, names = judged.rows, column_names(judged.rows.X)
    missing = f" {count(rows.num_missing, 'row')} without a label left out." if rows.num_missing else ""
    drawn = len(judged.codes) + rows.num_missing < rows.num_given
    of = f" drawn at random from {rows.num_given:,}" if drawn else ""
    return [
        f"<p>The model was trained on {count(model.n_rows_, 'row')} and is tested on "
        f"{count(len(judged.codes), 'row')}{of}.{missing} It predicts {len(judged.classes)} classes of "
        f"{text(model.target_name_, 60)} from {count(len(names), 'input')}: {text(listed(names), 400)}.</p>",
        f"<p>Fitted: {text(method_words(model.method_), 200)}. {text(model.guarantee_, 300)}</p>",
        f"<p>{text(model.choice_, 400)}</p>" if model.choice_ else "",
    ]


def _calibration(draw: Drawing, judged: Judged) -> list[str]:
    figures = []
    for place in judged.shown:
        name, found = judged.classes[place], reliability(judged.codes, judged.probabilities, place)
        figures.append(
            draw(
                lambda ax, found=found: plots.reliability_diagram(ax, found),
                f"Observed share against predicted probability of class {name}; mean difference {found.error:.4f}.",
                f"Class {text(name, 60)}: the mean difference is {number(found.error, 3)}. Larger points: more rows.",
            )
        )
    return [
        "<p>Of the rows with a predicted probability of 30 %, three in ten should be of the class. Points on the "
        "diagonal mean that the probabilities can be taken at their word; grey bars show where a point lies by chance, "
        "19 times in 20.</p>",
        side_by_side(*figures),
    ]


def _confusion(draw: Drawing, judged: Judged) -> list[str]:
    q, predicted = len(judged.classes), judged.probabilities.argmax(1)
    counts = np.bincount(q * judged.codes + predicted, minlength=q * q).reshape(q, q)
    wrong = counts - np.diag(np.diagonal(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    cells = [
        [
            text(judged.classes[i], 40),
            text(judged.classes[j], 40),
            f"{wrong[i, j]:,}",
            share(wrong[i, j] / counts[i].sum()),
        ]
        for i, j in pairs
    ]
    picture = draw(
        lambda ax: plots.confusion(ax, counts, judged.classes),
        f"Confusion matrix of {q} classes: {share(1 - judged.scores.error)} of the rows are on its diagonal.",
        "The darker, the larger the share of the rows of a class.",
        3.4,
    )
    head = ["Class", "Taken for", "Rows", "Of the class"]
    caption = "The most frequent mistakes."
    return [side_by_side(picture, table(head, cells, caption) if cells else "<p>No row has a wrong class.</p>")]


def _curves(draw: Drawing, judged: Judged) -> list[str]:
    codes, p = judged.codes, judged.probabilities
    present = [c for c in range(len(judged.classes)) if 0 < (codes == c).sum() < len(codes)]
    drawn = [c for c in judged.shown if c in present]
    if not drawn:
        return ["<p>The test rows are all of one class.</p>"]
    roc = [(judged.classes[c], *roc_curve(codes == c, p[:, c])[:2]) for c in drawn]
    recall = [(judged.classes[c], *precision_recall_curve(codes == c, p[:, c])[:2][::-1]) for c in drawn]
    listed_classes = [1] if len(judged.classes) == 2 and 1 in present else present[:LISTED_CLASSES]
    cells = [
        [
            text(judged.classes[c], 40),
            f"{(codes == c).sum():,}",
            f"{roc_auc_score(codes == c, p[:, c]):.4f}",
            f"{average_precision_score(codes == c, p[:, c]):.4f}",
        ]
        for c in listed_classes
    ]
    names = ", ".join(judged.classes[c] for c in drawn)
    return [
        "<p>Each class against all others. Left: the share of its rows that are found against the share of other rows "
        "that are taken for it, as the threshold falls. Right: the share of right ones among those found.</p>",
        side_by_side(
            draw(
                lambda ax: plots.trade_off(ax, roc, "false positive rate", "true positive rate", diagonal=True),
                f"ROC of {names}.",
                "ROC: the closer to the upper left corner, the better.",
            ),
            draw(
                lambda ax: plots.trade_off(ax, recall, "recall", "precision"),
                f"Precision against recall of {names}.",
                "Precision and recall: the closer to the upper right corner, the better.",
            ),
        ),
        table(["Class", "Rows", "Area under ROC", "Average precision"], cells, "One is perfect.", kind="dense"),
    ]


def _worst(judged: Judged) -> list[str]:
    own = judged.probabilities[np.arange(len(judged.codes)), judged.codes]
    order = np.argsort(own, kind="stable")[:WORST_ROWS].tolist()
    order = [row for row in order if judged.probabilities[row].argmax() != judged.codes[row]]
    if not order:
        return ["<p>No row has a wrong class.</p>"]
    columns = input_columns(judged.rows)[:SHOWN_COLUMNS]
    head = ["Row", "Class", "Its probability", "Predicted", "With probability", *(text(c.label, 24) for c in columns)]
    cells = []
    for row in order:
        best = int(judged.probabilities[row].argmax())
        cells.append(
            [
                text(judged.rows.label(row), 30),
                text(judged.classes[judged.codes[row]], 30),
                number(float(own[row]), 2),
                text(judged.classes[best], 30),
                number(float(judged.probabilities[row, best]), 3),
                *(text(column.shown(row), 30) for column in columns),
            ]
        )
    caption = "The rows whose class had the lowest probability. A wrong label is one explanation."
    return [table(head, cells, caption, kind="dense")]


def _importance(draw: Drawing, model: CaGPClassifier, judged: Judged) -> list[str]:
    """The log loss when the values of a column are shuffled among rows."""
    columns = input_columns(judged.rows)[:IMPORTANCE_COLUMNS]
    some = sample(len(judged.codes), IMPORTANCE_ROWS)
    if not columns or len(some) < 2:
        return ["<p>No column varies in the test rows.</p>"]
    X, codes = judged.rows.take(some), judged.codes[some]
    donors = np.random.default_rng(SEED).permutation(len(some))
    whole = _row_losses(judged.probabilities[some], codes)
    increases = [_row_losses(model.predict_proba(_shuffled(X, c, donors)), codes) - whole for c in columns]
    found = [
        (c, float(d.mean()), float(d.std(ddof=1) / len(d) ** 0.5)) for c, d in zip(columns, increases, strict=True)
    ]
    found.sort(key=lambda entry: -entry[1])
    names = [column.label for column, _, _ in found]
    values, errors = (np.array([entry[place] for entry in found]) for place in (1, 2))
    cells = [[text(name, 60), with_error(v, e)] for name, v, e in zip(names, values, errors, strict=True)]
    return [
        f"<p>How much the log loss of {count(len(some), 'row')} rises when the values of a column are shuffled among "
        "them: what the model loses without the column. Columns that say the same share their importance.</p>",
        side_by_side(
            draw(
                lambda ax: plots.importance(ax, names, values, errors, "rise of the log loss"),
                f"Importance of {len(names)} columns; the most important is {names[0]}.",
                "With 95 % intervals.",
                max(1.6, 0.75 + 0.2 * min(len(names), 20)),
            ),
            table(["Column", "Rise of the log loss"], cells[:12], "With standard errors.", kind="dense"),
        ),
    ]


def _shuffled(X: Any, column: InputColumn, donors: np.ndarray) -> Any:
    return with_values_of(X, column.place, donors, X)


def _row_losses(probabilities: np.ndarray, codes: Sequence[int] | np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(probabilities[np.arange(len(probabilities)), codes], 1e-15))
