"""Training: ``fit`` minimises a method's objective, and knows nothing of Gaussian processes."""

from cagp.training.fitting import CHECKPOINT, fit
from cagp.training.history import FitResult, FitStatus, Step
from cagp.training.optimizers import PRESETS, Settings
from cagp.training.trainable import Batch, Coming, ParameterGroup, StepRows, Trainable

__all__ = [
    "CHECKPOINT",
    "PRESETS",
    "Batch",
    "Coming",
    "FitResult",
    "FitStatus",
    "ParameterGroup",
    "Settings",
    "Step",
    "StepRows",
    "Trainable",
    "fit",
]
