"""What every likelihood is: a log density of a target given the function's value, and what follows from it; and those
of classes: two, coded 0 and 1, with one function, or several, each with a function of its own."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

Values = Float[Tensor, " n"]
Grid = Float[Tensor, "..."]
Columns = Float[Tensor, "n q"]
Method = TypeVar("Method", bound=Callable[..., Any])

NODES = torch.linspace(-8, 8, 65, dtype=torch.float64)
"""Where integrals over a normal distribution are evaluated, in standard deviations from its mean. The trapezoid rule
with equal steps converges faster than any power of the step for smooth integrands. Unlike Gauss-Hermite quadrature it
stays accurate where the distribution is much wider than the link: with the logistic link and a standard deviation of 4,
the relative error is below 1e-7."""

LOG_WEIGHTS = torch.log_softmax(-NODES.square() / 2, 0)

LEAST_PRECISION = 1e-10  # of sites; at the fixed point the mean does not depend on it: see docs/derivations.md
TILE_ROWS = 2**15  # rows that are integrated at a time
MODE_STEPS = 30
QUANTILE_STEPS, QUANTILE_TOLERANCE = 80, 1e-10  # at most, and the change that ends the search, in standard deviations


def in_tiles(method: Method) -> Method:
    """A method of columns that sees ``TILE_ROWS`` of their rows at a time, in float64."""

    @functools.wraps(method)
    def tiled(self: Any, *columns: Tensor) -> Any:
        tiles = zip(*(column.double().split(TILE_ROWS) for column in columns), strict=True)
        found = [method(self, *tile) for tile in tiles]
        if isinstance(found[0], Tensor):
            return torch.cat(found)
        return type(found[0])(*map(torch.cat, zip(*found, strict=True)))

    return tiled  # pyright: ignore[reportReturnType]


def integral(method: Method) -> Method:
    """A method in tiles that records no gradients."""
    return torch.no_grad()(in_tiles(method))


class Slopes(NamedTuple):
    """The first two derivatives of the log density in the function's value."""

    first: Grid
    second: Grid


class Site(NamedTuple):
    """How a row's likelihood pulls at the function: a slope, and a precision that is positive."""

    slope: Values
    precision: Values


class Moments(NamedTuple):
    """Mean and variance of a target."""

    mean: Grid
    variance: Grid


class Likelihood(nn.Module, ABC):
    """p(y | f) of one target y given the function's value f.

    A likelihood of your own needs ``log_density`` alone: derivatives come from autograd, integrals from quadrature. Its
    parameters are learned with the others. ``moments`` and ``sample`` are for predictions of new targets.
    """

    are_counts: ClassVar[bool] = False  # whether targets are 0, 1, 2, ...
    majorises: ClassVar[bool] = False  # whether whole steps of ``site`` never lower the evidence bound, as in EM

    @abstractmethod
    def log_density(self, y: Grid, f: Grid) -> Grid:
        """log p(y | f) of each element, differentiable twice in ``f`` and once in the parameters."""

    def check(self, y: Tensor) -> None:
        """Raise ValueError unless these targets have a positive density."""
        if not bool(torch.isfinite(y).all()):
            raise ValueError("y has values that are NaN or infinite; leave these rows out.")

    def moments(self, f: Grid) -> Moments:
        """Mean and variance of y given f."""
        raise NotImplementedError(f"{type(self).__name__} has no moments; write moments(f) to predict means.")

    def sample(self, f: Grid, generator: torch.Generator | None = None) -> Grid:
        """A draw of y for each f."""
        raise NotImplementedError(f"{type(self).__name__} cannot be sampled; write sample(f, generator).")

    # ---- derivatives ----

    def slopes(self, y: Grid, f: Grid) -> Slopes:
        """d log p / df and d² log p / df² of each element, by autograd."""
        with torch.enable_grad():
            f = f.detach().requires_grad_(True)
            first = torch.autograd.grad(self.log_density(y, f).sum(), f, create_graph=True)[0]
            is_flat = not first.requires_grad  # a density that is linear in f
            second = None if is_flat else torch.autograd.grad(first.sum(), f, allow_unused=True)[0]
        return Slopes(first.detach(), torch.zeros_like(f) if second is None else second.detach())

    # ---- expectations under q(f) = Normal(mean, variance) ----

    @integral
    def site(self, y: Values, mean: Values, variance: Values) -> Site:
        """E_q[d log p / df] and -E_q[d² log p / df²], at least ``LEAST_PRECISION``; at variance zero, Newton's."""
        if bool(variance.any()):
            first, second = (average(slope) for slope in self.slopes(y[:, None], at_nodes(mean, variance)))
        else:
            first, second = self.slopes(y, mean)
        return Site(first, (-second).clamp_min(LEAST_PRECISION))

    @in_tiles
    def expected_log_density(self, y: Values, mean: Values, variance: Values) -> Values:
        """E_q[log p(y | f)], differentiable in the parameters of the likelihood."""
        return average(self.log_density(y[:, None], at_nodes(mean, variance)))

    @integral
    def log_predictive(self, y: Values, mean: Values, variance: Values) -> Values:
        """log ∫ p(y | f) q(f) df, with nodes about the largest value of the integrand."""
        variance = variance.clamp_min(1e-300)
        shift, width = self._mode(y, mean, variance)
        distance = shift[:, None] + width[:, None] * NODES.to(mean)  # from the mean, however small the variance is
        prior = -0.5 * (distance.square() / variance[:, None] + torch.log(2 * math.pi * variance[:, None]))
        step, f = float(NODES[1] - NODES[0]), mean[:, None] + distance
        return torch.logsumexp(self.log_density(y[:, None], f) + prior, 1) + torch.log(step * width)

    def _mode(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """How far from the mean p(y | f) q(f) is largest, and how wide it is there, by Newton's method."""
        shift, std = torch.zeros_like(mean), variance.sqrt()
        for _ in range(MODE_STEPS):
            first, second = self.slopes(y, mean + shift)
            precision = 1 / variance + (-second).clamp_min(0)
            step = (first - shift / variance) / precision
            shift = shift + step.clamp(-2 * std, 2 * std)
        second = self.slopes(y, mean + shift).second
        return shift, (1 / variance + (-second).clamp_min(0)).rsqrt()

    @integral
    def predictive_moments(self, mean: Values, variance: Values) -> Moments:
        """Mean and variance of a new target: E[E[y | f]], and E[Var[y | f]] + Var[E[y | f]]."""
        given = self.moments(at_nodes(mean, variance))
        center = average(given.mean)
        return Moments(center, average(given.variance) + average((given.mean - center[:, None]).square()))

    @integral
    def predictive_noise(self, mean: Values, variance: Values) -> Values:
        """E[Var[y | f]]: the part of the variance of a new target that the function does not explain."""
        return average(self.moments(at_nodes(mean, variance)).variance)

    def predictive_cdf(self, y: Values, mean: Values, variance: Values) -> Values:
        """P(Y ≤ y) of a new target Y: ∫ P(Y ≤ y | f) q(f) df."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function; write predictive_cdf.")

    def predictive_crps(self, y: Values, mean: Values, variance: Values) -> Values:
        """∫ (P(Y ≤ x) - [y ≤ x])² dx: the continuous ranked probability score of a new target."""
        raise NotImplementedError(f"{type(self).__name__} has no ranked score; write predictive_crps.")

    @torch.no_grad()
    def predictive_quantile(self, probability: float, mean: Values, variance: Values) -> Values:
        """The smallest y with P(Y ≤ y) ≥ probability, for each row, by Newton's method in Cantelli's bracket."""
        mean, variance = mean.double(), variance.double()
        center, spread = self.predictive_moments(mean, variance)
        std = spread.sqrt()
        low, high = self._cantelli_bracket(probability, center, std)
        y = (center + NormalDist().inv_cdf(probability) * std).clamp(low, high)
        for _ in range(QUANTILE_STEPS):
            excess = self.predictive_cdf(y, mean, variance) - probability
            low, high = torch.where(excess < 0, y, low), torch.where(excess < 0, high, y)
            new = y - excess / self.log_predictive(y, mean, variance).exp().clamp_min(1e-300)
            new = torch.where((new > low) & (new < high), new, (low + high) / 2)
            change, y = (new - y).abs(), new
            if bool((change <= QUANTILE_TOLERANCE * std).all()):
                break
        return y

    @staticmethod
    def _cantelli_bracket(probability: float, mean: Values, std: Values) -> tuple[Values, Values]:
        """Where a quantile lies: √((1-p) / p) deviations below the mean to √(p / (1-p)) above."""
        odds = probability / (1 - probability)
        return mean - math.sqrt(1 / odds) * std, mean + math.sqrt(odds) * std

    @torch.no_grad()
    def constant(self, y: Values, known: Values | None = None) -> float:
        """The constant part of f, besides what is ``known`` at each row, with the largest Σ log p(y | f), by Newton."""
        f = y.new_zeros((), dtype=torch.float64)
        known = torch.zeros_like(y, dtype=torch.float64) if known is None else known.double()
        for _ in range(100):
            first, second = (part.sum() for part in self.slopes(y.double(), f + known))
            step = first / torch.clamp(-second, min=LEAST_PRECISION)
            f = f + step.clamp(-1, 1)
            if abs(float(step)) < 1e-8:
                break
        return float(f)


def at_nodes(mean: Values, variance: Values) -> Float[Tensor, "n k"]:
    """The nodes of Normal(mean, variance), a row for each; differentiable at variance zero."""
    return mean[:, None] + variance.clamp_min(1e-300).sqrt()[:, None] * NODES.to(mean)


def average(at_nodes: Float[Tensor, "n k"]) -> Values:
    """The mean over each row's distribution of what was evaluated at its nodes."""
    return at_nodes @ LOG_WEIGHTS.exp().to(at_nodes)


# ---- classes ----

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
