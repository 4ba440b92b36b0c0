"""Methods whose solves are those of conjugate gradients: CaGP-CG and CGGP."""

from cagp.methods import CGGP, CaGPCG, Method, MultiTarget
from cagp.prior import GP
from cagp.recipes.local import number_of_actions
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task


def method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """CaGP-CG with its actions computed at every step, or CGGP."""
    if recipe.name == "cggp":
        return CGGP(prior, seed=task.seed, max_bytes=task.max_bytes)
    return CaGPCG(prior, number_of_actions(recipe.n_actions, task), max_bytes=task.max_bytes)


def train(recipe: Recipe, task: Task) -> Fitted:
    """Adam on the ELBO, or on an estimate of -log p(y)."""
    several = MultiTarget([method(recipe, task, prior) for prior in task.priors()])
    result = task.run(several, recipe.name)
    return Fitted(recipe.name, several.condition(task.data), result, [], slice(None))
