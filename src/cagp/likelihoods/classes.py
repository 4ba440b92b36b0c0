"""Two classes, coded 0 and 1."""

import math
from typing import final

import torch
from torch import Tensor

from cagp.likelihoods.base import LOG_WEIGHTS, Grid, Likelihood, Moments, Slopes, Values, at_nodes, tiles


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
        """0 or 1 for each f."""
        return torch.bernoulli(self.moments(f).mean, generator=generator)


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

    @torch.no_grad()
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log ∫ σ(±f) q(f) df: the link is smooth on any scale, so that the nodes of q will do."""
        parts = [
            torch.logsumexp(self.log_density(y[:, None], at_nodes(m, v)) + LOG_WEIGHTS.to(m), 1)
            for y, m, v in tiles(y, mean, variance)
        ]
        return torch.cat(parts)


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
