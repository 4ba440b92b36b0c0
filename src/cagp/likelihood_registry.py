"""The one list of likelihoods: their names, their classes in ``cagp.likelihoods``, and what they are in words.

Everything that lists likelihoods reads it: estimators, the command line and saved models. It imports nothing, so that
help texts need no torch.
"""

from typing import NamedTuple


class LikelihoodEntry(NamedTuple):
    """A likelihood of this package."""

    name: str
    class_name: str
    words: str
    targets: str  # what the targets are: "classes", "counts" or "numbers"


LIKELIHOODS: dict[str, LikelihoodEntry] = {
    entry.name: entry
    for entry in (
        LikelihoodEntry("logit", "Logit", "Bernoulli with the logistic link (two classes)", "classes"),
        LikelihoodEntry("probit", "Probit", "Bernoulli with the probit link (two classes)", "classes"),
        LikelihoodEntry("poisson", "Poisson", "Poisson with the log link (counts)", "counts"),
        LikelihoodEntry(
            "negative_binomial",
            "NegativeBinomial",
            "negative binomial with the log link (counts that vary more than Poisson ones)",
            "counts",
        ),
        LikelihoodEntry("student_t", "StudentT", "Student's t (numbers with outliers)", "numbers"),
    )
}


GAUSSIAN = "gaussian"
"""The likelihood of regression unless the user chooses another: Gaussian noise, without sites."""


def likelihoods_of(*targets: str) -> tuple[str, ...]:
    """The names of the likelihoods for these kinds of targets."""
    return tuple(entry.name for entry in LIKELIHOODS.values() if entry.targets in targets)
