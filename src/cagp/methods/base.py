"""What every method offers to ``fit``; one of your own needs ``objective_terms`` alone."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.parameters import named_values


class Method(nn.Module, ABC):
    """Parameters and an objective of the data. Data are arguments; a method holds none."""

    stochastic: bool = False
    """Whether the objective is an estimate from some of the rows, another one at every step: its smallest value then
    says nothing, and a fit keeps the last parameters unless told to monitor something else."""

    input_names: tuple[str, ...] | None = None
    """What the columns of X are called in words about a fit; None for their numbers."""

    @abstractmethod
    def objective_terms(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """Named terms per row whose sum is the loss, differentiable in the parameters."""

    def objective(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, "n *q"], row_noise: Float[Tensor, "n *q"] | None = None
    ) -> Float[Tensor, ""]:
        """The loss per row, to be minimised over all parameters."""
        return torch.stack(list(self.objective_terms(X, y, row_noise).values())).sum()

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the learning rate they share."""
        return {"hyperparameters": [p for p in self.parameters() if p.requires_grad]}

    def hyperparameters(self) -> dict[str, Any]:
        """Parameters of the ``prior``, where there is one, as numbers in their own units, for the history of a fit."""
        prior = getattr(self, "prior", None)
        return named_values(prior) if isinstance(prior, nn.Module) else {}

    def adapt(self, X: Float[Tensor, "n d"], step: int, share: float, flat: bool) -> str | None:
        """Change what is not a parameter (blocks, the rows of a minibatch) before a step of a fit.

        Args:
            step: the step's number, counted from 0; random choices must depend on it alone.
            share: of all steps, how many lie behind.
            flat: whether the loss has stopped falling since the last change.

        Returns:
            What was done, in words, if the objective is now another function; otherwise None.
        """
        return None

    def findings(self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[str]:
        """What a user should know of the fitted method, in words."""
        return []
