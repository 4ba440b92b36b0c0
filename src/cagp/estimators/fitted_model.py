"""What a fit has learned, as one frozen value that answers: units, posteriors and all else that predictions need."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cagp.data.transforms import Transform
from cagp.diagnostics import KINDS, reference_for, variance_components
from cagp.estimators.predictive import Baseline, Observations, Predictive
from cagp.estimators.target_kinds import Labels
from cagp.estimators.units import NO_NOISE, EncodedTable, Points, Rows, Units, known_variances, own_noise
from cagp.likelihood_registry import GAUSSIAN
from cagp.likelihoods import ClassLikelihood, Likelihood
from cagp.posteriors import AveragedPosterior, LocalPosterior, Posterior, predict_columns
from cagp.prior import GaussianNoise
from cagp.recipes import guarantee_words
from cagp.recipes.task import as_array
from cagp.saved_summary import kernel_parts
from cagp.training import FitResult
from cagp.trees import Trees

COVARIANCE_ROWS = 20_000
"""Joint answers are for at most this many test points."""

PARTS = ("noise", "latent", "computational")
"""The parts of a variance."""

LEFT_OUT_ROWS, LEFT_OUT_SEED = 10_000, 0
"""Training rows that conformal intervals predict from the others, at most, and the seed that draws them."""


@final
@dataclass(frozen=True, eq=False)
class FittedModel:
    """Everything that predictions need, and what is known about the fit.

    Methods take test points, see ``points``, and answer in the units of the targets, rows by targets, in float64.
    Targets with Gaussian noise have a latent function each, fitted in standard units. With another likelihood there is
    one function; of classes, one for each (of two classes, one).
    """

    units: Units
    posteriors: list[Posterior]  # of each latent function in standard units, without its prior mean
    row_noise: list[Tensor | None]  # of each function: known variances of the rows that its posterior holds
    target_rows: list[int]  # rows that have each target
    num_rows: int  # training rows
    methods: list[str]  # of every fit: one of all targets, or one of each target
    results: list[FitResult]  # of every fit
    choice: str | None = None  # why "auto" chose the method, in words
    tried: list[dict[str, Any]] = field(default_factory=list)  # what "auto" compared, see ``CaGPRegressor``
    trees: Trees | None = None  # the prior mean of all functions
    likelihood: Likelihood | ClassLikelihood | None = None  # None: Gaussian noise
    likelihood_name: str = GAUSSIAN
    offsets: tuple[float, ...] = ()  # the constant prior mean of each function, where the likelihood is not Gaussian
    baseline: Baseline | None = None  # the constant prediction, where the likelihood is not Gaussian
    labels: Labels | None = None  # of a classifier
    report: str = ""  # what a user should know about the fit

    # ---- test points ----

    @property
    def predicts_counts(self) -> bool:
        """Whether targets are counts."""
        return isinstance(self.likelihood, Likelihood) and self.likelihood.are_counts

    def points(self, X: Any, sample_noise: Any = None, noise: bool = True, verbose: bool = False) -> Points:
        """The rows of a table as test points, with known noise where answers include it; ``verbose`` shows progress."""
        encoder, device = self.units.encoder, X.device if isinstance(X, Tensor) else None
        codes, exposure = encoder.without_exposure(X.matrix if isinstance(X, EncodedTable) else encoder.codes(X))
        inputs, rows = encoder.stand_ins(codes)
        known = np.zeros((len(codes), 1)) if exposure is None else np.log(exposure)[:, None]
        points = Points(np.ascontiguousarray(inputs), rows, len(codes), device, known, verbose=verbose)
        variances = known_variances(sample_noise, (points.num_rows, self.units.num_targets))
        if variances is None:
            return points
        if self.likelihood is not None:
            raise own_noise(self.likelihood_name)
        if not noise:
            raise ValueError("sample_noise is given with noise=False, which leaves all noise out; remove one of them.")
        if self.units.has_log:
            raise ValueError(NO_NOISE)
        return points._replace(noise=variances[rows])

    def _each(
        self, points: Points, jointly: bool = False
    ) -> Iterator[tuple[Rows, int, Posterior, Tensor, Tensor | None, Tensor]]:
        """For parts of the points, or all jointly, and each function: which they are, the function and its posterior.

        And, in standard units: the points, their known noise, and what trees predict for them.
        """
        units, first, num_rows = self.units, self.posteriors[0], len(points.inputs)
        if jointly and num_rows > COVARIANCE_ROWS:
            raise ValueError(
                f"joint answers at {num_rows:,} rows would take {8 * num_rows**2 / 1e9:.0f} GB and more; the limit is "
                f"{COVARIANCE_ROWS:,} rows. Use return_std, which treats each row alone, or pass fewer rows."
            )
        tiles = [(slice(None), units.standard(points.inputs, first))] if jointly else units.tiles(points, first)
        for rows, tile in tiles:
            trees = self._tree_mean(points.inputs[rows])
            for j, posterior in enumerate(self.posteriors):
                Z = tile.to(posterior.X)
                offset = torch.from_numpy(np.ascontiguousarray(trees[:, j])).to(Z)
                scale = float(units.scaler.target_std[j])
                # Divided twice: the square of a tiny unit would be zero.
                noise = None if points.noise is None else Z.new_tensor(points.noise[rows, j] / scale / scale)
                yield rows, j, posterior, Z, noise, offset

    def _tree_mean(self, inputs: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m q"]:
        """What trees predict for some codes, in standard units, or zero: the prior mean."""
        return np.zeros((len(inputs), self.units.num_targets)) if self.trees is None else self.trees.mean(inputs)

    # ---- each test point alone ----

    def _moments(
        self, points: Points, noise: bool = False
    ) -> tuple[Float[np.ndarray, "m q"], Float[np.ndarray, "m q"]]:
        """Mean and variance of the latent functions, or with noise of observations, in standard units."""
        mean, variance = np.empty((2, len(points.inputs), self.units.num_targets))
        for rows, j, posterior, Z, row_noise, offset in self._each(points):
            predicted = posterior.predict(Z, noise=noise, row_noise=row_noise, offset=offset)
            mean[rows, j], variance[rows, j] = as_array(predicted.mean), as_array(predicted.variance)
        return mean, variance

    def mean(self, points: Points, noise: bool = True) -> Float[np.ndarray, "n q"]:
        """The mean of each row; on a log scale it depends on the variance."""
        if self.units.has_log or self.likelihood is not None:
            return self.predictive(points, noise).mean()
        mean = np.empty((len(points.inputs), self.units.num_targets))
        for rows, j, posterior, Z, _, offset in self._each(points):
            mean[rows, j] = as_array(posterior.mean(Z, offset))
        return self.units.restore(points.average(mean))

    def predictive(self, points: Points, noise: bool = True) -> Predictive | Observations:
        """The distribution of a new observation, or of the function, at each row."""
        if self.likelihood is not None:
            observations = self._observations(points)
            return observations if noise else observations.function()
        mean, variance = self._moments(points, noise)
        std = np.sqrt(points.average(variance) + points.spread(mean))
        return Predictive(self.units.restore(points.average(mean)), self.units.rescale(std), self.units.transforms)

    def _observations(self, points: Points, prior_mean: Float[np.ndarray, "m 1"] | None = None) -> Observations:
        """The distributions of targets where the likelihood is not Gaussian; of a known latent function, if given."""
        assert isinstance(self.likelihood, Likelihood)
        mean, variance = self._moments(points) if prior_mean is None else (prior_mean, np.zeros_like(prior_mean))
        latent = points.average(mean) + self.offsets[0] + points.known
        spread = points.average(variance).clip(0) + points.spread(mean)
        centre, unit = (float(part[0]) for part in self.units.scaler[2:])
        return Observations(latent, spread, self.likelihood, centre, unit, points.known)

    def prior_mean(self, points: Points) -> Float[np.ndarray, "n q"]:
        """The prior mean: what trees predict, or a constant; on a log scale, the median that it stands for."""
        trees = self._tree_mean(points.inputs)
        if self.likelihood is not None:
            return self._observations(points, trees).function().at(np.zeros(1))[..., 0]
        return self.units.inverse(self.units.restore(points.average(trees)))

    def log_probabilities(self, points: Points) -> Float[np.ndarray, "n c"]:
        """The logarithm of the probability of each class: the integral of the link over the latent functions."""
        assert isinstance(self.likelihood, ClassLikelihood)
        assert self.labels is not None
        log_p = np.empty((len(points.inputs), len(self.labels.classes)))
        for rows, tile in self.units.tiles(points, self.posteriors[0]):
            mean, variance = predict_columns(self.posteriors, tile.to(self.posteriors[0].X))
            constant = self._tree_mean(points.inputs[rows]) + np.asarray(self.offsets)
            mean = mean + torch.from_numpy(constant).to(mean)
            log_p[rows] = as_array(self.likelihood.log_probabilities(mean, variance))
        # A level that fit has not seen is one of those it has seen.
        return np.log(points.average(np.exp(log_p))) if points.has_stand_ins else log_p

    def constant_prediction(self, predicted: Predictive | Observations) -> Predictive | Observations:
        """What the training targets alone say about the rows of a prediction: with Gaussian noise, mean and spread."""
        if isinstance(predicted, Predictive):
            mean, std = (np.full_like(predicted.location, part.numpy()) for part in self.units.scaler[2:])
            return Predictive(mean, std, self.units.transforms)
        assert self.baseline is not None
        zeros = np.zeros_like(predicted.latent_mean)
        location = zeros + self.baseline.location + predicted.known
        likelihood = self.baseline.likelihood
        return replace(predicted, latent_mean=location, latent_variance=zeros, likelihood=likelihood)

    @property
    def constant_words(self) -> str:
        """What ``constant_prediction`` takes from the training rows."""
        if self.likelihood is None:
            return "the mean and standard deviation"
        if not self.predicts_counts:
            return "the median and the median absolute deviation"
        is_rate = self.units.encoder.exposure_name is not None
        return "the mean per unit of exposure, and the variance," if is_rate else "the mean and the variance"

    # ---- intervals and calibration ----

    def conformal_ends(
        self, predicted: Predictive | Observations, level: float, calibration: Sequence[np.ndarray] | None = None
    ) -> Float[np.ndarray, "n q 2"]:
        """Both ends of the conformal interval of each target; ``calibration`` is ``left_out_scores`` unless given."""
        assert isinstance(predicted, Predictive)
        scores = self.left_out_scores if calibration is None else calibration
        factors = [_factor(own, level, name) for own, name in zip(scores, self.units.target_names, strict=True)]
        return predicted.at(np.outer(factors, [-1.0, 1.0]))

    @cached_property
    def left_out_scores(self) -> list[np.ndarray]:
        """|y - mean| / std of training rows, each predicted without its own target at the final hyperparameters.

        One array for each target, on the scale of the fit, where scores have no unit. It costs as much as predictions
        of 10,000 rows, and is always the same.
        """
        scores = []
        for posterior in self.posteriors:
            generator = torch.Generator().manual_seed(LEFT_OUT_SEED)
            rows = torch.randperm(len(posterior.X), generator=generator)[:LEFT_OUT_ROWS].to(posterior.X.device)
            left_out = posterior.left_out(rows)
            if left_out is None:
                raise ValueError(
                    'method="conformal" needs rows that are predicted without their own target. '
                    f'"{self.methods[0]}" does not have them: "local", "hybrid" and "exact" do. Pass '
                    "calibration=(X, y) with rows that were not trained on."
                )
            score = np.abs(as_array(left_out.error)) / np.sqrt(as_array(left_out.variance))
            scores.append(score[np.isfinite(score)])
        return scores

    # ---- all test points jointly ----

    def covariance(self, points: Points, noise: bool, mean: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n n q"]:
        """The joint covariance of targets with this mean, or of their means given the function without the noise."""
        parts, gaussian, transforms, of_noise = [], self.likelihood is None, self.units.transforms, 0.0
        for _, _, posterior, Z, row_noise, offset in self._each(points, jointly=True):
            part = as_array(posterior.covariance(Z, noise=noise and gaussian, row_noise=row_noise))
            parts.append(points.joint(part, as_array(posterior.mean(Z, offset))) if points.has_stand_ins else part)
        joint = self.units.rescale(np.stack(parts, -1), 2)
        if not gaussian:
            observations = self._observations(points)
            function = observations.function()
            transforms, mean = function.transforms, function.mean()
            # The noise of an observation depends on no other observation.
            of_noise = np.diag(observations.noise_variance()[:, 0])[..., None] if noise else 0.0
        return np.stack([t.covariance(mean[:, j], joint[..., j]) for j, t in enumerate(transforms)], -1) + of_noise

    def samples(self, points: Points, num_samples: int, seed: int, noise: bool = True) -> Float[np.ndarray, "n q s"]:
        """Joint draws of new observations, or of the function."""
        generator = torch.Generator().manual_seed(seed)
        draws, noisy = [], noise and self.likelihood is None
        for _, _, posterior, Z, row_noise, offset in self._each(points, jointly=True):
            options = {"row_noise": row_noise, "offset": offset, "generator": generator}
            draws.append(as_array(posterior.sample(Z, num_samples, noise=noisy, **options).mT))
        values = points.choose(np.stack(draws, 1), np.random.default_rng(seed))
        if isinstance(self.likelihood, Likelihood):
            values = values + self.offsets[0] + points.known[..., None]
            if noise:
                values = as_array(self.likelihood.sample(torch.from_numpy(values), generator))
            elif self.likelihood.are_counts:
                with np.errstate(over="ignore"):
                    values = np.exp(values)
        return self.units.inverse(self.units.restore(values))

    # ---- parts of the variance ----

    def noise_deviations(self, points: Points) -> Float[np.ndarray, "n q"]:
        """The standard deviation of the noise at each row."""
        if self.likelihood is not None:
            return np.sqrt(self._observations(points).noise_variance())
        noise = np.tile(self.noise_std**2, (len(points.inputs), 1))
        for rows, j, posterior, Z, *_ in self._each(points):
            scale = posterior.scale(Z)
            if scale is not None:
                noise[rows, j] *= as_array(scale)
        noise = points.average(noise)
        if not self.units.has_log:
            return np.sqrt(noise)
        predicted = self.predictive(points)
        assert isinstance(predicted, Predictive)
        parts = {"noise": noise, "latent": (predicted.scale**2 - noise).clip(0), "computational": np.zeros_like(noise)}
        return np.sqrt(_in_units(self.units.transforms, parts, predicted.mean())["noise"])

    def variance_parts(self, points: Points, mean: Float[np.ndarray, "n q"]) -> tuple[dict[str, np.ndarray], str]:
        """The parts of the variance of observations with this mean, and what is known of the computational part."""
        means, *arrays = np.zeros((1 + len(PARTS), len(points.inputs), self.units.num_targets))
        parts, gaussian = dict(zip(PARTS, arrays, strict=True)), self.likelihood is None
        noise = self.row_noise
        if not gaussian:  # that of sites
            noise = [p.row_noise if isinstance(p, LocalPosterior) else None for p in self.posteriors]
        references = [reference_for(*known) for known in zip(self.posteriors, noise, self.target_rows, strict=True)]
        for rows, j, posterior, Z, _, offset in self._each(points):
            ignored = None if gaussian else Z.new_ones(len(Z))  # noise comes from the likelihood
            components = variance_components(posterior, references[j], Z, ignored)
            for name, part in parts.items():
                part[rows, j] = as_array(getattr(components, name))
            if points.has_stand_ins:
                means[rows, j] = as_array(posterior.mean(Z, offset))
        parts = {name: self.units.rescale(points.average(values), 2) for name, values in parts.items()}
        parts["latent"] += self.units.rescale(points.spread(means), 2)
        kind = next(kind for kind in KINDS if kind in {reference.kind for reference in references})
        if points.noise is not None:
            parts["noise"] += points.average(points.noise)
        if gaussian:
            return _in_units(self.units.transforms, parts, mean), kind
        observations = self._observations(points)
        function = observations.function()
        without_noise = parts | {"noise": np.zeros_like(parts["noise"])}
        own = _in_units(function.transforms, without_noise, function.mean())
        return own | {"noise": observations.noise_variance()}, kind

    # ---- what was learned ----

    @property
    def guarantee(self) -> str:
        """What holds for the variance of the functions at a test point, in one sentence."""
        scaled = any(posterior.has_local_scale for posterior in self.posteriors)
        never_below = all(posterior.never_below_exact for posterior in self.posteriors)
        is_average = any(isinstance(posterior, AveragedPosterior) for posterior in self.posteriors)
        return guarantee_words(never_below, scaled, self.units.has_log, is_average, self.likelihood is not None)

    @property
    def lengthscales(self) -> Float[np.ndarray, " p"]:
        """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none."""
        num_inputs = len(self.units.encoder.names_out)
        learned = self.posteriors[0].prior.kernel.lengthscales(num_inputs)
        values = np.full(num_inputs, np.nan) if learned is None else learned.cpu().numpy()
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def kernel_parts(self) -> list[dict[str, Any]]:
        """Every part of the kernel, what it sees and what it learned; as plain values."""
        state = copy.deepcopy(self.posteriors[0].prior).cpu().state()["kernel"]
        return kernel_parts(state, list(self.units.encoder.names_out), self.units.scaler.input_std.numpy())

    @property
    def noise_std(self) -> Float[np.ndarray, " q"]:
        """The learned standard deviation of the noise of each target, on the scale of the fit; NaN for counts."""
        if isinstance(self.likelihood, Likelihood):
            zero = torch.zeros(1, dtype=torch.float64)
            own = np.nan if self.predicts_counts else float(self.likelihood.predictive_noise(zero, zero).sqrt())
            return self.units.rescale(np.array([own]))
        noises = (posterior.prior.noise for posterior in self.posteriors)
        variances = [float(n.noise.detach()) if isinstance(n, GaussianNoise) else 0.0 for n in noises]
        return self.units.rescale(np.sqrt(variances))


def _in_units(transforms: Sequence[Transform], parts: dict[str, np.ndarray], mean: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of a variance on the scale of the fit, in squared units of the targets."""
    own = [
        transform.variance_parts(mean[:, j], {name: part[:, j] for name, part in parts.items()})
        for j, transform in enumerate(transforms)
    ]
    return {name: np.stack([part[name] for part in own], 1) for name in PARTS}


def _factor(scores: np.ndarray, level: float, name: str) -> float:
    """The ⌈level (m + 1)⌉-th smallest of m scores.

    Of m + 1 exchangeable scores, the last one is at most this with probability ``level`` or more.
    """
    rank = math.ceil(level * (len(scores) + 1) - 1e-9)
    if rank > len(scores):
        least = math.ceil(level / (1 - level) - 1e-9)
        raise ValueError(
            f"level is {level}, for which a conformal interval needs at least {least:,} rows; {name} has "
            f"{len(scores):,}. Use a lower level, or more rows."
        )
    return float(np.partition(scores, rank - 1)[rank - 1])
