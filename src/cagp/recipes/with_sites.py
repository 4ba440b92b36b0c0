"""Training with a likelihood that is not Gaussian: any recipe with a ``method``, by sites (``cagp.sites``)."""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch

from cagp.likelihoods import Likelihood
from cagp.methods import MultiTarget
from cagp.notices import collected
from cagp.prior import GP, KnownNoise
from cagp.recipes.means import trees_of, words_of
from cagp.recipes.table import Recipe
from cagp.recipes.task import RESIDUAL_START, Fitted, Task
from cagp.sites import SitesWarning, WithLikelihood
from cagp.starting import start_from_data
from cagp.trees import TreeObjective

STEPS, EXACT_STEPS = 100, 60
"""Steps of training; exact ones see all rows and cost more."""


class Start(NamedTuple):
    """Where training starts for a kind of targets, and how trees learn from them."""

    scale: float  # the outputscale
    residual_scale: float  # the same for the residuals of trees
    objective: TreeObjective
    unsettled: float = 0.0  # the share of rows whose sites need not converge


STARTS = {
    "classes": Start(4.0, 0.5, "binary"),
    "counts": Start(1.0, 0.1, "poisson"),
    "numbers": Start(1.0, 0.3, "huber", 0.001),
}
"""By what the registry of likelihoods calls targets. With the logistic link, two standard deviations of 2 are a
probability of 0.98; counts have the logarithm of their mean as latent function; numbers are in standard units. Where
few rows contradict their neighbours, the EM algorithm goes from one mode to another slowly: one in a thousand may."""

TOLERANCE, MOST_SITE_STEPS, RESERVE = 1e-3, 60, 0.4
"""When sites have converged, how many steps they may take, and the share of ``max_time`` that is left for them."""


def train(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Learn hyperparameters, then sites until they converge; the targets are one column.

    With ``mean="trees"``, out-of-fold predictions of boosted trees are the prior mean.

    Args:
        name: the beginning of the name of the folder for checkpoints.
    """
    start, likelihood, notes, trees = STARTS[task.targets], copy.deepcopy(task.likelihood), [], None
    assert isinstance(likelihood, Likelihood)
    y, known = task.y[:, 0], 0.0 if task.known is None else task.known
    constant, scale = likelihood.constant(y, task.known), start.scale
    offset = torch.full_like(y, constant)
    if task.mean == "trees":
        fitted = trees_of(task, start.objective)
        trees, constant, scale = fitted.trees, 0.0, start.residual_scale
        offset, task = torch.from_numpy(fitted.mean)[:, 0].to(y), replace(task, start=RESIDUAL_START)
        loss = -float(likelihood.log_density(y, offset + known).mean().detach())
        notes.append(words_of(fitted, task, f"{loss_words(task)} of their out-of-fold predictions is {loss:.4f}"))
    prior = GP(copy.deepcopy(task.kernel), noise=KnownNoise())
    if task.from_data:
        start_from_data(prior, task.column(0), stretch=task.start, outputscale=scale)
    method = recipe.method(task, prior.to(task.X.device))
    options = {"tolerance": TOLERANCE, "max_steps": MOST_SITE_STEPS, "unsettled": start.unsettled}
    part = WithLikelihood(method, likelihood, task.num_rows, offset=offset + known, **options).to(task.X.device)
    folder, most_steps = f"{name}{recipe.name}-sites-{task.mean}", EXACT_STEPS if recipe.name == "exact" else STEPS
    result = task.run(MultiTarget([part]), folder, most_steps=most_steps, reserve=task.reserve(RESERVE))
    with collected(SitesWarning) as warned:
        predicting = part.with_method(recipe.predicting_method(task, prior))
        posterior = predicting.condition(task.column(0), until=task.deadline)
    notes += [str(warning) for warning in warned]
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": [constant]}
    return Fitted(recipe.name, [posterior], result, notes, None, trees=trees, **learned)


def loss_words(task: Task) -> str:
    """What -log p of a row is called."""
    return "log loss" if task.targets == "classes" else "negative log density"
