"""``train(recipe, task)``: the one way from a task to a fitted model, whatever the targets are.

A ``Task`` holds the rows, the kernel, the limits, and for targets that are not numbers with Gaussian noise a likelihood
with its starting values. A ``Fitted`` holds the posteriors, and what else was learned: trees in the prior mean, the
likelihood, and the constant part of each latent function. Training changes neither the task nor anything in it.
"""

import time
from dataclasses import replace
from types import ModuleType
from typing import Any

from cagp.comparison import Gains
from cagp.likelihoods import Bernoulli
from cagp.recipes import with_scores, with_sites
from cagp.recipes.means import with_mean
from cagp.recipes.table import Recipe
from cagp.recipes.task import Fitted, Task

COMPARED_FROM, COMPARED_ROWS, COMPARED_SHARE = 1001, 12_000, 0.25
"""From this many rows, prior means are compared; the most rows for that; the share of the time left for each."""

FEWEST_COUNTS = 20
"""With fewer rows that have a count above zero, trees are not tried."""


def train(recipe: Recipe, task: Task) -> Fitted:
    """Learn hyperparameters and what else the task leaves open, and condition on its rows.

    With Gaussian noise, the recipe trains itself. Counts and numbers with outliers are trained by sites
    (``cagp.sites``), and so are two classes by exact inference, unless rows have weights: with few rows that is better
    than what all other classes have, a regression on scores. Targets of classes are zeros and ones, a column for each
    function; their ``row_noise`` is 1 / weight.

    With another likelihood, the mean "auto" is zero for few rows; with more, whichever of zero and trees predicts
    held-out rows better.
    """
    if task.likelihood is None:
        return recipe.train(task) if recipe.chooses_mean else with_mean(task, recipe.train)
    task, code = task.in_double(), with_sites
    is_binary = recipe.name == "exact" and isinstance(task.likelihood, Bernoulli) and task.row_noise is None
    if task.targets == "classes" and not is_binary:
        code = with_scores
    if task.mean != "auto":
        return code.train(recipe, task)
    few_counts = task.targets == "counts" and int((task.y > 0).sum()) < FEWEST_COUNTS
    if task.num_rows < COMPARED_FROM or few_counts:
        return code.train(recipe, replace(task, mean="zero"))
    mean, choice = _chosen_mean(recipe, task, code)
    return code.train(recipe, replace(task, mean=mean))._replace(choice=choice)


def _chosen_mean(recipe: Recipe, task: Task, code: ModuleType) -> tuple[str, str]:
    """The prior mean that predicts held-out rows better, and why, in one sentence."""
    some = task
    if task.num_rows > COMPARED_ROWS:
        some = task.rows(task.random_rows(COMPARED_ROWS).sort().values)
    parts, losses = some.hold_out(), {}
    for mean in ("zero", "trees"):
        limits: dict[str, Any] = {}
        if task.max_time is not None:
            limits["began"] = time.perf_counter()
            limits["max_time"] = max(COMPARED_SHARE * (task.deadline - limits["began"]), 1e-9)
        fitted = code.train(recipe, replace(parts.train, mean=mean, **limits), "compared-")
        losses[mean] = code.row_losses(fitted, parts.held_out)
    mean = "trees" if Gains(losses["zero"] - losses["trees"]).exceed("likelihood mean") else "zero"
    words = {"zero": "zero", "trees": "boosted trees"}
    return mean, (
        f"The prior mean is {words[mean]}: the {code.loss_words(task)} of {parts.held_out.num_rows:,} held-out rows is "
        f"{float(losses['zero'].mean()):.4f} with zero, {float(losses['trees'].mean()):.4f} with boosted trees."
    )
