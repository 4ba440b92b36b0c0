"""CGGP: the exact model, with every solve by conjugate gradients."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe

if TYPE_CHECKING:
    from cagp import methods
    from cagp.recipes import task as tasks
else:
    methods, tasks = map(lazy_module, ("cagp.methods", "cagp.recipes.task"))


@final
@dataclass(frozen=True)
class CGGPRecipe(Recipe):
    """All rows, by preconditioned conjugate gradients, in float64."""

    name: ClassVar[str] = "cggp"
    words: ClassVar[str] = "an exact Gaussian process with solves by conjugate gradients"
    summary: ClassVar[str] = "all rows, by conjugate gradients (CGGP): time O(n²)"

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Adam on an estimate of -log p(y)."""
        method = methods.MultiTarget(
            [methods.CGGP(prior, seed=task.seed, max_bytes=task.max_bytes) for prior in task.priors()]
        )
        result = task.run(method, "cggp")
        return tasks.Fitted(self.name, method.condition(task.data), result, [], task.every_row())
