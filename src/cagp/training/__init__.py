"""Training: ``fit`` minimises a method's objective, and knows nothing of Gaussian processes."""

from cagp.training.fit import FitResult, Trainable, fit
from cagp.training.history import Step
from cagp.training.settings import PRESETS, Settings

__all__ = ["PRESETS", "FitResult", "Settings", "Step", "Trainable", "fit"]
