"""Training with a likelihood that is not Gaussian: any recipe with a ``method``, by sites (``cagp.sites``)."""

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

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
    loss: str  # what -log p of a row is called
    unsettled: float = 0.0  # the share of rows whose sites need not converge


STARTS = {
    "classes": Start(4.0, 0.5, "binary", "log loss"),
    "counts": Start(1.0, 0.1, "poisson", "negative log density"),
    "numbers": Start(1.0, 0.3, "huber", "negative log density", 0.001),
}
"""By what the registry of likelihoods calls targets. With the logistic link, two standard deviations of 2 are a
probability of 0.98; counts have the logarithm of their mean as latent function; numbers are in standard units. Where
few rows contradict their neighbours, the EM algorithm goes from one mode to another slowly: one in a thousand may."""

TOLERANCE, MOST_SITE_STEPS, RESERVE = 1e-3, 60, 0.4
"""When sites have converged, how many steps they may take, and the share of ``max_time`` that is left for them."""


def train(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Learn hyperparameters, then sites until they converge; each column of targets is one latent function.

    Columns share the kernel. With ``mean="trees"``, out-of-fold predictions of boosted trees are the prior mean.

    Args:
        name: the beginning of the name of the folder for checkpoints.
    """
    start, likelihood, notes, trees = STARTS[task.targets], copy.deepcopy(task.likelihood), [], None
    assert isinstance(likelihood, Likelihood)
    offsets = [likelihood.constant(column, task.known) for column in task.y.unbind(1)]
    offset = torch.tensor(offsets).double().expand(task.y.shape)
    known = 0.0 if task.known is None else task.known.cpu()[:, None]
    if task.mean == "trees":
        fitted = trees_of(task, start.objective)
        trees, offsets, offset = fitted.trees, [0.0] * len(offsets), torch.from_numpy(fitted.mean)
        task = replace(task, start=RESIDUAL_START)
        losses = _losses(likelihood, task, offset + known)
        notes.append(words_of(fitted, task, f"{start.loss} of their out-of-fold predictions is {losses}"))
    offset = offset + known
    priors = _priors(task, start.scale if trees is None else start.residual_scale)
    options = {"tolerance": TOLERANCE, "max_steps": MOST_SITE_STEPS, "unsettled": start.unsettled}
    parts = [
        WithLikelihood(recipe.method(task, prior), likelihood, task.num_rows, offset=offset[:, j].clone(), **options)
        for j, prior in enumerate(priors)
    ]
    several = MultiTarget([part.to(task.X.device) for part in parts])
    most_steps = EXACT_STEPS if recipe.name == "exact" else STEPS
    result = task.run(
        several, f"{name}{recipe.name}-sites-{task.mean}", most_steps=most_steps, reserve=task.reserve(RESERVE)
    )
    posteriors = []
    for j, (part, prior) in enumerate(zip(parts, priors, strict=True)):
        with collected(SitesWarning) as warned:
            predicting = part.with_method(recipe.predicting_method(task, prior))
            posteriors.append(predicting.condition(task.column(j), until=task.deadline))
        notes += [str(warning) for warning in warned]
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": offsets}
    return Fitted(recipe.name, posteriors, result, notes, None, trees=trees, **learned)


@torch.no_grad()
def row_losses(fitted: Fitted, held_out: Task) -> Float[Tensor, " t"]:
    """-log p of held-out targets, of all columns together."""
    assert isinstance(fitted.likelihood, Likelihood)
    prior_mean = None if fitted.trees is None else torch.from_numpy(fitted.trees.mean(held_out.inputs))
    losses = torch.zeros(held_out.num_rows, dtype=torch.float64, device=held_out.X.device)
    for j, posterior in enumerate(fitted.posteriors):
        mean, variance = posterior.predict(held_out.X)
        mean = mean + fitted.offsets[j] + (0.0 if prior_mean is None else prior_mean[:, j].to(mean))
        mean = mean if held_out.known is None else mean + held_out.known
        losses -= fitted.likelihood.log_predictive(held_out.y[:, j].contiguous(), mean, variance)
    return losses


def loss_words(task: Task) -> str:
    """What a row's loss is called."""
    return STARTS[task.targets].loss


def _priors(task: Task, scale: float) -> list[GP]:
    """A prior for each column: the same kernel object."""
    kernel = copy.deepcopy(task.kernel)
    if task.from_data:
        start_from_data(GP(kernel, noise=KnownNoise()), task.column(0), stretch=task.start, outputscale=scale)
    return [GP(kernel, noise=KnownNoise()).to(task.X.device) for _ in range(task.y.shape[1])]


@torch.no_grad()
def _losses(likelihood: Likelihood, task: Task, latent: Tensor) -> str:
    """The mean of -log p of each column, in words."""
    columns = zip(task.y.unbind(1), latent.unbind(1), strict=True)
    return " and ".join(f"{-float(likelihood.log_density(y.double(), f).mean()):.4f}" for y, f in columns)
