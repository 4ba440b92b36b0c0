"""Several classes, each with a function of its own: p(y = c | f) is the softmax of their values."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

Functions = Float[Tensor, "n q"]
Values = Float[Tensor, " n"]

FEW_NODES, MANY_NODES = 16, 256
"""Pairs of nodes of integrals over all functions, in training and in predictions. With 256 pairs, 26 classes and
variances up to 9, probabilities are right to about 0.003; a test compares them with a one-dimensional integral."""

TILE_ELEMENTS = 2**22
"""Numbers that an integral holds at once."""


@final
class Softmax(nn.Module):
    """p(y = c | f) = exp(f_c) / Σ exp(f), with one function for each of ``num_classes`` classes.

    Integrals are over functions that are independent given the rows, with one variance for all. They are means over
    fixed nodes, ± the points of a Sobol sequence: the same arguments give the same bits.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        if num_classes < 3:
            raise ValueError(f"num_classes is {num_classes}, expected 3 or more; two classes have Logit or Probit.")
        self.num_classes = num_classes

    @property
    def num_functions(self) -> int:
        """One for each class."""
        return self.num_classes

    def offsets(self, y: Functions, weight: Values) -> Float[Tensor, " q"]:
        """log of the share of each class; the values that suit all rows together best."""
        return torch.log(weight @ y / weight.sum())

    def score(self, y: Float[Tensor, "... q"], f: Float[Tensor, "... q"]) -> Float[Tensor, "... q"]:
        """d log p(y | f) / df = y - p; ``y`` is one for the row's class and zero for the others."""
        return y - torch.softmax(f, -1)

    def row_loss(self, y: Functions, mean: Functions, variance: Values) -> Values:
        """-log ∫ p(y | f) q(f) df with q(f) = Normal(mean, variance I), differentiable in both."""
        observed = y.argmax(1)[None, :, None].expand(2 * FEW_NODES, -1, 1)
        log_p = torch.log_softmax(self._at_nodes(mean, variance, FEW_NODES), 2).gather(2, observed)[:, :, 0]
        return math.log(2 * FEW_NODES) - torch.logsumexp(log_p, 0)

    @torch.no_grad()
    def log_probabilities(self, mean: Functions, variance: Values) -> Functions:
        """log ∫ p(y = c | f) q(f) df of each class. Time O(n q), memory O(tile)."""
        rows = max(1, TILE_ELEMENTS // (2 * MANY_NODES * self.num_classes))
        parts = [
            torch.log_softmax(self._at_nodes(m, v, MANY_NODES), 2).logsumexp(0)
            for m, v in zip(mean.split(rows), variance.split(rows), strict=True)
        ]
        return torch.log_softmax(torch.cat(parts), 1)

    def _at_nodes(self, mean: Tensor, variance: Tensor, num_pairs: int) -> Float[Tensor, "m n q"]:
        nodes = _nodes(self.num_classes, num_pairs).to(mean)
        return mean + variance.clamp_min(0).sqrt()[:, None] * nodes[:, None, :]


def _nodes(num_dims: int, num_pairs: int) -> Float[Tensor, "m q"]:
    """± points of a scrambled Sobol sequence, as normal numbers; always the same."""
    drawn = torch.quasirandom.SobolEngine(num_dims, scramble=True, seed=0).draw(num_pairs, dtype=torch.float64)
    points = torch.special.ndtri(drawn.clamp(1e-9, 1 - 1e-9))
    return torch.cat([points, -points])
