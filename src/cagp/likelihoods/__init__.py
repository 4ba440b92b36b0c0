"""Likelihoods: how a target depends on the function's value at its row. Parameters only, never data."""

from cagp.likelihood_registry import LIKELIHOODS
from cagp.likelihoods.base import Bernoulli, Likelihood, Logit, Moments, Probit, Site, Slopes, Softmax
from cagp.likelihoods.numbers import NegativeBinomial, Poisson, StudentT


def likelihood_class(name: str) -> type[Likelihood]:
    """The class of the likelihood that a user can name."""
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood is {name!r}, expected one of {', '.join(LIKELIHOODS)}.")
    return globals()[LIKELIHOODS[name].class_name]


ClassLikelihood = Bernoulli | Softmax  # what gives the probabilities of classes, by one function or several


def class_likelihood(name: str, num_classes: int) -> ClassLikelihood:
    """The likelihood of this many classes with the link that a user can name; several have the logistic link."""
    if num_classes > 2 and name != "logit":
        raise ValueError(f'likelihood is {name!r}, which is for two classes, and y has {num_classes}; use "logit".')
    found = Softmax(num_classes) if num_classes > 2 else likelihood_class(name)()
    assert isinstance(found, ClassLikelihood)
    return found


__all__ = [
    "Bernoulli",
    "ClassLikelihood",
    "Likelihood",
    "Logit",
    "Moments",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "Site",
    "Slopes",
    "Softmax",
    "StudentT",
    "class_likelihood",
    "likelihood_class",
]
