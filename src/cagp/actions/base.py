"""What every choice of actions offers to inference, and actions given as a matrix."""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.checks import check_count, check_matrix
from cagp.engine import BlockWeights
from cagp.linalg import NotPositiveDefiniteError
from cagp.prior import GP


class Actions(nn.Module, ABC):
    """S (n, i), given by the rows it touches (the support) and its weights on them.

    Posterior and losses depend on the span of S alone (Lemma "uniquely defined by the column space"), so ``weights``
    may be scaled freely; unit columns keep the algebra away from overflow. By default S is the attribute ``S``.
    """

    S: Tensor

    @property
    def num_rows(self) -> int:
        """n, the number of training rows."""
        return self.S.shape[0]

    @property
    def num_actions(self) -> int:
        """i, the budget."""
        return self.S.shape[1]

    @property
    def support(self) -> Int[Tensor, " m"]:
        """The training rows that any action touches, in the order of the weights' rows."""
        return torch.arange(self.num_rows, device=self.S.device)

    @abstractmethod
    def weights(self, dtype: torch.dtype) -> Float[Tensor, "m i"] | BlockWeights:
        """S on the support, its columns of unit length."""


class DenseActions(Actions):
    """Any linearly independent columns, fixed or learned.

    Args:
        S: the action matrix (n, i), i <= n.
        learn: whether ``S`` is a parameter.
    """

    def __init__(self, S: Float[Tensor, "n i"], learn: bool = False):
        super().__init__()
        check_matrix(S, "S")
        check_count(S.shape[1], "the number of columns of S", S.shape[0], "its number of rows")
        self.S = nn.Parameter(S.detach().clone(), requires_grad=learn)

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "n i"]:
        S = self.S.double()
        return (S / column_norms(S)).to(dtype)


@final
class ComputedActions(Actions):
    """Columns that were computed from parameters: gradients pass through S, which is not copied.

    Args:
        S: the action matrix (n, i) with columns of about unit length.
    """

    def __init__(self, S: Float[Tensor, "n i"]):
        super().__init__()
        check_matrix(S, "S")
        self.S = S

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "n i"]:
        return self.S.to(dtype)


class ActionRule(nn.Module, ABC):
    """S as a function of the prior and the data, computed again at every evaluation of a loss.

    A rule of your own needs ``num_actions`` and ``actions``. What depends on parameters (the rule's own, or those of
    the prior) in a differentiable way is trained through; what is detached is held constant.
    """

    rate: float = 0.1
    """Adam's learning rate of the rule's own parameters."""

    @property
    @abstractmethod
    def num_actions(self) -> int:
        """i, the budget."""

    @abstractmethod
    def actions(
        self, prior: GP, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> ComputedActions:
        """S at the prior's present hyperparameters, for these rows."""


def column_norms(S: Float[Tensor, "n i"]) -> Float[Tensor, " i"]:
    """Norms of the columns as constants; dividing by a constant is exact for what depends on the span alone."""
    largest = nonzero(S.detach().abs().amax(0))
    return largest * (S.detach() / largest).norm(dim=0)


def nonzero(largest: Float[Tensor, " i"]) -> Float[Tensor, " i"]:
    """The largest weight of each action, checked."""
    if not bool((largest > 0).all()):
        raise NotPositiveDefiniteError(
            f"action {int((~(largest > 0)).nonzero()[0])} is zero or not finite; every action needs a non-zero weight."
        )
    return largest
