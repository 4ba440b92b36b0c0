"""CaGP-CG."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.options import N_ACTIONS

if TYPE_CHECKING:
    from cagp import methods
    from cagp.prior import GP
    from cagp.recipes import steps
    from cagp.recipes import task as tasks
else:
    methods, steps, tasks = map(lazy_module, ("cagp.methods", "cagp.recipes.steps", "cagp.recipes.task"))


@final
@dataclass(frozen=True)
class ConjugateGradients(Recipe):
    """The actions of conjugate gradients."""

    n_actions: int | str = N_ACTIONS.field()

    name: ClassVar[str] = "cg"
    words: ClassVar[str] = "CaGP-CG, a computation-aware Gaussian process with the actions of conjugate gradients"
    summary: ClassVar[str] = "the actions of conjugate gradients (CaGP-CG): time O(n²)"
    fast_dtype: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True

    def method(self, task: "tasks.Task", prior: "GP") -> "methods.Method":
        """The actions of conjugate gradients, computed at every step."""
        return methods.CaGPCG(prior, steps.number_of_actions(self.n_actions, task), max_bytes=task.max_bytes)

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Adam on the ELBO, with actions computed at every step."""
        num_actions = steps.number_of_actions(self.n_actions, task)
        method = methods.MultiTarget(
            [methods.CaGPCG(prior, num_actions, max_bytes=task.max_bytes) for prior in task.priors()]
        )
        result = task.run(method, "cg")
        return tasks.Fitted(self.name, method.condition(task.data), result, [], task.every_row())
