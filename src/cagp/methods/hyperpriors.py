"""Priors on hyperparameters, for every method: training finds the most probable parameters given the data (MAP)."""

import math
from inspect import getattr_static
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.dataset import Data
from cagp.methods.base import Method, prior_of
from cagp.parameters import Positive
from cagp.posteriors import Posterior
from cagp.prior import GP
from cagp.training import Batch, Coming, ParameterGroup, StepRows
from cagp.training.trainable import Terms


class LogNormal(NamedTuple):
    """log θ ~ Normal(location, scale²)."""

    location: float
    scale: float

    def log_density(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p(log θ), the density with respect to log θ: its mode is the median of θ, whatever the unit of θ."""
        z = (value.log() - self.location) / self.scale
        return -0.5 * z.square() - math.log(self.scale * math.sqrt(2 * math.pi))


def dimension_scaled(num_dims: int) -> LogNormal:
    """The prior on lengthscales of ``num_dims`` standardised inputs: log l ~ Normal(√2 + ½ log d, 3).

    Distances between points grow with √d, and lengthscales with them (Hvarfner, Hellsten & Nardi, "Vanilla Bayesian
    optimization performs great in high dimensions", 2024).
    """
    return LogNormal(math.sqrt(2) + 0.5 * math.log(num_dims), math.sqrt(3))


@final
class MAP(Method):
    """A method with priors on its hyperparameters: ``fit(MAP(method), X, y)`` trains ``method`` itself.

    It adds one term to the objective, "log_prior" = -log p(θ) / n, which fades as rows are added. All else is the
    method's own.

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
        prior_of_method = prior_of(method)
        if prior_of_method is None:
            raise ValueError(f"MAP needs a method with a GP called prior; {type(method).__name__} has none.")
        self.method = method
        given = ({} if lengthscale is None else {"lengthscale": lengthscale}) | others
        for name, prior in given.items():
            right = isinstance(prior, LogNormal) and math.isfinite(prior.location) and 0 < prior.scale < math.inf
            if not right and prior != "dimension-scaled":
                expected = "expected LogNormal(location, scale), scale above zero"
                raise ValueError(f"the prior on {name!r} is {prior!r}, {expected}.")
            if not _values(prior_of_method, name):
                raise ValueError(f"there is a prior on {name!r}, but the GP has no positive parameter of that name.")
        self.priors = tuple(given.items())

    def log_prior(self, num_dims: int) -> Float[Tensor, ""]:
        """log p(θ), the sum over all parameters that have a prior."""
        total, gp = torch.zeros((), dtype=torch.float64), prior_of(self.method)
        assert gp is not None
        for name, prior in self.priors:
            density = dimension_scaled(num_dims) if isinstance(prior, str) else prior
            for value in _values(gp, name):
                total = total.to(value.device) + density.log_density(value).sum()
        return total

    def terms(self, data: Data, batch: Batch) -> Terms:
        """The method's terms and "log_prior"."""
        log_prior = -self.log_prior(data.X.shape[1]) / data.num_rows
        return {**self.method.terms(data, batch), "log_prior": log_prior}

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        names = ", ".join(name for name, _ in self.priors) or "nothing"
        return [*self.method.findings(data, input_names), f"Prior distributions on: {names}."]

    # ---- the method's own ----

    def posterior(self, data: Data, **options: Any) -> Posterior:
        return self.method.posterior(data, **options)

    def check(self, data: Data) -> None:
        self.method.check(data)

    def rows(self, step: int, num_rows: int) -> StepRows:
        return self.method.rows(step, num_rows)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        return self.method.before_step(data, coming)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return self.method.parameter_groups()

    def hyperparameters(self) -> dict[str, Any]:
        return self.method.hyperparameters()


def _values(prior: GP, name: str) -> list[Tensor]:
    """Every positive parameter of the GP that is called ``name``, in its own unit."""
    return [getattr(part, name) for part in prior.modules() if isinstance(getattr_static(part, name, None), Positive)]
