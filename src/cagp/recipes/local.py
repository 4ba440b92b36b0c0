"""CaGP-Local."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.options import LOCAL_SCALE, N_NEIGHBORS, OBJECTIVE

if TYPE_CHECKING:
    from cagp.recipes import steps
    from cagp.recipes import task as tasks
else:
    steps = lazy_module("cagp.recipes.steps")


@final
@dataclass(frozen=True)
class Local(Recipe):
    """The nearest rows of each test point."""

    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()

    name: ClassVar[str] = "local"
    words: ClassVar[str] = "CaGP-Local, which predicts each test point from its nearest rows"
    summary: ClassVar[str] = "the nearest rows of each test point: any number of rows"

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Minibatches of rows, each predicted from its neighbours."""
        priors, neighbours = task.priors(), steps.Neighbours.of(self.n_neighbors, self.objective)
        result = steps.train_local(task, neighbours, priors)
        return steps.condition_local(task, priors, neighbours, self.local_scale, None, result)
