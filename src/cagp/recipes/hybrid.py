"""The hybrid of CaGP-Local and shared actions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.checks import check_neighbours
from cagp.recipes.options import LOCAL_SCALE, N_ACTIONS, N_NEIGHBORS, OBJECTIVE

if TYPE_CHECKING:
    from cagp import methods
    from cagp.prior import GP
    from cagp.recipes import far_apart, likelihoods, steps
    from cagp.recipes import task as tasks
else:
    far_apart, steps = map(lazy_module, ("cagp.recipes.far_apart", "cagp.recipes.steps"))
    likelihoods = lazy_module("cagp.recipes.likelihoods")


@final
@dataclass(frozen=True)
class Hybrid(Recipe):
    """The nearest rows of each test point, and actions that all test points share."""

    n_actions: int | str = N_ACTIONS.field()
    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()

    name: ClassVar[str] = "hybrid"
    words: ClassVar[str] = "the hybrid of CaGP-Local and shared actions"
    summary: ClassVar[str] = "nearest rows, and actions that all test points share"
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True

    def method(self, task: "tasks.Task", prior: "GP") -> "methods.Method":
        """Nearest rows alone."""
        return likelihoods.nearest_rows(task, prior, self.n_neighbors, self.objective)

    def predicting_method(self, task: "tasks.Task", prior: "GP") -> "methods.Method":
        """Nearest rows, and shared actions with equal weights."""
        num_shared = steps.number_of_actions(self.n_actions, task)
        shared = steps.constant_actions(prior.kernel, task.data, num_shared, task.seed)
        return likelihoods.nearest_rows(task, prior, self.n_neighbors, self.objective, shared)

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Hyperparameters as for "local"; the shared actions have equal weights."""
        check_neighbours(self.n_neighbors, task.num_rows)
        priors, neighbours = task.priors(), steps.Neighbours.of(self.n_neighbors, self.objective)
        num_shared = steps.number_of_actions(self.n_actions, task)
        if task.kernel.decays(task.X.shape[1]) is False:
            result, notes = far_apart.learn_far_apart(task, priors, neighbours)
            fitted = far_apart.condition_near_and_far(task, priors, neighbours, self.local_scale, num_shared, result)
            return fitted._replace(notes=[*notes, *fitted.notes])
        result = steps.train_local(task, neighbours, priors)
        return steps.condition_local(task, priors, neighbours, self.local_scale, num_shared, result)
