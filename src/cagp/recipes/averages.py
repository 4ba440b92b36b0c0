"""The average of two fitted models of the same rows."""

from cagp.posteriors import AveragedPosterior
from cagp.recipes.task import Fitted


def average(first: Fitted, second: Fitted, weight: float) -> Fitted:
    """The first model, averaged with a second one that has this weight; see ``AveragedPosterior``.

    Trees in the mean are the offset of the models that have them; if both do, these are the same trees.
    """
    if None not in (first.trees, second.trees) and first.trees is not second.trees:
        raise ValueError("the models have different trees in the mean, expected the same for both.")
    offset_of = [j for j, fitted in enumerate((first, second)) if fitted.trees is not None] or [0]
    pairs = zip(first.posteriors, second.posteriors, strict=True)
    said = [note for note in second.notes if note not in first.notes]
    return first._replace(
        posteriors=[AveragedPosterior(pair, (1 - weight, weight), offset_of) for pair in pairs],
        trees=first.trees or second.trees,
        notes=[*first.notes, "Of the second model:", *said],
    )
