"""``train(recipe, task)``: the one way from a task to a fitted model, whatever the targets are.

A ``Task`` holds the rows, the kernel, the limits, and for targets that are not numbers with Gaussian noise a likelihood
with its starting values. A ``Fitted`` holds the posteriors, and what else was learned: trees in the prior mean, the
likelihood, and the constant part of each latent function. Training changes neither the task nor anything in it.
"""

from cagp.likelihoods import Bernoulli
from cagp.recipes.base import Recipe
from cagp.recipes.class_training import train_scores
from cagp.recipes.likelihoods import train_sites
from cagp.recipes.means import train_with_mean
from cagp.recipes.task import Fitted, Task


def train(recipe: Recipe, task: Task) -> Fitted:
    """Learn hyperparameters and what else the task leaves open, and condition on its rows.

    With Gaussian noise, the recipe trains itself. Counts and numbers with outliers are trained by sites
    (``cagp.sites``), and so are two classes by exact inference, unless rows have weights: with few rows that is better
    than what all other classes have, a regression on scores. Targets of classes are zeros and ones, a column for each
    function; their ``row_noise`` is 1 / weight.
    """
    if task.likelihood is None:
        return train_with_mean(recipe, task)
    is_binary = isinstance(task.likelihood, Bernoulli)
    if task.targets == "classes" and not (recipe.name == "exact" and is_binary and task.row_noise is None):
        return train_scores(recipe, task)
    return train_sites(recipe, task)
