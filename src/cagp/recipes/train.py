"""``train(recipe, task)``: the one way from a task to a fitted model, whatever the targets are.

A ``Task`` holds the rows, the kernel, the limits, and for targets that are not numbers with Gaussian noise a likelihood
with its starting values. A ``Fitted`` holds the posteriors, and what else was learned: trees in the prior mean, the
likelihood, and the constant part of each latent function. Training changes neither the task nor anything in it.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from cagp.comparison import Gains
from cagp.likelihoods import Bernoulli, ClassLikelihood, Likelihood
from cagp.methods import CaGPLocal, CaGPOpt, MultiTarget, ScoreRegression
from cagp.notices import collected
from cagp.posteriors import Posterior, predict_columns
from cagp.prior import GP, GaussianNoise, KnownNoise
from cagp.recipes.opt import sharing_actions
from cagp.recipes.table import Recipe
from cagp.recipes.task import NOISE_FLOORS, RESIDUAL_START, Fitted, Task, trees_of, with_mean, words_of
from cagp.sites import SitesWarning, WithLikelihood
from cagp.starting import start_from_data
from cagp.trees import TreeObjective

COMPARED_FROM, COMPARED_ROWS, COMPARED_SHARE = 1001, 12_000, 0.25
"""From this many rows, prior means are compared; the most rows for that; the share of the time left for each."""

FEWEST_COUNTS = 20
"""With fewer rows that have a count above zero, trees are not tried."""

STEPS, EXACT_STEPS = 100, 60
"""Steps of training; an action of "opt" is learned in as many. Exact ones see all rows and cost more."""


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
    is_binary = recipe.name == "exact" and isinstance(task.likelihood, Bernoulli) and task.row_noise is None
    has_sites = is_binary or task.targets != "classes"
    learn = partial(_with_sites if has_sites else _with_scores, recipe)
    if task.mean == "auto":
        few_counts = task.targets == "counts" and int((task.y > 0).sum()) < FEWEST_COUNTS
        is_small = task.num_rows < COMPARED_FROM or few_counts
        mean, choice = ("zero", None) if is_small else _chosen_mean(learn, task, has_sites)
        task = replace(task, mean=mean)
    return learn(task)._replace(choice=choice)


def _chosen_mean(learn: Callable[..., Fitted], task: Task, has_sites: bool) -> tuple[str, str]:
    """The prior mean that predicts held-out rows better, and why, in one sentence."""
    parts, losses = task.drawn(COMPARED_ROWS).hold_out(), {}
    for mean in ("zero", "trees"):
        limits: dict[str, Any] = {}
        if task.max_time is not None:
            limits["began"] = time.perf_counter()
            limits["max_time"] = max(COMPARED_SHARE * (task.deadline - limits["began"]), 1e-9)
        fitted = learn(replace(parts.train, mean=mean, **limits), "compared-")
        losses[mean] = _row_losses(fitted, parts.held_out, has_sites)
    mean = "trees" if Gains(losses["zero"] - losses["trees"]).exceed("likelihood mean") else "zero"
    words = {"zero": "zero", "trees": "boosted trees"}
    return mean, (
        f"The prior mean is {words[mean]}: the {_loss_words(task)} of {parts.held_out.num_rows:,} held-out rows is "
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
    weight = _weights_of(held_out)
    return weight / weight.mean() * fitted.likelihood.row_loss(held_out.y, mean, variance)


def _loss_words(task: Task) -> str:
    """What -log p of a row is called."""
    return "log loss" if task.targets == "classes" else "negative log density"


# ---- sites: any recipe with a ``method`` ----


class Start(NamedTuple):
    """Where training by sites starts for a kind of targets, and how trees learn from them."""

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

TOLERANCE, MOST_SITE_STEPS, SITES_RESERVE = 1e-3, 60, 0.4
"""When sites have converged, how many steps they may take, and the share of ``max_time`` that is left for them."""


def _with_sites(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Learn hyperparameters, then sites of the one target until they converge; ``name`` begins that of checkpoints."""
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
        notes.append(words_of(fitted, task, f"{_loss_words(task)} of their out-of-fold predictions is {loss:.4f}"))
    prior = GP(copy.deepcopy(task.kernel), noise=KnownNoise())
    if task.from_data:
        start_from_data(prior, task.data.column(0), stretch=task.start, outputscale=scale)
    method = recipe.method(task, prior.to(task.X.device))
    options = {"tolerance": TOLERANCE, "max_steps": MOST_SITE_STEPS, "unsettled": start.unsettled}
    part = WithLikelihood(method, likelihood, task.num_rows, offset=offset + known, **options).to(task.X.device)
    folder, most_steps = f"{name}{recipe.name}-sites-{task.mean}", EXACT_STEPS if recipe.name == "exact" else STEPS
    result = task.run(MultiTarget([part]), folder, most_steps=most_steps, reserve=task.reserve(SITES_RESERVE))
    with collected(SitesWarning) as warned:
        predicting = part.with_method(recipe.predicting_method(task, prior))
        posterior = predicting.condition(task.data.column(0), until=task.deadline)
    notes += [str(warning) for warning in warned]
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": [constant]}
    return Fitted(recipe.name, [posterior], result, notes, None, trees=trees, **learned)


# ---- scores: labels are regressed on, with hyperparameters learned by left-out labels ----

NEIGHBORS, PREDICTING = 64, 2
"""Rows that predict each row in training, unless the user chooses; predictions take this many times as many.
docs/benchmarks.md has the evidence."""

STRETCH = 0.5
"""Lengthscales start at this times those that the data suggest for regression."""

SCORE_STARTS = {"zero": (4.0, 5.0), "trees": (0.5, 3.0)}
"""Where outputscale and step start, by the prior mean."""

SCORES_RESERVE = 0.1
"""The share of ``max_time`` that is left for the posterior."""


def _with_scores(recipe: Recipe, task: Task, name: str = "") -> Fitted:
    """Learn functions that give the classes of rows; ``name`` begins that of checkpoints."""
    likelihood, notes, trees, weight = copy.deepcopy(task.likelihood), [], None, _weights_of(task)
    assert isinstance(likelihood, ClassLikelihood)
    offsets = likelihood.offsets(task.y, weight)
    offset = offsets.expand(task.y.shape)
    if task.mean == "trees":
        fitted = trees_of(task, "multiclass" if task.y.shape[1] > 1 else "binary")
        trees, offsets = fitted.trees, torch.zeros_like(offsets)
        offset = torch.from_numpy(fitted.mean).to(task.y)
        loss = float(weight @ likelihood.row_loss(task.y, offset, torch.zeros_like(offset[:, 0])) / weight.sum())
        notes.append(words_of(fitted, task, f"{_loss_words(task)} of their out-of-fold predictions is {loss:.4f}"))
    outputscale, step = SCORE_STARTS[task.mean]
    count = NEIGHBORS if isinstance(recipe.n_neighbors, str) else int(recipe.n_neighbors)
    prior = GP(copy.deepcopy(task.kernel))
    if task.from_data:
        start_from_data(prior, task.data.column(0), stretch=STRETCH, outputscale=outputscale)
    prior.noise = GaussianNoise(1.0, NOISE_FLOORS[task.X.dtype])
    local = CaGPLocal(prior.to(task.X.device), count, seed=task.seed, max_bytes=task.max_bytes)
    scores = ScoreRegression(local, likelihood, offset, weight, step).to(task.X.device)
    labels, folder = task.with_targets(task.y), f"{name}{recipe.name}-scores-{task.mean}"
    result = labels.run(scores, folder, most_steps=STEPS, reserve=task.reserve(SCORES_RESERVE))
    posteriors = _condition(recipe, task, scores, PREDICTING * count, name)
    learned = {"likelihood": likelihood.requires_grad_(False), "offsets": offsets.tolist()}
    return Fitted(recipe.name, posteriors, result, notes, None, trees=trees, **learned)


def _weights_of(task: Task) -> Float[Tensor, " n"]:
    """What each row counts."""
    return torch.ones_like(task.y[:, 0]) if task.row_noise is None else 1 / task.row_noise[:, 0]


def _condition(recipe: Recipe, task: Task, scores: ScoreRegression, num_neighbours: int, name: str) -> list[Posterior]:
    """The posterior of each function, by the method of the recipe, at the hyperparameters that were learned."""
    prior, row_noise = scores.prior, None
    if task.row_noise is not None:
        prior, row_noise = GP(prior.kernel, noise=KnownNoise()), scores.row_noise()
    prior.requires_grad_(False)
    targets = scores.targets(task.y)
    columns = [task.data.with_targets(column.contiguous(), row_noise) for column in targets.unbind(1)]
    method = recipe.predicting_method(task.with_targets(task.y), prior)
    if isinstance(method, CaGPLocal):
        k = min(num_neighbours, task.num_rows)
        return [method.condition(column, num_neighbours=k, shares_rows=True) for column in columns]
    methods = [method] * len(columns)
    if isinstance(method, CaGPOpt):  # actions that all functions share are learned at fixed hyperparameters
        several = sharing_actions(method, [prior] * len(columns))
        noise = None if row_noise is None else row_noise[:, None].expand(targets.shape).contiguous()
        regression, folder = task.with_targets(targets, noise), f"{name}opt-actions-{task.mean}"
        regression.run(several, folder, most_steps=STEPS, reserve=task.reserve(SCORES_RESERVE))
        methods = several.parts
    return [each.condition(column) for each, column in zip(methods, columns, strict=True)]
