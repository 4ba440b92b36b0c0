"""``train(recipe, task)``: the one way from a task to a fitted model, whatever the targets are.

A ``Task`` holds the rows, the kernel, the limits, and for targets that are not numbers with Gaussian noise a likelihood
with its starting values. A ``Fitted`` holds the posteriors, and what else was learned: trees in the prior mean, the
likelihood, and the constant part of each latent function. Training changes neither the task nor anything in it.
"""

import time
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.comparison import Gains
from cagp.likelihoods import Bernoulli
from cagp.posteriors import predict_columns
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
    task, choice = task.in_double(), None
    if task.mean == "auto":
        few_counts = task.targets == "counts" and int((task.y > 0).sum()) < FEWEST_COUNTS
        is_small = task.num_rows < COMPARED_FROM or few_counts
        mean, choice = ("zero", None) if is_small else _chosen_mean(recipe, task)
        task = replace(task, mean=mean)
    return _trained(recipe, task)._replace(choice=choice)


def _trained(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """What training gives; ``name`` begins the names of the folders for checkpoints."""
    return (with_sites if _has_sites(recipe, task) else with_scores).train(recipe, task, name)


def _has_sites(recipe: Recipe, task: Task) -> bool:
    is_binary = recipe.name == "exact" and isinstance(task.likelihood, Bernoulli) and task.row_noise is None
    return is_binary or task.targets != "classes"


def _chosen_mean(recipe: Recipe, task: Task) -> tuple[str, str]:
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
        fitted = _trained(recipe, replace(parts.train, mean=mean, **limits), "compared-")
        losses[mean] = _row_losses(fitted, parts.held_out, _has_sites(recipe, task))
    mean = "trees" if Gains(losses["zero"] - losses["trees"]).exceed("likelihood mean") else "zero"
    words, loss = {"zero": "zero", "trees": "boosted trees"}, with_sites.loss_words(task)
    return mean, (
        f"The prior mean is {words[mean]}: the {loss} of {parts.held_out.num_rows:,} held-out rows is "
        f"{float(losses['zero'].mean()):.4f} with zero, {float(losses['trees'].mean()):.4f} with boosted trees."
    )


@torch.no_grad()
def _row_losses(fitted: Fitted, held_out: Task, has_sites: bool) -> Float[Tensor, " t"]:
    """-log p of held-out targets; with scores, each times the weight of its row over the mean weight."""
    mean, variance = predict_columns(fitted.posteriors, held_out.X)
    mean = mean + torch.tensor(fitted.offsets, dtype=mean.dtype, device=mean.device)
    if fitted.trees is not None:
        mean = mean + torch.from_numpy(fitted.trees.mean(held_out.inputs)).to(mean)
    if has_sites:
        latent = mean[:, 0] if held_out.known is None else mean[:, 0] + held_out.known
        return -fitted.likelihood.log_predictive(held_out.y[:, 0].contiguous(), latent, variance)
    weight = with_scores.weights_of(held_out)
    return weight / weight.mean() * fitted.likelihood.row_loss(held_out.y, mean, variance)
