"""Training with a likelihood that is not Gaussian: any recipe with a ``method``, by sites (``cagp.sites``)."""

from dataclasses import replace
from typing import NamedTuple

import torch

from cagp import notices
from cagp.actions import BlockActions
from cagp.kernels import Scale, Stationary
from cagp.likelihoods import Likelihood
from cagp.methods import CaGPLocal, Several
from cagp.prior import GP, KnownNoise
from cagp.recipes.base import REST_START, Recipe
from cagp.recipes.means import trees_of
from cagp.recipes.options import DEFAULT_NEIGHBORS
from cagp.recipes.task import Fitted, Task
from cagp.sites import SitesWarning, WithLikelihood
from cagp.starting import start_from_data

STEPS, EXACT_STEPS = 100, 60
"""Steps of training; exact ones see all rows and cost more."""

LATENT_SCALE = 4.0
"""Where the outputscale starts: with the logistic link, two standard deviations are a probability of 0.98."""

REST_SCALE = 0.5
"""The same for what trees leave."""

PREDICTING = 4
"""Predictions take this many times the neighbours of training. A label says less than a number: more of them are worth
their time; docs/benchmarks.md has the evidence."""

TOLERANCE, MOST_SITE_STEPS, RESERVE = 1e-3, 60, 0.4
"""When sites have converged, how many steps they may take, and the share of ``max_time`` that is left for them."""


class FittedLikelihood(NamedTuple):
    """What training leaves behind."""

    fitted: Fitted  # posteriors of the latent function of each column, without its offset
    likelihood: Likelihood
    offsets: list[float]  # the constant part of each latent function


def nearest_rows(
    task: Task, prior: GP, n_neighbors: int | str, objective: str, shared: BlockActions | None = None
) -> CaGPLocal:
    """CaGP-Local as it learns from sites: ordered, since its sum is then the log density of all sites."""
    count = DEFAULT_NEIGHBORS if isinstance(n_neighbors, str) else int(n_neighbors)
    return CaGPLocal(
        prior,
        count,
        num_neighbours_predict=PREDICTING * count,
        shared=shared,
        objective="loo" if objective == "loo" else "ordered",
        seed=task.seed,
        max_bytes=task.max_bytes,
    )


def train_with_likelihood(recipe: Recipe, task: Task, likelihood: Likelihood) -> FittedLikelihood:
    """Learn hyperparameters, then sites until they converge; each column of targets is one latent function.

    Columns share the kernel. With ``mean="trees"``, out-of-fold log odds of boosted trees are the prior mean.
    """
    task, notes = task.in_double(), []
    trees, offsets = None, [likelihood.constant(column) for column in task.y.unbind(1)]
    offset = torch.tensor(offsets).double().expand(task.y.shape)
    if task.mean == "trees":
        found = trees_of(task, "binary")
        trees, offsets = found.trees, [0.0] * len(offsets)
        offset = torch.from_numpy(found.mean)
        task = replace(task, start=REST_START)
        notes.append(_words_of_trees(likelihood, task, offset, trees.num_trees, found.finished))
    priors = _priors(task, REST_SCALE if trees is not None else LATENT_SCALE)
    options = {"tolerance": TOLERANCE, "max_steps": MOST_SITE_STEPS}
    parts = [
        WithLikelihood(recipe.method(task, prior), likelihood, task.num_rows, offset=offset[:, j].clone(), **options)
        for j, prior in enumerate(priors)
    ]
    method = Several([part.to(task.X.device) for part in parts])
    most_steps = EXACT_STEPS if recipe.name == "exact" else STEPS
    reserve = 0.0 if task.max_time is None else RESERVE * task.time_left()
    result = task.run(method, f"{recipe.name}-sites", most_steps=most_steps, reserve=reserve)
    posteriors = []
    for j, (part, prior) in enumerate(zip(parts, priors, strict=True)):
        with notices.collected(SitesWarning) as warned:
            X, y, _ = task.column(j)
            posteriors.append(part.with_method(recipe.predicting_method(task, prior)).condition(X, y))
        notes += [str(warning) for warning in warned]
    fitted = Fitted(recipe.name, posteriors, result, notes, None, trees=trees)
    return FittedLikelihood(fitted, likelihood.requires_grad_(False), offsets)


def _priors(task: Task, scale: float) -> list[GP]:
    """A prior for each column: the same kernel object."""
    prior = GP(task.kernel, noise=KnownNoise())
    if task.from_data:
        start_from_data(prior, task.X, task.y[:, 0].contiguous())
        for part in task.kernel.modules():
            if isinstance(part, Scale):
                part.outputscale = scale
            elif isinstance(part, Stationary) and task.start != 1.0:
                part.lengthscale = task.start * part.lengthscale.detach()
    return [GP(task.kernel, noise=KnownNoise()).to(task.X.device) for _ in range(task.y.shape[1])]


def _words_of_trees(
    likelihood: Likelihood, task: Task, offset: torch.Tensor, num_trees: list[int], finished: bool
) -> str:
    columns = zip(task.y.unbind(1), offset.unbind(1), strict=True)
    losses = [-float(likelihood.log_density(y.double(), f).mean()) for y, f in columns]
    told = " and ".join(f"{loss:.4f}" for loss in losses)
    late = "" if finished else " The time limit ended them early."
    return (
        f"The prior mean is {' and '.join(f'{count:,}' for count in num_trees)} boosted trees, fitted out of fold: the "
        f"log loss of their out-of-fold predictions is {told}, and the Gaussian process learns what they leave.{late}"
    )
