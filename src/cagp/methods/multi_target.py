"""Several targets of the same rows: one kernel and one set of actions for all, a noise for each."""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from cagp.methods.base import Method, prior_of
from cagp.parameters import named_values
from cagp.posteriors import Posterior
from cagp.prior import KnownNoise, Noise
from cagp.training import ParameterGroup, Trainable
from cagp.training.trainable import AnyNoise, AnyTargets, Inputs, Rows, Terms


@final
class MultiTarget(Trainable):
    """A method for each column of targets; what the methods share (kernel, actions, inducing points) is one object.

    The loss is the mean of theirs. A step costs as much as one step of each.

    Args:
        methods: one for each column, of the same kind.
    """

    def __init__(self, methods: Sequence[Method]):
        super().__init__()
        if not methods:
            raise ValueError("methods is empty, expected one method for each column of targets.")
        self.methods = nn.ModuleList(methods)
        self.stochastic = methods[0].stochastic

    @property
    def parts(self) -> list[Method]:
        """The methods, one for each column."""
        return [part for part in self.methods if isinstance(part, Method)]

    def objective_terms(
        self, X: Inputs, y: AnyTargets, row_noise: AnyNoise = None, *, rows: Rows | None = None
    ) -> Terms:
        """Each term of the methods, as its mean over the columns."""
        columns = [
            part.objective_terms(X, *self.column(j, y, row_noise), rows=rows) for j, part in enumerate(self.parts)
        ]
        return {name: torch.stack([terms[name] for terms in columns]).mean() for name in columns[0]}

    def check(self, X: Tensor, y: Tensor, row_noise: Tensor | None = None) -> None:
        """Raise ValueError unless there is a column for each method, which it accepts."""
        for j, part in enumerate(self.parts):
            part.check(X, *self.column(j, y, row_noise))

    def column(self, j: int, y: Tensor, row_noise: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The targets and the known noise of the j-th method."""
        if y.ndim != 2 or y.shape[1] != len(self.methods):
            raise ValueError(
                f"y has shape {tuple(y.shape)}, expected {len(self.methods)} columns, one for each method."
            )
        return y[:, j].contiguous(), None if row_noise is None else row_noise[:, j].contiguous()

    def minibatch(self, step: int, num_rows: int) -> Int[Tensor, " b"] | None:
        """The rows of a step: those of the first method, for all."""
        return self.parts[0].minibatch(step, num_rows)

    def divisible_rows(self, num_rows: int) -> Int[Tensor, " b"] | None:
        """Those of the first method, for all."""
        return self.parts[0].divisible_rows(num_rows)

    def prepare(
        self, X: Inputs, y: AnyTargets, row_noise: AnyNoise, *, step: int, share: float, flat: bool, rows: Rows | None
    ) -> str | None:
        """What every method does. What they share changes to the same thing each time."""
        told = {"step": step, "share": share, "flat": flat, "rows": rows}
        changes = [part.prepare(X, *self.column(j, y, row_noise), **told) for j, part in enumerate(self.parts)]
        return changes[0]

    def parameter_groups(self) -> dict[str, ParameterGroup]:
        """The parameters to train, by the learning rate they share; each parameter once."""
        groups: dict[str, dict[int, nn.Parameter]] = {}
        rates: dict[str, float] = {}
        for part in self.parts:
            for name, group in part.parameter_groups().items():
                groups.setdefault(name, {}).update({id(p): p for p in group.parameters})
                rates.setdefault(name, group.lr)
        return {name: ParameterGroup(list(found.values()), rates[name]) for name, found in groups.items()}

    def hyperparameters(self) -> dict[str, object]:
        """The parameters of the first method's prior, and those of the other priors that are not shared."""
        values, seen = dict(self.parts[0].hyperparameters()), set(map(id, self.parts[0].parameters()))
        for j, part in enumerate(self.parts[1:], start=1):
            prior = prior_of(part)
            if prior is not None:
                own = {name for name, p in prior.named_parameters() if id(p) not in seen}
                own = {name.replace("raw_", "") for name in own}
                values |= {f"{name} of target {j}": v for name, v in named_values(prior).items() if name in own}
        return values

    def condition(self, X: Inputs, y: AnyTargets, row_noise: AnyNoise = None) -> list[Posterior]:
        """The posterior of each column."""
        return [part.condition(X, *self.column(j, y, row_noise)) for j, part in enumerate(self.parts)]

    def findings(self, X: Inputs, y: AnyTargets, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know about the fitted methods, in words."""
        found = [part.findings(X, y[:, j].contiguous(), input_names) for j, part in enumerate(self.parts)]
        seen = dict.fromkeys(line for lines in found for line in lines)
        own = "" if isinstance(_noise(self.parts[0]), KnownNoise) else "; each has its own noise"
        several = [f"{len(self.parts)} targets share one kernel{own}."]
        return [*(several if len(self.parts) > 1 else []), *seen]


def _noise(method: Method) -> Noise | None:
    prior = prior_of(method)
    return None if prior is None else prior.noise
