"""SGPR."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from cagp.lazy import lazy_module
from cagp.recipes.base import Recipe
from cagp.recipes.options import N_INDUCING

if TYPE_CHECKING:
    from torch import Tensor

    from cagp import methods
    from cagp import prior as prior_module
    from cagp.inducing import InducingPoints
    from cagp.recipes import steps
    from cagp.recipes import task as tasks
else:
    methods, steps = map(lazy_module, ("cagp.methods", "cagp.recipes.steps"))


@final
@dataclass(frozen=True)
class SGPRRecipe(Recipe):
    """Inducing points with the best Gaussian in closed form."""

    n_inducing: int = N_INDUCING.field()

    name: ClassVar[str] = "sgpr"
    words: ClassVar[str] = "SGPR, a Gaussian process seen through inducing points"
    summary: ClassVar[str] = "inducing points (SGPR)"
    fast_dtype: ClassVar[bool] = True

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """All rows at every step."""

        def make(prior: "prior_module.GP", Z: "Tensor | InducingPoints") -> "methods.SGPR":
            return methods.SGPR(prior, Z, task.max_bytes)

        return steps.train_inducing(task, self.n_inducing, self.name, make)
