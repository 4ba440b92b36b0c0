"""SVGP."""

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
class SVGPRecipe(Recipe):
    """Inducing points with a learned Gaussian."""

    n_inducing: int = N_INDUCING.field()

    name: ClassVar[str] = "svgp"
    words: ClassVar[str] = "SVGP, a variational Gaussian process with inducing points"
    summary: ClassVar[str] = "inducing points, trained on minibatches (SVGP)"
    fast_dtype: ClassVar[bool] = True
    shares_rows: ClassVar[bool] = True

    def train(self, task: "tasks.Task") -> "tasks.Fitted":
        """Minibatches, with natural gradients of the Gaussian."""

        def make(prior: "prior_module.GP", Z: "Tensor | InducingPoints") -> "methods.SVGP":
            return methods.SVGP(prior, Z, seed=task.seed, max_bytes=task.max_bytes)

        return steps.train_inducing(task, self.n_inducing, self.name, make)
