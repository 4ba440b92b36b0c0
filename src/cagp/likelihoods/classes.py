"""Classes: two, coded 0 and 1, with one function, or several, each with a function of its own."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.likelihoods.base import LOG_WEIGHTS, Grid, Likelihood, Moments, Slopes, Values, at_nodes, integral

Columns = Float[Tensor, "n q"]

PAIRS = 16  # pairs of nodes of integrals over all functions in training

VALUES, FARTHEST, TAIL = 61, 6.0, 20.0
"""Predictions integrate over the largest of all f_c + g_c, at this many values of it: up to ``FARTHEST`` standard
deviations from the largest mean, and ``TAIL`` beyond, where the density of g has fallen to exp(-20)."""

CLASS_NODES = torch.linspace(-6, 6, 49, dtype=torch.float64)
CLASS_WEIGHTS = torch.softmax(-CLASS_NODES.square() / 2, 0)  # of the integral over f_c, in standard deviations
TILE_ELEMENTS = 2**18  # numbers that an integral holds at once


class Bernoulli(Likelihood):
    """P(y = 1 | f) is a link of f, and y is 0 or 1. ``Logit`` and ``Probit`` are the two links."""

    def check(self, y: Tensor) -> None:
        """Raise ValueError unless all targets are 0 or 1."""
        wrong = (y != 0) & (y != 1)
        if bool(wrong.any()):
            raise ValueError(
                f"y has {int(wrong.sum())} values other than 0 and 1 (first {float(y[wrong][0]):g}); code the two "
                "classes as 0 and 1."
            )

    def moments(self, f: Grid) -> Moments:
        """The probability p of class 1, and p (1 - p)."""
        p = self.log_density(torch.ones_like(f), f).exp()
        return Moments(p, p * (1 - p))

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        return torch.bernoulli(self.moments(f).mean, generator=generator)

    # ---- as one function of two classes, beside ``Softmax`` ----

    def offsets(self, y: Columns, weight: Values) -> Float[Tensor, " q"]:
        """The value of f with P(y = 1) equal to the share of the class, by Newton's method."""
        share, f = weight @ y[:, 0] / weight.sum(), y.new_zeros(1, dtype=torch.float64)
        for _ in range(100):
            (first, second), (other, another) = (self.slopes(torch.full_like(f, t), f) for t in (1.0, 0.0))
            slope = share * first + (1 - share) * other
            f = f - (slope / (share * second + (1 - share) * another)).clamp(-1, 1)
        return f

    def score(self, y: Grid, f: Grid) -> Grid:
        """d log p(y | f) / df."""
        return self.slopes(y, f).first

    def row_loss(self, y: Columns, mean: Columns, variance: Values) -> Values:
        """-log ∫ p(y | f) q(f) df, differentiable in mean and variance."""
        return -self._log_average(y[:, 0], mean[:, 0], variance)

    def _log_average(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """log ∫ p(y | f) q(f) df by the nodes of q, which are enough where the link is smooth on any scale."""
        return torch.logsumexp(self.log_density(y[:, None], at_nodes(mean, variance)) + LOG_WEIGHTS.to(mean), 1)

    def log_probabilities(self, mean: Columns, variance: Values) -> Float[Tensor, "n c"]:
        """log ∫ p(y | f) q(f) df of y = 0 and y = 1."""
        both = [self.log_predictive(torch.full_like(variance, t), mean[:, 0], variance) for t in (0.0, 1.0)]
        return torch.log_softmax(torch.stack(both, 1), 1)


@final
class Logit(Bernoulli):
    """P(y = 1 | f) = 1 / (1 + exp(-f))."""

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """log p(y | f) = log σ(±f), without overflow."""
        return torch.nn.functional.logsigmoid((2 * y - 1) * f)

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """y - σ(f) and -σ(f) σ(-f)."""
        p = torch.sigmoid(f)
        return Slopes(y - p, -p * torch.sigmoid(-f))

    @integral
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log ∫ σ(±f) q(f) df."""
        return self._log_average(y, mean, variance)


@final
class Probit(Bernoulli):
    """P(y = 1 | f) = Φ(f), the distribution function of the standard normal."""

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """log p(y | f) = log Φ(±f), accurate in the tails."""
        return torch.special.log_ndtr((2 * y - 1) * f)

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """With s = 2y - 1 and r = φ(f) / Φ(sf): s r and -r (r + s f)."""
        s = 2 * y - 1
        r = torch.exp(-f.square() / 2 - 0.5 * math.log(2 * math.pi) - torch.special.log_ndtr(s * f))
        return Slopes(s * r, -r * (r + s * f))

    @torch.no_grad()
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log Φ(±m / √(1 + v)), in closed form."""
        return self.log_density(y.double(), mean.double() / torch.sqrt(1 + variance.double()))


@final
class Softmax(nn.Module):
    """p(y = c | f) = exp(f_c) / Σ exp(f), with one function for each of ``num_classes`` classes.

    Integrals are over functions that are independent given the rows, with one variance for all. In training they are
    means over fixed nodes, ± the points of a Sobol sequence. Predictions are integrals over one variable: softmax(f)_c
    is the probability that f_c + g_c is the largest of all, for independent g of the Gumbel distribution.
    """

    def __init__(self, num_classes: int):
        super().__init__()
        if num_classes < 3:
            raise ValueError(f"num_classes is {num_classes}, expected 3 or more; two classes have Logit or Probit.")
        self.num_classes = num_classes

    def offsets(self, y: Columns, weight: Values) -> Float[Tensor, " q"]:
        """log of the share of each class; the values that suit all rows together best."""
        return torch.log(weight @ y / weight.sum())

    def score(self, y: Float[Tensor, "... q"], f: Float[Tensor, "... q"]) -> Float[Tensor, "... q"]:
        """d log p(y | f) / df = y - p; ``y`` is one for the row's class and zero for the others."""
        return y - torch.softmax(f, -1)

    def row_loss(self, y: Columns, mean: Columns, variance: Values) -> Values:
        """-log ∫ p(y | f) q(f) df with q(f) = Normal(mean, variance I), differentiable in both."""
        observed = y.argmax(1)[None, :, None].expand(2 * PAIRS, -1, 1)
        # ± points of a scrambled Sobol sequence, as normal numbers; always the same.
        drawn = torch.quasirandom.SobolEngine(self.num_classes, scramble=True, seed=0).draw(PAIRS, dtype=torch.float64)
        points = torch.special.ndtri(drawn.clamp(1e-9, 1 - 1e-9)).to(mean)[:, None, :]
        f = mean + variance.clamp_min(0).sqrt()[:, None] * torch.cat([points, -points])
        log_p = torch.log_softmax(f, 2).gather(2, observed)[:, :, 0]
        return math.log(2 * PAIRS) - torch.logsumexp(log_p, 0)

    @torch.no_grad()
    def log_probabilities(self, mean: Columns, variance: Values) -> Columns:
        """log ∫ p(y = c | f) q(f) df of each class.

        With the distribution function F_c of f_c + g_c: ∫ F_c'(t) Π_{j≠c} F_j(t) dt. Relative errors are about 1e-5 up
        to a standard deviation of 3, and 0.01 at 6. Time O(n q), memory O(tile).
        """
        rows = max(1, TILE_ELEMENTS // (VALUES * len(CLASS_NODES) * self.num_classes))
        parts = [_largest(m, v) for m, v in zip(mean.split(rows), variance.split(rows), strict=True)]
        return torch.log_softmax(torch.cat(parts), 1)


def _largest(mean: Tensor, variance: Tensor) -> Float[Tensor, "n q"]:
    """The logarithm of the probability that each f_c + g_c is the largest."""
    std, weights = variance.clamp_min(0).sqrt(), CLASS_WEIGHTS.to(mean)
    top, low, high = mean.amax(1), -FARTHEST * std - 4, FARTHEST * std + TAIL  # exp(-exp(4)) is nothing
    t = top[:, None] + low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, VALUES).to(mean)
    away = t[:, :, None, None] - mean[:, None, :, None] - (std[:, None] * CLASS_NODES.to(mean))[:, None, None, :]
    slope = torch.exp(-away.clamp_min(-700))
    below = torch.exp(-slope)
    F, density = (below @ weights).clamp_min(1e-300), (slope * below).nan_to_num(0.0) @ weights
    everything = F.log().sum(2, keepdim=True)
    return (density.clamp_min(1e-300).log() - F.log() + everything).logsumexp(1) + torch.log(high - low)[:, None]
