"""Training: ``fit`` minimises a method's objective, and knows nothing of Gaussian processes."""

from cagp.training.fitting import CHECKPOINT, fit
from cagp.training.history import Step
from cagp.training.result import FitResult, FitStatus
from cagp.training.settings import PRESETS, Settings
from cagp.training.trainable import ParameterGroup, Trainable

__all__ = [
    "CHECKPOINT",
    "PRESETS",
    "FitResult",
    "FitStatus",
    "ParameterGroup",
    "Settings",
    "Step",
    "Trainable",
    "fit",
]
