"""What the recipes with inducing points share."""

from collections.abc import Callable

from torch import Tensor

from cagp.inducing import InducingPoints, choose_inducing_points
from cagp.methods import SGPR, SVGP, Several
from cagp.methods.common import lengthscale_of
from cagp.prior import GP
from cagp.recipes.task import Fitted, Task

Make = Callable[[GP, Tensor | InducingPoints], SGPR | SVGP]
"""Makes a method from a prior and inducing points, its own or another method's."""


def train_inducing(task: Task, n_inducing: int, name: str, make: Make) -> Fitted:
    """A method for each target, all with the same inducing points; fewer points where there are fewer rows."""
    priors, m = task.priors(), min(int(n_inducing), task.num_rows)
    Z = task.points
    if Z is None or len(Z) != m:
        Z = choose_inducing_points(priors[0], task.X, m, "greedy", lengthscale_of(priors[0].kernel), task.seed)
    first = make(priors[0], Z)
    several = Several([first, *(make(prior, first.inducing_points) for prior in priors[1:])])
    result = task.run(several, "inducing")
    return Fitted(name, several.condition(*task.data), result, [], None)
