"""Two classes, coded 0 and 1."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.likelihoods.base import LOG_WEIGHTS, Grid, Likelihood, Moments, Slopes, Values, at_nodes, in_tiles

Columns = Float[Tensor, "n q"]


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

    # ---- as one function of two classes, beside ``Softmax`` ----

    @property
    def num_functions(self) -> int:
        """One."""
        return 1

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

    @torch.no_grad()
    @in_tiles
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
