"""Several targets of the same rows: one kernel and one set of actions for all, a noise for each."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from cagp.dataset import AnyTargets, Data
from cagp.methods.base import Method, prior_of
from cagp.parameters import named_values
from cagp.posteriors import Posterior
from cagp.prior import KnownNoise
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
        return [part.posterior(column) for part, column in self._columns(data)]

    def findings(self, data: Data, input_names: tuple[str, ...] | None = None) -> list[str]:
        every = [line for part, column in self._columns(data) for line in part.findings(column, input_names)]
        lines = list(dict.fromkeys(every))
        if len(self.parts) == 1:
            return lines
        prior = prior_of(self.parts[0])
        noise = "" if prior is not None and isinstance(prior.noise, KnownNoise) else "; each has its own noise"
        return [f"{len(self.parts)} targets share one kernel{noise}.", *lines]
