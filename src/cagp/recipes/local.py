"""Nearest rows, alone ("local") or beside actions that all test points share ("hybrid")."""

from cagp.actions import BlockActions
from cagp.methods import CaGPLocal, Method
from cagp.prior import GP
from cagp.recipes import long_range, nearest
from cagp.recipes.actions import constant_actions, number_of_actions
from cagp.recipes.nearest import Neighbours, check_neighbours
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Learned, Task

LIKELIHOOD_FACTOR = 4
"""With a likelihood that is not Gaussian, predictions take this many times the neighbours of training. A label says
less than a number: more of them are worth their time; docs/benchmarks.md has the evidence."""

NEAREST_ALONE = (
    "Predictions use nearest rows alone, which know little of a season or a trend: for forecasts beyond the data, "
    'choose method "hybrid", "exact" or "auto".'
)
UNKNOWN_DECAY = (
    "The kernel does not say whether it goes to zero with distance, and was trained on nearest rows. If it does not, "
    'choose method "hybrid" or "exact", or define its method ``decay``.'
)
"""What the fit report says where nearest rows may not be enough."""


def train(recipe: Recipe, task: Task) -> Fitted:
    """Minibatches of rows, each predicted from its neighbours; rows at any distance too if the kernel links them.

    The shared actions of the hybrid play no part in training.
    """
    check_neighbours(recipe.n_neighbors, task.num_rows)
    neighbours, is_hybrid = Neighbours.of(recipe.n_neighbors, recipe.objective), recipe.name == "hybrid"
    learned = long_range.learn(task, neighbours) if task.is_long_range else nearest.learn(task, neighbours)
    if not is_hybrid and task.decays is not True:
        about = NEAREST_ALONE if task.is_long_range else UNKNOWN_DECAY
        learned = learned._replace(notes=[*learned.notes, about])
    return condition(recipe, task, learned, neighbours, is_hybrid)


def condition(recipe: Recipe, task: Task, learned: Learned, neighbours: Neighbours, is_hybrid: bool) -> Fitted:
    """CaGP-Local at learned hyperparameters, or the hybrid."""
    shared, notes = None, learned.notes
    if is_hybrid:
        shared, words = _shared_actions(recipe.n_actions, task, learned.priors[0])
        notes = [*notes, f"All test points share {shared.num_actions:,} actions{words}."]
    methods, about_scales = nearest.scaled_methods(task, learned.priors, neighbours, recipe.local_scale, shared)
    # The rows of a task never change: posteriors hold them, and no copies.
    posteriors = [method.condition(task.column(j), shares_rows=True) for j, method in enumerate(methods)]
    name = "hybrid" if is_hybrid else "local"
    return Fitted(name, posteriors, learned.result, [*notes, *about_scales], slice(None))


def _shared_actions(n_actions: int | str, task: Task, prior: GP) -> tuple[BlockActions, str]:
    """Actions of equal weights that suit the kernel, and what they are in words that follow "actions"."""
    num_actions = number_of_actions(n_actions, task)
    if task.is_long_range:
        shared, kind = long_range.shared_actions(task, prior, num_actions)
        return shared, f": {kind}"
    shared = constant_actions(prior.kernel, task.data, num_actions, task.seed)
    return shared, " of equal weights on nearby rows"


# ---- any likelihood ----


def method(recipe: Recipe, task: Task, prior: GP, shared: BlockActions | None = None) -> Method:
    """CaGP-Local as it learns from sites: ordered, since its sum is then the log density of all sites."""
    count = Neighbours.of(recipe.n_neighbors).in_training
    return CaGPLocal(
        prior,
        count,
        num_neighbours_predict=LIKELIHOOD_FACTOR * count,
        shared=shared,
        objective="loo" if recipe.objective == "loo" else "ordered",
        seed=task.seed,
        max_bytes=task.max_bytes,
    )


def predicting_method(recipe: Recipe, task: Task, prior: GP) -> Method:
    """The same, for the hybrid with shared actions."""
    if recipe.name == "local":
        return method(recipe, task, prior)
    num_shared = number_of_actions(recipe.n_actions, task)
    return method(recipe, task, prior, constant_actions(prior.kernel, task.data, num_shared, task.seed))


def planned_bytes(recipe: Recipe, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, int]:
    """An index of the rows for each target, and what a step takes."""
    return nearest.planned_bytes(num_rows, num_inputs, num_targets, recipe.objective == "ordered")
