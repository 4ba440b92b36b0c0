"""CaGP-Local."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes import plans
from cagp.recipes.base import Recipe
from cagp.recipes.checks import check_neighbours
from cagp.recipes.options import LOCAL_SCALE, N_NEIGHBORS, OBJECTIVE, SHARDS

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
class Local(Recipe):
    """The nearest rows of each test point."""

    n_neighbors: int | str = N_NEIGHBORS.field()
    local_scale: float | str | None = LOCAL_SCALE.field()
    objective: str = OBJECTIVE.field()
    shards: bool = SHARDS.field()

    name: ClassVar[str] = "local"
    words: ClassVar[str] = "CaGP-Local, which predicts each test point from its nearest rows"
    summary: ClassVar[str] = "the nearest rows of each test point: any number of rows"
    shares_rows: ClassVar[bool] = True
    takes_likelihoods: ClassVar[bool] = True

    def planned_bytes(self, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int] | None:
        """An index of the rows for each target, and what a step takes."""
        return plans.local_bytes(num_rows, num_inputs, num_targets, self.objective == "ordered")

    def method(self, task: "tasks.Task", prior: "GP") -> "methods.Method":
        """Nearest rows, with more of them in predictions."""
        return likelihoods.nearest_rows(task, prior, self.n_neighbors, self.objective)

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Minibatches of rows, each predicted from its neighbours; rows far apart too if the kernel does not decay."""
        check_neighbours(self.n_neighbors, task.num_rows)
        priors, neighbours = task.priors(), steps.Neighbours.of(self.n_neighbors, self.objective)
        if task.kernel.decays(task.X.shape[1]) is False:
            result, notes = far_apart.learn_far_apart(task, priors, neighbours)
            fitted = steps.condition_local(task, priors, neighbours, self.local_scale, None, result)
            return fitted._replace(notes=[*notes, far_apart.NEAREST_ALONE, *fitted.notes])
        result = steps.train_local(task, neighbours, priors)
        return steps.condition_local(task, priors, neighbours, self.local_scale, None, result)
