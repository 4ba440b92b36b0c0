"""Methods that are trained in one run from the starting values: SGPR and SVGP, CaGP-CG and CGGP."""

import time
from functools import partial

from torch import Tensor

from cagp.inducing import choose_inducing_points
from cagp.methods import CGGP, SGPR, SVGP, CaGPCG, Method, MultiTarget
from cagp.prior import GP
from cagp.recipes.local import number_of_actions
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task

START_SHARE = 0.3
"""The share of the time that is left which the choice of inducing points may take."""


def train(recipe: Recipe, task: Task) -> Fitted:
    """A method for each target, by its own loss: the ELBO, or for CGGP an estimate of -log p(y)."""
    has_points, priors = recipe.name in ("sgpr", "svgp"), task.priors()
    methods = _with_points(recipe, task, priors) if has_points else [method(recipe, task, prior) for prior in priors]
    several = MultiTarget(methods)
    result = task.run(several, "inducing" if has_points else recipe.name)
    return Fitted(recipe.name, several.condition(task.data), result, [], None if has_points else slice(None))


def method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """CaGP-CG with its actions computed at every step, or CGGP."""
    if recipe.name == "cggp":
        return CGGP(prior, seed=task.seed, max_bytes=task.max_bytes)
    return CaGPCG(prior, number_of_actions(recipe.n_actions, task), max_bytes=task.max_bytes)


def _with_points(recipe: Recipe, task: Task, priors: list[GP]) -> list[SGPR | SVGP]:
    """All with the same inducing points; fewer points where there are fewer rows.

    SGPR uses all rows at every step, SVGP minibatches with natural gradients of its Gaussian.
    """
    make = partial(SGPR if recipe.name == "sgpr" else partial(SVGP, seed=task.seed), max_bytes=task.max_bytes)
    m, Z = min(int(recipe.n_inducing), task.num_rows), task.points
    first = make(priors[0], Z if Z is not None and len(Z) == m else _first_points(task, priors[0], m))
    return [first, *(make(prior, first.inducing_points) for prior in priors[1:])]


def _first_points(task: Task, prior: GP, num_points: int) -> Tensor:
    """Inducing points to start from, chosen among all rows, or among as many as ``START_SHARE`` of the time allows."""

    def chosen(num_rows: int) -> Tensor:
        X = task.X if num_rows >= task.num_rows else task.X[task.random_rows(num_rows)]
        return choose_inducing_points(prior, X, num_points, "greedy", prior.kernel.lengthscales(X.shape[1]), task.seed)

    few = 2 * num_points
    if task.max_time is None or task.num_rows <= 2 * few:
        return chosen(task.num_rows)
    began, allowed = time.perf_counter(), START_SHARE * task.time_left()
    points = chosen(few)
    pace = max(time.perf_counter() - began, 1e-9) / few  # the cost is linear in the rows
    num_rows = int(task.ranks.broadcast(allowed / pace))
    return points if num_rows < 2 * few else chosen(min(num_rows, task.num_rows))
