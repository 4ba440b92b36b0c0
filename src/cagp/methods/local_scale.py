"""Error bars that follow the neighbours of each question: the formula, and how rows predicted from others choose it."""

import copy
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.kernels import Stationary
from cagp.local import Moments, local_answers
from cagp.methods.common import is_gain
from cagp.metrics import crps, row_nll
from cagp.prior import GP, GaussianNoise

LOCAL_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
"""What is tried."""

SCALE_ROWS, SCALE_GAIN = 10_000, 0.01
"""Rows that choose among them, many because a few improbable ones weigh much, and the nats per row that the best must
gain over one scale everywhere, not by chance."""

TUNING_STEPS, MOST_TUNED, TUNING_GAIN = (2, 1), 4, 0.001
"""Lengthscales and noise are tuned in steps of these powers of √2, large ones first, up to a factor of √2⁴ = 4 either
way; a step must take a thousandth off the CRPS."""


class ScaleChoice(NamedTuple):
    """What ``learn_local_scale`` found: mean negative log density of rows, each predicted from others."""

    local_scale: float | None
    nll: float
    nll_without: float
    num_rows: int
    lengthscale_factor: float = 1.0  # what the lengthscales were multiplied by
    noise_factor: float = 1.0

    def factors(self) -> dict[str, float]:
        """What was tuned, in words."""
        return {"lengthscales": self.lengthscale_factor, "noise variance": self.noise_factor}


def checked_scale(local_scale: float | None) -> float | None:
    """The scale; ValueError unless it is None or a positive number."""
    if local_scale is not None and not 0 < local_scale < math.inf:
        raise ValueError(f"local_scale is {local_scale}, expected None or a positive number of neighbours.")
    return local_scale


def scale_around(found: Moments, closeness: Float[Tensor, " t"], local_scale: float) -> Float[Tensor, " t"]:
    """(ν + rᵀC⁻¹r) / (ν + k), the posterior mean of a scale with an inverse gamma prior of mean one; far off, one."""
    return 1 + closeness * ((local_scale + found.misfit) / (local_scale + found.num_rows) - 1)


def closeness_to_rows(
    prior: GP, questions: Float[Tensor, "t d"], X: Float[Tensor, "n d"], neighbours: Int[Tensor, "t k"]
) -> Float[Tensor, " t"]:
    """1 - (1 - ρ)⁴ with the correlation ρ of the function at each question and at the first of its rows; zero for none.

    It is close to one among the rows, also where these are a lengthscale apart, and falls to zero far from all of them.
    """
    first = neighbours[:, 0]
    row = X[first.clamp_min(0)]
    covariance = prior.kernel(questions[:, None], row[:, None])[:, 0, 0].double()
    size = (prior.kernel.diag(questions).double() * prior.kernel.diag(row).double()).sqrt()
    return torch.where(first >= 0, 1 - (1 - covariance.abs() / size) ** 4, 0.0)


class Judged(NamedTuple):
    """How well the rows are predicted with the best of ``LOCAL_SCALES``."""

    local_scale: float
    nll: Float[Tensor, " t"]
    crps: float

    def is_better(self, than: "Judged") -> bool:
        """Whether the CRPS is smaller, at no loss of log density."""
        return self.crps < (1 - TUNING_GAIN) * than.crps and float(self.nll.mean()) <= float(than.nll.mean())


class LeftOutRows(NamedTuple):
    """Training rows, each predicted from its neighbours among the others."""

    X: Float[Tensor, "n d"]
    y: Float[Tensor, " n"]
    row_noise: Float[Tensor, " n"] | None
    rows: Int[Tensor, " t"]
    neighbours: Int[Tensor, "t k"]
    max_bytes: int

    def nll(self, prior: GP) -> Float[Tensor, " t"]:
        """Negative log density of each target with one scale everywhere."""
        found = self._moments(prior)
        return row_nll(self.y[self.rows], found.mean, self._variance(prior, found, 1.0))

    def judge(self, prior: GP) -> Judged:
        """The local scale that predicts the rows best."""
        found, y = self._moments(prior), self.y[self.rows]
        closeness = closeness_to_rows(prior, self.X[self.rows], self.X, self.neighbours)
        variances = {v: self._variance(prior, found, scale_around(found, closeness, v)) for v in LOCAL_SCALES}
        nlls = {value: row_nll(y, found.mean, variance) for value, variance in variances.items()}
        best = min(nlls, key=lambda value: float(nlls[value].mean()))
        return Judged(best, nlls[best], crps(y, found.mean, variances[best]))

    def _variance(self, prior: GP, found: Moments, scale: Tensor | float) -> Tensor:
        """Of new targets; noise that is known of a row is not scaled."""
        known = 0.0 if self.row_noise is None else self.row_noise[self.rows].double()
        return scale * (found.variance.clamp_min(0) + prior.noise.learned(self.X[self.rows])) + known

    def _moments(self, prior: GP) -> Moments:
        k = self.neighbours.shape[1]
        tile = max(1, self.max_bytes // (4 * 8 * k * (k + 8)))
        tiles = [
            local_answers(prior, self.X, self.y, self.row_noise, self.X[part], near)
            for part, near in zip(self.rows.split(tile), self.neighbours.split(tile), strict=True)
        ]
        return Moments(*(torch.cat(columns) for columns in zip(*tiles, strict=True)))


def choose_scale(prior: GP, left_out: LeftOutRows, tune: bool) -> ScaleChoice:
    """The local scale, if any, that predicts the rows best.

    With ``tune``, lengthscales and noise of the prior are changed in place to those that go with it.
    """
    without = left_out.nll(prior)
    best, tuning = left_out.judge(prior), _Tuning(0, 0)
    before, num_rows = float(without.mean()), len(left_out.rows)
    if not is_gain(without - best.nll, SCALE_GAIN):
        return ScaleChoice(None, before, before, num_rows)
    if tune:
        best, tuning = _tuned(prior, left_out, best)
        tuning.apply(prior)
    return ScaleChoice(best.local_scale, float(best.nll.mean()), before, num_rows, *tuning.factors)


class _Tuning(NamedTuple):
    """What all lengthscales, which leaves neighbours what they are, and the noise are multiplied by: powers of √2."""

    lengthscale: int
    noise: int

    @property
    def factors(self) -> tuple[float, float]:
        return 2.0 ** (self.lengthscale / 2), 2.0 ** (self.noise / 2)

    def steps(self, size: int) -> list["_Tuning"]:
        """The four next ones."""
        lengthscale, noise = self
        return [
            _Tuning(lengthscale + size, noise),
            _Tuning(lengthscale - size, noise),
            _Tuning(lengthscale, noise + size),
            _Tuning(lengthscale, noise - size),
        ]

    def suits(self, prior: GP) -> bool:
        """Whether it is within ``MOST_TUNED``, and changes what is learned alone, the noise not to below its floor."""
        if max(map(abs, self)) > MOST_TUNED:
            return False
        kernels, noise = _stationary(prior), prior.noise
        if self.lengthscale and not (kernels and all(kernel.raw_lengthscale.requires_grad for kernel in kernels)):
            return False
        if self.noise == 0:
            return True
        if not (isinstance(noise, GaussianNoise) and noise.raw_noise.requires_grad):
            return False
        return float(noise.noise) * self.factors[1] > noise.noise_floor

    def apply(self, prior: GP) -> GP:
        """The prior, changed in place."""
        of_lengthscale, of_noise = self.factors
        if self.lengthscale:
            for kernel in _stationary(prior):
                kernel.lengthscale = kernel.lengthscale * of_lengthscale
        if self.noise:
            assert isinstance(prior.noise, GaussianNoise)
            prior.noise.noise = prior.noise.noise * of_noise
        return prior


def _stationary(prior: GP) -> list[Stationary]:
    return [part for part in prior.kernel.modules() if isinstance(part, Stationary)]


def _tuned(prior: GP, left_out: LeftOutRows, best: Judged) -> tuple[Judged, _Tuning]:
    """Step by step, lengthscales and noise with which the rows are predicted better; ``best`` is without any."""
    here = _Tuning(0, 0)
    seen = {here}
    for size in TUNING_STEPS:
        steps = here.steps(size)
        while steps:
            trial = steps.pop(0)
            if trial in seen or not trial.suits(prior):
                continue
            seen.add(trial)
            judged = left_out.judge(trial.apply(copy.deepcopy(prior)))
            if judged.is_better(best):
                best, here, steps = judged, trial, trial.steps(size)
    return best, here
