"""What every method is: something ``fit`` can train, and that conditions on data; and methods around others."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from inspect import getattr_static
from typing import Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cagp.dataset import AnyTargets, Data, column_statistics
from cagp.engine import backend_for
from cagp.kernels import Kernel
from cagp.parameters import Positive, named_values
from cagp.posteriors import Posterior, Prediction
from cagp.prior import GP, GaussianNoise, KnownNoise
from cagp.training import Batch, Coming, ParameterGroup, StepRows, Trainable
from cagp.training.trainable import AnyNoise, Inputs, Terms

Targets = Float[Tensor, " n"]
RowNoise = Targets | None  # known noise variances

HYPERPARAMETER_RATE, ACTION_RATE = 0.2, 1.0
"""Adam's learning rates of the prior's parameters and of the weights of actions; docs/training.md has the evidence."""

IDLE, MOST_LISTED = 0.01, 12
IDLE_ELEMENTS = 2**20  # of the rows that are compared at a time


class Method(Trainable):
    """Parameters, an objective of the data, and a posterior given them.

    A method of your own needs ``terms`` and ``posterior``. A GP called ``prior`` has its noise checked, and the history
    of a fit shows its hyperparameters. Here, a fit learns the mean, kernel and noise of ``prior``; ``max_bytes`` limits
    temporaries, and ``seed`` determines what is drawn at random.
    """

    @abstractmethod
    def posterior(self, data: Data) -> Posterior:
        """The posterior given checked data, as a snapshot that further training does not change."""

    def condition(
        self, X: Inputs | Data, y: Targets | None = None, row_noise: RowNoise = None, **options: Any
    ) -> Posterior:
        """The posterior given the data, as a snapshot; ``options`` are those of ``posterior`` of the method."""
        return self.posterior(self.checked(X, y, row_noise), **options)

    def marginals(self, data: Data) -> Prediction:
        """Mean and variance of the function at each of the rows themselves, given all that ``posterior`` sees."""
        return self.posterior(data).predict(data)

    def check(self, data: Data) -> None:
        super().check(data)
        prior = prior_of(self)
        if prior is not None:
            prior.noise.check(data.row_noise)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        return {"hyperparameters": trained(self, HYPERPARAMETER_RATE)}

    def hyperparameters(self) -> dict[str, Any]:
        """Parameters of the prior as numbers in their own units, for the history of a fit."""
        prior = prior_of(self)
        return {} if prior is None else named_values(prior)

    def words(self, data: Data) -> str:
        """What the method is, to begin the first sentence of ``findings``; empty for none."""
        return ""

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What the method is, with its backend and dtype, and what a user should know about its hyperparameters."""
        prior, words = prior_of(self), self.words(data)
        if prior is None or not words:
            return []
        dtype = str(data.X.dtype).removeprefix("torch.")
        found, noise = [f"{words}, kernel products by {backend_for(prior.kernel, data.X)}, {dtype}."], prior.noise
        if isinstance(noise, GaussianNoise) and noise.noise.item() < 1.1 * noise.noise_floor:
            found.append(
                f"The noise variance sits at its floor ({noise.noise_floor:g}): the data look noise-free to this "
                "model. A lower floor may fit better; it needs float64 data."
            )
        idle = [str(j if input_names is None else input_names[j]) for j in idle_inputs(prior.kernel, data.X, data.y)]
        if idle:
            more = f" and {len(idle) - MOST_LISTED} more" if len(idle) > MOST_LISTED else ""
            found.append(
                f"{len(idle)} of {data.X.shape[1]} inputs hardly matter to this model (less than {IDLE:.0%} of the "
                f"targets' variance, from end to end): {', '.join(idle[:MOST_LISTED])}{more}."
            )
        return found


def prior_of(method: Trainable) -> GP | None:
    """The GP called ``prior`` that a method has, or None."""
    prior = getattr(method, "prior", None)
    return prior if isinstance(prior, GP) else None


def trained(part: nn.Module | None, lr: float) -> ParameterGroup:
    """The parameters of a part that are to be trained, with their learning rate."""
    return ParameterGroup([] if part is None else [p for p in part.parameters() if p.requires_grad], lr)


def drawn_rows(seed: int, step: int, num_rows: int, batch_size: int) -> Int[Tensor, " b"]:
    """Row numbers drawn with replacement, which depend on these arguments alone. Time O(b): a permutation would cost
    O(n), and with many rows drawing one twice is rare and does no harm.
    """
    generator = torch.Generator().manual_seed(seed + 1_000_003 * (step + 1))
    return torch.randint(num_rows, (batch_size,), generator=generator)


@torch.no_grad()
def idle_inputs(kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"]) -> list[int]:
    """Columns that vary and hardly matter: from their smallest value to their largest, the prior lets f change little.

    The variance of the change is k(a, a) - 2k(a, b) + k(b, b), a and b the mean row with either value there. Time
    O(d²), memory O(tile).
    """
    low, high = X.amin(0).double(), X.amax(0).double()
    middle, change = column_statistics(X).mean, torch.empty_like(low)
    for columns in torch.arange(len(low), device=X.device).split(max(1, IDLE_ELEMENTS // len(low))):
        A = middle.repeat(len(columns), 1)
        B = A.scatter(1, columns[:, None], high[columns, None])
        A = A.scatter(1, columns[:, None], low[columns, None])
        change[columns] = kernel.diag(A) - 2 * kernel(A[:, None], B[:, None])[:, 0, 0] + kernel.diag(B)
    return ((change < IDLE * column_statistics(y[:, None]).variance) & (high > low)).nonzero()[:, 0].tolist()


# ---- methods around others: with priors on hyperparameters, and for several targets of the same rows ----


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
        return {**self.method.terms(data, batch), "log_prior": -self.log_prior(data.X.shape[1]) / data.num_rows}

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


@final
class MultiTarget(Trainable):
    """A method of the same kind for each column of targets; what they share (kernel, actions, inducing points) is one
    object. The loss is the mean of theirs, and a step costs as much as one step of each.
    """

    def __init__(self, methods: Sequence[Method]):
        super().__init__()
        if not methods:
            raise ValueError("methods is empty, expected one method for each column of targets.")
        self.methods = nn.ModuleList(methods)

    @property
    def parts(self) -> list[Method]:
        """The methods, one for each column."""
        return [part for part in self.methods if isinstance(part, Method)]

    def _columns(self, data: Data) -> list[tuple[Method, Data]]:
        return [(part, data.column(j)) for j, part in enumerate(self.parts)]

    def terms(self, data: Data, batch: Batch) -> Terms:
        """Each term of the methods, as its mean over the columns."""
        batches = [batch] * len(self.methods) if batch.prepared is None else batch.prepared
        pairs = zip(self._columns(data), batches, strict=True)
        found = [part.terms(column, of_part) for (part, column), of_part in pairs]
        return {name: torch.stack([terms[name] for terms in found]).mean() for name in found[0]}

    def check(self, data: Data) -> None:
        """Raise ValueError unless there is a column for each method, which it accepts."""
        if data.y.ndim != 2 or data.y.shape[1] != len(self.methods):
            raise ValueError(
                f"y has shape {tuple(data.y.shape)}, expected {len(self.methods)} columns, one for each method."
            )
        for part, column in self._columns(data):
            part.check(column)

    def rows(self, step: int, num_rows: int) -> StepRows:
        return self.parts[0].rows(step, num_rows)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """What every method does. What they share changes to the same thing each time."""
        last = [None] * len(self.methods) if coming.last is None else coming.last.prepared
        pairs = zip(self._columns(data), last, strict=True)
        batches = [part.before_step(column, coming._replace(last=of_part)) for (part, column), of_part in pairs]
        return Batch(coming.part, batches, batches[0].event)

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share; each parameter once."""
        groups: dict[str, ParameterGroup] = {}
        for part in self.parts:
            for name, group in part.parameter_groups().items():
                known = groups.setdefault(name, ParameterGroup([], group.lr)).parameters
                known += [p for p in group.parameters if all(p is not other for other in known)]
        return groups

    def hyperparameters(self) -> dict[str, object]:
        """The parameters of the first method's prior, and those of the other priors that are not shared."""
        values, seen = dict(self.parts[0].hyperparameters()), set(map(id, self.parts[0].parameters()))
        for j, part in enumerate(self.parts[1:], start=1):
            prior = prior_of(part)
            if prior is not None:
                own = {name.replace("raw_", "") for name, p in prior.named_parameters() if id(p) not in seen}
                values |= {f"{name} of target {j}": v for name, v in named_values(prior).items() if name in own}
        return values

    def condition(self, X: Inputs | Data, y: AnyTargets | None = None, row_noise: AnyNoise = None) -> list[Posterior]:
        """The posterior of each column."""
        return [part.posterior(column) for part, column in self._columns(self.checked(X, y, row_noise))]

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        every = (line for part, column in self._columns(data) for line in part.findings(column, input_names))
        lines = list(dict.fromkeys(every))
        if len(self.parts) == 1:
            return lines
        prior = prior_of(self.parts[0])
        noise = "" if prior is not None and isinstance(prior.noise, KnownNoise) else "; each has its own noise"
        return [f"{len(self.parts)} targets share one kernel{noise}.", *lines]
