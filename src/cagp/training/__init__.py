"""Training: ``fit`` minimises a method's objective, and knows nothing of Gaussian processes."""

from cagp.training.fitting import fit
from cagp.training.history import Step
from cagp.training.result import FitResult, FitStatus
from cagp.training.settings import PRESETS, Settings, seconds_of
from cagp.training.trainable import ParameterGroup, Trainable

__all__ = [
    "PRESETS",
    "FitResult",
    "FitStatus",
    "ParameterGroup",
    "Settings",
    "Step",
    "Trainable",
    "fit",
    "seconds_of",
]
