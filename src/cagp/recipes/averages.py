"""The average of two fitted models of the same rows."""

from cagp.posteriors import AveragedPosterior
from cagp.recipes.task import Fitted


def average(first: Fitted, second: Fitted, weight: float) -> Fitted:
    """The first model, averaged with a second one that has this weight; see ``AveragedPosterior``.

    The prior mean of an average is the average of the prior means: trees that only one of the two has count with its
    weight.
    """
    weights = 1 - weight, weight
    pairs = zip(first.posteriors, second.posteriors, strict=True)
    trees = [
        model.trees.with_share(share) for model, share in zip((first, second), weights, strict=True) if model.trees
    ]
    if len(trees) > 1:
        raise ValueError("both models have trees in the mean, expected at most one of them.")
    said = [note for note in second.notes if note not in first.notes]
    return first._replace(
        posteriors=[AveragedPosterior(pair, weights) for pair in pairs],
        trees=trees[0] if trees else None,
        notes=[*first.notes, "Of the second model:", *said],
    )
