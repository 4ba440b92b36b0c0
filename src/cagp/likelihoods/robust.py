"""Numbers with outliers."""

import math
from typing import final

import torch
from torch import Tensor

from cagp.likelihoods.base import Grid, Likelihood, Moments, Site, Values, in_tiles, standard_gamma
from cagp.parameters import Positive

MIXTURE = torch.linspace(-24, 8, 193, dtype=torch.float64)
"""Where the logarithm of the gamma variable of Student's t is evaluated, in units of its width √(2/ν)."""

COARSE, PAIR_ROWS = 4, 2048
"""For pairs of errors: every fourth of these nodes, which is still far below the width of all integrands; and the rows
that are computed at a time."""


@final
class StudentT(Likelihood):
    """y = f + scale · t, t with Student's distribution: errors far beyond the scale are improbable, not impossible.

    Its log density is not concave in f: beyond scale · √df it bends upwards. Sites take the weight of the EM algorithm,
    which is positive and falls with the distance of an outlier; see docs/derivations.md.

    Args:
        scale: of the errors, learned; where it starts.
        df: degrees of freedom, learned; where they start. They stay above 2, so that the variance of a target exists.
    """

    majorises = True

    scale: Positive = Positive()
    df: Positive = Positive(floor=2.0)

    def __init__(self, scale: float = 0.3, df: float = 6.0):
        super().__init__()
        self.scale = scale
        self.df = df

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """log Γ((ν+1)/2) - log Γ(ν/2) - ½ log(νπs²) - ½(ν+1) log(1 + (y-f)²/(νs²))."""
        s, df = self.scale.to(f.device), self.df.to(f.device)
        constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * torch.log(math.pi * df) - s.log()
        return constant - 0.5 * (df + 1) * torch.log1p(((y - f) / s).square() / df)

    @torch.no_grad()
    def site(self, y: Values, mean: Values, variance: Values) -> Site:
        """w (y - m) and w = (ν + 1) / (νs² + (y - m)² + v): the expected precision of the row's error (EM)."""
        s, df, error = self.scale.to(mean.device), self.df.to(mean.device), y.double() - mean.double()
        weight = (df + 1) / (df * s.square() + error.square() + variance.double())
        return Site(weight * error, weight)

    def _mixture(self, like: Tensor, every: int = 1) -> tuple[Tensor, Tensor]:
        """Variances s²/τ and the logarithms of their weights, τ ~ Gamma(ν/2, ν/2): an error is normal given τ."""
        s, df = self.scale.to(like.device), self.df.to(like.device)
        u = MIXTURE[::every].to(like.device) * torch.sqrt(2 / df)
        return s.square() * torch.exp(-u), torch.log_softmax(df / 2 * (u - u.exp()), 0)

    @torch.no_grad()
    @in_tiles
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log ∫ Normal(y; m, v + s²/τ) p(τ) dτ, τ ~ Gamma(ν/2, ν/2): the integrand is smooth however small s is."""
        own, log_weights = self._mixture(mean)
        total = variance[:, None] + own
        normal = -0.5 * ((y - mean).square()[:, None] / total + torch.log(2 * math.pi * total))
        return torch.logsumexp(normal + log_weights, 1)

    @torch.no_grad()
    @in_tiles
    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ Φ((y - m) / √(v + s²/τ)) p(τ) dτ."""
        own, log_weights = self._mixture(mean)
        return torch.special.ndtr((y - mean)[:, None] / torch.sqrt(variance[:, None] + own)) @ log_weights.exp()

    @torch.no_grad()
    @in_tiles
    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """E|Y - y| - ½ E|Y - Y'|, both in closed form for a mixture of normals, Y' an independent copy of Y."""
        own, log_weights = self._mixture(mean, COARSE)
        weights = log_weights.exp()
        std = torch.sqrt(variance[:, None] + own)
        z = (y - mean)[:, None] / std
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        distance = (std * (z * torch.erf(z / math.sqrt(2)) + 2 * density)) @ weights
        pairs, both = (own[:, None] + own).reshape(-1), (weights[:, None] * weights).reshape(-1)
        among = [torch.sqrt(2 * part[:, None] + pairs) @ both for part in variance.split(PAIR_ROWS)]
        return distance - torch.cat(among) / math.sqrt(2 * math.pi)

    def moments(self, f: Grid) -> Moments:
        """f, and s² ν / (ν - 2)."""
        s, df = self.scale.detach().to(f.device), self.df.detach().to(f.device)
        return Moments(f, (s.square() * df / (df - 2)).expand(f.shape))

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        """A number for each f."""
        half = float(self.df.detach()) / 2
        gamma = standard_gamma(half, f, generator) / half
        white = torch.randn(f.shape, dtype=torch.float64, generator=generator).to(f.device)
        return f + self.scale.detach().to(f.device) * white * gamma.rsqrt()

    def constant(self, y: Values, known: Values | None = None) -> float:
        """The median of what is not known."""
        return float((y.double() if known is None else y.double() - known.double()).median())
