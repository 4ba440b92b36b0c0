"""Any likelihood, as a loop of Gaussian regressions: a Gaussian site stands for the likelihood of each row.

With the marginal q(f_r) = Normal(m_r, v_r) of a row, its site has precision and target

    w_r = -E_q[d² log p(y_r | f) / df²]        z_r = m_r + E_q[d log p(y_r | f) / df] / w_r

and (z, 1/w) are targets and noise variances of a regression, which gives the next marginals. Sites move by damped steps
in (w, w z). The fixed point is the best Gaussian by the evidence lower bound (natural-gradient variational inference);
with v_r = 0 in both formulas it is the Laplace approximation, and the steps are Newton's. docs/derivations.md has more.
"""

import math
import time
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from cagp import notices
from cagp.checks import check_count, check_vector
from cagp.dataset import Data
from cagp.likelihoods import Likelihood
from cagp.methods.base import HYPERPARAMETER_RATE, Method, Targets, prior_of, trained
from cagp.parameters import named_values
from cagp.posteriors import Posterior
from cagp.prior import GP, KnownNoise
from cagp.training import Batch, Coming, ParameterGroup, StepRows
from cagp.training.trainable import Inputs, Terms

SiteKind = Literal["variational", "newton"]
SITE_KINDS: dict[SiteKind, str] = {"variational": "variational", "newton": "Laplace"}

REFRESH_EVERY, REFRESH_STEPS, FIRST_STEPS = 5, 1, 8
"""Steps of a fit between two moves of the sites, the steps of the sites in each move, and in the one before all steps.
Heuristics."""

LEAST_DAMPING, SLOWER, FASTER = 1 / 64, 0.5, 1.25
"""Of the damping factor, unless whole steps are safe (``Likelihood.majorises``): its smallest value, what multiplies it
after a step that changed sites more than the one before, and after any other."""


class Sites(NamedTuple):
    """A Gaussian for the likelihood of each row, the marginals that they come from, and how they were found."""

    precision: Float[Tensor, " n"]  # w
    target: Float[Tensor, " n"]  # z
    mean: Float[Tensor, " n"]  # of f at the rows
    variance: Float[Tensor, " n"]
    num_steps: int
    change: float  # of (w, w z) by the last step without damping, relative to their largest values
    converged: bool
    num_moving: int  # rows whose site still changed by more than the tolerance


class SitesWarning(UserWarning):
    """Sites have not converged: predictions are those of the last step."""


@final
class WithLikelihood(Method):
    """A method for targets of any likelihood: ``fit(WithLikelihood(method, Logit(), n), X, y)``.

    The loss is that of ``method`` with the sites as targets and noise, plus what the likelihood of the rows differs
    from their sites by. For ``CholeskyGP`` at converged sites it is the negative evidence lower bound per row, and so
    is its gradient. A fit takes a step of the sites every few steps; ``condition`` takes them until they converge.
    Given the sites, every guarantee of ``method`` holds for the function.

    Args:
        method: any method whose prior has ``KnownNoise``; it learns and conditions as always.
        likelihood: of the targets; its parameters are learned, too.
        num_rows: n, of the data that it is for.
        offset: a fixed part of f at each row, e.g. the logarithm of exposures; the method models the rest. A number
            for all rows; None for zero. Predictions of the posterior are without it.
        kind: "variational", or "newton" for the Laplace approximation, which is overconfident more often.
        tolerance: ``condition`` ends when a step changes the sites by less than this, see ``Sites.change``.
        max_steps: of ``condition``, at most; it then issues a ``SitesWarning``.
        unsettled: the share of rows whose sites may change by more than the tolerance when ``condition`` ends.
        refresh_every: steps of a fit after which the sites take a step.
    """

    precision: Tensor
    shift: Tensor
    offset: Tensor
    marginal_mean: Tensor
    marginal_variance: Tensor

    def __init__(
        self,
        method: Method,
        likelihood: Likelihood,
        num_rows: int,
        *,
        offset: Float[Tensor, " n"] | float | None = None,
        kind: SiteKind = "variational",
        tolerance: float = 1e-4,
        max_steps: int = 100,
        unsettled: float = 0.0,
        refresh_every: int = REFRESH_EVERY,
    ):
        super().__init__()
        prior = prior_of(method)
        if prior is None or not isinstance(prior.noise, KnownNoise):
            found = "no GP called prior" if prior is None else f"a prior with {type(prior.noise).__name__}"
            remedy = "sites are its noise: make it with GP(kernel, noise=KnownNoise())"
            raise ValueError(f"the method has {found}; {remedy}.")
        if kind not in SITE_KINDS:
            raise ValueError(f'kind is {kind!r}, expected "variational" or "newton".')
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance is {tolerance}, expected a number between 0 and 1.")
        if not 0 <= unsettled < 1:
            raise ValueError(f"unsettled is {unsettled}, expected a share of rows, from 0 to below 1.")
        for name, value in (("num_rows", num_rows), ("max_steps", max_steps), ("refresh_every", refresh_every)):
            check_count(value, name, 2**31, "a size that can be computed")
        self.method, self.likelihood, self.refresh_every = method, likelihood, refresh_every
        self.kind: SiteKind = kind
        self.tolerance, self.max_steps, self.unsettled = tolerance, max_steps, unsettled
        zeros = torch.zeros(num_rows, dtype=torch.float64)
        given = zeros + (0.0 if offset is None else offset)
        if given.shape != zeros.shape or not bool(torch.isfinite(given).all()):
            raise ValueError(f"offset has shape {tuple(given.shape)}, expected {num_rows} finite numbers, or one.")
        # Checkpoints hold the sites, so that a resumed fit has the same. Precision zero: there are none yet.
        for name in ("precision", "shift", "marginal_mean", "marginal_variance"):
            self.register_buffer(name, zeros.clone())
        self.register_buffer("offset", given)

    @property
    def prior(self) -> GP:
        prior = prior_of(self.method)
        assert prior is not None
        return prior

    @torch.no_grad()
    def infer(
        self, X: Inputs | Data, y: Targets | None = None, max_steps: int | None = None, until: float = math.inf
    ) -> Sites:
        """Sites for these data at the present hyperparameters, with their status; nothing here changes.

        They start where those of the last fit are, if there was one. Each step costs as much as ``condition`` of the
        method and predictions at all rows (``Method.marginals``).

        Args:
            max_steps: None for that of the constructor.
            until: no step begins that would end later than this on the clock ``time.perf_counter()``; one is taken.
        """
        max_steps = self.max_steps if max_steps is None else max_steps
        data = Data.of(X, y)
        y, offset = data.y.double(), self.offset.to(data.X.device)
        if self.is_refreshed:
            precision, shift = self.precision.to(y.device), self.shift.to(y.device)
        else:
            mean = self.prior.mean(data.X.double()) + offset
            precision, shift = self._towards(y, mean, torch.zeros_like(mean))
        damping, last, change = 1.0, math.inf, math.inf
        mean, variance, step, num_moving, converged = offset, torch.zeros_like(offset), 0, len(y), False
        for step in range(1, max_steps + 1):
            began = time.perf_counter()
            marginals = self.method.marginals(self._regression(data, precision, shift))
            mean, variance = marginals.mean.double() + offset, marginals.variance.double()
            new_precision, new_shift = self._towards(y, mean, variance)
            changes = torch.maximum(_relative(new_precision, precision), _relative(new_shift, shift))
            change, num_moving = float(changes.max()), int((changes >= self.tolerance).sum())
            if not math.isfinite(change):
                remedy = "standardise the inputs, or lower the outputscale"
                raise FloatingPointError(f"sites are not finite after {step} steps; {remedy}.")
            if not self.likelihood.majorises:
                damping = max(LEAST_DAMPING, SLOWER * damping) if change > last else min(1.0, FASTER * damping)
            converged = num_moving <= self.unsettled * len(y)
            if converged:
                break
            precision = precision + damping * (new_precision - precision)
            shift = shift + damping * (new_shift - shift)
            last, now = change, time.perf_counter()
            if now + (now - began) > until:
                break
        return Sites(precision, shift / precision, mean, variance, step, change, converged, num_moving)

    def _towards(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """w and w z of the sites that marginals ask for."""
        used = variance if self.kind == "variational" else torch.zeros_like(variance)
        slope, precision = self.likelihood.site(y, mean, used)
        return precision, precision * mean + slope

    def _regression(self, data: Data, precision: Tensor, shift: Tensor) -> Data:
        """The sites as targets without the offset, and noise variances, in the dtype of the inputs."""
        targets = shift / precision - self.offset.to(data.X.device)
        return data.with_targets(targets.to(data.X), (1 / precision).to(data.X))

    @property
    def is_refreshed(self) -> bool:
        """Whether there are sites already."""
        return bool((self.precision > 0).all())

    @torch.no_grad()
    def refresh(self, X: Inputs | Data, y: Targets | None = None, num_steps: int = FIRST_STEPS) -> Sites:
        """Take up to ``num_steps`` steps of the sites, keep them for the objective, and return them."""
        found = self.infer(Data.of(X, y), max_steps=num_steps)
        self.precision, self.shift = found.precision, found.precision * found.target
        self.marginal_mean, self.marginal_variance = found.mean, found.variance
        return found

    def with_method(self, method: Method) -> "WithLikelihood":
        """The same sites, likelihood and options with another method, for predictions."""
        options = {name: getattr(self, name) for name in ("offset", "kind", "tolerance", "max_steps", "unsettled")}
        other = WithLikelihood(method, self.likelihood, len(self.offset), **options)
        other.precision, other.shift = self.precision.clone(), self.shift.clone()
        return other

    def check(self, data: Data) -> None:
        check_vector(data.y, "y", data.X)
        if data.row_noise is not None:
            raise ValueError("row_noise is given, but the noise of a likelihood is its own; leave row_noise out.")
        if data.num_rows != len(self.offset):
            raise ValueError(f"X has {data.num_rows:,} rows, this method was made for num_rows = {len(self.offset):,}.")
        self.likelihood.check(data.y)
        ones = torch.ones_like(data.X[:, 0])
        self.method.check(data.with_targets(ones, ones))

    def terms(self, data: Data, batch: Batch) -> Terms:
        """The method's terms for the sites, and "sites": E_q[log Normal(z; f, 1/w) - log p(y | f)] per row."""
        if not self.is_refreshed:
            raise ValueError("there are no sites yet: call refresh(X, y) first; fit does it by itself.")
        terms = self.method.terms(self._regression(data, self.precision, self.shift), batch)
        rows: Any = slice(None) if batch.rows is None else batch.rows
        mean, variance = self.marginal_mean[rows], self.marginal_variance[rows]
        w, z = self.precision[rows], (self.shift / self.precision)[rows]
        gaussian = 0.5 * (torch.log(w / (2 * math.pi)) - w * ((z - mean).square() + variance))
        expected = self.likelihood.expected_log_density(data.y[rows].double(), mean, variance)
        return {**terms, "sites": (gaussian - expected).mean()}

    @torch.no_grad()
    def posterior(self, data: Data, *, until: float = math.inf) -> Posterior:
        """The posterior of the function without the offset, given converged sites; ``until`` as in ``infer``."""
        sites = self.infer(data, until=until)
        if not sites.converged:
            notices.warn(
                f"the sites of {data.num_rows:,} rows have not converged after {sites.num_steps} steps (change "
                f"{sites.change:.1e}, tolerance {self.tolerance:.1e}, {sites.num_moving:,} rows still move); "
                "predictions are those of the last step. Raise max_steps or the tolerance, or allow more time.",
                SitesWarning,
                stacklevel=4,
            )
        return self.given(sites, data)

    @torch.no_grad()
    def given(self, sites: Sites, X: Inputs | Data) -> Posterior:
        """The method's posterior of the function without the offset, given these sites."""
        data = X if isinstance(X, Data) else Data(X, sites.target.to(X))
        return self.method.posterior(self._regression(data, sites.precision, sites.precision * sites.target))

    def rows(self, step: int, num_rows: int) -> StepRows:
        """Those of the method. The objective changes with the sites: its smallest value means nothing."""
        return self.method.rows(step, num_rows)._replace(stochastic=True, divisible=False)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """What the method does; and every few steps, a step of the sites."""
        first = not self.is_refreshed
        if first or coming.step % self.refresh_every == 0:
            self.refresh(data, num_steps=FIRST_STEPS if first else REFRESH_STEPS)
        return self.method.before_step(self._regression(data, self.precision, self.shift), coming)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {**self.method.parameter_groups(), "likelihood": trained(self.likelihood, HYPERPARAMETER_RATE)}

    def hyperparameters(self) -> dict[str, Any]:
        own = {f"likelihood.{name}": value for name, value in named_values(self.likelihood).items()}
        return {**self.method.hyperparameters(), **own}

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        latent = self.marginal_mean - self.offset if self.is_refreshed else data.y.double()
        lines = self.method.findings(data.with_targets(latent), input_names)
        return [*lines, f"{type(self.likelihood).__name__} likelihood, {SITE_KINDS[self.kind]} sites."]


def _relative(new: Tensor, old: Tensor) -> Tensor:
    return (new - old).abs() / new.abs().max().clamp_min(1e-300)
