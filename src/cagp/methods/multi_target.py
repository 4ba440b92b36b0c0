"""Several targets of the same rows: one kernel and one set of actions for all, a noise for each."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from cagp.dataset import AnyTargets, Data
from cagp.methods.base import Method, prior_of
from cagp.parameters import named_values
from cagp.posteriors import Posterior
from cagp.prior import KnownNoise, Noise
from cagp.training import Batch, Coming, ParameterGroup, StepRows, Trainable
from cagp.training.trainable import AnyNoise, Inputs, Terms


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

    @property
    def parts(self) -> list[Method]:
        """The methods, one for each column."""
        return [part for part in self.methods if isinstance(part, Method)]

    def terms(self, data: Data, batch: Batch) -> Terms:
        """Each term of the methods, as its mean over the columns."""
        batches = [batch] * len(self.methods) if batch.prepared is None else batch.prepared
        columns = [
            part.terms(data.column(j), of_part)
            for j, (part, of_part) in enumerate(zip(self.parts, batches, strict=True))
        ]
        return {name: torch.stack([terms[name] for terms in columns]).mean() for name in columns[0]}

    def check(self, data: Data) -> None:
        """Raise ValueError unless there is a column for each method, which it accepts."""
        if data.y.ndim != 2 or data.y.shape[1] != len(self.methods):
            raise ValueError(
                f"y has shape {tuple(data.y.shape)}, expected {len(self.methods)} columns, one for each method."
            )
        for j, part in enumerate(self.parts):
            part.check(data.column(j))

    def rows(self, step: int, num_rows: int) -> StepRows:
        """The rows of a step: those of the first method, for all."""
        return self.parts[0].rows(step, num_rows)

    def before_step(self, data: Data, coming: Coming) -> Batch:
        """What every method does. What they share changes to the same thing each time."""
        last = [None] * len(self.methods) if coming.last is None else coming.last.prepared
        batches = [
            part.before_step(data.column(j), coming._replace(last=of_part))
            for j, (part, of_part) in enumerate(zip(self.parts, last, strict=True))
        ]
        return Batch(coming.part, batches, batches[0].event)

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

    def condition(self, X: Inputs | Data, y: AnyTargets | None = None, row_noise: AnyNoise = None) -> list[Posterior]:
        """The posterior of each column."""
        data = self.checked(X, y, row_noise)
        return [part.posterior(data.column(j)) for j, part in enumerate(self.parts)]

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        """What a user should know about the fitted methods, in words."""
        every = [part.findings(data.column(j), input_names) for j, part in enumerate(self.parts)]
        lines = list(dict.fromkeys(line for lines in every for line in lines))
        if len(self.parts) == 1:
            return lines
        noise = "" if isinstance(_noise(self.parts[0]), KnownNoise) else "; each has its own noise"
        return [f"{len(self.parts)} targets share one kernel{noise}.", *lines]


def _noise(method: Method) -> Noise | None:
    prior = prior_of(method)
    return None if prior is None else prior.noise
