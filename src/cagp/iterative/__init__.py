"""The posterior an action at a time (Algorithm S1), and the policies that choose the actions."""

from cagp.iterative.loop import Iteration, Status, Stopping, iterate
from cagp.iterative.policies import (
    CGResiduals,
    GivenActions,
    KernelColumns,
    Lanczos,
    Mix,
    Policy,
    RandomActions,
    TopEigenvectors,
    UnitVectors,
    top_eigenvectors,
)
from cagp.iterative.state import State

__all__ = [
    "CGResiduals",
    "GivenActions",
    "Iteration",
    "KernelColumns",
    "Lanczos",
    "Mix",
    "Policy",
    "RandomActions",
    "State",
    "Status",
    "Stopping",
    "TopEigenvectors",
    "UnitVectors",
    "iterate",
    "top_eigenvectors",
]
