"""Counts 0, 1, 2, ... whose mean is exp(f). An exposure e is an offset log e of f."""

from typing import final

import torch
from torch import Tensor

from cagp.likelihoods.base import LEAST_PRECISION, Grid, Likelihood, Moments, Site, Slopes, Values, standard_gamma
from cagp.parameters import Positive

LARGEST_LOG_MEAN = 80.0
"""Means of counts stay below exp(80): beyond, squares leave the range of numbers."""


class Counts(Likelihood):
    """Counts with mean exp(f)."""

    def check(self, y: Tensor) -> None:
        """Raise ValueError unless all targets are 0, 1, 2, ..."""
        wrong = ~torch.isfinite(y) | (y < 0) | (y != y.round())
        if bool(wrong.any()):
            raise ValueError(
                f"y has {int(wrong.sum())} values that are no counts (first {float(y[wrong][0]):g}); expected 0, 1, "
                "2, ... For rates, pass the counts and the logarithm of the exposure as the offset."
            )


@final
class Poisson(Counts):
    """y ~ Poisson(exp(f)): mean and variance of the counts are equal."""

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """y f - exp(f) - log y!."""
        return y * f - _exp(f) - torch.lgamma(y + 1)

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """y - exp(f) and -exp(f)."""
        rate = _exp(f)
        return Slopes(y - rate, -rate)

    @torch.no_grad()
    def site(self, y: Values, mean: Values, variance: Values) -> Site:
        """y - exp(m + v/2) and exp(m + v/2), in closed form."""
        rate = _exp(mean.double() + variance.double() / 2)
        return Site(y.double() - rate, rate.clamp_min(LEAST_PRECISION))

    def expected_log_density(self, y: Values, mean: Values, variance: Values) -> Values:
        """y m - exp(m + v/2) - log y!, in closed form."""
        y, mean = y.double(), mean.double()
        return y * mean - _exp(mean + variance.double() / 2) - torch.lgamma(y + 1)

    def moments(self, f: Grid) -> Moments:
        """exp(f), twice."""
        return Moments(_exp(f), _exp(f))

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        """A count for each f."""
        return torch.poisson(_exp(f), generator=generator)


@final
class NegativeBinomial(Counts):
    """Counts with mean μ = exp(f) and variance μ + dispersion μ², the dispersion learned; at zero it is Poisson.

    Args:
        dispersion: where it starts.
    """

    dispersion: Positive = Positive()

    def __init__(self, dispersion: float = 0.5):
        super().__init__()
        self.dispersion = dispersion

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """With r = 1 / dispersion: log Γ(y + r) - log Γ(r) - log y! + y f - y log(r + μ) - r log(1 + μ/r)."""
        a = self.dispersion.to(f.device)
        r, rate = 1 / a, _exp(f)
        choices = torch.lgamma(y + r) - torch.lgamma(r) - torch.lgamma(y + 1)
        return choices + y * f - y * torch.log(r + rate) - r * torch.log1p(a * rate)

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """(y - μ) / (1 + aμ) and -μ (1 + ay) / (1 + aμ)², a the dispersion."""
        a, rate = self.dispersion.detach().to(f.device), _exp(f)
        return Slopes((y - rate) / (1 + a * rate), -rate * (1 + a * y) / (1 + a * rate).square())

    def moments(self, f: Grid) -> Moments:
        """μ and μ + dispersion μ²."""
        rate = _exp(f)
        return Moments(rate, rate + self.dispersion.detach().to(f.device) * rate.square())

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        """A count for each f: Poisson, with a rate drawn from a gamma distribution."""
        r = 1 / float(self.dispersion.detach())
        return torch.poisson(_exp(f) * standard_gamma(r, f, generator) / r, generator=generator)


def _exp(f: Tensor) -> Tensor:
    return torch.exp(f.clamp_max(LARGEST_LOG_MEAN))
