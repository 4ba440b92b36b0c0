"""Likelihoods: how a target depends on the function's value at its row. Parameters only, never data."""

from cagp.likelihood_registry import LIKELIHOODS
from cagp.likelihoods.base import Likelihood, Moments, Site, Slopes
from cagp.likelihoods.classes import Bernoulli, Logit, Probit
from cagp.likelihoods.counts import NegativeBinomial, Poisson
from cagp.likelihoods.robust import StudentT

_CLASSES = {kind.__name__: kind for kind in (Logit, Probit, Poisson, NegativeBinomial, StudentT)}


def likelihood_class(name: str) -> type[Likelihood]:
    """The class of the likelihood that a user can name."""
    if name not in LIKELIHOODS:
        raise ValueError(f"likelihood is {name!r}, expected one of {', '.join(LIKELIHOODS)}.")
    return _CLASSES[LIKELIHOODS[name].class_name]


__all__ = [
    "Bernoulli",
    "Likelihood",
    "Logit",
    "Moments",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "Site",
    "Slopes",
    "StudentT",
    "likelihood_class",
]
