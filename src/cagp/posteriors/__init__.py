"""Posteriors: frozen snapshots that answer mean, variance, covariance and samples."""

from typing import Any

import torch

from cagp.fields import checked, entry, integer, list_of, mapping, real, strange, text
from cagp.kernels import Kernel
from cagp.posteriors.all_rows import CaGPPosterior, CGPosterior, InducingPosterior
from cagp.posteriors.base import DTYPES, AveragedPosterior, Posterior, Prediction, Sharing
from cagp.posteriors.nearest_rows import LocalPosterior, predict_columns
from cagp.prior import GP

__all__ = [
    "AveragedPosterior",
    "CGPosterior",
    "CaGPPosterior",
    "InducingPosterior",
    "LocalPosterior",
    "Posterior",
    "Prediction",
    "Sharing",
    "posterior_from_state",
    "predict_columns",
]

CLASSES = {kind.__name__: kind for kind in (CaGPPosterior, InducingPosterior, CGPosterior, LocalPosterior)}
AVERAGE = {
    "components": list_of(mapping, least=1),
    "weights": list_of(real(above=0.0)),
    "offset_of": list_of(integer()),
}


def posterior_from_state(state: Any, kernel: Kernel | None = None, sharing: Sharing | None = None) -> Posterior:
    """The posterior of a state, ``kernel`` as in ``GP.from_state`` and ``sharing`` with the other posteriors of a file.

    It holds the tensors of the state itself, which must not be changed.
    """
    sharing = Sharing() if sharing is None else sharing
    name = entry(state, "class", text)
    if name == AveragedPosterior.__name__:
        average = checked(state, AVERAGE)
        if any(entry(part, "class", text) == name for part in average["components"]):
            raise strange("components that are no averages")
        parts = [posterior_from_state(part, kernel, sharing) for part in average["components"]]
        return AveragedPosterior(parts, average["weights"], average["offset_of"])
    if name not in CLASSES or entry(state, "dtype", text) not in DTYPES:
        raise strange("a known class of posteriors")
    with torch.no_grad():
        for part in entry(state, "prior", mapping).values():
            sharing.spend(part)
        prior = GP.from_state(state["prior"], kernel)
        X = sharing.inputs(state, prior)
        return CLASSES[name]._from_state(state, prior, X, entry(state, "max_bytes", integer()), sharing)
