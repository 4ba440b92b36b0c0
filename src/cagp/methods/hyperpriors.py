"""Priors on hyperparameters: the parameters that are most probable given the data (MAP), for every method."""

import math
from inspect import getattr_static
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from cagp.methods.base import Method
from cagp.parameters import Positive
from cagp.prior import GP


class LogNormal(NamedTuple):
    """log θ ~ Normal(location, scale²)."""

    location: float
    scale: float

    def log_density(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(log θ), the density with respect to log θ: its mode is the median of θ, whatever the unit of θ.

        The density with respect to θ has another mode. It is this one with ``location - scale²`` for ``location``, up
        to a factor that does not depend on θ.
        """
        z = (value.log() - self.location) / self.scale
        return -0.5 * z.square() - math.log(self.scale * math.sqrt(2 * math.pi))


def dimension_scaled(num_dims: int) -> LogNormal:
    """The prior on lengthscales of ``num_dims`` standardised inputs: log l ~ Normal(√2 + ½ log d, 3).

    Distances between points grow with √d, and lengthscales with them (Hvarfner, Hellsten & Nardi, "Vanilla Bayesian
    optimization performs great in high dimensions", 2024).
    """
    return LogNormal(math.sqrt(2) + 0.5 * math.log(num_dims), math.sqrt(3))


class MAP(Method):
    """A method with priors on its hyperparameters: ``fit(MAP(method), X, y)`` trains ``method`` itself.

    It adds one term to the objective, "log_prior" = -log p(θ) / n: the likelihood's terms are per row, so this one
    fades as rows are added. Everything else is the method's own.

    Args:
        method: any method with a GP called ``prior``.
        lengthscale: the prior on every lengthscale, in the unit of the inputs. "dimension-scaled" suits standardised
            inputs (see ``dimension_scaled``); None for no prior.
        others: priors on further positive parameters of the GP by their names, e.g. ``noise=LogNormal(-4, 1)`` for
            standardised targets, or ``outputscale``.
    """

    def __init__(
        self,
        method: Method,
        lengthscale: LogNormal | Literal["dimension-scaled"] | None = "dimension-scaled",
        **others: LogNormal,
    ):
        super().__init__()
        if not isinstance(getattr(method, "prior", None), GP):
            raise ValueError(f"MAP needs a method with a GP called prior; {type(method).__name__} has none.")
        self.method = method
        given = ({} if lengthscale is None else {"lengthscale": lengthscale}) | others
        for name, prior in given.items():
            if prior != "dimension-scaled":
                _check(name, prior)
            if not _values(method, name):
                raise ValueError(f"there is a prior on {name!r}, but the GP has no positive parameter of that name.")
        self.priors = tuple(given.items())

    @property
    def stochastic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As the method's."""
        return self.method.stochastic

    def log_prior(self, num_dims: int) -> Float[Tensor, ""]:
        """log p(θ), the sum over all parameters that have a prior."""
        total = torch.zeros((), dtype=torch.float64)
        for name, prior in self.priors:
            density = dimension_scaled(num_dims) if isinstance(prior, str) else prior
            for value in _values(self.method, name):
                total = total.to(value.device) + density.log_density(value).sum()
        return total

    def objective_terms(
        self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], row_noise: Float[Tensor, " n"] | None = None
    ) -> dict[str, Float[Tensor, ""]]:
        """The method's terms and "log_prior"."""
        terms = self.method.objective_terms(X, y, row_noise)
        return {**terms, "log_prior": -self.log_prior(X.shape[1]) / X.shape[0]}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return self.method.parameter_groups()

    def hyperparameters(self) -> dict[str, Any]:
        return self.method.hyperparameters()

    def adapt(self, X: Float[Tensor, "n d"], step: int, share: float, flat: bool) -> str | None:
        return self.method.adapt(X, step, share, flat)

    def findings(self, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[str]:
        names = ", ".join(name for name, _ in self.priors) or "nothing"
        return [*self.method.findings(X, y), f"Prior distributions on: {names}."]


def _values(method: Method, name: str) -> list[Tensor]:
    """Every positive parameter of the method's GP that is called ``name``, in its own unit."""
    assert isinstance(method.prior, GP)
    return [getattr(part, name) for part in method.prior.modules() if _is_positive(part, name)]


def _is_positive(part: nn.Module, name: str) -> bool:
    return isinstance(getattr_static(part, name, None), Positive)


def _check(name: str, prior: Any) -> None:
    if not (isinstance(prior, LogNormal) and math.isfinite(prior.location) and 0 < prior.scale < math.inf):
        raise ValueError(f"the prior on {name!r} is {prior!r}, expected LogNormal(location, scale), scale above zero.")
