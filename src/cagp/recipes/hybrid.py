"""The hybrid of CaGP-Local and shared actions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.options import LOCAL_SCALE, N_ACTIONS, N_NEIGHBORS, OBJECTIVE

if TYPE_CHECKING:
    from cagp.recipes import steps
    from cagp.recipes import task as tasks
else:
    steps = lazy_module("cagp.recipes.steps")


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

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Hyperparameters as for "local"; the shared actions have equal weights."""
        priors, neighbours = task.priors(), steps.Neighbours.of(self.n_neighbors, self.objective)
        result = steps.train_local(task, neighbours, priors)
        num_shared = steps.number_of_actions(self.n_actions, task)
        return steps.condition_local(task, priors, neighbours, self.local_scale, num_shared, result)
