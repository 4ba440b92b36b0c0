"""Which columns of the user's table matter: how much worse predictions become if a column's values are shuffled."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cagp import plots
from cagp.estimators.predictive import Predictive
from cagp.report.columns import InputColumn, with_values_of
from cagp.report.html import count, side_by_side, table, text, with_error
from cagp.report.rows import SEED, HeldOutRows, Matrix, Table, as_matrix, sample
from cagp.report.subject import Model
from cagp.report.svg import Drawing, listed
from cagp.report.targets import Target

SHUFFLES = 5
MAX_COLUMNS = 30
MAX_ROWS, MIN_ROWS = 1000, 100
SHUFFLED_ROWS = 30_000
"""Rows with a shuffled value, over all columns and shuffles, unless ``MIN_ROWS`` asks for more."""
SCREENED_ROWS = 10_000
"""The same for the choice of the columns to measure, where there are more than ``MAX_COLUMNS``."""
SHOWN = 20


class Importance(NamedTuple):
    """How much worse the predictions are without what each column says; arrays (columns, targets)."""

    columns: list[InputColumn]  # those that were measured, the most important first
    rmse: Matrix  # the increase of the root mean squared error, in the unit of the target
    rmse_error: Matrix  # its standard error
    nll: Matrix  # the increase of the negative log density, in nats per row
    nll_error: Matrix
    num_rows: int
    not_measured: list[InputColumn]

    def order(self, target: int) -> NDArray[np.intp]:
        """The places of the measured columns, the most important for one target first."""
        return np.argsort(-self.rmse[:, target], kind="stable")

    def ranked(self, target: int) -> list[InputColumn]:
        """All columns, the most important for one target first."""
        return [*(self.columns[k] for k in self.order(target)), *self.not_measured]


def importance_of(model: Model, rows: HeldOutRows, columns: Sequence[InputColumn]) -> Importance:
    """The permutation importance of each column, measured on some of the rows.

    Every column is shuffled by the same permutations. A row's increase is the mean over the shuffles, and standard
    errors are those of means over rows. Time: predictions of about 30,000 rows, 10,000 more if there are many columns.
    """
    measured, left = _screened(model, rows, columns)
    size = int(np.clip(SHUFFLED_ROWS // (SHUFFLES * max(len(measured), 1)), MIN_ROWS, MAX_ROWS))
    chosen = sample(len(rows.y), size)
    if len(chosen) < 2:
        return _nothing(rows, [*measured, *left])
    rng = np.random.default_rng(SEED)
    donors = np.concatenate([rng.permutation(chosen) for _ in range(SHUFFLES)])
    repeated = np.tile(chosen, SHUFFLES)
    whole = _RowErrors.of(model, rows, rows.take(chosen), chosen)
    found = [
        _increase(
            whole, _RowErrors.of(model, rows, with_values_of(rows.take(repeated), c.place, donors, rows.X), repeated)
        )
        for c in measured
    ]
    if not found:
        return _nothing(rows, left)
    rmse, rmse_error, nll, nll_error = (np.stack(parts) for parts in zip(*found, strict=True))
    # Each target counts the same, whatever its unit.
    spread = np.sqrt(whole.square.mean(0))
    order = np.argsort(-(rmse / np.where(spread > 0, spread, 1)).mean(1), kind="stable")
    ranked = [measured[k] for k in order]
    return Importance(ranked, rmse[order], rmse_error[order], nll[order], nll_error[order], len(chosen), left)


class _RowErrors(NamedTuple):
    """The squared error and the negative log density of each row and target."""

    square: Matrix
    nll: Matrix

    @classmethod
    def of(cls, model: Model, rows: HeldOutRows, X: Table, origin: NDArray[np.intp]) -> "_RowErrors":
        """Those of predictions from ``X`` of the targets of the rows ``origin``."""
        y = rows.y[origin]
        if model.likelihood_ is not None:
            predicted = model.predictive(X)
            return cls(np.square(y - predicted.mean()), -predicted.log_density(y))
        found = model.predict(X, return_std=True, sample_noise=rows.take_noise(origin))
        mean, std = (as_matrix(part, len(X)) for part in found)
        return cls(np.square(y - mean), -Predictive.from_moments(mean, std, model.target_transforms_).log_density(y))


def _increase(whole: _RowErrors, shuffled: _RowErrors) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Increases of RMSE and NLL, each with its standard error, for each target."""
    num_rows = len(whole.nll)
    square, nll = (part.reshape(SHUFFLES, num_rows, -1).mean(0) for part in shuffled)
    before, after = np.sqrt(whole.square.mean(0)), np.sqrt(square.mean(0))
    # √m changes by dm / 2√m: the RMSE as a mean over rows, to first order.
    share = [part / np.where(root > 0, 2 * root, 1) for part, root in ((square, after), (whole.square, before))]
    change = nll - whole.nll
    return after - before, _standard_error(share[0] - share[1]), change.mean(0), _standard_error(change)


def _standard_error(values: Matrix) -> Matrix:
    return values.std(0, ddof=1) / np.sqrt(len(values))


def _screened(
    model: Model, rows: HeldOutRows, columns: Sequence[InputColumn]
) -> tuple[list[InputColumn], list[InputColumn]]:
    """The columns to measure, and the others: of many, those whose shuffling changes a few predictions most."""
    if len(columns) <= MAX_COLUMNS:
        return list(columns), []
    chosen = sample(len(rows.y), int(np.clip(SCREENED_ROWS // len(columns), 8, 100)))
    donors = np.random.default_rng(SEED).permutation(chosen)
    table = rows.take(chosen)
    before = as_matrix(model.predict(table), len(chosen))
    unit = rows.y.std(0)
    unit = np.where(unit > 0, unit, 1)
    change = []
    for column in columns:
        after = as_matrix(model.predict(with_values_of(table, column.place, donors, rows.X)), len(chosen))
        change.append(float(np.square((after - before) / unit).mean()))
    best = set(np.argsort(-np.array(change), kind="stable")[:MAX_COLUMNS].tolist())
    kept = [column for k, column in enumerate(columns) if k in best]
    return kept, [column for k, column in enumerate(columns) if k not in best]


def _nothing(rows: HeldOutRows, columns: list[InputColumn]) -> Importance:
    empty = np.empty((0, rows.y.shape[1]))
    return Importance([], empty, empty, empty, empty, 0, columns)


def importance_figures(draw: Drawing, target: Target, found: Importance) -> list[str]:
    """Bars of the increases of RMSE and NLL, and a table of them."""
    if not found.columns:
        return ["<p>No input varies among the test rows, so none can be shuffled.</p>"]
    j = target.number
    order = found.order(j)
    names = [found.columns[k].name for k in order]
    rmse, rmse_error, nll, nll_error = (
        part[order, j] for part in (found.rmse, found.rmse_error, found.nll, found.nll_error)
    )
    height = max(1.5, 0.75 + 0.2 * min(len(names), SHOWN))
    pictures = [
        draw(
            lambda ax: plots.importance(ax, names, rmse, rmse_error, "increase of the RMSE", SHOWN),
            f"Increase of the root mean squared error of {target.name} if a column is shuffled; most for {names[0]}.",
            "RMSE, in the unit of the target",
            height,
        ),
        draw(
            lambda ax: plots.importance(ax, names, nll, nll_error, "increase of the NLL", SHOWN),
            f"Increase of the negative log-likelihood of {target.name} if a column is shuffled.",
            "Negative log-likelihood, in nats per row",
            height,
        ),
    ]
    cells = [
        [text(name, 60), *(with_error(*map(float, pair)) for pair in pairs)]
        for name, *pairs in zip(
            names, zip(rmse, rmse_error, strict=True), zip(nll, nll_error, strict=True), strict=True
        )
    ]
    weak = [name for name, value, error in zip(names, rmse, rmse_error, strict=True) if value <= plots.Z95 * error]
    remarks = []
    if weak and len(weak) < len(names):
        which = "For this column" if len(weak) == 1 else "For these columns"
        remarks.append(f"{which}, the increase of the RMSE cannot be told from zero: {text(listed(weak), 320)}.")
    if found.not_measured:
        left = listed([column.name for column in found.not_measured])
        remarks.append(
            f"Not measured, because shuffling them changed the predictions of a few rows least: "
            f"{count(len(found.not_measured), 'column')} ({text(left, 320)})."
        )
    return [
        f"<p>How much worse the predictions become if the values of one column are shuffled among "
        f"{count(found.num_rows, 'test row')}, as a mean of {SHUFFLES} shuffles. Error bars are ± 1.96 standard "
        "errors. If two columns say the same, the model can read it from either, and each seems to matter less than "
        f"both together.{' ' if remarks else ''}{' '.join(remarks)}</p>",
        side_by_side(*pictures),
        table(
            ["Column", "RMSE increase", "NLL increase"],
            cells,
            "Increase when the column is shuffled, ± one standard error.",
            kind="dense",
        ),
    ]
