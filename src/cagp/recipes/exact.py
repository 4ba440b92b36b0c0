"""The exact Gaussian process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.quantities import bytes_of
from cagp.recipes.base import Recipe

if TYPE_CHECKING:
    from cagp import methods
    from cagp.methods import cholesky
    from cagp.recipes import far_apart
    from cagp.recipes import task as tasks
else:
    methods, cholesky = map(lazy_module, ("cagp.methods", "cagp.methods.cholesky"))
    far_apart, tasks = map(lazy_module, ("cagp.recipes.far_apart", "cagp.recipes.task"))


@final
@dataclass(frozen=True)
class Exact(Recipe):
    """All rows, by Cholesky factorisation."""

    name: ClassVar[str] = "exact"
    words: ClassVar[str] = "an exact Gaussian process (Cholesky factorisation)"
    summary: ClassVar[str] = "all rows, by Cholesky factorisation: a few thousand rows"

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """L-BFGS on -log p(y): a smooth loss of few parameters whose evaluations are expensive."""
        n, limit = task.num_rows, task.max_memory
        if limit is not None and cholesky.memory_needed(n) > bytes_of(limit):
            raise MemoryError(
                f"exact inference on {n:,} rows needs about {cholesky.memory_needed(n) / 1e6:,.0f} MB, max_memory is "
                f'{limit}; allow more, use fewer rows, or choose method="local".'
            )
        priors = task.priors()
        notes = far_apart.choose_start(task.in_double(), priors)
        method = methods.Several([methods.CholeskyGP(prior, task.max_bytes) for prior in priors])
        # Steps of quasi-Newton type have length one, and their loss only falls: three steps tell that it has ended.
        stop = {"num_steps": 100, "min_improvement": 1e-4, "window": 3}
        result = task.run(method, "exact", optimizer="lbfgs", schedule="constant", **stop)
        return tasks.Fitted(self.name, method.condition(*task.data), result, notes, task.every_row())
