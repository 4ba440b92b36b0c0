"""Which columns of the user's table matter: how much worse predictions become if a column's values are shuffled.

``sklearn.inspection.permutation_importance`` has the spread over shuffles of a few rows. What a reader needs is the
standard error over rows, so the errors of every row are kept.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import sem

from cagp.class_metrics import row_scores
from cagp.estimators.predictive import Observations, Predictive
from cagp.plots import Z95, Vector
from cagp.report.subject import SEED, InputColumn, Matrix, Subject, as_matrix

SHUFFLES = 5
MAX_COLUMNS = 30
MAX_ROWS, MIN_ROWS = 1000, 100
SHUFFLED_ROWS = 30_000
"""Rows with a shuffled value, over all columns and shuffles, unless ``MIN_ROWS`` asks for more."""
SCREENED_ROWS = 10_000
"""The same for the choice of the columns to measure, where there are more than ``MAX_COLUMNS``."""


class Importance(NamedTuple):
    """How much worse the predictions are without what each column says; arrays (columns, targets)."""

    columns: list[InputColumn]  # those that were measured, the most important first
    rmse: Matrix  # the increase of the root mean squared error in the unit of the target; of the Brier score's root
    rmse_error: Matrix  # its standard error
    nll: Matrix  # the increase of the negative log density or probability, in nats per row
    nll_error: Matrix
    num_rows: int
    not_measured: list[InputColumn]

    def for_target(self, j: int, by: Literal["rmse", "nll"] = "rmse") -> "Importance":
        """That for one target, the most important columns first; arrays (columns,)."""
        order = np.argsort(-getattr(self, by)[:, j], kind="stable")
        parts = (part[order, j] for part in self[1:5])
        return Importance._make([[self.columns[k] for k in order], *parts, *self[5:]])

    def weak(self, by: Literal["rmse", "nll"] = "rmse") -> list[str]:
        """Of one target, the columns whose importance cannot be told from zero."""
        values, errors = getattr(self, by), getattr(self, f"{by}_error")
        return [c.name for c, value, error in zip(self.columns, values, errors, strict=True) if value <= Z95 * error]

    @property
    def ranked(self) -> list[InputColumn]:
        """All columns, the most important first."""
        return [*self.columns, *self.not_measured]


def importance_of(subject: Subject) -> Importance:
    """The permutation importance of each column, measured on some of the rows.

    Every column is shuffled by the same permutations. A row's increase is the mean over the shuffles, and standard
    errors are those of means over rows. Time: predictions of about 30,000 rows, 10,000 more if there are many columns.
    """
    measured, others = _screened(subject)
    size = int(np.clip(SHUFFLED_ROWS // (SHUFFLES * max(len(measured), 1)), MIN_ROWS, MAX_ROWS))
    chosen = subject.sample(size)
    if len(chosen) < 2 or not measured:
        return Importance._make([[], *np.empty((4, 0, subject.y.shape[1])), 0, [*measured, *others]])
    rng = np.random.default_rng(SEED)
    donors = np.concatenate([rng.permutation(chosen) for _ in range(SHUFFLES)])
    repeated = np.tile(chosen, SHUFFLES)
    noise = None if subject.noise is None else subject.noise[repeated]
    answers = subject.probabilities[chosen] if subject.is_classifier else subject.predicted.take(chosen)
    before, increases = _row_errors(answers, subject.y[chosen]), []
    for column in measured:
        inputs, model = subject.encoded(subject.replaced(column, repeated, donors)), subject.model
        answers = model.predict_proba(inputs) if subject.is_classifier else model.predictive(inputs, noise)
        after = _row_errors(answers, subject.y[repeated]).reshape(2, SHUFFLES, len(chosen), -1).mean(1)
        increases.append(_increase(before, after))
    parts = np.stack(increases, 1)
    # Each target counts the same, whatever its unit.
    spread = np.sqrt(before[0].mean(0))
    leading = parts[2] if subject.is_classifier else parts[0] / np.where(spread > 0, spread, 1)
    order = np.argsort(-leading.mean(1), kind="stable")
    return Importance._make([[measured[k] for k in order], *parts[:, order], len(chosen), others])


def _row_errors(answers: Predictive | Observations | Matrix, y: Matrix) -> NDArray[np.float64]:
    """The squared error and the negative log density of each row and target, (2, rows, targets)."""
    if isinstance(answers, np.ndarray):
        rows = row_scores(y[:, 0].astype(np.int64), answers)
        return np.stack([rows.brier, rows.log_loss])[..., None]
    return np.stack([np.square(y - answers.mean()), -answers.log_density(y)])


def _increase(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[Vector, Vector, Vector, Vector]:
    """Increases of RMSE and NLL, each with its standard error, for each target."""
    (square, nll), (square_after, nll_after) = before, after
    rmse, rmse_after = np.sqrt(square.mean(0)), np.sqrt(square_after.mean(0))
    # √m changes by dm / 2√m: the RMSE as a mean over rows, to first order.
    parts = [part / np.where(root > 0, 2 * root, 1) for part, root in ((square_after, rmse_after), (square, rmse))]
    change = nll_after - nll
    return rmse_after - rmse, sem(parts[0] - parts[1]), change.mean(0), sem(change)


def _screened(subject: Subject) -> tuple[list[InputColumn], list[InputColumn]]:
    """The columns to measure, and the others: of many, those whose shuffling changes a few predictions most."""
    columns, model = subject.columns, subject.model
    if len(columns) <= MAX_COLUMNS:
        return columns, []
    chosen = subject.sample(int(np.clip(SCREENED_ROWS // len(columns), 8, 100)))
    donors = np.random.default_rng(SEED).permutation(chosen)
    if subject.is_classifier:
        predict, before = model.predict_proba, subject.probabilities
    else:
        predict, before = model.predict, subject.predicted.mean()
    spread, change = subject.y.std(0), []
    for column in columns:
        after = as_matrix(predict(subject.encoded(subject.replaced(column, chosen, donors))), len(chosen))
        change.append(np.square((after - before[chosen]) / np.where(spread > 0, spread, 1)).mean())
    order = np.argsort(-np.array(change), kind="stable")
    kept, others = ([columns[k] for k in sorted(part)] for part in (order[:MAX_COLUMNS], order[MAX_COLUMNS:]))
    return kept, others
