"""What every posterior answers: mean, variance, covariance and samples, from a frozen snapshot."""

import copy
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_new_inputs
from cagp.engine import DEFAULT_MAX_BYTES, precise_product
from cagp.fields import strange
from cagp.posteriors.storing import Rounding, Sharing
from cagp.prior import GP
from cagp.storage import State

Points = Float[Tensor, "t d"]  # test points
Values = Float[Tensor, " t"]  # a number for each


class Prediction(NamedTuple):
    """Mean and variance at each test point."""

    mean: Float[Tensor, " n"]
    variance: Float[Tensor, " n"]


class LeftOut(NamedTuple):
    """Training rows predicted without their own targets, float64; NaN where actions determine a target alone."""

    error: Float[Tensor, " r"]  # target - mean
    variance: Float[Tensor, " r"]  # of the target, noise included


class Posterior(ABC):
    """What every posterior answers.

    A class of your own gives ``_moments`` of a tile of rows, ``_covariance`` and ``_width``, and says whether it is
    ``never_below_exact``; ``cagp.testing.check_posterior`` checks it.

    It holds copies: training a method further does not change it. Answers have the dtype of the inputs and are
    differentiable in them. The mean is m(x) + k(x, X) ``representer``. If something was subtracted from the targets
    before the process learned them, such as what trees predict, its values at test points are the ``offset``, which is
    added to the mean.

    Args:
        prior: copied, without gradients.
        X: the inputs that the kernel is taken with: training rows or inducing points.
        representer: the weight of each of these inputs in the mean; None if each test point has weights of its own.
        max_bytes: limit for temporaries; test points are answered in tiles that respect it.
        shares_rows: hold ``X`` itself, which must not be changed, instead of a copy.
    """

    never_below_exact: bool = False
    """Whether the variance of the function is never below that of the exact GP with the same hyperparameters."""
    has_local_scale: bool = False
    """Whether error bars follow the neighbours of a test point; ``_moments`` then has a scale."""
    _width: int
    """Float64 numbers that ``_moments`` holds for each test point, up to a factor of about four."""

    def __init__(
        self,
        prior: GP,
        X: Float[Tensor, "m d"],
        representer: Float[Tensor, " m"] | None,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        shares_rows: bool = False,
    ):
        self.prior = copy.deepcopy(prior).requires_grad_(False)
        self.max_bytes = max_bytes
        self.X = X.detach() if shares_rows else X.detach().clone()
        self._representer = None if representer is None else representer.detach()

    def state(self, dtype: torch.dtype | None = None) -> State:
        """The parts that define the posterior: ``posterior_from_state`` makes one that predicts the same bits of them.

        What follows from other parts is computed again. What is made of a state is on the CPU.

        Args:
            dtype: torch.float32 rounds float64 training rows (inputs, targets, known noise, weights of actions), which
                about halves the size. Predictions are still computed in float64 but no longer have the same bits.
                Hyperparameters, factors and inducing points are not rounded.
        """
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype is {dtype}, expected torch.float32, torch.float64 or None.")
        if not type(self).__module__.startswith("cagp."):
            raise ValueError(f"a posterior of class {type(self).__name__}, which is your own, cannot be stored.")
        return {
            "class": type(self).__name__,
            "prior": self.prior.state(),
            "dtype": str(self.X.dtype).removeprefix("torch."),
            "max_bytes": int(self.max_bytes),
            **self._state(Rounding(dtype, self.X.dtype)),
        }

    def _state(self, rows: Rounding) -> State:
        """What a class stores of itself."""
        raise ValueError(f"a posterior of class {type(self).__name__} cannot be stored.")

    @classmethod
    def _from_state(cls, state: State, prior: GP, X: Tensor, max_bytes: int, sharing: Sharing) -> "Posterior":
        """The posterior of a state; it holds the tensors of the state, which must not be changed."""
        raise strange(f"a {cls.__name__}")

    @abstractmethod
    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance of the function at a tile of test points, float64; optionally their ``scale``, and more."""

    def scale(self, X: Points) -> Values | None:
        """What learned kernel and noise are multiplied by around each test point; None if it is one everywhere."""
        check_new_inputs(X, self.X)
        return self._moments_in_tiles(X)[2] if self.has_local_scale else None

    def order(self, X: Points) -> Int[Tensor, " t"] | None:
        """An order of the test points in which answers to many of them cost less; None if it does not matter."""
        return None

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """Leave-one-out predictions of these rows of ``X`` at the same hyperparameters; None if there are none."""
        return None

    @abstractmethod
    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        """Covariance of the function between the rows of ``X`` and those of ``Z``, or of ``X`` itself, float64."""

    def mean(self, X: Points, offset: Values | None = None) -> Values:
        """m(X) + k(X, X_train) times the representer weights, plus the offset. Time O(t m d).

        Without such weights it costs as much as mean and variance.
        """
        check_new_inputs(X, self.X)
        if self._representer is None:
            return self.predict(X, offset=offset).mean
        representer = self._representer.double()[:, None]
        update = precise_product(self.prior.kernel, X, self.X, representer, max_bytes=self.max_bytes)[:, 0]
        mean = self.prior.mean(X.double()) + update
        return (mean if offset is None else mean + offset).to(X)

    def variance(self, X: Points, *, noise: bool = False, row_noise: Values | None = None) -> Values:
        """The diagonal of ``covariance``, with the noise variance added if ``noise``."""
        return self.predict(X, noise=noise, row_noise=row_noise).variance

    def predict(
        self, X: Points, *, noise: bool = False, row_noise: Values | None = None, offset: Values | None = None
    ) -> Prediction:
        """Mean and variance in one pass over the kernel; of new targets if ``noise``, else of the function."""
        check_new_inputs(X, self.X)
        _check_row_noise(noise, row_noise)
        moments = self._moments_in_tiles(X)
        mean, variance, *scale = moments
        if offset is not None:
            mean = self._with_offset(moments, offset)
        # Round-off can leave the difference of two almost equal numbers a little below zero.
        variance = variance.clamp_min(0)
        if noise:
            variance = variance + self._noise(X, row_noise, scale[0] if scale else None)
        return Prediction(mean.to(X), variance.to(X))

    def _with_offset(self, moments: tuple[Tensor, ...], offset: Tensor) -> Tensor:
        return moments[0] + offset

    def _moments_in_tiles(self, X: Tensor) -> tuple[Tensor, ...]:
        rows = max(1, self.max_bytes // (4 * 8 * self._width))
        order = self.order(X)
        parts = [self._moments(tile) for tile in (X if order is None else X[order]).split(rows)]
        columns = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        return columns if order is None else tuple(column[order.argsort()] for column in columns)

    def _noise(self, X: Tensor, row_noise: Tensor | None, scale: Tensor | None) -> Tensor:
        """The noise variance of each test point: the learned part is scaled, the known part is not."""
        noise = self.prior.noise_variance(X, row_noise)
        return noise if scale is None else noise + (scale - 1) * self.prior.noise.learned(X)

    def covariance(
        self, X: Points, Z: Float[Tensor, "u d"] | None = None, *, noise: bool = False, row_noise: Values | None = None
    ) -> Float[Tensor, "t u"]:
        """The posterior covariance of the rows of ``X`` with those of ``Z``, which defaults to ``X``."""
        check_new_inputs(X, self.X)
        if Z is not None:
            check_new_inputs(Z, self.X, "Z")
            if noise:
                raise ValueError("noise=True needs Z=None: noise is independent between the rows of X and those of Z.")
        return self._covariance_of_targets(X, Z, noise, row_noise).to(X)

    def _covariance_of_targets(self, X: Tensor, Z: Tensor | None, noise: bool, row_noise: Tensor | None) -> Tensor:
        _check_row_noise(noise, row_noise)
        covariance = self._covariance(X, Z)
        if Z is None:
            covariance = (covariance + covariance.mT) / 2
        return covariance + torch.diag(self._noise(X, row_noise, self.scale(X))) if noise else covariance

    def sample(
        self,
        X: Points,
        num_samples: int,
        *,
        noise: bool = False,
        row_noise: Values | None = None,
        offset: Values | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s t"]:
        """Joint draws at the rows of ``X``; eigenvalues that round-off made negative count as zero. O(t³ + s t²)."""
        check_new_inputs(X, self.X)
        eigenvalues, vectors = torch.linalg.eigh(self._covariance_of_targets(X, None, noise, row_noise))
        root = vectors * eigenvalues.clamp_min(0).sqrt()
        white = torch.randn(num_samples, X.shape[0], dtype=torch.float64, generator=generator).to(X.device)
        return (self._joint_mean(X, offset).double() + white @ root.mT).to(X)

    def _joint_mean(self, X: Tensor, offset: Tensor | None = None) -> Tensor:
        """The mean of joint draws. It differs from ``mean`` if each test point has projections of its own."""
        mean = self.mean(X)
        return mean if offset is None else mean + offset


def _check_row_noise(noise: bool, row_noise: Tensor | None) -> None:
    if row_noise is not None and not noise:
        raise ValueError("row_noise was given without noise=True, which is what adds it.")
