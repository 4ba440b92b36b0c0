"""What every posterior answers (mean, variance, covariance, samples) from a frozen snapshot, and how it is stored."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cagp.checks import check_matrix, check_new_inputs
from cagp.dataset import Data, inputs_of
from cagp.engine import DEFAULT_MAX_BYTES, BlockWeights, precise_product
from cagp.fields import Check, Sizes, checked, entry, mapping, numbers, require, strange, tensor
from cagp.neighbours import NeighbourIndex
from cagp.prior import GP, GaussianNoise
from cagp.storage import State

Points = Float[Tensor, "t d"]  # test points
Values = Float[Tensor, " t"]  # a number for each
Rounding = Callable[[Any, str], Any]  # values of rows, and what they are called, to values for a file


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
        """What defines the posterior: ``posterior_from_state`` makes one of it, on the CPU, with the same predictions.

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
            **self._state(partial(_rounded, dtype, self.X.dtype)),
        }

    def _state(self, rows: Rounding) -> State:
        """What a class stores of itself; its ``_from_state`` makes a posterior that holds the tensors of the state."""
        raise ValueError(f"a posterior of class {type(self).__name__} cannot be stored.")

    @abstractmethod
    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance of the function at test points, float64; optionally their scale, and an offset's share."""

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
        self, X: Points | Data, *, noise: bool = False, row_noise: Values | None = None, offset: Values | None = None
    ) -> Prediction:
        """Mean and variance in one pass over the kernel; of new targets if ``noise``, else of the function."""
        X = inputs_of(X, self.X)
        _check_row_noise(noise, row_noise)
        mean, variance, *more = self._moments_in_tiles(X)
        if offset is not None:
            mean = mean + (more[1] * offset if len(more) > 1 else offset)
        # Round-off can leave the difference of two almost equal numbers a little below zero.
        variance = variance.clamp_min(0)
        if noise:
            variance = variance + self._noise(X, row_noise, more[0] if more else None)
        return Prediction(mean.to(X), variance.to(X))

    def _moments_in_tiles(self, X: Tensor) -> tuple[Tensor, ...]:
        order = self.order(X)
        columns = self._in_tiles(self._moments, X if order is None else X[order])
        return columns if order is None else tuple(column[order.argsort()] for column in columns)

    def _in_tiles(self, function: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
        """What the function returns for all rows, computed for some at a time."""
        tiles = rows.split(max(1, self.max_bytes // (4 * 8 * self._width)))
        return tuple(torch.cat(column) for column in zip(*map(function, tiles), strict=True))

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


# ---- averages of several posteriors that learned the same targets in different ways ----


class Pooled(NamedTuple):
    """How much each process counts in the average at each test point."""

    shares: Float[Tensor, "j t"]  # aⱼ(x), with the sum 1
    squares: Float[Tensor, "j t"]  # aⱼ(x)² / wⱼ: what the variances of the processes count for

    @classmethod
    def of(cls, variances: Float[Tensor, "j t"], weights: Sequence[float]) -> "Pooled":
        """aⱼ ∝ wⱼ / vⱼ with the variances vⱼ of new targets."""
        fixed = variances.new_tensor(weights)[:, None]
        precision = fixed / variances.clamp_min(torch.finfo(variances.dtype).tiny)
        shares = precision / precision.sum(0)
        return cls(shares, shares.square() / fixed)


@final
class AveragedPosterior(Posterior):
    """f̄(x) = Σ aⱼ(x) fⱼ(x), in which each process counts most where it is sure: aⱼ(x) ∝ wⱼ / vⱼ(x).

    vⱼ(x) is the variance of a new target at x, so that the density of a new target is ∏ pⱼ^wⱼ, normalised.

    The processes fⱼ learn from the same rows, so they are not independent, and nothing says how they depend on each
    other. Whatever their joint distribution is, the covariance of f̄ is at most Σ aⱼ(x) Cⱼ(x, z) aⱼ(z) / wⱼ, because
    squares are convex. That bound is the covariance here. Derivation: docs/derivations.md, "Averages of processes".

    ``prior`` has the kernel of the component with the largest weight, and the average of the noise variances.

    Args:
        components: posteriors at inputs of the same columns.
        weights: wⱼ, positive, with the sum 1.
        offset_of: the components that an ``offset`` belongs to: those that learned the residuals.
    """

    def __init__(self, components: Sequence[Posterior], weights: Sequence[float], offset_of: Sequence[int] = (0,)):
        if len(components) != len(weights) or not components:
            raise ValueError(f"there are {len(components)} components and {len(weights)} weights, expected as many.")
        if not all(0 < weight <= 1 for weight in weights) or abs(sum(weights) - 1) > 1e-9:
            raise ValueError(f"weights are {list(weights)}, expected positive numbers whose sum is 1.")
        if not offset_of or not all(0 <= j < len(components) for j in offset_of):
            raise ValueError(f"offset_of is {list(offset_of)}, expected numbers of the {len(components)} components.")
        columns = sorted({component.X.shape[1] for component in components})
        if len(columns) > 1:
            raise ValueError(f"the components have {columns} columns, expected the same number.")
        self.components, self.weights = tuple(components), tuple(map(float, weights))
        self.offset_of = tuple(sorted(set(offset_of)))
        main = self.components[max(range(len(weights)), key=lambda j: self.weights[j])]
        prior, parts = copy.deepcopy(main.prior), [component.prior.noise for component in components]
        noises = [part.noise.detach() for part in parts if isinstance(part, GaussianNoise)]
        if isinstance(prior.noise, GaussianNoise) and len(noises) == len(parts):
            noise = sum(weight * float(noise) for weight, noise in zip(self.weights, noises, strict=True))
            if noise > prior.noise.noise_floor:  # else all are at their floor, and so is that of the main component
                prior.noise.noise = noise
        super().__init__(prior, main.X, main._representer, main.max_bytes, shares_rows=True)  # a snapshot already
        self.never_below_exact = all(component.never_below_exact for component in components)
        self.has_local_scale = any(component.has_local_scale for component in components)
        self._width = sum(component._width for component in components)

    def state(self, dtype: torch.dtype | None = None) -> State:
        return {
            "class": type(self).__name__,
            "prior": self.prior.state(),  # it follows from the others; for those who read it without a model
            "weights": list(self.weights),
            "offset_of": list(self.offset_of),
            "components": [component.state(dtype) for component in self.components],
        }

    def order(self, X: Points) -> Int[Tensor, " t"] | None:
        """The order of the first component that has one."""
        found = (component.order(X) for component in self.components)
        return next((order for order in found if order is not None), None)

    def pooled(self, X: Points) -> Pooled:
        """How much each component counts at each test point."""
        return Pooled.of(torch.stack([part.variance(X, noise=True).double() for part in self.components]), self.weights)

    def _moments(self, X: Tensor) -> tuple[Tensor, ...]:
        found = []
        for component in self.components:
            mean, variance, *scale = component._moments(X)
            learned = component.prior.noise.learned(X)
            found.append((mean, variance.clamp_min(0), learned * scale[0] if scale else learned))
        mean, variance, noise = map(torch.stack, zip(*found, strict=True))
        shares, squares = Pooled.of(variance + noise, self.weights)
        own = self.prior.noise.learned(X)
        scale = torch.where(own > 0, (squares * noise).sum(0) / own, 1.0)
        return (shares * mean).sum(0), (squares * variance).sum(0), scale, shares[list(self.offset_of)].sum(0)

    def mean(self, X: Points, offset: Values | None = None) -> Values:
        return self.predict(X, offset=offset).mean

    def scale(self, X: Points) -> Values:
        """What the averaged noise is multiplied by around each test point."""
        return self._moments_in_tiles(X)[2]

    def left_out(self, rows: Int[Tensor, " r"]) -> LeftOut | None:
        """The averages of what the components say, if every one holds the same rows and leaves rows out."""
        same_rows = len({len(component.X) for component in self.components}) == 1
        found = [component.left_out(rows) for component in self.components] if same_rows else []
        known = [part for part in found if part is not None]
        if len(known) < len(self.components):
            return None
        error, variance = (torch.stack(column) for column in zip(*known, strict=True))
        shares, squares = Pooled.of(variance, self.weights)
        return LeftOut((shares * error).sum(0), (squares * variance).sum(0))

    def _covariance(self, X: Tensor, Z: Tensor | None) -> Tensor:
        rows = self.pooled(X).shares
        columns = rows if Z is None else self.pooled(Z).shares
        parts = zip(self.components, self.weights, rows, columns, strict=True)
        found = [row[:, None] * part._covariance(X, Z) * column / weight for part, weight, row, column in parts]
        return torch.stack(found).sum(0)

    def _joint_mean(self, X: Tensor, offset: Tensor | None = None) -> Tensor:
        means = [component._joint_mean(X).double() for component in self.components]
        if offset is not None:
            for j in self.offset_of:
                means[j] = means[j] + offset
        return (self.pooled(X).shares * torch.stack(means)).sum(0)


# ---- what a file holds ----

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def _rounded(dtype: torch.dtype | None, of_rows: torch.dtype, values: Any, name: str) -> Any:
    """The values in ``dtype`` if that is smaller; as they are for None, or where it is that of the posterior's rows."""
    if isinstance(values, BlockWeights):
        return {"values": _rounded(dtype, of_rows, values.values, name), "offsets": values.offsets}
    if values is None or dtype in (None, of_rows) or values.dtype.itemsize <= dtype.itemsize:
        return values
    rounded = values.to(dtype)
    lost = ~torch.isfinite(rounded) | ((rounded == 0) & (values != 0) & (name == "row_noise"))
    if bool(lost.any()):
        raise ValueError(f"{name} has values beyond the range of {dtype}; store it with dtype=None.")
    return rounded


class Sharing:
    """What posteriors made from one file share, so that they take memory in proportion to the file.

    A file can refer to the same rows as often as it likes: they are converted once, and searched through one index.
    """

    def __init__(self, max_bytes: int = 2**62):
        self.left = max_bytes  # for all parameters, which are copied for each posterior
        self._rows: dict[Any, tuple[Tensor, Tensor]] = {}
        self._indices: dict[Any, NeighbourIndex] = {}

    def spend(self, module: Any) -> None:
        """Count a stored module and those inside it; ValueError if there are more than a file of this size can mean."""
        held = entry(module, "tensors", mapping).values()
        # A kernel takes about 10 kB besides its parameters.
        self.left -= 10_000 + sum(t.numel() * t.element_size() for t in held if isinstance(t, Tensor))
        if self.left < 0:
            raise ValueError("its kernels have far more parameters than cagp writes into a file of this size.")
        for part in module.get("parts") or []:
            self.spend(part)

    def rows(self, X: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows in this dtype."""
        if X.dtype == dtype:
            return X
        key = (X.data_ptr(), X.shape, X.stride(), dtype)
        return self._rows.setdefault(key, (X, X.to(dtype)))[1]  # X stays, and so does its address

    def index(self, X: Tensor, lengthscale: Tensor | None, kind: Any, origin: Tensor) -> NeighbourIndex:
        """The index of these rows."""
        unit = None if lengthscale is None else tuple(lengthscale.tolist())
        key = (X.data_ptr(), X.shape, X.stride(), unit, kind, tuple(origin.tolist()))
        if key not in self._indices:
            self._indices[key] = NeighbourIndex(X, lengthscale, kind, origin)
        return self._indices[key]

    def inputs(self, state: State, prior: GP) -> Tensor:
        """The stored rows ``X`` in the stored ``dtype``; ValueError unless the prior takes their columns."""
        X = entry(state, "X", tensor("n", "d"))
        check_matrix(X, "X")
        if X.dtype not in DTYPES.values() or state.get("dtype") not in DTYPES:
            raise strange("'X'")
        X = self.rows(X, DTYPES[state["dtype"]])
        try:
            prior.mean(X[:1])
            prior.kernel(X[:1], X[:1])
        except (RuntimeError, ValueError) as error:
            raise strange(f"a kernel and a mean for {X.shape[1]} columns") from error
        return X

    def weights(self, dtype: torch.dtype) -> Check:
        """The check of weights of i actions on n rows."""

        def check(value: Any, sizes: Sizes) -> Tensor | BlockWeights:
            if isinstance(value, Tensor):
                W = numbers("n", "i")(value, sizes)
                require(W.shape[1] > 0)
                # Those of iterative methods are float64 also beside float32 rows: rounding them would change SᵀK̂S.
                return W if W.dtype == torch.float64 else self.rows(W, dtype)
            parts = checked(value, {"offsets": _offsets, "values": numbers("n")}, sizes)
            return BlockWeights(parts["values"].to(dtype), parts["offsets"])

        return check


def _offsets(value: Any, sizes: Sizes) -> Tensor:
    """Where blocks begin in the rows, and where the last one ends."""
    require(isinstance(value, Tensor) and value.dtype == torch.int64 and value.ndim == 1 and len(value) > 1)
    require(int(value[0]) == 0 and int(value[-1]) == sizes["n"] and not bool((value.diff() < 0).any()))
    sizes["i"] = len(value) - 1
    return value
