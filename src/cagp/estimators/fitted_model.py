"""What a fit has learned, as one frozen value that answers: units, posteriors and all else that predictions need."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cagp import metrics
from cagp.data.encoding import Encoder
from cagp.data.scaling import Standardizer
from cagp.data.transforms import Transform
from cagp.diagnostics import KINDS, reference_for, variance_components
from cagp.estimators.labels import Labels
from cagp.estimators.observations import Baseline, Observations
from cagp.estimators.predictive import Predictive
from cagp.estimators.units import NO_NOISE, Points, Quantity, Rows, Units, as_array, known_variances
from cagp.kernel_summary import kernel_parts
from cagp.likelihood_registry import GAUSSIAN
from cagp.likelihoods import ClassLikelihood, Likelihood
from cagp.metrics import Calibration
from cagp.posteriors import AveragedPosterior, LocalPosterior, Posterior, predict_columns
from cagp.prior import GaussianNoise
from cagp.recipes import SITES_GUARANTEE, guarantee_words
from cagp.training import FitResult
from cagp.trees import Trees

Known = Float[np.ndarray, "n q"] | None
"""Known noise variances of the rows of a table, in squared units of the targets."""

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
    def num_functions(self) -> int:
        """q, the number of latent functions."""
        return self.units.num_targets

    @property
    def predicts_counts(self) -> bool:
        """Whether targets are counts."""
        return isinstance(self.likelihood, Likelihood) and self.likelihood.are_counts

    def points(self, X: Any, verbose: bool = False) -> Points:
        """The rows of a table as test points; ``verbose`` shows progress when they are predicted."""
        return self.units.points(X)._replace(verbose=verbose)

    def known_noise(self, sample_noise: Any, points: Points, noise: bool = True) -> Known:
        """The noise variances that the user knows, checked; None where there are none."""
        if sample_noise is None:
            return None
        if self.likelihood is not None:
            raise ValueError(
                f"sample_noise is given, but the likelihood is {self.likelihood_name!r}, whose noise is its own; leave "
                "it out."
            )
        if not noise:
            raise ValueError("sample_noise is given with noise=False, which leaves all noise out; remove one of them.")
        if self.units.has_log:
            raise ValueError(NO_NOISE)
        known = known_variances(sample_noise, (points.num_rows, self.num_functions))
        return None if known is None else known[points.rows]

    def _tiles(self, points: Points) -> Iterator[tuple[Rows, Tensor, Float[np.ndarray, "m q"]]]:
        """The points a part at a time: which they are, in standard units, and what trees predict for them."""
        for rows, Z in self.units.tiles(points, self.posteriors[0]):
            yield rows, Z, self._tree_mean(points.inputs[rows])

    def _tree_mean(self, inputs: Float[np.ndarray, "m c"]) -> Float[np.ndarray, "m q"]:
        """What trees predict for some codes, in standard units, or zero: the prior mean."""
        return np.zeros((len(inputs), self.num_functions)) if self.trees is None else self.trees.mean(inputs)

    # ---- each test point alone ----

    def _moments(
        self, points: Points, known: Known = None, noise: bool = False
    ) -> tuple[Float[np.ndarray, "m q"], Float[np.ndarray, "m q"]]:
        """Mean and variance of the latent functions, or with noise of observations, in standard units."""
        mean, variance = np.empty((2, len(points.inputs), self.num_functions))
        for rows, tile, trees in self._tiles(points):
            for j, posterior in enumerate(self.posteriors):
                Z = tile.to(posterior.X)
                row_noise = self.units.standard_noise(known, j, rows, Z)
                predicted = posterior.predict(Z, noise=noise, row_noise=row_noise, offset=_column(trees, j, Z))
                mean[rows, j], variance[rows, j] = as_array(predicted.mean), as_array(predicted.variance)
        return mean, variance

    def mean(self, points: Points, known: Known = None, noise: bool = True) -> Float[np.ndarray, "n q"]:
        """The mean of each row; on a log scale it depends on the variance."""
        if self.units.has_log or self.likelihood is not None:
            return self.predictive(points, known, noise).mean()
        mean = np.empty((len(points.inputs), self.num_functions))
        for rows, tile, trees in self._tiles(points):
            for j, posterior in enumerate(self.posteriors):
                Z = tile.to(posterior.X)
                mean[rows, j] = as_array(posterior.mean(Z, _column(trees, j, Z)))
        return self.units.restore(points.average(mean), Quantity.VALUE)

    def predictive(self, points: Points, known: Known = None, noise: bool = True) -> Predictive | Observations:
        """The distribution of a new observation, or of the function, at each row."""
        if self.likelihood is not None:
            observations = self._observations(points, *self._moments(points))
            return observations if noise else observations.function()
        mean, variance = self._moments(points, known, noise)
        std = np.sqrt(points.average(variance) + points.spread(mean))
        location = self.units.restore(points.average(mean), Quantity.VALUE)
        return Predictive(location, self.units.restore(std, Quantity.DEVIATION), self.units.transforms)

    def _observations(
        self, points: Points, mean: Float[np.ndarray, "m 1"], variance: Float[np.ndarray, "m 1"]
    ) -> Observations:
        """The distributions of targets with these moments of the latent function without its constant parts."""
        assert isinstance(self.likelihood, Likelihood)
        exposure = None if points.exposure is None else np.log(points.exposure)
        latent = points.average(mean) + self.offsets[0] + (0.0 if exposure is None else exposure[:, None])
        spread = points.average(variance).clip(0) + points.spread(mean)
        return Observations(latent, spread, self.likelihood, *self._unit, exposure)

    @property
    def _unit(self) -> tuple[float, float]:
        """What is zero and what is one in standard units of the only target."""
        return float(self.scaler.target_mean[0]), float(self.scaler.target_std[0])

    def prior_mean(self, points: Points) -> Float[np.ndarray, "n q"]:
        """The prior mean: what trees predict, or a constant; on a log scale, the median that it stands for."""
        trees = self._tree_mean(points.inputs)
        if self.likelihood is not None:
            return self._observations(points, trees, np.zeros_like(trees)).function().at(np.zeros(1))[..., 0]
        return self.units.inverse(self.units.restore(points.average(trees), Quantity.VALUE))

    def log_probabilities(self, points: Points) -> Float[np.ndarray, "n c"]:
        """The logarithm of the probability of each class: the integral of the link over the latent functions."""
        assert isinstance(self.likelihood, ClassLikelihood)
        assert self.labels is not None
        log_p = np.empty((len(points.inputs), len(self.labels.classes)))
        for rows, tile, trees in self._tiles(points):
            mean, variance = predict_columns(self.posteriors, tile.to(self.posteriors[0].X))
            mean = mean + torch.from_numpy(trees + np.asarray(self.offsets)).to(mean)
            log_p[rows] = as_array(self.likelihood.log_probabilities(mean, variance))
        # A level that fit has not seen is one of those it has seen.
        return np.log(points.average(np.exp(log_p))) if points.has_stand_ins else log_p

    def constant_prediction(
        self, num_rows: int, predicted: Predictive | Observations | None = None
    ) -> Predictive | Observations:
        """What the training targets alone say about every row: with Gaussian noise, their mean and standard deviation.

        Args:
            predicted: what the model predicts for these rows, which knows their exposures.
        """
        if self.baseline is None:
            scaler = self.scaler
            mean, std = (np.tile(np.ravel(part), (num_rows, 1)) for part in (scaler.target_mean, scaler.target_std))
            return Predictive(mean, std, self.units.transforms)
        exposure = predicted.known if isinstance(predicted, Observations) else None
        location = np.full((num_rows, 1), self.baseline.location) + (0.0 if exposure is None else exposure[:, None])
        return Observations(location, np.zeros((num_rows, 1)), self.baseline.likelihood, *self._unit, exposure)

    @property
    def constant_words(self) -> str:
        """What ``constant_prediction`` takes from the training rows."""
        if self.likelihood is None:
            return "the mean and standard deviation"
        if not self.predicts_counts:
            return "the median and the median absolute deviation"
        if self.encoder.exposure_name is None:
            return "the mean and the variance"
        return "the mean per unit of exposure, and the variance,"

    # ---- intervals and calibration ----

    def conformal_factors(self, level: float, calibration: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """How many standard deviations, on the scale of the fit, the interval of each target reaches to either side.

        Args:
            calibration: |y - mean| / std of rows that were not trained on, for each target; None for training rows,
                each predicted without its own target.
        """
        scores = self.left_out_scores if calibration is None else calibration
        return np.array([_factor(own, level, n) for own, n in zip(scores, self.units.target_names, strict=True)])

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

    def calibration(
        self, points: Points, y: Float[np.ndarray, "n q"], levels: Sequence[float] | None, known: Known = None
    ) -> Calibration:
        """Promised and observed coverage of central intervals, over all rows and targets.

        Of counts, the place of each in its distribution is random between the two probabilities on either side of it:
        no interval of integers has exactly the probability it should have.
        """
        error = torch.from_numpy(self.predictive(points, known).standardized(y)).reshape(-1)
        standard = torch.zeros_like(error), torch.ones_like(error)
        return metrics.calibration(error, *standard, levels=19 if levels is None else levels)

    # ---- all test points jointly ----

    def covariance(
        self, points: Points, known: Known, noise: bool, mean: Float[np.ndarray, "n q"]
    ) -> Float[np.ndarray, "n n q"]:
        """The joint covariance of targets with this mean, or of their means given the function without the noise."""
        _check_joint(len(points.inputs))
        gaussian = self.likelihood is None
        parts, trees = [], self._tree_mean(points.inputs) if points.has_stand_ins else np.empty((0, 0))
        for j, posterior in enumerate(self.posteriors):
            Z = self.units.standard(points.inputs, posterior)
            row_noise = self.units.standard_noise(known, j, slice(None), Z)
            part = as_array(posterior.covariance(Z, noise=noise and gaussian, row_noise=row_noise))
            if points.has_stand_ins:
                part = points.joint(part, as_array(posterior.mean(Z, _column(trees, j, Z))))
            parts.append(part)
        joint, transforms, of_noise = self.units.restore(np.stack(parts, -1), Quantity.VARIANCE, 2), [], None
        if gaussian:
            transforms = self.units.transforms
        else:  # the noise of an observation depends on no other observation
            observations = self._observations(points, *self._moments(points))
            function = observations.function()
            transforms, mean, of_noise = function.transforms, function.mean(), observations.noise_variance()
        joint = np.stack([t.covariance(mean[:, j], joint[..., j]) for j, t in enumerate(transforms)], -1)
        return joint if of_noise is None or not noise else joint + np.diag(of_noise[:, 0])[..., None]

    def samples(
        self, points: Points, num_samples: int, seed: int, known: Known = None, noise: bool = True
    ) -> Float[np.ndarray, "n q s"]:
        """Joint draws of new observations, or of the function."""
        _check_joint(len(points.inputs))
        generator = torch.Generator().manual_seed(seed)
        draws, trees = [], self._tree_mean(points.inputs)
        for j, posterior in enumerate(self.posteriors):
            Z = self.units.standard(points.inputs, posterior)
            row_noise = self.units.standard_noise(known, j, slice(None), Z)
            options = {"row_noise": row_noise, "offset": _column(trees, j, Z), "generator": generator}
            sample = posterior.sample(Z, num_samples, noise=noise and self.likelihood is None, **options)
            draws.append(as_array(sample.mT))
        values = points.choose(np.stack(draws, 1), np.random.default_rng(seed))
        if isinstance(self.likelihood, Likelihood):
            values = values + self.offsets[0]
            values = values if points.exposure is None else values + np.log(points.exposure)[:, None, None]
            if noise:
                values = as_array(self.likelihood.sample(torch.from_numpy(values), generator))
            elif self.likelihood.are_counts:
                with np.errstate(over="ignore"):
                    values = np.exp(values)
        return self.units.inverse(self.units.restore(values, Quantity.VALUE))

    # ---- parts of the variance ----

    def noise_deviations(self, points: Points) -> Float[np.ndarray, "n q"]:
        """The standard deviation of the noise at each row."""
        if self.likelihood is not None:
            return np.sqrt(self._observations(points, *self._moments(points)).noise_variance())
        std = np.tile(self.noise_std, (len(points.inputs), 1))
        for rows, tile, _ in self._tiles(points):
            for j, posterior in enumerate(self.posteriors):
                scale = posterior.scale(tile.to(posterior.X))
                if scale is not None:
                    std[rows, j] *= np.sqrt(as_array(scale))
        noise = points.average(std**2)
        if not self.units.has_log:
            return np.sqrt(noise) if points.has_stand_ins else std
        predicted = self.predictive(points)
        assert isinstance(predicted, Predictive)
        parts = {"noise": noise, "latent": (predicted.scale**2 - noise).clip(0), "computational": np.zeros_like(noise)}
        return np.sqrt(_in_units(self.units.transforms, parts, predicted.mean())["noise"])

    def variance_parts(
        self, points: Points, known: Known, mean: Float[np.ndarray, "n q"]
    ) -> tuple[dict[str, np.ndarray], str]:
        """The parts of the variance of observations with this mean, and what is known of the computational part."""
        parts = {name: np.empty((len(points.inputs), self.num_functions)) for name in PARTS}
        means, kinds = np.zeros((len(points.inputs), self.num_functions)), []
        for j, posterior in enumerate(self.posteriors):
            reference = reference_for(posterior, self._held_noise(j), self.target_rows[j])
            kinds.append(reference.kind)
            for rows, tile, trees in self._tiles(points):
                Z = tile.to(posterior.X)
                ignored = None if self.likelihood is None else Z.new_ones(len(Z))  # noise comes from the likelihood
                components = variance_components(posterior, reference, Z, ignored)
                for name, part in parts.items():
                    part[rows, j] = as_array(getattr(components, name))
                if points.has_stand_ins:
                    means[rows, j] = as_array(posterior.mean(Z, _column(trees, j, Z)))
        parts = {name: points.average(values) for name, values in parts.items()}
        parts["latent"] = parts["latent"] + points.spread(means)
        parts = {name: self.units.restore(values, Quantity.VARIANCE) for name, values in parts.items()}
        kind = next(kind for kind in KINDS if kind in kinds)
        if known is not None:
            parts["noise"] += points.average(known)
        if self.likelihood is None:
            return _in_units(self.units.transforms, parts, mean), kind
        observations = self._observations(points, *self._moments(points))
        function = observations.function()
        without_noise = parts | {"noise": np.zeros_like(parts["noise"])}
        own = _in_units(function.transforms, without_noise, function.mean())
        return own | {"noise": observations.noise_variance()}, kind

    def _held_noise(self, j: int) -> Tensor | None:
        """Known variances of the rows that a posterior holds; of their sites where the likelihood is not Gaussian."""
        posterior = self.posteriors[j]
        is_local = isinstance(posterior, LocalPosterior)
        return posterior.row_noise if self.likelihood is not None and is_local else self.row_noise[j]

    # ---- what was learned ----

    @property
    def encoder(self) -> Encoder:
        """What turns tables into numbers."""
        return self.units.encoder

    @property
    def scaler(self) -> Standardizer:
        """Means and standard deviations of the training rows."""
        return self.units.scaler

    @property
    def guarantee(self) -> str:
        """What holds for the variance of the functions at a test point, in one sentence."""
        if self.likelihood is not None:
            return SITES_GUARANTEE
        scaled = any(posterior.has_local_scale for posterior in self.posteriors)
        never_below = all(posterior.never_below_exact for posterior in self.posteriors)
        is_average = any(isinstance(posterior, AveragedPosterior) for posterior in self.posteriors)
        return guarantee_words(never_below, scaled, self.units.has_log, is_average)

    @property
    def lengthscales(self) -> Float[np.ndarray, " p"]:
        """The lengthscale of each encoded input, in its standard deviations; NaN where the kernel has none."""
        num_inputs = len(self.encoder.names_out)
        learned = self.posteriors[0].prior.kernel.lengthscales(num_inputs)
        values = np.full(num_inputs, np.nan) if learned is None else learned.cpu().numpy()
        return np.where(np.isfinite(values), values, np.nan)

    @property
    def kernel_parts(self) -> list[dict[str, Any]]:
        """Every part of the kernel, what it sees and what it learned; as plain values."""
        state = _with_arrays(self.posteriors[0].prior.state()["kernel"])
        return kernel_parts(state, list(self.encoder.names_out), self.scaler.input_std.numpy())

    @property
    def noise_std(self) -> Float[np.ndarray, " q"]:
        """The learned standard deviation of the noise of each target, on the scale of the fit; NaN for counts."""
        if isinstance(self.likelihood, Likelihood):
            zero = torch.zeros(1, dtype=torch.float64)
            own = np.nan if self.predicts_counts else float(self.likelihood.predictive_noise(zero, zero).sqrt())
            return self.units.restore(np.array([own]), Quantity.DEVIATION, axis=0)
        noises = (posterior.prior.noise for posterior in self.posteriors)
        variances = [float(n.noise.detach()) if isinstance(n, GaussianNoise) else 0.0 for n in noises]
        return self.units.restore(np.sqrt(variances), Quantity.DEVIATION, axis=0)


def _column(trees: Float[np.ndarray, "m q"], j: int, like: Tensor) -> Tensor:
    """The prior mean of the j-th function for its posterior."""
    return torch.from_numpy(np.ascontiguousarray(trees[:, j])).to(like)


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


def _check_joint(num_rows: int) -> None:
    if num_rows > COVARIANCE_ROWS:
        raise ValueError(
            f"joint answers at {num_rows:,} rows would take {8 * num_rows**2 / 1e9:.0f} GB and more; the limit is "
            f"{COVARIANCE_ROWS:,} rows. Use return_std, which treats each row alone, or pass fewer rows."
        )


def _with_arrays(state: Any) -> Any:
    """A state with arrays instead of tensors."""
    if isinstance(state, Tensor):
        return as_array(state)
    if isinstance(state, dict):
        return {name: _with_arrays(value) for name, value in state.items()}
    return [_with_arrays(value) for value in state] if isinstance(state, list) else state
