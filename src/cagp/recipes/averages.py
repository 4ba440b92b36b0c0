"""The average of two fitted models of the same rows."""

from cagp.posteriors import AveragedPosterior
from cagp.recipes.task import Fitted


def average(first: Fitted, second: Fitted, weight: float) -> Fitted:
    """The first model, averaged with a second one that has this weight; see ``AveragedPosterior``.

    Of the two, at most one has trees in the mean. They are the offset of that model alone.
    """
    if first.trees is not None and second.trees is not None:
        raise ValueError("both models have trees in the mean, expected at most one of them.")
    offset_of = 0 if second.trees is None else 1
    pairs = zip(first.posteriors, second.posteriors, strict=True)
    said = [note for note in second.notes if note not in first.notes]
    return first._replace(
        posteriors=[AveragedPosterior(pair, (1 - weight, weight), offset_of) for pair in pairs],
        trees=first.trees or second.trees,
        notes=[*first.notes, "Of the second model:", *said],
    )
