"""Training with a likelihood that is not Gaussian: any recipe with a ``method``, by sites (``cagp.sites``)."""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from cagp import notices
from cagp.actions import BlockActions
from cagp.likelihoods import Likelihood
from cagp.methods import CaGPLocal, MultiTarget
from cagp.prior import GP, KnownNoise
from cagp.recipes.base import REST_START, Recipe
from cagp.recipes.means import trees_of
from cagp.recipes.options import DEFAULT_NEIGHBORS
from cagp.recipes.steps import hold_out
from cagp.recipes.task import Fitted, Task
from cagp.sites import SitesWarning, WithLikelihood
from cagp.starting import start_from_data
from cagp.trees import OutOfFold, TreeObjective

STEPS, EXACT_STEPS = 100, 60
"""Steps of training; exact ones see all rows and cost more."""


class Start(NamedTuple):
    """Where training starts for a kind of targets, and how trees learn from them."""

    scale: float  # the outputscale
    rest_scale: float  # the same for what trees leave
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

FEWEST_COUNTS = 20
"""With fewer rows that have a count above zero, "auto" does not try trees."""

PREDICTING = 4
"""Predictions take this many times the neighbours of training. A label says less than a number: more of them are worth
their time; docs/benchmarks.md has the evidence."""

TOLERANCE, MOST_SITE_STEPS, RESERVE = 1e-3, 60, 0.4
"""When sites have converged, how many steps they may take, and the share of ``max_time`` that is left for them."""


COMPARED_FROM, COMPARED_ROWS, COMPARED_SHARE = 1001, 12_000, 0.25
"""From this many rows, "auto" compares prior means; the most rows for that; the share of the time left for each."""


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


def train_sites(recipe: Recipe, task: Task) -> Fitted:
    """Learn hyperparameters, then sites until they converge; each column of targets is one latent function.

    Columns share the kernel. With ``mean="trees"``, out-of-fold predictions of boosted trees are the prior mean. "auto"
    is zero for few rows; with more, whichever of the two predicts held-out rows better.
    """
    task, start = task.in_double(), STARTS[task.targets]
    if task.mean != "auto":
        return _train(recipe, task, start)
    too_few = task.targets == "counts" and int((task.y > 0).sum()) < FEWEST_COUNTS
    if task.num_rows < COMPARED_FROM or too_few:
        return _train(recipe, replace(task, mean="zero"), start)
    mean, choice = chosen_mean(
        task, lambda tried, held: _held_out_loss(_train(recipe, tried, start, "compared-"), held), start.loss
    )
    return _train(recipe, replace(task, mean=mean), start)._replace(choice=choice)


def chosen_mean(task: Task, loss_of: Callable[[Task, Task], float], loss: str) -> tuple[str, str]:
    """The prior mean that predicts held-out rows better, and why, in one sentence.

    Args:
        loss_of: trains on the rows of one task, and returns the loss of those of the other.
        loss: what that is, in words.
    """
    some = task
    if task.num_rows > COMPARED_ROWS:
        drawn = torch.randperm(task.num_rows, generator=torch.Generator().manual_seed(task.seed))[:COMPARED_ROWS]
        some = task.rows(drawn.sort().values.to(task.X.device))
    parts, losses = hold_out(some), {}
    for mean in ("zero", "trees"):
        kernel = copy.deepcopy(task.kernel)
        tried = replace(parts.train, mean=mean, kernel=kernel)
        if task.max_time is not None:
            now = time.perf_counter()
            tried = replace(tried, began=now, max_time=max(COMPARED_SHARE * (task.deadline - now), 1e-9))
        losses[mean] = loss_of(tried, parts.held_out)
    mean = "trees" if losses["trees"] < losses["zero"] else "zero"
    words = {"zero": "zero", "trees": "boosted trees"}
    return mean, (
        f"The prior mean is {words[mean]}: the {loss} of {parts.held_out.num_rows:,} held-out rows is "
        f"{losses['zero']:.4f} with zero, {losses['trees']:.4f} with boosted trees."
    )


@torch.no_grad()
def _held_out_loss(found: Fitted, held_out: Task) -> float:
    """The mean of -log p of held-out targets, of all columns together."""
    assert isinstance(found.likelihood, Likelihood)
    assert found.offsets is not None
    known = None if found.trees is None else torch.from_numpy(found.trees.mean(held_out.inputs))
    total = 0.0
    for j, posterior in enumerate(found.posteriors):
        X, y, _ = held_out.column(j)
        mean, variance = posterior.predict(X)
        mean = mean + found.offsets[j] + (0.0 if known is None else known[:, j].to(mean))
        mean = mean if held_out.known is None else mean + held_out.known
        total -= float(found.likelihood.log_predictive(y, mean, variance).mean())
    return total


def _train(recipe: Recipe, task: Task, start: Start, name: str = "") -> Fitted:
    """Train with a prior mean that is chosen; ``name`` is the beginning of that of the folder for checkpoints."""
    likelihood, notes = copy.deepcopy(task.likelihood), []
    assert isinstance(likelihood, Likelihood)
    trees, offsets = None, [likelihood.constant(column, task.known) for column in task.y.unbind(1)]
    offset = torch.tensor(offsets).double().expand(task.y.shape)
    known = 0.0 if task.known is None else task.known.cpu()[:, None]
    if task.mean == "trees":
        found = trees_of(task, start.objective)
        trees, offsets = found.trees, [0.0] * len(offsets)
        offset = torch.from_numpy(found.mean)
        task = replace(task, start=REST_START)
        notes.append(_words_of_trees(likelihood, task, offset + known, found, start.loss))
    offset = offset + known
    priors = _priors(task, start.rest_scale if trees is not None else start.scale)
    options = {"tolerance": TOLERANCE, "max_steps": MOST_SITE_STEPS, "unsettled": start.unsettled}
    parts = [
        WithLikelihood(recipe.method(task, prior), likelihood, task.num_rows, offset=offset[:, j].clone(), **options)
        for j, prior in enumerate(priors)
    ]
    method = MultiTarget([part.to(task.X.device) for part in parts])
    most_steps = EXACT_STEPS if recipe.name == "exact" else STEPS
    reserve = 0.0 if task.max_time is None else RESERVE * task.time_left()
    result = task.run(method, f"{name}{recipe.name}-sites-{task.mean}", most_steps=most_steps, reserve=reserve)
    posteriors = []
    for j, (part, prior) in enumerate(zip(parts, priors, strict=True)):
        with notices.collected(SitesWarning) as warned:
            predicting = part.with_method(recipe.predicting_method(task, prior))
            posteriors.append(predicting.condition(task.column(j), until=task.deadline))
        notes += [str(warning) for warning in warned]
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": offsets}
    return Fitted(recipe.name, posteriors, result, notes, None, trees=trees, **learned)


def train_with_likelihood(
    recipe: Recipe, task: Task, make: Callable[[], Likelihood], kind: str = "classes"
) -> "FittedLikelihood":
    """``train_sites`` for callers that do not use ``recipes.train`` yet."""
    found = train_sites(recipe, replace(task, likelihood=make(), targets=kind))
    assert isinstance(found.likelihood, Likelihood)
    assert found.offsets is not None
    return FittedLikelihood(found, found.likelihood, found.offsets)


class FittedLikelihood(NamedTuple):
    """What ``train_with_likelihood`` returns."""

    fitted: Fitted
    likelihood: Likelihood
    offsets: list[float]


def _priors(task: Task, scale: float) -> list[GP]:
    """A prior for each column: the same kernel object."""
    prior = GP(task.kernel, noise=KnownNoise())
    if task.from_data:
        start_from_data(prior, task.X, task.y[:, 0].contiguous(), stretch=task.start, outputscale=scale)
    return [GP(task.kernel, noise=KnownNoise()).to(task.X.device) for _ in range(task.y.shape[1])]


@torch.no_grad()
def _words_of_trees(likelihood: Likelihood, task: Task, offset: torch.Tensor, found: OutOfFold, name: str) -> str:
    columns = zip(task.y.unbind(1), offset.unbind(1), strict=True)
    losses = [-float(likelihood.log_density(y.double(), f).mean()) for y, f in columns]
    told = " and ".join(f"{loss:.4f}" for loss in losses)
    late = "" if found.finished else " The time limit ended them early."
    counts = " and ".join(f"{count:,}" for count in found.trees.num_trees)
    return (
        f"The prior mean is {counts} boosted trees, fitted out of fold: the "
        f"{name} of their out-of-fold predictions is {told}, and the Gaussian process learns what they leave.{late}"
    )
