"""Counts 0, 1, 2, ... whose mean is exp(f) (an exposure e is an offset log e of f), and numbers with outliers."""

import math
from abc import abstractmethod
from typing import final

import numpy as np
import torch
from scipy import special
from torch import Tensor

from cagp.likelihoods.base import LEAST_PRECISION, TILE_ROWS, Grid, Likelihood, Moments, Site, Slopes, Values, integral
from cagp.parameters import Positive

LARGEST_LOG_MEAN = 80.0  # means of counts stay below exp(80): beyond, squares leave the range of numbers
LARGEST_COUNT = 2.0**53  # quantiles are at most this: up to there, float64 has every integer

SMOOTH_NODES = torch.linspace(-7.5, 7.5, 21, dtype=torch.float64)
SMOOTH_WEIGHTS = torch.softmax(-SMOOTH_NODES.square() / 2, 0)
"""As ``NODES`` in ``base``, for integrands that are as smooth as the distribution itself: errors are below 1e-7."""

THRESHOLDS = torch.linspace(-24, 24, 97, dtype=torch.float64)
"""Where the distribution of a threshold is evaluated, in units of its width; its tails are those of an exponential."""

RANGE, RANKED_COUNTS = 1e-4, 40
"""Ranked scores sum between the quantiles of ``RANGE`` and one less it, over this many counts to either side."""

MIXTURE = torch.linspace(-24, 8, 193, dtype=torch.float64)
"""Where the logarithm of the gamma variable of Student's t is evaluated, in units of its width √(2/ν)."""

COARSE, PAIR_ROWS = 4, 2048
"""For pairs of errors: every fourth of these nodes, which is still far below the width of all integrands; and the rows
that are computed at a time."""


class Counts(Likelihood):
    """Counts with mean exp(f).

    Given f, a count is at most k where f lies below a random threshold log(k + 1) + U. For Poisson counts it is the
    logarithm of a gamma variable, for negative binomial ones that of a ratio of two. Distribution functions integrate
    over f or over U, whichever is the narrower: the integrand is then smooth on the nodes.
    """

    are_counts = True

    @abstractmethod
    def _cdf_given(self, k: Tensor, f: Tensor) -> Tensor:
        """P(Y ≤ k | f)."""

    def _threshold_width(self, k: Tensor) -> Tensor:
        """How wide the distribution of U is about its mode, zero."""
        return torch.sqrt(1 / (k + 1) + self.excess)

    @abstractmethod
    def _threshold_log_density(self, k: Tensor, u: Tensor) -> Tensor:
        """The logarithm of the density of U, up to a constant."""

    @property
    def excess(self) -> float:
        """a: the variance of a count with mean μ is μ + a μ²."""
        return 0.0

    def moments(self, f: Grid) -> Moments:
        """μ = exp(f) and μ + a μ²."""
        rate = _exp(f)
        return Moments(rate, rate * (1 + self.excess * rate))

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """(y - μ) / (1 + aμ) and -μ (1 + ay) / (1 + aμ)²; y - μ and -μ for Poisson counts."""
        a, rate = self.excess, _exp(f)
        return Slopes((y - rate) / (1 + a * rate), -rate * (1 + a * y) / (1 + a * rate).square())

    @torch.no_grad()
    def predictive_moments(self, mean: Values, variance: Values) -> Moments:
        """M = exp(m + v/2), and the noise + (exp(v) - 1) M²."""
        M, v = _exp(mean.double() + variance.double() / 2), variance.double().clamp(0, LARGEST_LOG_MEAN)
        return Moments(M, self.predictive_noise(mean, variance) + torch.expm1(v) * M.square())

    @torch.no_grad()
    def predictive_noise(self, mean: Values, variance: Values) -> Values:
        """M + a exp(v) M²."""
        M, v = _exp(mean.double() + variance.double() / 2), variance.double().clamp(0, LARGEST_LOG_MEAN)
        return M + self.excess * v.exp() * M.square()

    @torch.no_grad()
    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """P(Y ≤ y) = P(f ≤ log(k + 1) + U), k the largest integer up to y."""
        found = torch.zeros(len(y), dtype=torch.float64)
        whole, m, std = (part.double().cpu() for part in (y.floor(), mean, variance.clamp_min(0).sqrt()))
        possible = whole >= 0
        is_narrow = std < self._threshold_width(whole.clamp_min(0))
        for rows, integrate in ((possible & is_narrow, self._over_f), (possible & ~is_narrow, self._over_threshold)):
            for part in rows.nonzero()[:, 0].split(TILE_ROWS):
                found[part] = integrate(whole[part], m[part], std[part])
        return found.clamp(0, 1).to(mean.device)

    def _over_f(self, k: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return self._cdf_given(k[:, None], mean[:, None] + std[:, None] * SMOOTH_NODES) @ SMOOTH_WEIGHTS

    def _over_threshold(self, k: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        u = self._threshold_width(k)[:, None] * THRESHOLDS
        weights = torch.softmax(self._threshold_log_density(k[:, None], u), 1)
        distance = torch.log1p(k)[:, None] + u - mean[:, None]
        return (torch.special.ndtr(distance / std[:, None]) * weights).sum(1)

    @torch.no_grad()
    def predictive_quantile(self, probability: float, mean: Values, variance: Values) -> Values:
        """The smallest count k with P(Y ≤ k) ≥ probability, by bisection in Cantelli's bracket."""
        mean, variance = mean.double(), variance.double()
        center, spread = self.predictive_moments(mean, variance)
        std = spread.sqrt().nan_to_num(LARGEST_COUNT, LARGEST_COUNT)
        low, high = self._cantelli_bracket(probability, center, std)
        # P(Y ≤ low) is below the probability, P(Y ≤ high) is not.
        low, high = (low.floor() - 1).clamp(-1, LARGEST_COUNT), high.ceil().clamp(0, LARGEST_COUNT)
        while bool((high - low > 1).any()):
            middle = torch.floor((low + high) / 2)
            reached = self.predictive_cdf(middle, mean, variance) >= probability
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high

    @torch.no_grad()
    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """Σ_k (P(Y ≤ k) - [y ≤ k])²: exact where counts are few; else P(Y ≤ k) at some k, linear between."""
        y, mean, variance = y.double(), mean.double(), variance.double()
        low, high = (self.predictive_quantile(p, mean, variance) for p in (RANGE, 1 - RANGE))
        # Where the distribution function is zero or one, up to RANGE, every k counts for one or for nothing.
        certain = (y - 1 - high).clamp_min(0) + (low - y).clamp_min(0)
        below = self._sum_of_squares(torch.minimum(y - 1, high), low - 1, mean, variance, upper=False)
        return certain + below + self._sum_of_squares(torch.maximum(y, low), high + 1, mean, variance, upper=True)

    def _sum_of_squares(self, start: Tensor, end: Tensor, mean: Tensor, variance: Tensor, *, upper: bool) -> Tensor:
        """Σ of P(Y ≤ k)² for k from ``start`` down to ``end``, or of P(Y > k)² from ``start`` up to ``end``.

        Counts are spaced evenly, or evenly by their logarithms if there are many.
        """
        side, total = (1.0 if upper else -1.0), torch.zeros_like(mean)
        start, end = (start, torch.maximum(end, start)) if upper else (start, torch.minimum(end, start).clamp_min(-1))
        distance = (end - start).abs()
        ratio = ((end + 1).clamp_min(0.5) / (start + 1).clamp_min(0.5)).log() / RANKED_COUNTS
        last, last_k = torch.zeros_like(mean), start
        for j in range(RANKED_COUNTS + 1):
            even, spaced = torch.full_like(mean, float(j)), ((start + 1) * torch.expm1(ratio * j)).abs().round()
            k = start + side * torch.where(distance <= RANKED_COUNTS, even, spaced)
            cdf = self.predictive_cdf(k, mean, variance)
            tail, stride = 1 - cdf if upper else cdf, (k - last_k).abs()
            # From the last k to before this one, P(Y ≤ k) is taken as linear: its squares then have this sum.
            slope = tail - last
            squares = stride * last.square() + last * slope * (stride - 1)
            squares = squares + slope.square() * (stride - 1) * (2 * stride - 1) / (6 * stride).clamp_min(1)
            total = total + torch.where(stride > 0, squares, 0.0)
            last, last_k = tail, k
        return total

    def constant(self, y: Values, known: Values | None = None) -> float:
        """The logarithm of the mean count, or of that of a unit of exposure; without any count, of half a count."""
        total = len(y) if known is None else float(known.double().exp().sum())
        return math.log(max(float(y.double().sum()), 0.5) / total)

    def check(self, y: Tensor) -> None:
        """Raise ValueError unless all targets are 0, 1, 2, ..."""
        wrong = ~torch.isfinite(y) | (y < 0) | (y != y.round())
        if bool(wrong.any()):
            raise ValueError(
                f"y has {int(wrong.sum())} values that are no counts (first {float(y[wrong][0]):g}); expected 0, 1, "
                "2, ... For rates, pass the counts and their exposure."
            )


@final
class Poisson(Counts):
    """y ~ Poisson(exp(f)): mean and variance of the counts are equal."""

    def log_density(self, y: Grid, f: Grid) -> Grid:
        """y f - exp(f) - log y!."""
        return y * f - _exp(f) - torch.lgamma(y + 1)

    @integral
    def site(self, y: Values, mean: Values, variance: Values) -> Site:
        """y - exp(m + v/2) and exp(m + v/2), in closed form."""
        rate = _exp(mean + variance / 2)
        return Site(y - rate, rate.clamp_min(LEAST_PRECISION))

    def expected_log_density(self, y: Values, mean: Values, variance: Values) -> Values:
        """y m - exp(m + v/2) - log y!, in closed form."""
        y, mean = y.double(), mean.double()
        return y * mean - _exp(mean + variance.double() / 2) - torch.lgamma(y + 1)

    def _cdf_given(self, k: Tensor, f: Tensor) -> Tensor:
        return torch.from_numpy(special.gammaincc((k + 1).numpy(), _exp(f).numpy()))

    def _threshold_log_density(self, k: Tensor, u: Tensor) -> Tensor:
        """Of log G - log(k + 1), G ~ Gamma(k + 1): (k + 1) (u - exp(u))."""
        return (k + 1) * (u - torch.expm1(u))

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        return torch.poisson(_exp(f), generator=generator)


@final
class NegativeBinomial(Counts):
    """Counts with mean μ = exp(f) and variance μ + dispersion μ², the dispersion learned; at zero it is Poisson."""

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

    @property
    def excess(self) -> float:
        return float(self.dispersion.detach())

    def _cdf_given(self, k: Tensor, f: Tensor) -> Tensor:
        r = 1 / self.excess
        return torch.from_numpy(special.betainc(r, (k + 1).numpy(), (r / (r + _exp(f))).numpy()))

    def _threshold_log_density(self, k: Tensor, u: Tensor) -> Tensor:
        """Of log(r G / H) - log(k + 1), G ~ Gamma(k + 1), H ~ Gamma(r): (k+1) u - (k+1+r) log(1 + (k+1) exp(u) / r)."""
        r = 1 / self.excess
        return (k + 1) * u - (k + 1 + r) * torch.log1p((k + 1) / (k + 1 + r) * torch.expm1(u))

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        """A count for each f: Poisson, with a rate drawn from a gamma distribution."""
        r = 1 / self.excess
        return torch.poisson(_exp(f) * _standard_gamma(r, f, generator) / r, generator=generator)


def _exp(f: Tensor) -> Tensor:
    return torch.exp(f.clamp_max(LARGEST_LOG_MEAN))


def _standard_gamma(shape: float, like: Grid, generator: torch.Generator | None) -> Grid:
    """Draws of Gamma(shape, 1), one for each element of ``like``."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).standard_gamma(shape, tuple(like.shape))).to(like)


# ---- numbers with outliers ----


@final
class StudentT(Likelihood):
    """y = f + scale · t, t with Student's distribution: errors far beyond the scale are improbable, not impossible.

    Its log density is not concave in f: beyond scale · √df it bends upwards. Sites take the weight of the EM algorithm,
    which is positive and falls with the distance of an outlier; see docs/derivations.md. The scale of the errors and
    their degrees of freedom are learned; these stay above 2, so that the variance of a target exists.
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

    @integral
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log ∫ Normal(y; m, v + s²/τ) p(τ) dτ, τ ~ Gamma(ν/2, ν/2): the integrand is smooth however small s is."""
        own, log_weights = self._mixture(mean)
        total = variance[:, None] + own
        normal = -0.5 * ((y - mean).square()[:, None] / total + torch.log(2 * math.pi * total))
        return torch.logsumexp(normal + log_weights, 1)

    @integral
    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ Φ((y - m) / √(v + s²/τ)) p(τ) dτ."""
        own, log_weights = self._mixture(mean)
        return torch.special.ndtr((y - mean)[:, None] / torch.sqrt(variance[:, None] + own)) @ log_weights.exp()

    @integral
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
        half = float(self.df.detach()) / 2
        gamma = _standard_gamma(half, f, generator) / half
        white = torch.randn(f.shape, dtype=torch.float64, generator=generator).to(f.device)
        return f + self.scale.detach().to(f.device) * white * gamma.rsqrt()

    def constant(self, y: Values, known: Values | None = None) -> float:
        """The median of what is not known."""
        return float((y.double() if known is None else y.double() - known.double()).median())
