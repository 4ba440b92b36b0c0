"""Whether rows that a model is tested on were used to train it, as far as anyone can tell."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from cagp.data.splits import NEAR, RowIndex
from cagp.data.transforms import Standardizer
from cagp.estimators.fitted_model import FittedModel
from cagp.estimators.units import EncodedTable
from cagp.posteriors import InducingPosterior, LocalPosterior
from cagp.recipes.task import as_array
from cagp.shards import RegionPosterior

MANY_COPIES, MANY_IN_GROUPS, MANY_SAME_INPUTS, ALL = 0.05, 0.05, 0.2, 0.9
"""From these shares of the tested rows there is a warning: copies of training rows, rows whose group has training rows,
too, and the same inputs alone, which can be chance if they are few numbers or levels. From the last one, the tested
rows are the training rows."""

SAME_TARGET = 1e-4
"""Targets are the same if they differ by at most this, in standard deviations: an exact model's are recomputed."""

Standard = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Overlap(NamedTuple):
    """What tested rows have in common with training rows."""

    num_rows: int  # that were compared
    num_same_inputs: int | None  # rows with the inputs of a training row; None if no training rows are known
    num_copies: int | None  # of these, rows with its targets as well; None if no targets are known
    share_known: float  # of the training rows

    def plus(self, other: "Overlap") -> "Overlap":
        """The same for the rows of both, compared with the same training rows."""
        pairs = zip(self[1:3], other[1:3], strict=True)
        same, copies = (None if one is None or two is None else one + two for one, two in pairs)
        return Overlap(self.num_rows + other.num_rows, same, copies, self.share_known)

    @property
    def is_training(self) -> bool:
        """Whether the tested rows are (nearly all) training rows."""
        found = self.num_same_inputs if self.num_copies is None else self.num_copies
        return found is not None and 0 < self.num_rows * ALL * self.share_known <= found

    @property
    def is_large(self) -> bool:
        """Whether enough rows have something in common with training rows to make the test too easy."""
        shares = ((self.num_copies, MANY_COPIES), (self.num_same_inputs, MANY_SAME_INPUTS))
        return any(found is not None and 0 < share * self.num_rows <= found for found, share in shares)

    def words(self) -> str:
        """What was found, in a sentence or two; empty if there is nothing in common."""
        if not self.num_same_inputs:
            return ""
        if self.is_training:
            which = "These rows" if self.num_copies == self.num_rows else "Nearly all of these rows"
            return (
                f"{which}, or copies of them, were used in training. The scores say how well the model repeats what it "
                "was shown, not how well it predicts new rows."
            )
        known = "" if self.share_known == 1 else f" (of the {100 * self.share_known:.0f} % that the model keeps)"
        others = self.num_same_inputs - (self.num_copies or 0)
        sentences = []
        if self.num_copies:
            sentences.append(
                f"{self._share(self.num_copies)} are training rows{known} or copies of them. On these, the scores say "
                "how well the model repeats what it was shown: leave them out, or keep copies in one part."
            )
        if others:
            sentences.append(
                f"{self._share(others)} {'has' if others == 1 else 'have'} the inputs of a training row{known}"
                f"{'' if self.num_copies is None else ' with another target'}. If they belong to the same person, "
                "place or thing, the scores are too good for new ones: split by group."
            )
        return " ".join(sentences)

    def _share(self, found: int) -> str:
        return f"{found:,} of {self.num_rows:,} test rows ({100 * found / self.num_rows:.1f} %)"


class KnownRows:
    """Training rows in standard units, and what rows that are tested have in common with them.

    Args:
        standard: codes and targets of rows, (n, c) and (n, q) in the user's units, in standard units.
        inputs: (n, p), in standard units.
        targets: (n, q), in standard units; None if they are not known.
        share: of all training rows.
    """

    def __init__(self, standard: Standard, inputs: np.ndarray, targets: np.ndarray | None, share: float = 1.0):
        self._standard, self._share, self._both = standard, share, None
        self._inputs = RowIndex(inputs)
        if targets is not None:
            tolerance = np.repeat([NEAR, SAME_TARGET], [inputs.shape[1], targets.shape[1]])
            self._both = RowIndex(np.concatenate([inputs, targets], 1), tolerance)

    @classmethod
    def of_table(cls, inputs: np.ndarray, targets: np.ndarray) -> "KnownRows":
        """All training rows, in the user's units; targets may be missing."""
        scaler = Standardizer.fit(torch.from_numpy(np.array(inputs)), torch.from_numpy(np.nan_to_num(targets)))

        def standard(codes: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            X = scaler.inputs(torch.from_numpy(np.array(codes, dtype=np.float64)))
            return X.numpy(), scaler.targets(torch.from_numpy(np.nan_to_num(y))).numpy()

        return cls(standard, *standard(inputs, targets))

    @classmethod
    def of_model(cls, model: FittedModel) -> "KnownRows | None":
        """The rows that a fitted model keeps; None where it keeps none, or no process has all."""
        posteriors, units = model.posteriors, model.units
        if not posteriors or isinstance(posteriors[0], InducingPosterior | RegionPosterior):
            return None  # inducing points are not rows, and of a model in regions no process has all rows
        inputs = as_array(posteriors[0].X)
        columns = [_targets(model, j) for j in range(len(posteriors))]
        targets = [column for column in columns if column is not None and len(column) == len(inputs)]
        whole = np.stack(targets, 1) if len(targets) == len(columns) else None

        def standard(codes: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return units.scaled(codes).numpy(), units.scaler.targets(torch.from_numpy(units.forward(y))).numpy()

        return cls(standard, inputs, whole, min(1.0, len(inputs) / model.num_rows))

    def overlap(self, inputs: np.ndarray, targets: np.ndarray) -> Overlap:
        """What these rows have in common with the training rows; inputs are codes, both in the user's units."""
        X, y = self._standard(inputs, targets)
        num_copies = None if self._both is None else int(self._both.holds(np.concatenate([X, y], 1)).sum())
        return Overlap(len(X), int(self._inputs.holds(X).sum()), num_copies, self._share)


def overlap_with(model: FittedModel, X: Any, y: np.ndarray) -> Overlap:
    """What rows of a table have in common with the training rows that a fitted model keeps; y is (n, q)."""
    known = KnownRows.of_model(model)
    if known is None:
        return Overlap(len(y), None, None, 0.0)
    return known.overlap(X.matrix if isinstance(X, EncodedTable) else model.units.encoder.codes(X), y)


def group_words(name: str, share: float) -> str:
    """That test rows have their group in common with training rows, without the remedy and the full stop."""
    return (
        f"{100 * share:.0f} % of the test rows have a value of {name} that training rows have, too. If rows with the "
        f"same {name} are alike, the scores are too good for new ones"
    )


def _targets(model: FittedModel, j: int) -> np.ndarray | None:
    """The targets of the rows that the j-th posterior keeps, in standard units; None where it keeps none.

    Models of nearest rows keep the targets. Those of exact inference follow from the weights w of the mean:
    y = m(X) + K̂w. Others keep some rows or all of them, but no targets; so do models with trees in the mean, which keep
    the residuals of the trees, and those whose likelihood is not Gaussian, which keep sites.
    """
    posterior = model.posteriors[j]
    if model.trees is not None or model.likelihood is not None:
        return None
    if isinstance(posterior, LocalPosterior):
        return as_array(posterior.y)
    weights = posterior._representer
    if model.methods[0] != "exact" or weights is None:
        return None
    noise = posterior.prior.noise_variance(posterior.X, model.row_noise[j])
    return as_array(posterior.mean(posterior.X).double() + noise * weights.double())
