"""Random regression problems for property tests: priors, data and actions of every kind."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import oracle
import torch
from hypothesis import strategies as st
from torch import Tensor

from cagp import GP, ConstantMean, GaussianNoise, KnownNoise, LinearMean
from cagp.actions import Actions, BlockActions, DenseActions, Partition, ordered_blocks, spatial_blocks
from cagp.kernels import (
    RBF,
    ActiveDims,
    Constant,
    Cosine,
    GreatCircle,
    InputUnits,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scale,
)
from cagp.prior import ZeroMean

STATIONARY: dict[str, Callable[..., Kernel]] = {
    "RBF": RBF,
    "Matern12": Matern12,
    "Matern32": Matern32,
    "Matern52": Matern52,
    "RationalQuadratic": lambda num_dims, lengthscale: RationalQuadratic(num_dims, lengthscale, alpha=0.7),
}


def great_circle(num_dims: int, scale: Tensor) -> Kernel:
    """Places by the first and the last column, in degrees that are told, not the columns themselves."""
    kernel = ActiveDims(GreatCircle(20 * float(scale[0]), 2.5), [0, num_dims - 1] if num_dims > 1 else [0])
    if num_dims == 1:
        return RBF(1, scale)  # a place has two columns
    kernel.set_units(InputUnits(torch.full_like(scale, 40.0), torch.full_like(scale, 25.0)))
    return kernel


COMPOSITE: dict[str, Callable[[int, Tensor], Kernel]] = {
    "Scale(Matern32)": lambda d, scale: Scale(Matern32(d, scale), 1.7),
    "Scale(RBF) + Constant": lambda d, scale: Scale(RBF(d, scale), 0.6) + Constant(0.4),
    "Linear + Matern52": lambda d, scale: Linear(d, 0.3 / scale.square()) + Matern52(d, scale),
    "Matern12 * RBF": lambda d, scale: Matern12(d, scale) * RBF(d, 2 * scale),
    "Constant * Matern32": lambda d, scale: Constant(1.3) * Matern32(d, scale),
    "Scale(Sum(RBF, Linear))": lambda d, scale: Scale(RBF(d, scale) + Linear(d, 0.2 / scale.square()), 0.8),
    "RationalQuadratic * Linear + Constant": lambda d, scale: (
        RationalQuadratic(d, scale, alpha=2.5) * Linear(d, 0.5 / scale.square()) + Constant(0.2)
    ),
    "Constant * Constant + Matern12": lambda d, scale: Product(Constant(0.5), Constant(0.9)) + Matern12(d, scale),
    "Scale(Scale(RBF) * Constant) * Matern52": lambda d, scale: (
        Scale(Scale(RBF(d, scale), 0.9) * Constant(1.1), 1.2) * Matern52(d, 3 * scale)
    ),
    "Scale(Periodic)": lambda d, scale: Scale(Periodic(d, 2.5 * scale, 0.8 * d**0.5), 1.3),
    "Scale(Cosine * RBF) + Constant": lambda d, scale: Scale(Cosine(d, 4 * scale) * RBF(d, scale), 0.7) + Constant(0.3),
    "ActiveDims(Cosine) + Matern12": lambda d, scale: (
        ActiveDims(Cosine(1, 2 * scale[-1]), [d - 1]) + Matern12(d, scale)
    ),
    "ActiveDims(Linear + Periodic)": lambda d, scale: ActiveDims(Linear(1) + Periodic(1, scale[0]), [d // 2]),
    "GreatCircle": great_circle,
}

KERNELS = STATIONARY | COMPOSITE


class Problem(NamedTuple):
    """Data, a prior and actions for them, with the actions as a dense matrix and new inputs to ask about."""

    prior: GP
    actions: Actions
    X: Tensor
    y: Tensor
    row_noise: Tensor | None
    Z: Tensor

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return self.X, self.y

    @property
    def S(self) -> np.ndarray:
        return oracle.action_matrix(self.actions)

    @property
    def noise(self) -> np.ndarray:
        return oracle.noise_vector(self.prior.noise, len(self.y), self.row_noise)

    @property
    def scale(self) -> float:
        """The largest prior variance of the function at the inputs."""
        points = np.concatenate([oracle.array(self.X), oracle.array(self.Z)])
        return float(np.diag(oracle.kernel_matrix(self.prior.kernel, points, points)).max())


def well_conditioned(num_rows: int, num_columns: int, generator: torch.Generator) -> Tensor:
    """A random matrix (float64) whose singular values lie between 1/2 and 2."""
    square = torch.randn(num_rows, num_columns, generator=generator, dtype=torch.float64)
    U, _, Vt = torch.linalg.svd(square, full_matrices=False)
    return (U * (0.5 + 1.5 * torch.rand(num_columns, generator=generator, dtype=torch.float64))) @ Vt


def random_actions(kind: str, X: Tensor, num_actions: int, generator: torch.Generator) -> Actions:
    """Actions of a kind: "dense", or random values on "spatial", "ordered" or "uneven" blocks."""
    n = len(X)
    if kind == "dense":
        return DenseActions(well_conditioned(n, num_actions, generator).to(X))
    if kind == "spatial":
        partition = spatial_blocks(X, num_actions)
    elif kind == "ordered":
        partition = ordered_blocks(n, num_actions)
    else:
        cuts = torch.randperm(n - 1, generator=generator)[: num_actions - 1].sort().values + 1
        offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([n])])
        partition = Partition(torch.randperm(n, generator=generator), offsets)
    signs = torch.randint(0, 2, (n,), generator=generator) * 2 - 1
    values = signs * (0.2 + torch.rand(n, generator=generator, dtype=torch.float64))
    return BlockActions(partition, values.to(X))


def make_prior(
    kernel: str, num_dims: int, noise: float, generator: torch.Generator, *, mean: str = "zero", known: bool = False
) -> GP:
    """A prior with random lengthscales of the order of the distance between standard normal inputs."""
    lengthscale = num_dims**0.5 * (0.3 + torch.rand(num_dims, generator=generator, dtype=torch.float64))
    means = {"zero": ZeroMean, "constant": lambda: ConstantMean(0.8), "linear": lambda: LinearMean(num_dims)}
    prior = GP(KERNELS[kernel](num_dims, lengthscale), means[mean](), KnownNoise() if known else GaussianNoise(noise))
    if mean == "linear":
        with torch.no_grad():
            prior.mean.slope.copy_(torch.randn(num_dims, generator=generator) / num_dims)
            prior.mean.constant.fill_(-0.4)
    return prior


class Recipe(NamedTuple):
    """What a random problem is made of. Property tests draw recipes, small to print, and build them."""

    n: int
    d: int
    i: int
    kernel: str
    actions: str
    mean: str
    noise: str
    noise_variance: float
    oddity: str
    seed: int
    dtype: torch.dtype

    def build(self) -> Problem:
        g = torch.Generator().manual_seed(self.seed)
        X = torch.randn(self.n, self.d, generator=g, dtype=torch.float64)
        if self.oddity == "duplicate rows":
            X = X[torch.randint(0, self.n, (self.n,), generator=g)]
        elif self.oddity == "constant column":
            X[:, -1] = 3.7
        X = X.to(self.dtype)
        y = torch.sin(X.double().sum(1)) + 0.3 * torch.randn(self.n, generator=g, dtype=torch.float64)
        Z = torch.randn(5, self.d, generator=g, dtype=torch.float64).to(X)
        Z = torch.cat([Z, X[:2]])  # training inputs are asked about too
        row_noise = None
        if self.noise != "one":
            row_noise = self.noise_variance * (0.2 + 2 * torch.rand(self.n, generator=g, dtype=torch.float64)).to(X)
        known = self.noise == "known rows"
        prior = make_prior(self.kernel, self.d, self.noise_variance, g, mean=self.mean, known=known)
        return Problem(prior, random_actions(self.actions, X, self.i, g), X, y.to(X), row_noise, Z)


@st.composite
def recipes(
    draw,
    *,
    dtype: torch.dtype = torch.float64,
    kernels: tuple[str, ...] = tuple(KERNELS),
    actions: tuple[str, ...] = ("dense", "spatial", "ordered", "uneven"),
    square: bool = False,
    noises: tuple[str, ...] = ("one", "one plus rows", "known rows"),
    smallest_noise: float = 0.01,
    oddities: tuple[str, ...] = ("none", "duplicate rows", "constant column"),
    max_rows: int = 40,
) -> Recipe:
    """Problems of 1 to ``max_rows`` rows, some with duplicate rows or a constant column; ``square`` for i = n."""
    n = draw(st.integers(1, max_rows))
    return Recipe(
        n=n,
        d=draw(st.sampled_from([1, 2, 3, 4, 5, 6, 50])),
        i=n if square else draw(st.integers(1, n)),
        kernel=draw(st.sampled_from(kernels)),
        actions=draw(st.sampled_from(actions)),
        mean=draw(st.sampled_from(["zero", "constant", "linear"])),
        noise=draw(st.sampled_from(noises)),
        noise_variance=draw(st.sampled_from([smallest_noise, 0.1, 1.0])),
        oddity=draw(st.sampled_from(oddities)),
        seed=draw(st.integers(0, 2**31)),
        dtype=dtype,
    )
